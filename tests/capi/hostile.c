/* A host that does everything wrong. Every exported function stands in one table with the kinds of its pointers, and is called with
 * each of them NULL, with short buffers, with structs of other sizes, with ids that are not open, beside a running call, and
 * without a place for the error. tests/hostile_table.rs holds the table against the header.
 *
 * usage: test_hostile MODEL.gguf [no-avx512] */
#include "check.h"

#include <pthread.h>
#include <stddef.h>

/* What a pointer parameter is; decides what NULL means, and what a good value is. */
typedef enum {
    NONE,
    CTX,     /* objects: NULL is refused, except by the functions that free them */
    MODEL,
    SESSION,
    TEXT,
    ERROR,
    PATH,    /* texts and lists in: NULL is refused while their length is not 0 */
    KEY,
    BYTES,
    JSON,
    TOKENS,
    SEQS,
    OPTS,    /* options: NULL means defaults */
    SECOND,  /* options of a session, beside others */
    FILL,    /* options to be filled: NULL does nothing */
    INFO,    /* struct out, with its size */
    VALUE,   /* a place for one value, or for an object */
    BUFFER,  /* room of a stated size: NULL asks for the size */
    ROOM,    /* room without which the call makes no sense */
    LEN,     /* where the size goes */
    NAME     /* a text for which NULL is just unknown */
} kind;

/* Arguments of one call, in the order of the parameters. */
typedef struct {
    void *p[6];
    size_t cap;  /* of the buffer, or the size of the struct */
    size_t count;
    int32_t id;
    segno_error **err;
} args;

typedef struct {
    const char *name;
    segno_status (*call)(args *a);
    kind kinds[6];
    size_t opts_size; /* of the options, and what fills them */
    void (*init)(void *opts, size_t size);
    size_t info_size, element; /* of the struct out, and of an element of the buffer */
    void (*release)(void *object);        /* frees what a VALUE receives */
    int has_id, has_err, is_free;
    segno_status good;                    /* what good arguments give */
} function;

#define THUNK(name, expression) static segno_status call_##name(args *a) { return (expression); }
#define VOID(name, expression) static segno_status call_##name(args *a) { (void)a; expression; return SEGNO_OK; }
#define P(i) UNTYPED(a->p[i])

