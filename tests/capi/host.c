/* The library in a host's hands: logs and progress through callbacks, objects freed in every order, cancel beside a
 * running call, nothing on the host's standard output or error. */
#include "check.h"

#include <pthread.h>
#include <string.h>

static int log_lines;
static int progress_calls;

static void on_log(void *user, int32_t level, const char *message) {
    CHECK(user == &log_lines && level >= SEGNO_LOG_ERROR && level <= SEGNO_LOG_DEBUG && strlen(message) > 0);
    log_lines++;
}

static int32_t on_progress(void *user, float done) {
    CHECK(done > 0.0f && done <= 1.0f);
    progress_calls++;
    return *(int32_t *)user;
}

static segno_ctx *make_context(void) {
    segno_ctx *ctx;
    segno_ctx_opts opts;
    segno_ctx_opts_init(&opts, sizeof opts);
    opts.n_threads = 2;
    opts.log = on_log;
    opts.log_user = &log_lines;
    EXPECT(SEGNO_OK, segno_ctx_create(SEGNO_ABI_VERSION, &opts, &ctx, &err));
    return ctx;
}

static segno_model *load(
    const segno_ctx *ctx, const char *path, uint32_t flags, int32_t cancel, segno_status expected) {
    segno_model *model;
    segno_model_opts opts;
    segno_model_opts_init(&opts, sizeof opts);
    opts.flags = flags;
    opts.progress = on_progress;
    opts.progress_user = &cancel;
    EXPECT(expected, segno_model_load(ctx, path, &opts, &model, &err));
    CHECK((model == NULL) == (expected != SEGNO_OK));
    return model;
}

static int32_t first_token(segno_session *session) {
    int32_t seq, token = -1;
    const int32_t prompt[3] = {10, 20, 30};
    segno_sampler_opts opts;
    segno_sampler_opts_init(&opts, sizeof opts);
    opts.temperature = 0.0f;
    EXPECT(SEGNO_OK, segno_seq_open(session, &opts, &seq, &err));
    EXPECT(SEGNO_OK, segno_seq_prefill(session, seq, prompt, 3, &err));
    CHECK(segno_decode_step(session, seq, &token, NULL) >= 0 && token >= 0);
    return token;
}

/* Frees context, model and session in the order given by the digits of `order`. */
static void free_in_order(const char *path, const char *order, int32_t expected) {
    segno_ctx *ctx = make_context();
    segno_model *model = load(ctx, path, 0, 0, SEGNO_OK);
    segno_session *session;
    EXPECT(SEGNO_OK, segno_session_create(model, NULL, &session, &err));
    for (const char *next = order; *next; next++) {
        if (*next == 'c') segno_ctx_free(ctx);
        if (*next == 'm') segno_model_free(model);
        if (*next == 's') {
            CHECK(first_token(session) == expected);
            segno_session_free(session);
        }
    }
}

static void *cancel_soon(void *session) {
    CHECK(segno_session_cancel(UNTYPED(session), 1) == SEGNO_OK);
    return NULL;
}

static void cancel_beside_a_call(const segno_model *model) {
    segno_session *session;
    pthread_t canceller;
    int32_t seq, token;
    EXPECT(SEGNO_OK, segno_session_create(model, NULL, &session, &err));
    first_token(session);
    EXPECT(SEGNO_OK, segno_seq_open(session, NULL, &seq, &err));
    token = 1;
    EXPECT(SEGNO_OK, segno_seq_append(session, seq, &token, 1, &err));
    CHECK(pthread_create(&canceller, NULL, cancel_soon, session) == 0);
    while (segno_decode_step(session, seq, &token, NULL) != SEGNO_CANCELLED)
        EXPECT(SEGNO_OK, segno_seq_truncate(session, seq, 1, &err));
    CHECK(pthread_join(canceller, NULL) == 0);
    CHECK(segno_session_cancel(session, 0) == SEGNO_OK);
    CHECK(segno_decode_step(session, seq, &token, NULL) >= SEGNO_OK);
    segno_session_free(session);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    segno_ctx *ctx = make_context();
    CHECK(log_lines > 0);
    segno_model *model = load(ctx, argv[1], 0, 0, SEGNO_OK);
    CHECK(progress_calls > 0);
    load(ctx, argv[1], 0, 1, SEGNO_CANCELLED);
    load(ctx, argv[1], SEGNO_MODEL_NO_MMAP, 1, SEGNO_CANCELLED);

    segno_session *session;
    segno_memory memory;
    EXPECT(SEGNO_OK, segno_session_create(model, NULL, &session, &err));
    EXPECT(SEGNO_OK, segno_session_memory(session, &memory, sizeof memory, &err));
    CHECK(memory.host_weights > 1000000 && memory.host_kv > 0 && memory.host_arena > 0);
    int32_t expected = first_token(session);
    segno_session_free(session);

    segno_model *copy = load(ctx, argv[1], SEGNO_MODEL_NO_MMAP, 0, SEGNO_OK);
    EXPECT(SEGNO_OK, segno_session_create(copy, NULL, &session, &err));
    CHECK(first_token(session) == expected);
    segno_session_free(session);
    segno_model_free(copy);

    const char *orders[6] = {"cms", "csm", "mcs", "msc", "scm", "smc"};
    for (int i = 0; i < 6; i++) free_in_order(argv[1], orders[i], expected);
    cancel_beside_a_call(model);
    segno_model_free(model);
    segno_ctx_free(ctx);
    puts("host: passed");
    return 0;
}
