/* What every call does with bad pointers, small buffers, sized structs of other versions, and a wrong ABI number. */
#include "check.h"

#include <stddef.h>
#include <unistd.h>

static segno_ctx *ctx;
static segno_model *model;
static segno_session *session;

/* What a library says behind its number that was built for tests, as those of the sanitizers are. */
#ifndef VERSION_SUFFIX
#define VERSION_SUFFIX ""
#endif

static void versions_and_names(void) {
    CHECK(segno_version_number() == SEGNO_VERSION_NUMBER);
    CHECK(segno_abi_version() == SEGNO_ABI_VERSION);
    CHECK(strcmp(segno_version_string(), "0.1.0" VERSION_SUFFIX) == 0);
    CHECK(strcmp(segno_status_str(SEGNO_E_KV_FULL), "SEGNO_E_KV_FULL") == 0);
    CHECK(strcmp(segno_status_str(12345), "unknown status") == 0);
    CHECK(segno_has_feature("scalar") == 1);
    CHECK(segno_has_feature("no such thing") == 0 && segno_has_feature(NULL) == 0);
}

static void errors_of_nothing_are_empty(void) {
    CHECK(segno_error_code(NULL) == SEGNO_OK);
    CHECK(strcmp(segno_error_message(NULL), "") == 0);
    CHECK(segno_error_item(NULL) == -1);
    segno_error_free(NULL);
    segno_ctx_free(NULL);
    segno_model_free(NULL);
    segno_session_free(NULL);
    segno_text_free(NULL);
    CHECK(segno_session_cancel(NULL, 1) == SEGNO_E_NULL_POINTER);
}

/* Objects of another kind, and freed ones. The test `hostile` has them for every function; this one runs under
 * valgrind. */
static void objects_that_are_none(void) {
    segno_session *freed;
    segno_error *err = NULL;
    int32_t seq = -1;
    size_t count = 0;
    EXPECT(SEGNO_OK, segno_session_create(model, NULL, &freed, &err));
    segno_session_free(freed);
    segno_session_free(freed);
    EXPECT(SEGNO_E_INVALID_ARGUMENT, segno_seq_open(freed, NULL, &seq, &err));
    CHECK(segno_session_cancel(freed, 1) == SEGNO_E_INVALID_ARGUMENT);
    CHECK(segno_tokenize((const segno_model *)(const void *)ctx, "a", 1, 0, NULL, 0, &count, &err) ==
        SEGNO_E_INVALID_ARGUMENT);
    CHECK(strcmp(segno_error_message(err), "`model` is a segno_ctx, not a segno_model") == 0);
    segno_ctx_free((segno_ctx *)(void *)model);
    segno_error_free((segno_error *)(void *)session);
    segno_error_free(err);
    segno_error_free(err);
    CHECK(segno_error_code(err) == SEGNO_E_INVALID_ARGUMENT && segno_error_item(err) == -1);
    CHECK(strcmp(segno_error_message(err), "") == 0);
    EXPECT(SEGNO_OK, segno_seq_open(session, NULL, &seq, &err));
    EXPECT(SEGNO_OK, segno_seq_close(session, seq, &err));
}

static void another_abi_is_refused_first(void) {
    segno_ctx *other = (segno_ctx *)(size_t)1;
    EXPECT(SEGNO_E_ABI, segno_ctx_create(SEGNO_ABI_VERSION + 1, NULL, &other, &err));
    CHECK(other == NULL);
    EXPECT(SEGNO_E_ABI, segno_ctx_create(SEGNO_ABI_VERSION + 1, NULL, NULL, &err));
    EXPECT(SEGNO_E_NULL_POINTER, segno_ctx_create(SEGNO_ABI_VERSION, NULL, NULL, &err));
    CHECK(segno_ctx_create(SEGNO_ABI_VERSION + 1, NULL, &other, NULL) == SEGNO_E_ABI);
}

