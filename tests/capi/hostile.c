/* A host that does everything wrong. Every exported function is called with each of its pointers NULL, each of its
 * numbers wrong, short buffers, structs of other sizes, lists of its options NULL, beside a running call, and without a
 * place for the error; objects are freed in every order. functions.h has the table of functions and parameters.
 *
 * usage: test_hostile MODEL.gguf [no-avx512] */
#include "world.h"

#include <pthread.h>
#include <stddef.h>
#include <time.h>

static char said[2048]; /* the message of the last error */

/* Where a parameter of this kind stands, -1 for nowhere. */
static int place_of(const function *f, kind k) {
    for (int i = 0; i < 6; i++)
        if (f->kinds[i] == k) return i;
    return -1;
}

static void set(const function *f, args *a, number k, int64_t wanted) {
    for (int i = 0; i < 4; i++)
        if (f->numbers[i] == k) a->n[i] = wanted;
}

/* Calls in a fresh world, and checks the error object. */
static segno_status attempt(const function *f, args *a, int with_error) {
    error = (segno_error *)(size_t)1;
    value = NULL;
    a->err = with_error ? &error : NULL;
    segno_status status = f->call(a);
    CHECK(status != SEGNO_E_PANIC && status != SEGNO_E_POISONED);
    if (f->has_err && with_error) {
        CHECK((error != NULL) == SEGNO_FAILED(status));
        CHECK(segno_error_code(error) == (error != NULL ? status : SEGNO_OK));
        snprintf(said, sizeof said, "%s", segno_error_message(error));
        segno_error_free(error);
    }
    if (f->release != NULL) {
        CHECK(status >= 0 || value == NULL);
        f->release(value);
    }
    return status;
}

static void expect(const function *f, segno_status expected, segno_status got, const char *what) {
    if (got == expected || (expected == SEGNO_OK && got >= 0)) return;
    fprintf(stderr, "%s, %s: %s, expected %s\n", f->name, what, segno_status_str(got), segno_status_str(expected));
    exit(1);
}

static segno_status meaning_of_null(const function *f, kind k) {
    if (f->is_free || k == OPTS || k == SECOND || k == FILL || k == NAME || k == NONE || k == ERROR || k == RULES ||
        k == SCALES || k == USER)
        return f->good;
    return SEGNO_E_NULL_POINTER;
}

/* Whether the last message names pointer `index` as the header does. */
static int names(const function *f, int index) {
    char quoted[64];
    const char *name = f->names;
    for (int i = 0; i < index; i++) name = strchr(name, ' ') + 1;
    snprintf(quoted, sizeof quoted, "`%.*s`", (int)strcspn(name, " "), name);
    if (strstr(said, quoted) == NULL) fprintf(stderr, "%s, %s: the message is: %s\n", f->name, quoted, said);
    return strstr(said, quoted) != NULL;
}

/* What a call was refused for has changed nothing, so the next one is made in the same world. */
static void renew_world_after(segno_status status) {
    if (status < 0) return;
    end_world();
    make_world();
}

static void each_pointer_null(const function *f) {
    make_world();
    for (int i = 0; i < 6 && f->kinds[i] != NONE; i++) {
        for (int with_error = 0; with_error < 2; with_error++) {
            args a = good_args(f);
            a.p[i] = NULL;
            segno_status status = attempt(f, &a, with_error);
            expect(f, meaning_of_null(f, f->kinds[i]), status, "NULL");
            CHECK(status != SEGNO_E_NULL_POINTER || !f->has_err || !with_error || names(f, i));
            renew_world_after(status);
        }
    }
    /* Frees and getters of errors have no good value that outlives the call. */
    if (!f->is_free) {
        args a = good_args(f);
        expect(f, f->good, attempt(f, &a, 1), "good arguments");
    }
    end_world();
}