VOID(segno_chat_opts_init, segno_chat_opts_init(P(0), a->cap))
THUNK(segno_chat_render, segno_chat_render(P(0), P(1), a->count, P(2), P(3), a->cap, P(4), a->err))
VOID(segno_ctx_opts_init, segno_ctx_opts_init(P(0), a->cap))
THUNK(segno_ctx_create, segno_ctx_create(SEGNO_ABI_VERSION, P(0), P(1), a->err))
VOID(segno_ctx_free, segno_ctx_free(P(0)))
THUNK(segno_decode_step, segno_decode_step(P(0), a->id, P(1), a->err))
THUNK(segno_decode_batch, segno_decode_batch(P(0), P(1), 1, P(2), P(3), a->err))
THUNK(segno_device_count, segno_device_count(SEGNO_DEVICE_CPU, P(0), a->err))
THUNK(segno_device_info_get, segno_device_info_get(SEGNO_DEVICE_CPU, 0, P(0), a->cap, a->err))
VOID(segno_error_code, (void)segno_error_code(P(0)))
VOID(segno_error_message, CHECK(segno_error_message(P(0)) != NULL))
VOID(segno_error_item, CHECK(segno_error_item(P(0)) == -1))
VOID(segno_error_free, segno_error_free(P(0)))
VOID(segno_model_opts_init, segno_model_opts_init(P(0), a->cap))
THUNK(segno_model_load, segno_model_load(P(0), P(1), P(2), P(3), a->err))
THUNK(segno_model_load_buffer, segno_model_load_buffer(P(0), P(1), a->count, P(2), P(3), a->err))
THUNK(segno_model_meta, segno_model_meta(P(0), P(1), P(2), a->cap, P(3), a->err))
THUNK(segno_model_info_get, segno_model_info_get(P(0), P(1), a->cap, a->err))
VOID(segno_model_free, segno_model_free(P(0)))
THUNK(segno_plan_get, segno_plan_get(P(0), P(1), P(2), P(3), P(4), a->cap, a->err))
VOID(segno_sampler_opts_init, segno_sampler_opts_init(P(0), a->cap))
THUNK(segno_seq_open, segno_seq_open(P(0), P(1), P(2), a->err))
THUNK(segno_seq_append, segno_seq_append(P(0), a->id, P(1), a->count, a->err))
THUNK(segno_seq_prefill, segno_seq_prefill(P(0), a->id, P(1), a->count, a->err))
THUNK(segno_seq_length, segno_seq_length(P(0), a->id, P(1), a->err))
THUNK(segno_seq_logits, segno_seq_logits(P(0), a->id, P(1), a->cap, P(2), a->err))
THUNK(segno_seq_sampler_set, segno_seq_sampler_set(P(0), a->id, P(1), a->err))
THUNK(segno_seq_fork, segno_seq_fork(P(0), a->id, P(1), P(2), a->err))
THUNK(segno_seq_truncate, segno_seq_truncate(P(0), a->id, 2, a->err))
THUNK(segno_seq_close, segno_seq_close(P(0), a->id, a->err))
VOID(segno_session_opts_init, segno_session_opts_init(P(0), a->cap))
THUNK(segno_session_create, segno_session_create(P(0), P(1), P(2), a->err))
VOID(segno_session_free, segno_session_free(P(0)))
THUNK(segno_session_memory, segno_session_memory(P(0), P(1), a->cap, a->err))
THUNK(segno_session_cancel, segno_session_cancel(P(0), 0))
VOID(segno_status_str, CHECK(segno_status_str(a->id) != NULL))
THUNK(segno_tokenize, segno_tokenize(P(0), P(1), a->count, 0, P(2), a->cap, P(3), a->err))
THUNK(segno_detokenize, segno_detokenize(P(0), P(1), a->count, 0, P(2), a->cap, P(3), a->err))
VOID(segno_text_opts_init, segno_text_opts_init(P(0), a->cap))
THUNK(segno_text_create, segno_text_create(P(0), P(1), P(2), a->err))
THUNK(segno_text_push, segno_text_push(P(0), a->id, P(1), a->cap, P(2), a->err))
THUNK(segno_text_flush, segno_text_flush(P(0), P(1), a->cap, P(2), a->err))
VOID(segno_text_free, segno_text_free(P(0)))
VOID(segno_version_number, CHECK(segno_version_number() == SEGNO_VERSION_NUMBER))
VOID(segno_version_string, CHECK(segno_version_string() != NULL))
VOID(segno_abi_version, CHECK(segno_abi_version() == SEGNO_ABI_VERSION))
THUNK(segno_has_feature, segno_has_feature(P(0)))

static void init_chat(void *p, size_t size) { segno_chat_opts_init(UNTYPED(p), size); }
static void init_ctx(void *p, size_t size) { segno_ctx_opts_init(UNTYPED(p), size); }
static void init_model(void *p, size_t size) { segno_model_opts_init(UNTYPED(p), size); }
static void init_session(void *p, size_t size) { segno_session_opts_init(UNTYPED(p), size); }
static void init_sampler(void *p, size_t size) { segno_sampler_opts_init(UNTYPED(p), size); }
static void init_text(void *p, size_t size) { segno_text_opts_init(UNTYPED(p), size); }
static void free_ctx(void *p) { segno_ctx_free(UNTYPED(p)); }
static void free_model(void *p) { segno_model_free(UNTYPED(p)); }
static void free_session(void *p) { segno_session_free(UNTYPED(p)); }
static void free_text(void *p) { segno_text_free(UNTYPED(p)); }

#define F(function) .name = #function, .call = call_##function
#define OPTIONS(noun) .opts_size = sizeof(segno_##noun##_opts), .init = init_##noun
#define STRUCT(type) .info_size = sizeof(type)