static void failed_creation_sets_null(void) {
    segno_model *failed_model = (segno_model *)(size_t)1;
    EXPECT(SEGNO_E_IO, segno_model_load(ctx, "/no/such/file.gguf", NULL, &failed_model, &err));
    CHECK(failed_model == NULL);
    EXPECT(SEGNO_E_NULL_POINTER, segno_model_load(ctx, NULL, NULL, &failed_model, &err));
    EXPECT(SEGNO_E_NULL_POINTER, segno_model_load(NULL, "x", NULL, &failed_model, &err));
    EXPECT(SEGNO_E_INVALID_ARGUMENT, segno_model_load(ctx, "", NULL, &failed_model, &err));
    segno_plan plan;
    EXPECT(SEGNO_E_INVALID_ARGUMENT, segno_plan_get(ctx, "", NULL, NULL, &plan, sizeof plan, &err));
    EXPECT(SEGNO_E_INVALID_ARGUMENT, segno_model_load(ctx, "\xff\xfe", NULL, &failed_model, &err));
    segno_session *failed_session = (segno_session *)(size_t)1;
    EXPECT(SEGNO_E_NULL_POINTER, segno_session_create(NULL, NULL, &failed_session, &err));
    CHECK(failed_session == NULL);
}

/* A host compiled against a later header passes a larger struct: fine while what the library does not know is zero. */
static void structs_of_other_sizes(void) {
    struct {
        segno_session_opts opts;
        uint64_t later[4];
    } larger;
    segno_session *s;
    memset(&larger, 0xAA, sizeof larger);
    segno_session_opts_init(&larger.opts, sizeof larger);
    CHECK(larger.opts.struct_size == sizeof larger && larger.opts.max_seqs == 8 && larger.later[3] == 0);
    EXPECT(SEGNO_OK, segno_session_create(model, &larger.opts, &s, &err));
    segno_session_free(s);
    larger.later[2] = 1;
    EXPECT(SEGNO_E_UNSUPPORTED, segno_session_create(model, &larger.opts, &s, &err));

    segno_session_opts smaller;
    memset(&smaller, 0xAA, sizeof smaller);
    segno_session_opts_init(&smaller, offsetof(segno_session_opts, kv_tokens));
    CHECK(smaller.struct_size == offsetof(segno_session_opts, kv_tokens) && smaller.kv_type == (int32_t)0xAAAAAAAA);
    EXPECT(SEGNO_OK, segno_session_create(model, &smaller, &s, &err));
    segno_session_free(s);
    smaller.struct_size = 3;
    EXPECT(SEGNO_E_INVALID_ARGUMENT, segno_session_create(model, &smaller, &s, &err));
    segno_session_opts_init(NULL, sizeof smaller);
    segno_session_opts_init(&smaller, 2);

    union {
        segno_model_info info;
        unsigned char bytes[sizeof(segno_model_info) + 16];
    } out;
    memset(&out, 0xAA, sizeof out);
    EXPECT(SEGNO_OK, segno_model_info_get(model, &out.info, 8, &err));
    CHECK(out.info.struct_size == 8 && out.info.vocab > 0 && out.info.context == 0xAAAAAAAA);
    EXPECT(SEGNO_OK, segno_model_info_get(model, &out.info, sizeof out, &err));
    CHECK(out.info.context > 0 && out.bytes[sizeof out - 1] == 0);
    CHECK(strcmp(out.info.arch, "llama") == 0 && out.info.parameters > 1000000);
    EXPECT(SEGNO_E_INVALID_ARGUMENT, segno_model_info_get(model, &out.info, 3, &err));
    EXPECT(SEGNO_E_NULL_POINTER, segno_model_info_get(model, NULL, sizeof out, &err));
}

static void devices(void) {
    int32_t count = -1;
    segno_device_info info;
    EXPECT(SEGNO_OK, segno_device_count(SEGNO_DEVICE_CPU, &count, &err));
    CHECK(count == 1);
    EXPECT(SEGNO_OK, segno_device_count(SEGNO_DEVICE_CUDA, &count, &err));
    CHECK(count >= 0);
    /* A GPU is of use to a library with kernels for it. */
    CHECK(segno_has_feature("cuda") == 0 || (segno_has_feature("cuda") == 1 && count > 0));
    EXPECT(SEGNO_E_NOT_FOUND, segno_device_info_get(SEGNO_DEVICE_CUDA, count, &info, sizeof info, &err));
    EXPECT(SEGNO_E_INVALID_ARGUMENT, segno_device_count(77, &count, &err));
    EXPECT(SEGNO_OK, segno_device_info_get(SEGNO_DEVICE_AUTO, 0, &info, sizeof info, &err));
    CHECK(info.memory_total > 0 && info.name[0] != 0);
    CHECK((info.kind == SEGNO_DEVICE_CUDA) == (info.driver_version != 0));
    EXPECT(SEGNO_E_INVALID_ARGUMENT, segno_device_info_get(SEGNO_DEVICE_CPU, -1, &info, sizeof info, &err));
}