/* An object of the kind that has been freed. */
static void *freed_object(kind k) {
    segno_ctx *dead_ctx;
    segno_model *dead_model;
    segno_session *dead_session;
    segno_text *dead_text;
    segno_reply *dead_reply;
    segno_chat *dead_chat, *live_chat;
    segno_grammar *dead_grammar;
    segno_adapter *dead_adapter;
    segno_error *dead_error;
    switch (k) {
        case CTX:
            EXPECT(SEGNO_OK, segno_ctx_create(SEGNO_ABI_VERSION, NULL, &dead_ctx, &err));
            segno_ctx_free(dead_ctx);
            return dead_ctx;
        case MODEL:
            EXPECT(SEGNO_OK, segno_model_load(ctx, path, NULL, &dead_model, &err));
            segno_model_free(dead_model);
            return dead_model;
        case SESSION:
            EXPECT(SEGNO_OK, segno_session_create(model, &second.opts, &dead_session, &err));
            segno_session_free(dead_session);
            return dead_session;
        case TEXT:
            EXPECT(SEGNO_OK, segno_text_create(model, NULL, &dead_text, &err));
            segno_text_free(dead_text);
            return dead_text;
        case REPLY:
            EXPECT(SEGNO_OK, segno_reply_create(model, NULL, &dead_reply, &err));
            segno_reply_free(dead_reply);
            return dead_reply;
        case CHAT:
            live_chat = conversation;
            make_conversation(NULL);
            dead_chat = conversation;
            conversation = live_chat;
            segno_chat_free(dead_chat);
            return dead_chat;
        case GRAMMAR:
            EXPECT(SEGNO_OK, segno_grammar_create(model, NULL, &dead_grammar, &err));
            segno_grammar_free(dead_grammar);
            return dead_grammar;
        case ADAPTER:
            EXPECT(SEGNO_OK, segno_adapter_load(model, change(), NULL, &dead_adapter, &err));
            segno_adapter_free(dead_adapter);
            return dead_adapter;
        default:
            CHECK(segno_seq_close(session, closed, &dead_error) == SEGNO_E_NOT_FOUND);
            segno_error_free(dead_error);
            return dead_error;
    }
}

/* Objects of every other kind, a freed one, pointers into an object and to none: a refusal, and frees do nothing. */
static void wrong_objects(const function *f) {
    static unsigned char foreign[128];
    const kind k = f->kinds[0];
    if (k != CTX && k != MODEL && k != SESSION && k != TEXT && k != REPLY && k != CHAT && k != GRAMMAR &&
        k != ADAPTER && k != ERROR)
        return;
    make_world();
    segno_error *live = NULL;
    CHECK(segno_seq_close(session, closed, &live) == SEGNO_E_NOT_FOUND);
    void *of_kind[9] = {ctx, model, session, text, reply, conversation, grammar, adapter, live};
    char *own = (char *)of_kind[k - CTX];
    void *wrong[14] = {ctx, model, session, text, reply, conversation, grammar, adapter, live, freed_object(k), own + 1,
        own + 8, own + 32, foreign + (64 - (size_t)foreign % 64) % 64};
    for (int i = 0; i < 14; i++) {
        args a = good_args(f);
        a.p[0] = wrong[i];
        if (wrong[i] == own) continue;
        const int answers = f->has_err || strcmp(f->name, "segno_session_cancel") == 0;
        expect(f, answers ? SEGNO_E_INVALID_ARGUMENT : SEGNO_OK, attempt(f, &a, 1), "a wrong object");
        CHECK(!f->has_err || names(f, 0));
        CHECK(k != ERROR || segno_error_code((segno_error *)wrong[i]) == SEGNO_E_INVALID_ARGUMENT);
    }
    /* Whatever was to be freed is still there. */
    CHECK(segno_error_code(live) == SEGNO_E_NOT_FOUND);
    segno_error_free(live);
    EXPECT(SEGNO_OK, segno_text_flush(text, NULL, 0, &len, &err));
    EXPECT(SEGNO_OK, segno_seq_prefill(session, seq, tokens, 4, &err));
    end_world();
}