static const function functions[] = {
    {F(segno_chat_opts_init), .kinds = {FILL}, OPTIONS(chat)},
    /* The model of the tests has no template. */
    {F(segno_chat_render), .kinds = {MODEL, JSON, OPTS, BUFFER, LEN}, OPTIONS(chat), .element = 1, .has_err = 1,
     .good = SEGNO_E_NOT_FOUND},
    {F(segno_ctx_opts_init), .kinds = {FILL}, OPTIONS(ctx)},
    {F(segno_ctx_create), .kinds = {OPTS, VALUE}, OPTIONS(ctx), .release = free_ctx, .has_err = 1},
    {F(segno_ctx_free), .kinds = {CTX}, .is_free = 1},
    {F(segno_decode_step), .kinds = {SESSION, VALUE}, .has_id = 1, .has_err = 1},
    {F(segno_decode_batch), .kinds = {SESSION, SEQS, ROOM, ROOM}, .has_err = 1},
    {F(segno_device_count), .kinds = {VALUE}, .has_err = 1},
    {F(segno_device_info_get), .kinds = {INFO}, STRUCT(segno_device_info), .has_err = 1},
    {F(segno_error_code), .kinds = {ERROR}, .is_free = 1},
    {F(segno_error_message), .kinds = {ERROR}, .is_free = 1},
    {F(segno_error_item), .kinds = {ERROR}, .is_free = 1},
    {F(segno_error_free), .kinds = {ERROR}, .is_free = 1},
    {F(segno_model_opts_init), .kinds = {FILL}, OPTIONS(model)},
    {F(segno_model_load), .kinds = {CTX, PATH, OPTS, VALUE}, OPTIONS(model), .release = free_model, .has_err = 1},
    {F(segno_model_load_buffer), .kinds = {CTX, BYTES, OPTS, VALUE}, OPTIONS(model), .release = free_model, .has_err = 1,
     .good = SEGNO_E_FORMAT},
    {F(segno_model_meta), .kinds = {MODEL, KEY, BUFFER, LEN}, .element = 1, .has_err = 1},
    {F(segno_model_info_get), .kinds = {MODEL, INFO}, STRUCT(segno_model_info), .has_err = 1},
    {F(segno_model_free), .kinds = {MODEL}, .is_free = 1},
    {F(segno_plan_get), .kinds = {CTX, PATH, OPTS, SECOND, INFO}, OPTIONS(model), STRUCT(segno_plan), .has_err = 1},
    {F(segno_sampler_opts_init), .kinds = {FILL}, OPTIONS(sampler)},
    {F(segno_seq_open), .kinds = {SESSION, OPTS, VALUE}, OPTIONS(sampler), .has_err = 1},
    {F(segno_seq_append), .kinds = {SESSION, TOKENS}, .has_id = 1, .has_err = 1},
    {F(segno_seq_prefill), .kinds = {SESSION, TOKENS}, .has_id = 1, .has_err = 1},
    {F(segno_seq_length), .kinds = {SESSION, VALUE}, .has_id = 1, .has_err = 1},
    {F(segno_seq_logits), .kinds = {SESSION, BUFFER, LEN}, .element = sizeof(float), .has_id = 1, .has_err = 1},
    {F(segno_seq_sampler_set), .kinds = {SESSION, OPTS}, OPTIONS(sampler), .has_id = 1, .has_err = 1},
    {F(segno_seq_fork), .kinds = {SESSION, OPTS, VALUE}, OPTIONS(sampler), .has_id = 1, .has_err = 1},
    {F(segno_seq_truncate), .kinds = {SESSION}, .has_id = 1, .has_err = 1},
    {F(segno_seq_close), .kinds = {SESSION}, .has_id = 1, .has_err = 1},
    {F(segno_session_opts_init), .kinds = {FILL}, OPTIONS(session)},
    {F(segno_session_create), .kinds = {MODEL, OPTS, VALUE}, OPTIONS(session), .release = free_session, .has_err = 1},
    {F(segno_session_free), .kinds = {SESSION}, .is_free = 1},
    {F(segno_session_memory), .kinds = {SESSION, INFO}, STRUCT(segno_memory), .has_err = 1},
    {F(segno_session_cancel), .kinds = {SESSION}},
    {F(segno_status_str)},
    {F(segno_tokenize), .kinds = {MODEL, BYTES, BUFFER, LEN}, .element = sizeof(int32_t), .has_err = 1},
    {F(segno_detokenize), .kinds = {MODEL, TOKENS, BUFFER, LEN}, .element = 1, .has_err = 1},
    {F(segno_text_opts_init), .kinds = {FILL}, OPTIONS(text)},
    {F(segno_text_create), .kinds = {MODEL, OPTS, VALUE}, OPTIONS(text), .release = free_text, .has_err = 1},
    {F(segno_text_push), .kinds = {TEXT, BUFFER, LEN}, .element = 1, .has_err = 1},
    {F(segno_text_flush), .kinds = {TEXT, BUFFER, LEN}, .element = 1, .has_err = 1},
    {F(segno_text_free), .kinds = {TEXT}, .is_free = 1},
    {F(segno_version_number)},
    {F(segno_version_string)},
    {F(segno_abi_version)},
    {F(segno_has_feature), .kinds = {NAME}},
};
#define FUNCTIONS (sizeof functions / sizeof *functions)