static void sizes_are_told_and_small_buffers_get_nothing(void) {
    const char *text = "To be, or not to be";
    int32_t tokens[64];
    char buf[64];
    size_t count = 0, len = 0;
    EXPECT(SEGNO_OK, segno_tokenize(model, text, strlen(text), 0, NULL, 0, &count, &err));
    CHECK(count > 3 && count < 30);
    tokens[0] = -5;
    EXPECT(SEGNO_E_BUFFER_TOO_SMALL, segno_tokenize(model, text, strlen(text), 0, tokens, count - 1, &count, &err));
    CHECK(tokens[0] == -5);
    EXPECT(SEGNO_E_NULL_POINTER, segno_tokenize(model, text, strlen(text), 0, NULL, 5, &count, &err));
    EXPECT(SEGNO_E_NULL_POINTER, segno_tokenize(model, NULL, 3, 0, tokens, 64, &count, &err));
    EXPECT(SEGNO_OK, segno_tokenize(model, NULL, 0, 0, tokens, 64, &count, &err));
    CHECK(count == 0);
    EXPECT(SEGNO_E_INVALID_ARGUMENT, segno_tokenize(model, "ab\xff", 3, 0, tokens, 64, &count, &err));
    EXPECT(SEGNO_E_INVALID_ARGUMENT, segno_tokenize(model, text, strlen(text), 1u << 31, tokens, 64, &count, &err));
    EXPECT(SEGNO_E_INVALID_ARGUMENT, segno_tokenize(model, text, (size_t)-1, 0, tokens, 64, &count, &err));
    EXPECT(SEGNO_OK, segno_tokenize(model, text, strlen(text), 0, tokens, 64, &count, &err));
    EXPECT(SEGNO_E_BUFFER_TOO_SMALL, segno_detokenize(model, tokens, count, 0, buf, 3, &len, &err));
    CHECK(len == strlen(text));
    EXPECT(SEGNO_OK, segno_detokenize(model, tokens, count, 0, buf, sizeof buf, &len, &err));
    CHECK(len == strlen(text) && memcmp(buf, text, len) == 0);
    tokens[1] = 1 << 30;
    EXPECT(SEGNO_E_INVALID_ARGUMENT, segno_detokenize(model, tokens, count, 0, buf, sizeof buf, &len, &err));
}

static void sequences_with_bad_arguments(void) {
    int32_t seq = -1, token = 0, tokens[4] = {1, 2, 3, 4};
    float logits[2];
    size_t count = 0;
    EXPECT(SEGNO_E_NULL_POINTER, segno_seq_open(NULL, NULL, &seq, &err));
    EXPECT(SEGNO_E_NULL_POINTER, segno_seq_open(session, NULL, NULL, &err));
    EXPECT(SEGNO_OK, segno_seq_open(session, NULL, &seq, &err));
    EXPECT(SEGNO_E_NULL_POINTER, segno_seq_append(session, seq, NULL, 2, &err));
    EXPECT(SEGNO_OK, segno_seq_append(session, seq, NULL, 0, &err));
    EXPECT(SEGNO_E_INVALID_ARGUMENT, segno_decode_step(session, seq, &token, &err));
    EXPECT(SEGNO_E_NULL_POINTER, segno_decode_step(session, seq, NULL, &err));
    EXPECT(SEGNO_OK, segno_seq_append(session, seq, tokens, 4, &err));
    EXPECT(SEGNO_E_BUFFER_TOO_SMALL, segno_seq_logits(session, seq, logits, 2, &count, &err));
    CHECK(count > 2);
    EXPECT(SEGNO_E_NULL_POINTER, segno_decode_batch(session, &seq, 1, &token, NULL, &err));
    EXPECT(SEGNO_E_NULL_POINTER, segno_decode_batch(session, &seq, 1, NULL, &token, &err));
    EXPECT(SEGNO_E_NULL_POINTER, segno_decode_batch(session, NULL, 1, &token, &token, &err));
    EXPECT(SEGNO_OK, segno_decode_batch(session, NULL, 0, NULL, NULL, &err));
    EXPECT(SEGNO_E_NOT_FOUND, segno_seq_fork(session, seq + 1, NULL, &seq, &err));
    EXPECT(SEGNO_OK, segno_seq_close(session, seq, &err));
}