/* Size asked for, then every kind of too little room: nothing is written, and the size needed is told. */
static void short_buffers(const function *f) {
    int at = place_of(f, BUFFER);
    if (at < 0 || f->good != SEGNO_OK) return;
    make_world();
    args a = good_args(f);
    if (a.p[0] == text)
        while (segno_text_push(text, 40, NULL, 0, &len, NULL) == SEGNO_OK && len == 0) continue;
    expect(f, SEGNO_OK, attempt(f, &a, 1), "enough room");
    size_t needed = len;
    const size_t caps[4] = {0, 1, needed / 2, needed - 1};
    for (int i = 0; i < 4 && needed > 0; i++) {
        end_world();
        make_world();
        a = good_args(f);
        set(f, &a, CAP, (int64_t)(caps[i] < needed ? caps[i] : 0));
        memset(buffer, 0x55, sizeof buffer);
        expect(f, SEGNO_E_BUFFER_TOO_SMALL, attempt(f, &a, i % 2), "a short buffer");
        CHECK(len == needed && buffer[0] == buffer[1] && *(unsigned char *)buffer == 0x55);
    }
    set(f, &a, CAP, -1);
    a.p[at] = NULL;
    expect(f, SEGNO_E_NULL_POINTER, attempt(f, &a, 1), "NULL with a size");
    end_world();
}

static uint32_t first_number(const void *bytes) {
    uint32_t first;
    memcpy(&first, bytes, sizeof first);
    return first;
}

static void structs_out(const function *f) {
    if (f->info_size == 0) return;
    make_world();
    /* Of memory that nobody has filled, and of a struct that no library has. */
    const int64_t absurd[3] = {1025, 0xAAAAAAAA, -1};
    for (int i = 0; i < 3; i++) {
        args a = good_args(f);
        set(f, &a, SIZE, absurd[i]);
        memset(info, 0x55, sizeof info);
        expect(f, SEGNO_E_INVALID_ARGUMENT, attempt(f, &a, 1), "a struct of an absurd size");
        CHECK(((unsigned char *)info)[0] == 0x55 && strstr(said, "`out`") != NULL);
    }
    for (size_t size = 0; size <= f->info_size + 64; size++) {
        args a = good_args(f);
        set(f, &a, SIZE, (int64_t)size);
        memset(info, 0x55, sizeof info);
        expect(f, size < 4 ? SEGNO_E_INVALID_ARGUMENT : SEGNO_OK, attempt(f, &a, 1), "a struct of another size");
        const unsigned char *bytes = (const unsigned char *)info;
        CHECK(bytes[size] == 0x55);
        CHECK(size < 4 || first_number(info) == size);
        CHECK(size <= f->info_size || bytes[size - 1] == 0);
    }
    end_world();
}

static void structs_to_be_filled(const function *f) {
    unsigned char *bytes = (unsigned char *)opts;
    for (size_t size = 0; size <= f->opts_size + 64 && f->kinds[0] == FILL; size++) {
        args a = good_args(f);
        set(f, &a, SIZE, (int64_t)size);
        memset(opts, 0x55, sizeof opts);
        f->call(&a);
        CHECK(bytes[size] == 0x55 && (size < 4 || first_number(opts) == size));
    }
}

/* A size that memory nobody has filled may tell: what lies behind the struct is not looked at, let alone written. */
static void structs_of_absurd_sizes(const function *f, kind k, void *options) {
    const uint32_t absurd[4] = {1032, 65536, 0xAAAAAAA8, UINT32_MAX - 7};
    const int is_read = place_of(f, k) >= 0 && f->has_err;
    if (!is_read && f->kinds[0] != FILL) return;
    make_world();
    args a = good_args(f);
    for (int i = 0; i < 4 && is_read; i++) {
        a = good_args(f);
        memcpy(options, &absurd[i], sizeof absurd[i]);
        expect(f, SEGNO_E_INVALID_ARGUMENT, attempt(f, &a, 1), "options of an absurd size");
        CHECK(names(f, place_of(f, k)) && strstr(said, "struct_size") != NULL);
    }
    for (int i = 0; i < 4 && f->kinds[0] == FILL; i++) {
        memset(opts, 0x55, sizeof opts);
        set(f, &a, SIZE, absurd[i]);
        f->call(&a);
        CHECK(((unsigned char *)opts)[0] == 0x55);
    }
    end_world();
}

