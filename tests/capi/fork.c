/* A fork beside a running step, and beside one that was submitted: every call of the child answers an error or does
 * nothing, and none waits. The parent goes on. */
#define _DEFAULT_SOURCE
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

enum { FORKS = 60, SECONDS = 20 };

static segno_session *session, *submitted;
static int32_t seq, submitted_seq;
static int stop;
static long steps;

/* Steps without end, so that most forks meet one. */
static void *run(void *unused) {
    (void)unused;
    while (!__atomic_load_n(&stop, __ATOMIC_SEQ_CST)) {
        int32_t token;
        if (SEGNO_FAILED(segno_decode_step(session, seq, &token, NULL))) {
            int32_t prompt[] = {5};
            CHECK(segno_seq_truncate(session, seq, 0, NULL) == SEGNO_OK);
            CHECK(segno_seq_append(session, seq, prompt, 1, NULL) == SEGNO_OK);
        }
        __atomic_fetch_add(&steps, 1, __ATOMIC_SEQ_CST);
    }
    return NULL;
}

/* Which call of the child does not answer as it should; 0 for none. The child has no streams to write to. */
static int first_fault(segno_ctx *ctx, segno_model *model, segno_text *text, const char *path) {
    int32_t token;
    size_t count;
    char piece[64];
    segno_error *error = NULL;
    segno_ctx *other_ctx = NULL;
    segno_model *other_model = NULL;
    if (segno_decode_step(session, seq, &token, &error) != SEGNO_E_UNSUPPORTED) return 1;
    if (strstr(segno_error_message(error), "fork") == NULL) return 2;
    segno_error_free(error);
    if (segno_session_cancel(session, 1) != SEGNO_E_UNSUPPORTED) return 3;
    if (segno_seq_length(session, seq, &count, NULL) != SEGNO_E_UNSUPPORTED) return 4;
    if (segno_tokenize(model, "a", 1, 0, &token, 1, &count, NULL) != SEGNO_E_UNSUPPORTED) return 5;
    if (segno_text_push(text, 5, piece, sizeof piece, &count, NULL) != SEGNO_E_UNSUPPORTED) return 6;
    if (segno_model_load(ctx, path, NULL, &other_model, NULL) != SEGNO_E_UNSUPPORTED) return 7;
    if (segno_ctx_create(SEGNO_ABI_VERSION, NULL, &other_ctx, NULL) != SEGNO_E_UNSUPPORTED) return 8;
    segno_status status;
    if (segno_session_poll(submitted, UINT64_MAX, &token, &status, NULL) != SEGNO_E_UNSUPPORTED) return 10;
    if (segno_session_submit(submitted, NULL, 0, NULL, NULL) != SEGNO_E_UNSUPPORTED) return 11;
    if (segno_abi_version() != SEGNO_ABI_VERSION || strcmp(segno_status_str(SEGNO_OK), "SEGNO_OK") != 0) return 9;
    segno_text_free(text);
    segno_session_free(session);
    segno_session_free(submitted);
    segno_model_free(model);
    segno_ctx_free(ctx);
    return 0;
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    segno_ctx *ctx;
    segno_model *model;
    segno_text *text;
    segno_ctx_opts opts;
    int32_t prompt[] = {5};
    segno_ctx_opts_init(&opts, sizeof opts);
    opts.device = SEGNO_DEVICE_CPU;
    opts.n_threads = 2;

    /* Before the first context the library belongs to nobody, so a child of that time is free to use it. */
    pid_t early = fork();
    CHECK(early >= 0);
    if (early == 0) _exit(segno_ctx_create(SEGNO_ABI_VERSION, &opts, &ctx, NULL) == SEGNO_OK ? 0 : 1);
    int status;
    CHECK(waitpid(early, &status, 0) == early && WIFEXITED(status) && WEXITSTATUS(status) == 0);

    CHECK(segno_ctx_create(SEGNO_ABI_VERSION, &opts, &ctx, NULL) == SEGNO_OK);
    CHECK(segno_model_load(ctx, argv[1], NULL, &model, NULL) == SEGNO_OK);
    CHECK(segno_text_create(model, NULL, &text, NULL) == SEGNO_OK);
    CHECK(segno_session_create(model, NULL, &session, NULL) == SEGNO_OK);
    CHECK(segno_seq_open(session, NULL, &seq, NULL) == SEGNO_OK);
    CHECK(segno_seq_append(session, seq, prompt, 1, NULL) == SEGNO_OK);
    CHECK(segno_session_create(model, NULL, &submitted, NULL) == SEGNO_OK);
    CHECK(segno_seq_open(submitted, NULL, &submitted_seq, NULL) == SEGNO_OK);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, run, NULL) == 0);

    for (int i = 0; i < FORKS; i++) {
        long before = __atomic_load_n(&steps, __ATOMIC_SEQ_CST);
        while (__atomic_load_n(&steps, __ATOMIC_SEQ_CST) == before) usleep(100);
        usleep((useconds_t)(i * 37 % 500));
        int32_t token;
        segno_status step;
        CHECK(segno_seq_append(submitted, submitted_seq, prompt, 1, NULL) == SEGNO_OK);
        CHECK(segno_session_submit(submitted, &submitted_seq, 1, NULL, NULL) == SEGNO_OK);
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            alarm(SECONDS);
            _exit(first_fault(ctx, model, text, argv[1]));
        }
        CHECK(waitpid(child, &status, 0) == child);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        CHECK(segno_session_poll(submitted, UINT64_MAX, &token, &step, NULL) == SEGNO_OK && token >= 0);
    }

    __atomic_store_n(&stop, 1, __ATOMIC_SEQ_CST);
    CHECK(pthread_join(thread, NULL) == 0);
    segno_text_free(text);
    segno_session_free(session);
    segno_session_free(submitted);
    segno_model_free(model);
    segno_ctx_free(ctx);
    return 0;
}