static void events_that_do_not_fit_wait(void) {
    segno_event events[8];
    segno_reply_opts opts;
    segno_reply *reply = NULL;
    int32_t tokens[2];
    size_t count = 9;
    segno_reply_opts_init(&opts, sizeof opts);
    opts.format = "plain";
    EXPECT(SEGNO_OK, segno_tokenize(model, "xy", 2, 0, tokens, 2, &count, &err));
    EXPECT(SEGNO_OK, segno_reply_create(model, &opts, &reply, &err));
    EXPECT(SEGNO_E_BUFFER_TOO_SMALL, segno_reply_push(reply, tokens[0], NULL, 0, &count, &err));
    CHECK(count == 1);
    EXPECT(SEGNO_E_INVALID_ARGUMENT, segno_reply_flush(reply, events, 8, &count, &err));
    EXPECT(SEGNO_E_INVALID_ARGUMENT, segno_reply_push(reply, tokens[0] + 1, events, 8, &count, &err));
    EXPECT(SEGNO_OK, segno_reply_push(reply, tokens[0], events, 1, &count, &err));
    CHECK(count == 1 && events[0].kind == SEGNO_EVENT_CONTENT && events[0].len >= 1 && events[0].text[0] == 'x');
    EXPECT(SEGNO_E_INVALID_ARGUMENT, segno_reply_push(reply, -1, events, 8, &count, &err));
    EXPECT(SEGNO_E_BUFFER_TOO_SMALL, segno_reply_flush(reply, events, 0, &count, &err));
    EXPECT(SEGNO_OK, segno_reply_flush(reply, events, count, &count, &err));
    CHECK(count == 1 && events[0].kind == SEGNO_EVENT_END && events[0].len == 0 && events[0].id_len == 0);
    segno_reply_free(reply);
}

static int32_t refuse(void *user, float done) {
    ++*(int *)user;
    return done >= 0;
}

static void models_are_saved_whole_or_not_at_all(void) {
    char path[64];
    int calls = 0;
    segno_save_opts opts;
    segno_model *saved = NULL;
    segno_model_info before, after;
    FILE *file;
    snprintf(path, sizeof path, "/tmp/segno-boundary-%ld.gguf", (long)getpid());
    segno_save_opts_init(&opts, sizeof opts);
    opts.progress = refuse;
    opts.progress_user = &calls;
    EXPECT(SEGNO_CANCELLED, segno_model_save(model, path, &opts, &err));
    CHECK(calls == 1 && fopen(path, "rb") == NULL);
    opts.reserved = 1;
    EXPECT(SEGNO_E_INVALID_ARGUMENT, segno_model_save(model, path, &opts, &err));
    EXPECT(SEGNO_E_INVALID_ARGUMENT, segno_model_save(model, "", NULL, &err));
    EXPECT(SEGNO_E_INVALID_ARGUMENT, segno_model_save(model, "/", NULL, &err));
    EXPECT(SEGNO_E_IO, segno_model_save(model, "/no/such/folder/file", NULL, &err));
    EXPECT(SEGNO_E_NULL_POINTER, segno_model_save(model, NULL, NULL, &err));
    EXPECT(SEGNO_E_NULL_POINTER, segno_model_save(NULL, path, NULL, &err));
    EXPECT(SEGNO_OK, segno_model_save(model, path, NULL, &err));
    EXPECT(SEGNO_OK, segno_model_load(ctx, path, NULL, &saved, &err));
    EXPECT(SEGNO_OK, segno_model_info_get(model, &before, sizeof before, &err));
    EXPECT(SEGNO_OK, segno_model_info_get(saved, &after, sizeof after, &err));
    CHECK(memcmp(&before, &after, sizeof before) == 0);
    segno_model_free(saved);
    CHECK((file = fopen(path, "rb")) != NULL && fclose(file) == 0 && remove(path) == 0);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    versions_and_names();
    errors_of_nothing_are_empty();
    another_abi_is_refused_first();
    devices();
    EXPECT(SEGNO_OK, segno_ctx_create(SEGNO_ABI_VERSION, NULL, &ctx, &err));
    failed_creation_sets_null();
    EXPECT(SEGNO_OK, segno_model_load(ctx, argv[1], NULL, &model, &err));
    structs_of_other_sizes();
    models_are_saved_whole_or_not_at_all();
    sizes_are_told_and_small_buffers_get_nothing();
    events_that_do_not_fit_wait();
    EXPECT(SEGNO_OK, segno_session_create(model, NULL, &session, &err));
    sequences_with_bad_arguments();
    objects_that_are_none();
    segno_session_free(session);
    segno_model_free(model);
    segno_ctx_free(ctx);
    puts("boundary: passed");
    return 0;
}