/* Options of every size: one that ends within a field is refused, for what is left of a pointer leads nowhere. */
static void structs_in(const function *f, kind k, void *options, size_t known) {
    if (place_of(f, k) < 0) return;
    unsigned char *bytes = (unsigned char *)options;
    make_world();
    for (uint32_t size = 0; size <= known + 64; size += size < 16 ? 1 : 4) {
        args a = good_args(f);
        memset(bytes + known, 0, 64);
        memcpy(options, &size, sizeof size);
        segno_status status = attempt(f, &a, 1);
        expect(f, size < 8 || size % 8 != 0 ? SEGNO_E_INVALID_ARGUMENT : f->good, status, "options of another size");
        if (size > known) {
            bytes[size - 1] = 1;
            expect(f, size % 8 != 0 ? SEGNO_E_INVALID_ARGUMENT : SEGNO_E_UNSUPPORTED, attempt(f, &a, 1),
                "options with an unknown field");
        }
        renew_world_after(status);
    }
    end_world();
}

/* Values of numbers that no call can accept, and what it answers. */
static const struct {
    number which;
    int64_t value;
    segno_status answer;
} wrong_numbers[] = {
    {ABI, SEGNO_ABI_VERSION + 1, SEGNO_E_ABI},
    {ABI, SEGNO_ABI_VERSION - 1, SEGNO_E_ABI},
    {ABI, 1u << 31, SEGNO_E_ABI},
    {COUNT, -1, SEGNO_E_INVALID_ARGUMENT},
    {COUNT, INT64_MIN, SEGNO_E_INVALID_ARGUMENT},
    {ID, -1, SEGNO_E_NOT_FOUND},
    {ID, 0, SEGNO_E_NOT_FOUND},
    {ID, INT32_MAX, SEGNO_E_NOT_FOUND},
    {ID, INT32_MIN, SEGNO_E_NOT_FOUND},
    {TOKEN, -1, SEGNO_E_INVALID_ARGUMENT},
    {START, -1, SEGNO_OK},
    {START, -2, SEGNO_E_INVALID_ARGUMENT},
    {START, INT32_MAX, SEGNO_E_INVALID_ARGUMENT},
    {TOKEN, INT32_MAX, SEGNO_E_INVALID_ARGUMENT},
    {TOKEN, INT32_MIN, SEGNO_E_INVALID_ARGUMENT},
    {KEPT, 5, SEGNO_E_INVALID_ARGUMENT},
    {KEPT, -1, SEGNO_E_INVALID_ARGUMENT},
    {FLAGS, 4, SEGNO_E_INVALID_ARGUMENT},
    {FLAGS, UINT32_MAX, SEGNO_E_INVALID_ARGUMENT},
    {CHOICE, SEGNO_TOOLS_FREE - 1, SEGNO_E_INVALID_ARGUMENT},
    {CHOICE, SEGNO_TOOLS_NAMED + 1, SEGNO_E_INVALID_ARGUMENT},
    {DEVICE, -1, SEGNO_E_INVALID_ARGUMENT},
    {DEVICE, SEGNO_DEVICE_CUDA + 1, SEGNO_E_INVALID_ARGUMENT},
    {DEVICE, INT32_MIN, SEGNO_E_INVALID_ARGUMENT},
    {INDEX, 1, SEGNO_E_NOT_FOUND},
    {INDEX, INT32_MAX, SEGNO_E_NOT_FOUND},
    {INDEX, -1, SEGNO_E_INVALID_ARGUMENT},
    {INDEX, INT32_MIN, SEGNO_E_INVALID_ARGUMENT},
    {SWITCH, INT32_MIN, SEGNO_OK},
    {WAIT, 0, SEGNO_OK},
    {WAIT, -1, SEGNO_OK},
    {WAIT, INT64_MAX, SEGNO_OK},
    {CODE, INT32_MIN, SEGNO_OK},
    {CODE, INT32_MAX, SEGNO_OK},
};

