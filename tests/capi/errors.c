/* The message that a host shows is that of the call that failed: with SEGNO_TRY, and with a function that takes the
 * place of the error. Also compiled as C++ by tests/cpp/check.sh. */
#include "check.h"

static const segno_model *model;
static int calls;

/* Fails with a message that names the key. */
static segno_status look_up(const char *key, segno_error **err) {
    size_t len;
    calls++;
    return segno_model_meta(model, key, NULL, 0, &len, err);
}

/* Frees the error, and tells whether it says `word`. */
static int says(segno_error *err, const char *word) {
    const int found = strstr(segno_error_message(err), word) != NULL;
    segno_error_free(err);
    return found;
}

static int tried(void) {
    segno_error *err = NULL;
    SEGNO_TRY(look_up("general.architecture", &err), return 0);
    CHECK(err == NULL && calls == 1);
    SEGNO_TRY(look_up("the first", &err), goto first);
    return 0;
first:
    CHECK(says(err, "the first") && calls == 2);
    /* As a statement of its own between `if` and `else`. */
    if (calls == 2) SEGNO_TRY(look_up("the second", &err), return says(err, "the second") && calls == 3);
    else return 0;
    return 0;
}

/* The other right way: the place of the error, which is read after the call, as a function is entered behind all its
 * arguments. */
static int failed_with(segno_status status, segno_error **err, const char *word) {
    return SEGNO_FAILED(status) && says(*err, word);
}

static int outcomes_are_no_errors(const segno_model *loaded) {
    segno_session *session = NULL;
    segno_error *err = NULL;
    int32_t seq = -1, token = 1;
    SEGNO_TRY(segno_session_create(loaded, NULL, &session, &err), return 0);
    SEGNO_TRY(segno_seq_open(session, NULL, &seq, &err), return 0);
    SEGNO_TRY(segno_session_cancel(session, 1), return 0);
    SEGNO_TRY(segno_seq_prefill(session, seq, &token, 1, &err), return 0); /* SEGNO_CANCELLED */
    segno_session_free(session);
    return 1;
}

int main(int argc, char **argv) {
    segno_ctx *ctx;
    segno_model *loaded;
    segno_error *err = NULL;
    CHECK(argc == 2);
    SEGNO_TRY(segno_ctx_create(SEGNO_ABI_VERSION, NULL, &ctx, &err), return 1);
    SEGNO_TRY(segno_model_load(ctx, argv[1], NULL, &loaded, &err), return 1);
    model = loaded;
    CHECK(tried());
    CHECK(failed_with(look_up("the third", &err), &err, "the third"));
    CHECK(failed_with(look_up("the fourth", &err), &err, "the fourth"));
    CHECK(outcomes_are_no_errors(loaded));
    segno_model_free(loaded);
    segno_ctx_free(ctx);
    puts("errors: passed");
    return 0;
}
