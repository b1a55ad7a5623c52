/* What the programs of this folder share: they were written for ABI 0, are compiled against the header of that time, and must run with every
 * later library of ABI 0. */
#ifndef HOST_H
#define HOST_H

#include "segno.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REQUIRE(condition)                                                   \
    do {                                                                     \
        if (!(condition)) {                                                  \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);  \
            exit(1);                                                         \
        }                                                                    \
    } while (0)

/* The call succeeds; otherwise its message is shown. */
#define OK(call)                                                                                 \
    do {                                                                                         \
        segno_error *err = NULL;                                                                 \
        if ((call) != SEGNO_OK) {                                                                \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__,                               \
                    segno_status_str(segno_error_code(err)), segno_error_message(err));          \
            exit(1);                                                                             \
        }                                                                                        \
    } while (0)

static int log_lines;

static void count_lines(void *user, int32_t level, const char *message)
{
    REQUIRE(user == &log_lines && level >= SEGNO_LOG_ERROR && message[0] != '\0');
    log_lines++;
}

static int32_t remember(void *user, float done)
{
    *(float *)user = done;
    return 0;
}

/* A context with two threads that logs, and the model in it; the model keeps the context alive. */
static segno_model *load(const char *path)
{
    segno_ctx_opts options;
    segno_model_opts loading;
    segno_ctx *ctx;
    segno_model *model;
    float done = 0;
    segno_ctx_opts_init(&options, sizeof options);
    options.device = SEGNO_DEVICE_CPU;
    options.n_threads = 2;
    options.log = count_lines;
    options.log_user = &log_lines;
    OK(segno_ctx_create(SEGNO_ABI_VERSION, &options, &ctx, &err));
    segno_model_opts_init(&loading, sizeof loading);
    loading.progress = remember;
    loading.progress_user = &done;
    OK(segno_model_load(ctx, path, &loading, &model, &err));
    REQUIRE(done == 1.0f && log_lines > 0);
    segno_ctx_free(ctx);
    return model;
}

/* Tokens of a text, which are known to be fewer than `room`. */
static size_t tokens_of(const segno_model *model, const char *text, int32_t *tokens, size_t room)
{
    size_t count = 0;
    OK(segno_tokenize(model, text, strlen(text), SEGNO_TOKENIZE_ADD_SPECIAL | SEGNO_TOKENIZE_PARSE_SPECIAL, tokens, room, &count, &err));
    REQUIRE(count > 1 && count <= room);
    return count;
}

#endif