static void each_number_wrong(const function *f) {
    make_world();
    for (size_t i = 0; i < sizeof wrong_numbers / sizeof *wrong_numbers; i++) {
        for (int at = 0; at < 4; at++) {
            if (f->numbers[at] != wrong_numbers[i].which) continue;
            args a = good_args(f);
            a.n[at] = wrong_numbers[i].value;
            expect(f, wrong_numbers[i].answer, attempt(f, &a, i % 2), "a wrong number");
        }
    }
    const int32_t ids[2] = {closed, seq + 1};
    for (int i = 0; i < 2 && f->numbers[0] == ID; i++) {
        args a = good_args(f);
        a.n[0] = ids[i];
        expect(f, SEGNO_E_NOT_FOUND, attempt(f, &a, i % 2), "an id that is not open");
    }
    end_world();
}

/* Lists inside options: NULL with a count, and counts that no memory holds. */
static void lists_in_options(void) {
    segno_sampler_opts sampler;
    segno_text_opts stream;
    segno_chat_opts chat;
    int32_t id;
    const size_t counts[3] = {1, (size_t)-1, (size_t)1 << 63};
    make_world();
    for (int i = 0; i < 3; i++) {
        segno_status answer = SEGNO_E_NULL_POINTER;
        for (int given = 0; given < 2; given++, answer = SEGNO_E_INVALID_ARGUMENT) {
            if (given && i == 0) continue;
            void *list = given ? buffer : NULL;
            segno_sampler_opts_init(&sampler, sizeof sampler);
            sampler.bias = UNTYPED(list);
            sampler.bias_count = counts[i];
            EXPECT(answer, segno_seq_sampler_set(session, seq, &sampler, &err));
            segno_sampler_opts_init(&sampler, sizeof sampler);
            sampler.stop_tokens = UNTYPED(list);
            sampler.stop_token_count = counts[i];
            EXPECT(answer, segno_seq_open(session, &sampler, &id, &err));
            EXPECT(answer, segno_seq_fork(session, seq, &sampler, &id, &err));
            segno_text_opts_init(&stream, sizeof stream);
            stream.stops = UNTYPED(list);
            stream.stop_count = counts[i];
            EXPECT(answer, segno_text_create(model, &stream, (segno_text **)&value, &err));
            segno_string stop = {UNTYPED(list), counts[i]};
            stream.stops = &stop;
            stream.stop_count = 1;
            EXPECT(answer, segno_text_create(model, &stream, (segno_text **)&value, &err));
            for (int member = 0; member < 3; member++) {
                segno_chat_opts_init(&chat, sizeof chat);
                chat.template_text = member == 0 ? (const char *)list : "x";
                chat.template_len = member == 0 ? counts[i] : 1;
                chat.tools_json = member == 1 ? (const char *)list : NULL;
                chat.tools_len = member == 1 ? counts[i] : 0;
                chat.vars_json = member == 2 ? (const char *)list : NULL;
                chat.vars_len = member == 2 ? counts[i] : 0;
                EXPECT(answer, segno_chat_render(model, "[]", 2, &chat, NULL, 0, &len, &err));
            }
        }
    }
    end_world();
}

static void batches_of_bad_ids(void) {
    make_world();
    int32_t ids[4] = {closed, seq, seq, INT32_MIN}, out[4];
    segno_status statuses[4];
    EXPECT(SEGNO_E_NOT_FOUND, segno_decode_batch(session, ids, 4, out, statuses, &err));
    CHECK(statuses[0] == SEGNO_E_NOT_FOUND && statuses[1] >= 0 && out[1] >= 0);
    CHECK(statuses[2] == SEGNO_E_INVALID_ARGUMENT && statuses[3] == SEGNO_E_NOT_FOUND && out[3] == -1);
    EXPECT(SEGNO_E_INVALID_ARGUMENT, segno_decode_batch(session, ids, (size_t)-1, out, statuses, &err));
    EXPECT(SEGNO_E_INVALID_ARGUMENT, segno_seq_append(session, seq, tokens, (size_t)-1 / 4, &err));
    end_world();
}