/* The world of a call, made anew for each. */
static const char *path;
static segno_ctx *ctx;
static segno_model *model;
static segno_session *session;
static segno_text *text;
static int32_t seq, closed;
static size_t len;
static int32_t tokens[4] = {40, 41, 42, 43};
static void *value, *opts[256], *info[256], *buffer[4096], *rooms[2];
static segno_session_opts second;
static segno_error *error;

static void make_world(void)
{
    segno_session_opts small;
    segno_session_opts_init(&small, sizeof small);
    small.max_seqs = 4;
    small.kv_tokens = 64;
    small.max_prefill = 16;
    EXPECT(SEGNO_OK, segno_session_create(model, &small, &session, &err));
    EXPECT(SEGNO_OK, segno_text_create(model, NULL, &text, &err));
    EXPECT(SEGNO_OK, segno_seq_open(session, NULL, &closed, &err));
    EXPECT(SEGNO_OK, segno_seq_close(session, closed, &err));
    EXPECT(SEGNO_OK, segno_seq_open(session, NULL, &seq, &err));
    EXPECT(SEGNO_OK, segno_seq_prefill(session, seq, tokens, 4, &err));
}

static void end_world(void)
{
    segno_session_free(session);
    segno_text_free(text);
}

static void *good(kind k, int index)
{
    switch (k) {
    case CTX: return ctx;
    case MODEL: return model;
    case SESSION: return session;
    case TEXT: return text;
    case PATH: return (void *)path;
    case KEY: return (void *)"general.architecture";
    case NAME: return (void *)"avx2";
    case JSON: return (void *)"[{}]";
    case BYTES:
    case TOKENS: return tokens;
    case SEQS: return &seq;
    case OPTS:
    case FILL: return opts;
    case SECOND: return &second;
    case INFO: return info;
    case VALUE: return &value;
    case BUFFER: return buffer;
    case ROOM: return &rooms[index % 2];
    case LEN: return &len;
    case NONE:
    case ERROR: break;
    }
    return NULL;
}

static args good_args(const function *f)
{
    args a = {.cap = sizeof buffer, .count = 4, .id = f->has_id ? seq : 40, .err = &error};
    for (int i = 0; i < 6; i++)
        a.p[i] = good(f->kinds[i], i);
    if (f->element > 0)
        a.cap = sizeof buffer / f->element;
    if (f->info_size > 0)
        a.cap = f->info_size;
    if (f->kinds[0] == FILL)
        a.cap = f->opts_size;
    memset(opts, 0xAA, sizeof opts);
    segno_session_opts_init(&second, sizeof second);
    if (f->init != NULL)
        f->init(opts, f->opts_size);
    return a;
}

/* Calls in a fresh world, and checks the error object. */
static segno_status attempt(const function *f, args *a, int with_error)
{
    error = (segno_error *)(size_t)1;
    value = NULL;
    a->err = with_error ? &error : NULL;
    segno_status status = f->call(a);
    CHECK(status != SEGNO_E_PANIC && status != SEGNO_E_POISONED);
    if (f->has_err && with_error) {
        CHECK((error != NULL) == SEGNO_FAILED(status));
        CHECK(segno_error_code(error) == (error != NULL ? status : SEGNO_OK));
        segno_error_free(error);
    }
    if (f->release != NULL) {
        CHECK(status >= 0 || value == NULL);
        f->release(value);
    }
    return status;
}

static void expect(const function *f, segno_status expected, segno_status got, const char *what)
{
    if (got == expected || (expected == SEGNO_OK && got >= 0))
        return;
    fprintf(stderr, "%s, %s: %s, expected %s\n", f->name, what, segno_status_str(got), segno_status_str(expected));
    exit(1);
}

static segno_status meaning_of_null(const function *f, kind k)
{
    if (f->is_free || k == OPTS || k == SECOND || k == FILL || k == NAME || k == NONE || k == ERROR)
        return f->good;
    return SEGNO_E_NULL_POINTER;
}

static void each_pointer_null(const function *f)
{
    for (int i = 0; i < 6 && f->kinds[i] != NONE; i++) {
        for (int with_error = 0; with_error < 2; with_error++) {
            make_world();
            args a = good_args(f);
            a.p[i] = NULL;
            expect(f, meaning_of_null(f, f->kinds[i]), attempt(f, &a, with_error), "NULL");
            end_world();
        }
    }
    /* Frees and getters of errors have no good value that outlives the call. */
    if (f->is_free)
        return;
    make_world();
    args a = good_args(f);
    expect(f, f->good, attempt(f, &a, 1), "good arguments");
    end_world();
}

