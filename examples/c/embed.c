/* Finds the texts that are nearest to a query: each becomes a vector, and the cosine of two says how much they mean the
 * same. Models that were made for that know it best; some want a word before a query, which comes as a part of it.
 *
 *   embed MODEL.gguf QUERY TEXT...
 */
#include <segno.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct found {
    const char *text;
    float cosine;
};

static segno_error *err; /* of the last call */

/* Ends the program with the library's message when a call has failed. */
static void check(const char *what, segno_status status) {
    if (SEGNO_FAILED(status)) {
        fprintf(stderr, "%s: %s (%s)\n", what, segno_error_message(err), segno_status_str(status));
        exit(1);
    }
}

static void *room(size_t count, size_t size) {
    void *block = calloc(count + 1, size);
    if (block == NULL) exit(1);
    return block;
}

static int by_cosine(const void *a, const void *b) {
    const float x = ((const struct found *)a)->cosine, y = ((const struct found *)b)->cosine;
    return (x < y) - (x > y);
}

/* The vectors of all texts, one behind the other, each of the length 1. */
static float *embed(segno_model *model, segno_session *session, char **texts, size_t count, size_t *dims) {
    size_t used = 0, capacity = 0;
    for (size_t i = 0; i < count; i++) capacity += strlen(texts[i]) + 16;
    int32_t *tokens = room(capacity, sizeof *tokens);
    size_t *lengths = room(count, sizeof *lengths);
    for (size_t i = 0; i < count; i++) {
        const uint32_t flags = SEGNO_TOKENIZE_ADD_SPECIAL;
        check("tokenize",
            segno_tokenize(
                model, texts[i], strlen(texts[i]), flags, tokens + used, capacity - used, &lengths[i], &err));
        used += lengths[i];
    }
    check("embed", segno_embed(session, tokens, lengths, count, NULL, NULL, 0, dims, &err));
    float *vectors = room(count * *dims, sizeof *vectors);
    check("embed", segno_embed(session, tokens, lengths, count, NULL, vectors, count * *dims, dims, &err));
    free(tokens);
    free(lengths);
    return vectors;
}

int main(int argc, char **argv) {
    if (argc < 4) {
        fprintf(stderr, "usage: embed MODEL.gguf QUERY TEXT...\n");
        return 2;
    }
    segno_ctx *ctx;
    segno_model *model;
    segno_session *session;
    segno_ctx_opts ctx_opts;
    segno_session_opts session_opts;
    segno_ctx_opts_init(&ctx_opts, sizeof ctx_opts);
    ctx_opts.device = SEGNO_DEVICE_CPU;
    check("context", segno_ctx_create(SEGNO_ABI_VERSION, &ctx_opts, &ctx, &err));
    check("load", segno_model_load(ctx, argv[1], NULL, &model, &err));
    segno_session_opts_init(&session_opts, sizeof session_opts);
    session_opts.max_seqs = 32; /* most texts of a pass */
    check("session", segno_session_create(model, &session_opts, &session, &err));

    const size_t count = (size_t)argc - 2;
    size_t dims;
    float *vectors = embed(model, session, argv + 2, count, &dims);
    struct found *all = room(count, sizeof *all);
    for (size_t i = 1; i < count; i++) {
        all[i - 1].text = argv[i + 2];
        for (size_t d = 0; d < dims; d++) all[i - 1].cosine += vectors[d] * vectors[i * dims + d];
    }
    qsort(all, count - 1, sizeof *all, by_cosine);
    for (size_t i = 0; i + 1 < count; i++) printf("%6.3f  %s\n", (double)all[i].cosine, all[i].text);

    free(all);
    free(vectors);
    segno_session_free(session);
    segno_model_free(model);
    segno_ctx_free(ctx);
    return 0;
}