static void chats_in_short_buffers(void) {
    segno_chat_opts chat;
    char room[16];
    segno_chat_opts_init(&chat, sizeof chat);
    chat.template_text = "0123456789";
    chat.template_len = 10;
    for (size_t cap = 0; cap < 12; cap++) {
        memset(room, 0x55, sizeof room);
        EXPECT(cap < 10 ? SEGNO_E_BUFFER_TOO_SMALL : SEGNO_OK,
            segno_chat_render(model, "[]", 2, &chat, room, cap, &len, &err));
        CHECK(len == 10 && room[0] == (cap < 10 ? 0x55 : '0') && room[10] == 0x55);
    }
    chat.template_text = NULL;
    EXPECT(SEGNO_E_NULL_POINTER, segno_chat_render(model, "[]", 2, &chat, room, sizeof room, &len, &err));
}

static volatile int running;

static int orderly(segno_status status) {
    return status >= 0 || status == SEGNO_E_BUSY || status == SEGNO_E_CONTEXT_FULL || status == SEGNO_E_KV_FULL;
}

/* Keeps the session busy with prompts, and the text with tokens. */
static void *use_session(void *unused) {
    static int32_t prompt[48];
    for (int i = 0; i < 48; i++) prompt[i] = i;
    while (running) {
        CHECK(orderly(segno_seq_prefill(session, seq, prompt, 48, NULL)));
        segno_status cut = segno_seq_truncate(session, seq, 0, NULL);
        CHECK(orderly(cut));
    }
    return unused;
}

static int runs_beside_others(const function *f) {
    const char *const all[4] = {
        "segno_session_cancel", "segno_session_stats_get", "segno_seq_stats_get", "segno_seq_length"};
    int found = 0;
    for (int i = 0; i < 4; i++) found = found || strcmp(f->name, all[i]) == 0;
    return found;
}

/* Every function of a session answers BUSY beside a running call, sooner or later, but for those that run beside
 * others. */
static void calls_beside_a_running_one(void) {
    pthread_t user;
    make_world();
    running = 1;
    CHECK(pthread_create(&user, NULL, use_session, NULL) == 0);
    for (size_t i = 0; i < FUNCTIONS; i++) {
        const function *f = &functions[i];
        if (f->kinds[0] != SESSION || f->is_free) continue;
        if (runs_beside_others(f)) {
            args a = good_args(f);
            expect(f, SEGNO_OK, attempt(f, &a, 1), "beside a running call");
            CHECK(segno_session_cancel(session, 0) == SEGNO_OK);
            continue;
        }
        segno_status status = SEGNO_OK;
        for (long tries = 0; status != SEGNO_E_BUSY && tries < 10000000; tries++) {
            args a = good_args(f);
            set(f, &a, ID, closed);
            if (a.p[1] == &seq) a.p[1] = &closed;
            status = attempt(f, &a, 1);
            CHECK(orderly(status) || status == SEGNO_E_NOT_FOUND || status == SEGNO_E_SEQ_FULL);
        }
        expect(f, SEGNO_E_BUSY, status, "beside a running call");
    }
    CHECK(segno_session_cancel(session, 0) == SEGNO_OK);
    running = 0;
    CHECK(pthread_join(user, NULL) == 0);
    end_world();
}

static volatile int met;

static void *use_text(void *unused) {
    char room[256];
    size_t used;
    for (long tries = 0; !met && tries < 20000000; tries++) {
        segno_status status = tries % 8 == 7
            ? segno_text_flush(text, room, sizeof room, &used, NULL)
            : segno_text_push(text, (int32_t)(40 + tries % 50), room, sizeof room, &used, NULL);
        CHECK(status == SEGNO_OK || status == SEGNO_E_BUSY);
        if (status == SEGNO_E_BUSY) met = 1;
    }
    return unused;
}