/* Size asked for, then every kind of too little room: nothing is written, and the size needed is told. */
static void short_buffers(const function *f)
{
    int at = 0;
    while (at < 6 && f->kinds[at] != BUFFER)
        at++;
    if (at == 6 || f->good != SEGNO_OK)
        return;
    make_world();
    args a = good_args(f);
    if (a.p[0] == text)
        while (segno_text_push(text, 40, NULL, 0, &len, NULL) == SEGNO_OK && len == 0)
            continue;
    expect(f, SEGNO_OK, attempt(f, &a, 1), "enough room");
    size_t needed = len;
    const size_t caps[4] = {0, 1, needed / 2, needed - 1};
    for (int i = 0; i < 4 && needed > 0; i++) {
        end_world();
        make_world();
        a = good_args(f);
        a.cap = caps[i] < needed ? caps[i] : 0;
        memset(buffer, 0x55, sizeof buffer);
        expect(f, SEGNO_E_BUFFER_TOO_SMALL, attempt(f, &a, i % 2), "a short buffer");
        CHECK(len == needed && buffer[0] == buffer[1] && *(unsigned char *)buffer == 0x55);
    }
    a.cap = (size_t)-1;
    a.p[at] = NULL;
    expect(f, SEGNO_E_NULL_POINTER, attempt(f, &a, 1), "NULL with a size");
    end_world();
}

static void structs_out(const function *f)
{
    for (size_t size = 0; size <= f->info_size + 64 && f->info_size > 0; size++) {
        make_world();
        args a = good_args(f);
        a.cap = size;
        memset(info, 0x55, sizeof info);
        expect(f, size < 4 ? SEGNO_E_INVALID_ARGUMENT : SEGNO_OK, attempt(f, &a, 1), "a struct of another size");
        const unsigned char *bytes = (const unsigned char *)info;
        CHECK(bytes[size] == 0x55);
        uint32_t told;
        memcpy(&told, info, sizeof told);
        CHECK(size < 4 || told == size);
        CHECK(size <= f->info_size || bytes[size - 1] == 0);
        end_world();
    }
}

static void structs_in(const function *f)
{
    uint32_t *size = (uint32_t *)opts;
    unsigned char *bytes = (unsigned char *)opts;
    for (uint32_t s = 0; s <= f->opts_size + 64 && f->init != NULL; s += s < 8 ? 1 : 4) {
        make_world();
        args a = good_args(f);
        if (f->kinds[0] == FILL) {
            a.cap = s;
            memset(opts, 0x55, sizeof opts);
            f->call(&a);
            CHECK(bytes[s] == 0x55 && (s < 4 || *size == s));
            end_world();
            continue;
        }
        memset(bytes + f->opts_size, 0, 64);
        *size = s;
        int whole_pointers = s % 8 == 0 || s >= f->opts_size;
        if (whole_pointers)
            expect(f, s < 4 ? SEGNO_E_INVALID_ARGUMENT : f->good, attempt(f, &a, 1), "options of another size");
        if (s > f->opts_size) {
            bytes[s - 1] = 1;
            expect(f, SEGNO_E_UNSUPPORTED, attempt(f, &a, 1), "options with an unknown field");
        }
        end_world();
    }
}

static void ids_that_are_not_open(const function *f)
{
    make_world();
    const int32_t ids[6] = {closed, -1, 0, INT32_MAX, INT32_MIN, seq + 1};
    for (int i = 0; i < 6 && f->has_id; i++) {
        args a = good_args(f);
        a.id = ids[i];
        expect(f, SEGNO_E_NOT_FOUND, attempt(f, &a, i % 2), "an id that is not open");
    }
    end_world();
}