static void texts_of_two_threads(void) {
    pthread_t users[2];
    make_world();
    for (int i = 0; i < 2; i++) CHECK(pthread_create(&users[i], NULL, use_text, NULL) == 0);
    for (int i = 0; i < 2; i++) CHECK(pthread_join(users[i], NULL) == 0);
    CHECK(met);
    end_world();
}

/* Context, model, session, text with grammar and adapter, and an error, freed in every order; whatever is left works
 * on. */
static void free_in_order(const int *order) {
    segno_ctx_opts options;
    segno_ctx *own_ctx;
    segno_model *own_model;
    segno_session *own_session;
    segno_text *own_text;
    segno_grammar *own_grammar;
    segno_adapter *own_adapter;
    segno_error *own_error;
    int32_t id, tokens_out;
    segno_ctx_opts_init(&options, sizeof options);
    options.n_threads = 2;
    EXPECT(SEGNO_OK, segno_ctx_create(SEGNO_ABI_VERSION, &options, &own_ctx, &err));
    EXPECT(SEGNO_OK, segno_model_load(own_ctx, path, NULL, &own_model, &err));
    EXPECT(SEGNO_OK, segno_session_create(own_model, &second.opts, &own_session, &err));
    EXPECT(SEGNO_OK, segno_text_create(own_model, NULL, &own_text, &err));
    CHECK(segno_seq_close(own_session, 77, &own_error) == SEGNO_E_NOT_FOUND);
    EXPECT(SEGNO_OK, segno_seq_open(own_session, NULL, &id, &err));
    EXPECT(SEGNO_OK, segno_grammar_create(own_model, NULL, &own_grammar, &err));
    EXPECT(SEGNO_OK, segno_seq_grammar_set(own_session, id, own_grammar, -1, &err));
    EXPECT(SEGNO_OK, segno_adapter_load(own_model, change(), NULL, &own_adapter, &err));
    const segno_adapter *set[1] = {own_adapter};
    EXPECT(SEGNO_OK, segno_seq_adapters_set(own_session, id, set, NULL, 1, &err));
    int freed[5] = {0};
    for (int i = 0; i < 5; i++) {
        if (!freed[1]) EXPECT(SEGNO_OK, segno_tokenize(own_model, "ab", 2, 0, NULL, 0, &len, &err));
        if (!freed[2]) {
            EXPECT(SEGNO_OK, segno_seq_prefill(own_session, id, tokens, 1, &err));
            CHECK(segno_decode_step(own_session, id, &tokens_out, NULL) >= 0);
        }
        if (!freed[3]) CHECK(segno_text_push(own_text, 40, (char *)buffer, sizeof buffer, &len, NULL) == SEGNO_OK);
        if (!freed[4])
            CHECK(segno_error_code(own_error) == SEGNO_E_NOT_FOUND && strlen(segno_error_message(own_error)) > 5);
        freed[order[i]] = 1;
        switch (order[i]) {
            case 0: segno_ctx_free(own_ctx); break;
            case 1: segno_model_free(own_model); break;
            case 2: segno_session_free(own_session); break;
            case 3:
                segno_text_free(own_text);
                segno_grammar_free(own_grammar);
                segno_adapter_free(own_adapter);
                break;
            default: segno_error_free(own_error);
        }
    }
}

static void every_order_of_freeing(int *order, int at) {
    if (at == 5) free_in_order(order);
    for (int i = at; i < 5; i++) {
        int first = order[at];
        order[at] = order[i];
        order[i] = first;
        every_order_of_freeing(order, at + 1);
        order[i] = order[at];
        order[at] = first;
    }
}

/* Raises and lowers the flag at moments that a fixed sequence of numbers gives. */
static void *cancel_often(void *unused) {
    uint32_t state = 7;
    for (int turn = 0, on = 1; running; turn++, on = !on) {
        state = state * 1664525u + 1013904223u;
        /* Longer and longer, so that a slow machine ends some calls too. */
        int shift = turn < 1024 ? 14 - turn / 128 : 6;
        for (volatile uint32_t wait = state >> shift; running && wait > 0;) wait = wait - 1;
        CHECK(segno_session_cancel(session, on) == SEGNO_OK);
    }
    return unused;
}

/* A call that evaluates something; how many tokens it adds when it is not cancelled. */
static segno_status evaluate(long which, size_t *added) {
    int32_t out = -7;
    float logits[4096];
    segno_status status, item;
    *added = which == 0 ? 4 : which == 3 ? 0 : 1;
    switch (which) {
        case 0: return segno_seq_prefill(session, seq, tokens, 4, NULL);
        case 1:
            status = segno_decode_step(session, seq, &out, NULL);
            CHECK((status == SEGNO_CANCELLED) == (out == -7));
            return status;
        case 2:
            status = segno_decode_batch(session, &seq, 1, &out, &item, NULL);
            CHECK((status == SEGNO_CANCELLED) == (out == -1) && (status == item || item == SEGNO_DONE));
            return status;
        default: return segno_seq_logits(session, seq, logits, sizeof logits / sizeof *logits, &len, NULL);
    }
}

static void cancel_at_any_moment(void) {
    pthread_t canceller;
    int cancelled[4] = {0}, done[4] = {0}, few = 1;
    make_world();
    running = 1;
    CHECK(pthread_create(&canceller, NULL, cancel_often, NULL) == 0);
    /* A raised flag ends hundreds of thousands of calls a second, so time is what bounds them. */
    const time_t end = time(NULL) + 120;
    for (long i = 0; few && time(NULL) < end; i++) {
        size_t before, after, added;
        CHECK(segno_seq_truncate(session, seq, 3, NULL) == SEGNO_OK);
        CHECK(segno_seq_append(session, seq, tokens, 1, NULL) == SEGNO_OK);
        CHECK(segno_seq_length(session, seq, &before, NULL) == SEGNO_OK && before == 4);
        segno_status status = evaluate(i % 4, &added);
        CHECK(segno_seq_length(session, seq, &after, NULL) == SEGNO_OK);
        CHECK(status >= 0 && status != SEGNO_PENDING);
        CHECK(after == 4 + (status == SEGNO_CANCELLED ? 0 : added));
        (status == SEGNO_CANCELLED ? cancelled : done)[i % 4]++;
        few = i < 400;
        for (int which = 0; which < 4; which++) few = few || cancelled[which] < 20 || done[which] < 20;
    }
    running = 0;
    CHECK(pthread_join(canceller, NULL) == 0);
    CHECK(!few);
    end_world();
}

int main(int argc, char **argv) {
    CHECK(argc >= 2);
    path = argv[1];
    segno_ctx_opts options;
    segno_ctx_opts_init(&options, sizeof options);
    options.n_threads = 2;
    options.flags = argc > 2 && strcmp(argv[2], "no-avx512") == 0 ? SEGNO_CTX_NO_AVX512 : 0;
    EXPECT(SEGNO_OK, segno_ctx_create(SEGNO_ABI_VERSION, &options, &ctx, &err));
    EXPECT(SEGNO_OK, segno_model_load(ctx, path, NULL, &model, &err));
    for (size_t i = 0; i < FUNCTIONS; i++) {
        each_pointer_null(&functions[i]);
        wrong_objects(&functions[i]);
        short_buffers(&functions[i]);
        each_number_wrong(&functions[i]);
        structs_out(&functions[i]);
        structs_to_be_filled(&functions[i]);
        structs_of_absurd_sizes(&functions[i], OPTS, opts);
        structs_of_absurd_sizes(&functions[i], SECOND, &second.opts);
        structs_in(&functions[i], OPTS, opts, functions[i].opts_size);
        structs_in(&functions[i], SECOND, &second.opts, sizeof second.opts);
    }
    lists_in_options();
    batches_of_bad_ids();
    chats_in_short_buffers();
    int objects[5] = {0, 1, 2, 3, 4};
    every_order_of_freeing(objects, 0);
    calls_beside_a_running_one();
    texts_of_two_threads();
    cancel_at_any_moment();
    segno_model_free(model);
    segno_ctx_free(ctx);
    printf("hostile: %d functions, passed\n", (int)FUNCTIONS);
    return 0;
}