static void batches_of_bad_ids(void)
{
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

static void chats_in_short_buffers(void)
{
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

static void wrong_abi_numbers(void)
{
    const uint32_t numbers[4] = {SEGNO_ABI_VERSION + 1, (uint32_t)SEGNO_ABI_VERSION - 1, UINT32_MAX, 1u << 31};
    for (int i = 0; i < 4; i++) {
        segno_ctx *other = (segno_ctx *)(size_t)1;
        EXPECT(SEGNO_E_ABI, segno_ctx_create(numbers[i], NULL, &other, &err));
        CHECK(other == NULL);
    }
}

static volatile int running;

static int orderly(segno_status status)
{
    return status >= 0 || status == SEGNO_E_BUSY || status == SEGNO_E_CONTEXT_FULL || status == SEGNO_E_KV_FULL;
}

/* Keeps the session busy with prompts, and the text with tokens. */
static void *use_session(void *unused)
{
    static int32_t prompt[48];
    for (int i = 0; i < 48; i++)
        prompt[i] = i;
    while (running) {
        CHECK(orderly(segno_seq_prefill(session, seq, prompt, 48, NULL)));
        segno_status cut = segno_seq_truncate(session, seq, 0, NULL);
        CHECK(orderly(cut));
    }
    return unused;
}

/* Every function of a session answers BUSY beside a running call, sooner or later; cancel never does. */
static void calls_beside_a_running_one(void)
{
    pthread_t user;
    make_world();
    running = 1;
    CHECK(pthread_create(&user, NULL, use_session, NULL) == 0);
    for (size_t i = 0; i < FUNCTIONS; i++) {
        const function *f = &functions[i];
        if (f->kinds[0] != SESSION || f->is_free || strcmp(f->name, "segno_session_cancel") == 0)
            continue;
        segno_status status = SEGNO_OK;
        for (long tries = 0; status != SEGNO_E_BUSY && tries < 10000000; tries++) {
            args a = good_args(f);
            a.id = closed;
            if (a.p[1] == &seq)
                a.p[1] = &closed;
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

static void *use_text(void *unused)
{
    char room[256];
    size_t used;
    for (int i = 0; i < 20000; i++) {
        segno_status status = segno_text_push(text, 40 + i % 50, room, sizeof room, &used, NULL);
        CHECK(status == SEGNO_OK || status == SEGNO_E_BUSY);
    }
    return unused;
}

static void texts_of_two_threads(void)
{
    pthread_t users[2];
    make_world();
    for (int i = 0; i < 2; i++)
        CHECK(pthread_create(&users[i], NULL, use_text, NULL) == 0);
    for (int i = 0; i < 2; i++)
        CHECK(pthread_join(users[i], NULL) == 0);
    end_world();
}

/* Raises and lowers the flag at moments that a fixed sequence of numbers gives. */
static void *cancel_often(void *unused)
{
    uint32_t state = 7;
    for (int on = 1; running; on = !on) {
        state = state * 1664525u + 1013904223u;
        for (volatile uint32_t wait = state >> 14; wait > 0;)
            wait = wait - 1;
        CHECK(segno_session_cancel(session, on) == SEGNO_OK);
    }
    return unused;
}

static void cancel_at_any_moment(void)
{
    pthread_t canceller;
    int cancelled = 0, done = 0;
    make_world();
    running = 1;
    CHECK(pthread_create(&canceller, NULL, cancel_often, NULL) == 0);
    for (long i = 0; i < 200000 && (i < 400 || cancelled < 20 || done < 20); i++) {
        size_t before, after;
        int32_t token = -7;
        CHECK(segno_seq_truncate(session, seq, 4, NULL) == SEGNO_OK);
        CHECK(segno_seq_length(session, seq, &before, NULL) == SEGNO_OK && before == 4);
        segno_status status = i % 2 ? segno_seq_prefill(session, seq, tokens, 4, NULL)
                                    : segno_decode_step(session, seq, &token, NULL);
        CHECK(segno_seq_length(session, seq, &after, NULL) == SEGNO_OK);
        CHECK(status >= 0 && status != SEGNO_PENDING);
        CHECK(after == (status == SEGNO_CANCELLED ? 4u : i % 2 ? 8u : 5u));
        CHECK(status != SEGNO_CANCELLED || token == -7);
        if (status == SEGNO_CANCELLED)
            cancelled++;
        else
            done++;
    }
    running = 0;
    CHECK(pthread_join(canceller, NULL) == 0);
    CHECK(cancelled >= 20 && done >= 20);
    end_world();
}

int main(int argc, char **argv)
{
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
        short_buffers(&functions[i]);
        structs_out(&functions[i]);
        structs_in(&functions[i]);
        ids_that_are_not_open(&functions[i]);
    }
    batches_of_bad_ids();
    chats_in_short_buffers();
    wrong_abi_numbers();
    calls_beside_a_running_one();
    texts_of_two_threads();
    cancel_at_any_moment();
    segno_model_free(model);
    segno_ctx_free(ctx);
    printf("hostile: %d functions, passed\n", (int)FUNCTIONS);
    return 0;
}
