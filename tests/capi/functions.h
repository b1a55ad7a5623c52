/* Every exported function, with the kinds of its parameters, in one table. tests/style/hostile_table.rs holds it
 * against the header. */
#ifndef SEGNO_TEST_FUNCTIONS_H
#define SEGNO_TEST_FUNCTIONS_H

#include "check.h"

#include <stddef.h>

/* What a pointer parameter is; decides what NULL means, and what a good value is. */
typedef enum {
    NONE,
    CTX, /* objects: NULL is refused, except by the functions that free them */
    MODEL,
    SESSION,
    TEXT,
    REPLY,
    CHAT,
    GRAMMAR,
    ADAPTER,
    ERROR,
    PATH,   /* texts and lists in: NULL is refused while their length is not 0 */
    CHANGE, /* the path of an adapter */
    TARGET, /* the path of a file to write */
    KEY,
    BYTES,
    JSON,
    TOKENS,
    LENGTHS, /* of the texts that tokens are of */
    SEQS,
    CHATS,
    ADAPTERS,
    OPTS,   /* options: NULL means defaults */
    SECOND, /* options of a session, beside others */
    FILL,   /* options to be filled: NULL does nothing */
    INFO,   /* struct out, with its size */
    VALUE,  /* a place for one value, or for an object */
    BUFFER, /* room of a stated size: NULL asks for the size */
    PLACES, /* room of a stated size for each item of a list */
    ROOM,   /* room without which the call makes no sense */
    LEN,    /* where the size goes */
    NAME,   /* a text for which NULL is just unknown */
    RULES,  /* a grammar: NULL is none */
    SCALES, /* a factor for each item of a list: NULL is 1 each */
    USER    /* the argument of a function of the host's, which may be NULL */
} kind;

/* What a parameter is that is no pointer. */
typedef enum {
    NO_NUMBER,
    ABI,   /* number of the header's ABI */
    SIZE,  /* of the struct that follows options to be filled, or goes out */
    CAP,   /* elements of the buffer */
    COUNT, /* elements of the list in */
    ID,    /* of a sequence */
    TOKEN,
    START, /* a token behind which something begins; -1 is none */
    KEPT,  /* tokens to keep */
    FLAGS,
    DEVICE, /* kind of device */
    INDEX,  /* of a device of that kind */
    SWITCH, /* on or off */
    CHOICE, /* of tools */
    CODE,   /* a status */
    WAIT,   /* microseconds */
    CALLED  /* 1 for a function of the host's, 0 for NULL */
} number;

/* Arguments of one call: its pointers and its numbers, each in the order of the parameters. */
typedef struct {
    void *p[6];
    int64_t n[4];
    segno_error **err;
} args;

typedef struct {
    const char *name;
    segno_status (*call)(args *a);
    kind kinds[6];
    const char *names; /* of the pointers, as in the header, with blanks between them */
    number numbers[4];
    size_t opts_size; /* of the options, and what fills them */
    void (*init)(void *opts, size_t size);
    size_t info_size, element;     /* of the struct out, and of an element of the buffer */
    void (*release)(void *object); /* frees what a VALUE receives */
    int has_err, is_free;
    segno_status good; /* what good arguments give */
} function;

#define THUNK(name, expression) \
    static segno_status call_##name(args *a) { return (expression); }
#define VOID(name, expression)                 \
    static segno_status call_##name(args *a) { \
        (void)a;                               \
        expression;                            \
        return SEGNO_OK;                       \
    }
#define P(i) UNTYPED(a->p[i])
#define N(i) a->n[i]

/* A saved sequence, for the functions of a host that take one and give it. */
static unsigned char saved[65536];
static size_t saved_len, saved_at;

static int32_t take_saved(void *user, const void *data, size_t length) {
    (void)user;
    if (length > sizeof saved - saved_len) return 1;
    memcpy(saved + saved_len, data, length);
    saved_len += length;
    return 0;
}

static size_t give_saved(void *user, void *data, size_t length) {
    (void)user;
    if (length > saved_len - saved_at) length = saved_len - saved_at;
    memcpy(data, saved + saved_at, length);
    saved_at += length;
    return length;
}

static segno_status save_again(segno_session *session, int32_t seq, int is_called, void *user, segno_error **err) {
    saved_len = 0;
    return segno_seq_save(session, seq, is_called ? take_saved : NULL, user, err);
}

/* The sequence of which a step is submitted to be polled. */
static int32_t submitted;

/* Polls a step to its end, so that the session can be used again. */
static void end_step(segno_session *session) {
    int32_t token;
    segno_status status;
    while (segno_session_poll(session, UINT64_MAX, &token, &status, NULL) == SEGNO_PENDING) continue;
}

static segno_status submit_to_the_end(
    segno_session *session, const int32_t *seqs, size_t count, const segno_submit_opts *opts, segno_error **err) {
    segno_status status = segno_session_submit(session, seqs, count, opts, err);
    if (status == SEGNO_OK) end_step(session);
    return status;
}

static segno_status poll_submitted(
    segno_session *session, uint64_t timeout_us, int32_t *tokens, segno_status *statuses, segno_error **err) {
    segno_status status = segno_session_submit(session, &submitted, 1, NULL, err);
    if (status == SEGNO_E_OUT_OF_MEMORY || status == SEGNO_E_DEVICE) return status;
    if (err != NULL) segno_error_free(*err);
    status = segno_session_poll(session, timeout_us, tokens, statuses, err);
    if (status == SEGNO_PENDING || status == SEGNO_E_NULL_POINTER) end_step(session);
    return status;
}

/* The same of conversations. */
static segno_chat *submitted_chat;

static void end_chat_step(segno_session *session) {
    segno_event events[8];
    size_t count;
    segno_status status;
    while (segno_chat_poll(session, UINT64_MAX, events, 8, &count, &status, NULL) == SEGNO_PENDING) continue;
}

static segno_status submit_chats_to_the_end(
    segno_session *session, segno_chat *const *chats, size_t count, const segno_submit_opts *opts, segno_error **err) {
    segno_status status = segno_chat_submit(session, chats, count, opts, err);
    if (status == SEGNO_OK) end_chat_step(session);
    return status;
}

static segno_status poll_submitted_chat(segno_session *session, uint64_t timeout_us, segno_event *events, size_t cap,
    size_t *counts, segno_status *statuses, segno_error **err) {
    segno_status status = segno_chat_submit(session, &submitted_chat, 1, NULL, err);
    if (status == SEGNO_E_OUT_OF_MEMORY || status == SEGNO_E_DEVICE) return status;
    if (err != NULL) segno_error_free(*err);
    status = segno_chat_poll(session, timeout_us, events, cap, counts, statuses, err);
    if (status == SEGNO_PENDING || status == SEGNO_E_NULL_POINTER) end_chat_step(session);
    return status;
}

VOID(segno_chat_opts_init, segno_chat_opts_init(P(0), N(0)))
THUNK(segno_chat_render, segno_chat_render(P(0), P(1), N(0), P(2), P(3), N(1), P(4), a->err))
THUNK(segno_chat_tokenize, segno_chat_tokenize(P(0), P(1), N(0), P(2), P(3), N(1), P(4), a->err))
VOID(segno_chat_create_opts_init, segno_chat_create_opts_init(P(0), N(0)))
THUNK(segno_chat_create, segno_chat_create(P(0), P(1), P(2), a->err))
THUNK(segno_chat_say, segno_chat_say(P(0), P(1), P(2), N(0), a->err))
THUNK(segno_chat_add, segno_chat_add(P(0), P(1), N(0), a->err))
THUNK(segno_chat_tools_set, segno_chat_tools_set(P(0), N(0), N(1), P(1), a->err))
THUNK(segno_chat_truncate, segno_chat_truncate(P(0), N(0), a->err))
THUNK(segno_chat_messages, segno_chat_messages(P(0), P(1), N(0), P(2), a->err))
THUNK(segno_chat_seq, segno_chat_seq(P(0), P(1), a->err))
THUNK(segno_chat_stats_get, segno_chat_stats_get(P(0), P(1), N(0), a->err))
THUNK(segno_chat_fork, segno_chat_fork(P(0), P(1), P(2), a->err))
THUNK(segno_chat_next, segno_chat_next(P(0), P(1), N(0), P(2), a->err))
THUNK(segno_chat_next_batch, segno_chat_next_batch(P(0), P(1), N(0), P(2), N(1), P(3), P(4), a->err))
THUNK(segno_chat_submit, submit_chats_to_the_end(P(0), P(1), N(0), P(2), a->err))
THUNK(segno_chat_poll, poll_submitted_chat(P(0), N(0), P(1), N(1), P(2), P(3), a->err))
VOID(segno_chat_free, segno_chat_free(P(0)))
VOID(segno_ctx_opts_init, segno_ctx_opts_init(P(0), N(0)))
THUNK(segno_ctx_create, segno_ctx_create(N(0), P(0), P(1), a->err))
VOID(segno_ctx_free, segno_ctx_free(P(0)))
THUNK(segno_decode_step, segno_decode_step(P(0), N(0), P(1), a->err))
THUNK(segno_decode_many, segno_decode_many(P(0), N(0), P(1), N(1), P(2), a->err))
THUNK(segno_decode_batch, segno_decode_batch(P(0), P(1), N(0), P(2), P(3), a->err))
VOID(segno_embed_opts_init, segno_embed_opts_init(P(0), N(0)))
THUNK(segno_embed, segno_embed(P(0), P(1), P(2), N(0), P(3), P(4), N(1), P(5), a->err))
VOID(segno_adapter_opts_init, segno_adapter_opts_init(P(0), N(0)))
THUNK(segno_adapter_load, segno_adapter_load(P(0), P(1), P(2), P(3), a->err))
VOID(segno_adapter_free, segno_adapter_free(P(0)))
THUNK(segno_seq_adapters_set, segno_seq_adapters_set(P(0), N(0), P(1), P(2), N(1), a->err))
VOID(segno_grammar_opts_init, segno_grammar_opts_init(P(0), N(0)))
THUNK(segno_grammar_create, segno_grammar_create(P(0), P(1), P(2), a->err))
VOID(segno_grammar_free, segno_grammar_free(P(0)))
THUNK(segno_seq_grammar_set, segno_seq_grammar_set(P(0), N(0), P(1), N(1), a->err))
THUNK(segno_device_count, segno_device_count(N(0), P(0), a->err))
THUNK(segno_device_info_get, segno_device_info_get(N(0), N(1), P(0), N(2), a->err))
VOID(segno_error_code, (void)segno_error_code(P(0)))
VOID(segno_error_message, CHECK(segno_error_message(P(0)) != NULL))
VOID(segno_error_item, CHECK(segno_error_item(P(0)) == -1))
VOID(segno_error_free, segno_error_free(P(0)))
VOID(segno_model_opts_init, segno_model_opts_init(P(0), N(0)))
THUNK(segno_model_load, segno_model_load(P(0), P(1), P(2), P(3), a->err))
THUNK(segno_model_load_buffer, segno_model_load_buffer(P(0), P(1), N(0), P(2), P(3), a->err))
VOID(segno_save_opts_init, segno_save_opts_init(P(0), N(0)))
THUNK(segno_model_save, segno_model_save(P(0), P(1), P(2), a->err))
THUNK(segno_model_meta, segno_model_meta(P(0), P(1), P(2), N(0), P(3), a->err))
THUNK(segno_model_info_get, segno_model_info_get(P(0), P(1), N(0), a->err))
VOID(segno_model_free, segno_model_free(P(0)))
THUNK(segno_plan_get, segno_plan_get(P(0), P(1), P(2), P(3), P(4), N(0), a->err))
VOID(segno_reply_opts_init, segno_reply_opts_init(P(0), N(0)))
THUNK(segno_reply_create, segno_reply_create(P(0), P(1), P(2), a->err))
THUNK(segno_reply_push, segno_reply_push(P(0), N(0), P(1), N(1), P(2), a->err))
THUNK(segno_reply_flush, segno_reply_flush(P(0), P(1), N(0), P(2), a->err))
THUNK(segno_reply_format, segno_reply_format(P(0), P(1), N(0), P(2), a->err))
VOID(segno_reply_free, segno_reply_free(P(0)))
VOID(segno_sampler_opts_init, segno_sampler_opts_init(P(0), N(0)))
THUNK(segno_seq_open, segno_seq_open(P(0), P(1), P(2), a->err))
THUNK(segno_seq_append, segno_seq_append(P(0), N(0), P(1), N(1), a->err))
THUNK(segno_seq_prefill, segno_seq_prefill(P(0), N(0), P(1), N(1), a->err))
THUNK(segno_seq_length, segno_seq_length(P(0), N(0), P(1), a->err))
THUNK(segno_seq_stats_get, segno_seq_stats_get(P(0), N(0), P(1), N(1), a->err))
THUNK(segno_seq_logits, segno_seq_logits(P(0), N(0), P(1), N(1), P(2), a->err))
THUNK(segno_seq_save, save_again(P(0), N(0), (int)N(1), P(1), a->err))
THUNK(segno_seq_restore, (saved_at = 0, segno_seq_restore(P(0), N(0) ? give_saved : NULL, P(1), P(2), P(3), a->err)))
THUNK(segno_seq_save_file, segno_seq_save_file(P(0), N(0), P(1), a->err))
THUNK(segno_seq_restore_file, segno_seq_restore_file(P(0), P(1), P(2), P(3), a->err))
THUNK(segno_seq_sampler_set, segno_seq_sampler_set(P(0), N(0), P(1), a->err))
THUNK(segno_seq_fork, segno_seq_fork(P(0), N(0), P(1), P(2), a->err))
THUNK(segno_seq_truncate, segno_seq_truncate(P(0), N(0), N(1), a->err))
THUNK(segno_seq_remove, segno_seq_remove(P(0), N(0), N(1), N(2), a->err))
THUNK(segno_seq_mark, segno_seq_mark(P(0), N(0), a->err))
THUNK(segno_seq_mark_nearest, segno_seq_mark_nearest(P(0), N(0), N(1), P(1), a->err))
THUNK(segno_seq_close, segno_seq_close(P(0), N(0), a->err))
VOID(segno_session_opts_init, segno_session_opts_init(P(0), N(0)))
THUNK(segno_session_create, segno_session_create(P(0), P(1), P(2), a->err))
VOID(segno_session_free, segno_session_free(P(0)))
THUNK(segno_session_memory, segno_session_memory(P(0), P(1), N(0), a->err))
THUNK(segno_session_stats_get, segno_session_stats_get(P(0), P(1), N(0), a->err))
VOID(segno_submit_opts_init, segno_submit_opts_init(P(0), N(0)))
THUNK(segno_session_submit, submit_to_the_end(P(0), P(1), N(0), P(2), a->err))
THUNK(segno_session_poll, poll_submitted(P(0), N(0), P(1), P(2), a->err))
THUNK(segno_session_cancel, segno_session_cancel(P(0), N(0)))
VOID(segno_status_str, CHECK(segno_status_str(N(0)) != NULL))
THUNK(segno_tokenize, segno_tokenize(P(0), P(1), N(0), N(1), P(2), N(2), P(3), a->err))
THUNK(segno_detokenize, segno_detokenize(P(0), P(1), N(0), N(1), P(2), N(2), P(3), a->err))
VOID(segno_text_opts_init, segno_text_opts_init(P(0), N(0)))
THUNK(segno_text_create, segno_text_create(P(0), P(1), P(2), a->err))
THUNK(segno_text_push, segno_text_push(P(0), N(0), P(1), N(1), P(2), a->err))
THUNK(segno_text_flush, segno_text_flush(P(0), P(1), N(0), P(2), a->err))
VOID(segno_text_free, segno_text_free(P(0)))
VOID(segno_tools_opts_init, segno_tools_opts_init(P(0), N(0)))
THUNK(segno_tools_grammar_create, segno_tools_grammar_create(P(0), P(1), P(2), P(3), a->err))
VOID(segno_version_number, CHECK(segno_version_number() == SEGNO_VERSION_NUMBER))
VOID(segno_version_string, CHECK(segno_version_string() != NULL))
VOID(segno_abi_version, CHECK(segno_abi_version() == SEGNO_ABI_VERSION))
THUNK(segno_has_feature, segno_has_feature(P(0)))

static void init_chat(void *p, size_t size) { segno_chat_opts_init(UNTYPED(p), size); }
static void init_chat_create(void *p, size_t size) { segno_chat_create_opts_init(UNTYPED(p), size); }
static void init_ctx(void *p, size_t size) { segno_ctx_opts_init(UNTYPED(p), size); }
static void init_embed(void *p, size_t size) { segno_embed_opts_init(UNTYPED(p), size); }
static void init_adapter(void *p, size_t size) { segno_adapter_opts_init(UNTYPED(p), size); }
static void init_grammar(void *p, size_t size) { segno_grammar_opts_init(UNTYPED(p), size); }
static void init_model(void *p, size_t size) { segno_model_opts_init(UNTYPED(p), size); }
static void init_session(void *p, size_t size) { segno_session_opts_init(UNTYPED(p), size); }
static void init_save(void *p, size_t size) { segno_save_opts_init(UNTYPED(p), size); }
static void init_sampler(void *p, size_t size) { segno_sampler_opts_init(UNTYPED(p), size); }
static void init_reply(void *p, size_t size) { segno_reply_opts_init(UNTYPED(p), size); }
static void init_submit(void *p, size_t size) { segno_submit_opts_init(UNTYPED(p), size); }
static void init_text(void *p, size_t size) { segno_text_opts_init(UNTYPED(p), size); }
static void init_tools(void *p, size_t size) { segno_tools_opts_init(UNTYPED(p), size); }
static void free_chat(void *p) { segno_chat_free(UNTYPED(p)); }
static void free_ctx(void *p) { segno_ctx_free(UNTYPED(p)); }
static void free_adapter(void *p) { segno_adapter_free(UNTYPED(p)); }
static void free_grammar(void *p) { segno_grammar_free(UNTYPED(p)); }
static void free_model(void *p) { segno_model_free(UNTYPED(p)); }
static void free_reply(void *p) { segno_reply_free(UNTYPED(p)); }
static void free_session(void *p) { segno_session_free(UNTYPED(p)); }
static void free_text(void *p) { segno_text_free(UNTYPED(p)); }

#define F(function) .name = #function, .call = call_##function
#define OPTIONS(noun) .opts_size = sizeof(segno_##noun##_opts), .init = init_##noun
#define STRUCT(type) .info_size = sizeof(type)

static const function functions[] = {
    {F(segno_chat_opts_init), .kinds = {FILL}, .names = "opts", .numbers = {SIZE}, OPTIONS(chat)},
    /* The model of the tests has no template. */
    {F(segno_chat_render), .kinds = {MODEL, JSON, OPTS, BUFFER, LEN}, .names = "model messages_json opts buf len",
        .numbers = {COUNT, CAP}, OPTIONS(chat), .element = 1, .has_err = 1, .good = SEGNO_E_NOT_FOUND},
    {F(segno_chat_tokenize), .kinds = {MODEL, JSON, OPTS, BUFFER, LEN},
        .names = "model messages_json opts tokens count", .numbers = {COUNT, CAP}, OPTIONS(chat),
        .element = sizeof(int32_t), .has_err = 1, .good = SEGNO_E_NOT_FOUND},
    {F(segno_chat_create_opts_init), .kinds = {FILL}, .names = "opts", .numbers = {SIZE}, OPTIONS(chat_create)},
    {F(segno_chat_create), .kinds = {SESSION, OPTS, VALUE}, .names = "session opts out", OPTIONS(chat_create),
        .release = free_chat, .has_err = 1, .good = SEGNO_E_NOT_FOUND},
    {F(segno_chat_say), .kinds = {CHAT, KEY, BYTES}, .names = "chat role text", .numbers = {COUNT}, .has_err = 1},
    /* A message without a role. */
    {F(segno_chat_add), .kinds = {CHAT, JSON}, .names = "chat message_json", .numbers = {COUNT}, .has_err = 1,
        .good = SEGNO_E_INVALID_ARGUMENT},
    {F(segno_chat_tools_set), .kinds = {CHAT, NAME}, .names = "chat name", .numbers = {CHOICE, FLAGS}, .has_err = 1},
    {F(segno_chat_truncate), .kinds = {CHAT}, .names = "chat", .numbers = {KEPT}, .has_err = 1},
    {F(segno_chat_messages), .kinds = {CHAT, BUFFER, LEN}, .names = "chat buf len", .numbers = {CAP}, .element = 1,
        .has_err = 1},
    {F(segno_chat_seq), .kinds = {CHAT, VALUE}, .names = "chat seq", .has_err = 1},
    {F(segno_chat_stats_get), .kinds = {CHAT, INFO}, .names = "chat out", .numbers = {SIZE}, STRUCT(segno_chat_stats),
        .has_err = 1},
    {F(segno_chat_fork), .kinds = {CHAT, OPTS, VALUE}, .names = "chat opts out", OPTIONS(sampler), .release = free_chat,
        .has_err = 1},
    {F(segno_chat_next), .kinds = {CHAT, BUFFER, LEN}, .names = "chat events count", .numbers = {CAP},
        .element = sizeof(segno_event), .has_err = 1},
    {F(segno_chat_next_batch), .kinds = {SESSION, CHATS, PLACES, ROOM, ROOM},
        .names = "session chats events counts statuses", .numbers = {COUNT, CAP}, .element = sizeof(segno_event),
        .has_err = 1},
    {F(segno_chat_submit), .kinds = {SESSION, CHATS, OPTS}, .names = "session chats opts", .numbers = {COUNT},
        OPTIONS(submit), .has_err = 1},
    {F(segno_chat_poll), .kinds = {SESSION, PLACES, ROOM, ROOM}, .names = "session events counts statuses",
        .numbers = {WAIT, CAP}, .element = sizeof(segno_event), .has_err = 1},
    {F(segno_chat_free), .kinds = {CHAT}, .names = "chat", .is_free = 1},
    {F(segno_ctx_opts_init), .kinds = {FILL}, .names = "opts", .numbers = {SIZE}, OPTIONS(ctx)},
    {F(segno_ctx_create), .kinds = {OPTS, VALUE}, .names = "opts out", .numbers = {ABI}, OPTIONS(ctx),
        .release = free_ctx, .has_err = 1},
    {F(segno_ctx_free), .kinds = {CTX}, .names = "ctx", .is_free = 1},
    {F(segno_decode_step), .kinds = {SESSION, VALUE}, .names = "session token", .numbers = {ID}, .has_err = 1},
    {F(segno_decode_many), .kinds = {SESSION, ROOM, VALUE}, .names = "session tokens count", .numbers = {ID, COUNT},
        .has_err = 1},
    {F(segno_decode_batch), .kinds = {SESSION, SEQS, ROOM, ROOM}, .names = "session seqs tokens statuses",
        .numbers = {COUNT}, .has_err = 1},
    {F(segno_embed_opts_init), .kinds = {FILL}, .names = "opts", .numbers = {SIZE}, OPTIONS(embed)},
    {F(segno_embed), .kinds = {SESSION, TOKENS, LENGTHS, OPTS, BUFFER, LEN},
        .names = "session tokens lengths opts out dims", .numbers = {COUNT, CAP}, OPTIONS(embed),
        .element = sizeof(float), .has_err = 1},
    {F(segno_adapter_opts_init), .kinds = {FILL}, .names = "opts", .numbers = {SIZE}, OPTIONS(adapter)},
    {F(segno_adapter_load), .kinds = {MODEL, CHANGE, OPTS, VALUE}, .names = "model path opts out", OPTIONS(adapter),
        .release = free_adapter, .has_err = 1},
    {F(segno_adapter_free), .kinds = {ADAPTER}, .names = "adapter", .is_free = 1},
    {F(segno_seq_adapters_set), .kinds = {SESSION, ADAPTERS, SCALES}, .names = "session adapters scales",
        .numbers = {ID, COUNT}, .has_err = 1},
    {F(segno_grammar_opts_init), .kinds = {FILL}, .names = "opts", .numbers = {SIZE}, OPTIONS(grammar)},
    {F(segno_grammar_create), .kinds = {MODEL, OPTS, VALUE}, .names = "model opts out", OPTIONS(grammar),
        .release = free_grammar, .has_err = 1},
    {F(segno_grammar_free), .kinds = {GRAMMAR}, .names = "grammar", .is_free = 1},
    {F(segno_seq_grammar_set), .kinds = {SESSION, RULES}, .names = "session grammar", .numbers = {ID, START},
        .has_err = 1},
    {F(segno_device_count), .kinds = {VALUE}, .names = "out", .numbers = {DEVICE}, .has_err = 1},
    {F(segno_device_info_get), .kinds = {INFO}, .names = "out", .numbers = {DEVICE, INDEX, SIZE},
        STRUCT(segno_device_info), .has_err = 1},
    {F(segno_error_code), .kinds = {ERROR}, .names = "error", .is_free = 1},
    {F(segno_error_message), .kinds = {ERROR}, .names = "error", .is_free = 1},
    {F(segno_error_item), .kinds = {ERROR}, .names = "error", .is_free = 1},
    {F(segno_error_free), .kinds = {ERROR}, .names = "error", .is_free = 1},
    {F(segno_model_opts_init), .kinds = {FILL}, .names = "opts", .numbers = {SIZE}, OPTIONS(model)},
    {F(segno_model_load), .kinds = {CTX, PATH, OPTS, VALUE}, .names = "ctx path opts out", OPTIONS(model),
        .release = free_model, .has_err = 1},
    {F(segno_model_load_buffer), .kinds = {CTX, BYTES, OPTS, VALUE}, .names = "ctx data opts out", .numbers = {COUNT},
        OPTIONS(model), .release = free_model, .has_err = 1, .good = SEGNO_E_FORMAT},
    {F(segno_save_opts_init), .kinds = {FILL}, .names = "opts", .numbers = {SIZE}, OPTIONS(save)},
    {F(segno_model_save), .kinds = {MODEL, TARGET, OPTS}, .names = "model path opts", OPTIONS(save), .has_err = 1},
    {F(segno_model_meta), .kinds = {MODEL, KEY, BUFFER, LEN}, .names = "model key buf len", .numbers = {CAP},
        .element = 1, .has_err = 1},
    {F(segno_model_info_get), .kinds = {MODEL, INFO}, .names = "model out", .numbers = {SIZE}, STRUCT(segno_model_info),
        .has_err = 1},
    {F(segno_model_free), .kinds = {MODEL}, .names = "model", .is_free = 1},
    {F(segno_plan_get), .kinds = {CTX, PATH, OPTS, SECOND, INFO}, .names = "ctx path model_opts session_opts out",
        .numbers = {SIZE}, OPTIONS(model), STRUCT(segno_plan), .has_err = 1},
    {F(segno_reply_opts_init), .kinds = {FILL}, .names = "opts", .numbers = {SIZE}, OPTIONS(reply)},
    {F(segno_reply_create), .kinds = {MODEL, OPTS, VALUE}, .names = "model opts out", OPTIONS(reply),
        .release = free_reply, .has_err = 1},
    {F(segno_reply_push), .kinds = {REPLY, BUFFER, LEN}, .names = "reply events count", .numbers = {TOKEN, CAP},
        .element = sizeof(segno_event), .has_err = 1},
    {F(segno_reply_flush), .kinds = {REPLY, BUFFER, LEN}, .names = "reply events count", .numbers = {CAP},
        .element = sizeof(segno_event), .has_err = 1},
    {F(segno_reply_format), .kinds = {REPLY, BUFFER, LEN}, .names = "reply buf len", .numbers = {CAP}, .element = 1,
        .has_err = 1},
    {F(segno_reply_free), .kinds = {REPLY}, .names = "reply", .is_free = 1},
    {F(segno_sampler_opts_init), .kinds = {FILL}, .names = "opts", .numbers = {SIZE}, OPTIONS(sampler)},
    {F(segno_seq_open), .kinds = {SESSION, OPTS, VALUE}, .names = "session opts seq", OPTIONS(sampler), .has_err = 1},
    {F(segno_seq_append), .kinds = {SESSION, TOKENS}, .names = "session tokens", .numbers = {ID, COUNT}, .has_err = 1},
    {F(segno_seq_prefill), .kinds = {SESSION, TOKENS}, .names = "session tokens", .numbers = {ID, COUNT}, .has_err = 1},
    {F(segno_seq_length), .kinds = {SESSION, VALUE}, .names = "session tokens", .numbers = {ID}, .has_err = 1},
    {F(segno_seq_stats_get), .kinds = {SESSION, INFO}, .names = "session out", .numbers = {ID, SIZE},
        STRUCT(segno_seq_stats), .has_err = 1},
    {F(segno_seq_logits), .kinds = {SESSION, BUFFER, LEN}, .names = "session buf count", .numbers = {ID, CAP},
        .element = sizeof(float), .has_err = 1},
    {F(segno_seq_save), .kinds = {SESSION, USER}, .names = "session user", .numbers = {ID, CALLED}, .has_err = 1},
    {F(segno_seq_restore), .kinds = {SESSION, USER, OPTS, VALUE}, .names = "session user opts seq", .numbers = {CALLED},
        OPTIONS(sampler), .has_err = 1},
    {F(segno_seq_save_file), .kinds = {SESSION, TARGET}, .names = "session path", .numbers = {ID}, .has_err = 1},
    {F(segno_seq_restore_file), .kinds = {SESSION, PATH, OPTS, VALUE}, .names = "session path opts seq",
        OPTIONS(sampler), .has_err = 1, .good = SEGNO_E_FORMAT},
    {F(segno_seq_sampler_set), .kinds = {SESSION, OPTS}, .names = "session opts", .numbers = {ID}, OPTIONS(sampler),
        .has_err = 1},
    {F(segno_seq_fork), .kinds = {SESSION, OPTS, VALUE}, .names = "session opts out", .numbers = {ID}, OPTIONS(sampler),
        .has_err = 1},
    {F(segno_seq_truncate), .kinds = {SESSION}, .names = "session", .numbers = {ID, KEPT}, .has_err = 1},
    {F(segno_seq_remove), .kinds = {SESSION}, .names = "session", .numbers = {ID, KEPT, KEPT}, .has_err = 1},
    {F(segno_seq_mark), .kinds = {SESSION}, .names = "session", .numbers = {ID}, .has_err = 1},
    {F(segno_seq_mark_nearest), .kinds = {SESSION, VALUE}, .names = "session found", .numbers = {ID, KEPT},
        .has_err = 1},
    {F(segno_seq_close), .kinds = {SESSION}, .names = "session", .numbers = {ID}, .has_err = 1},
    {F(segno_session_opts_init), .kinds = {FILL}, .names = "opts", .numbers = {SIZE}, OPTIONS(session)},
    {F(segno_session_create), .kinds = {MODEL, OPTS, VALUE}, .names = "model opts out", OPTIONS(session),
        .release = free_session, .has_err = 1},
    {F(segno_session_free), .kinds = {SESSION}, .names = "session", .is_free = 1},
    {F(segno_session_memory), .kinds = {SESSION, INFO}, .names = "session out", .numbers = {SIZE}, STRUCT(segno_memory),
        .has_err = 1},
    {F(segno_session_stats_get), .kinds = {SESSION, INFO}, .names = "session out", .numbers = {SIZE},
        STRUCT(segno_session_stats), .has_err = 1},
    {F(segno_submit_opts_init), .kinds = {FILL}, .names = "opts", .numbers = {SIZE}, OPTIONS(submit)},
    {F(segno_session_submit), .kinds = {SESSION, SEQS, OPTS}, .names = "session seqs opts", .numbers = {COUNT},
        OPTIONS(submit), .has_err = 1},
    {F(segno_session_poll), .kinds = {SESSION, ROOM, ROOM}, .names = "session tokens statuses", .numbers = {WAIT},
        .has_err = 1},
    {F(segno_session_cancel), .kinds = {SESSION}, .names = "session", .numbers = {SWITCH}},
    {F(segno_status_str), .numbers = {CODE}},
    {F(segno_tokenize), .kinds = {MODEL, BYTES, BUFFER, LEN}, .names = "model text tokens count",
        .numbers = {COUNT, FLAGS, CAP}, .element = sizeof(int32_t), .has_err = 1},
    {F(segno_detokenize), .kinds = {MODEL, TOKENS, BUFFER, LEN}, .names = "model tokens buf len",
        .numbers = {COUNT, FLAGS, CAP}, .element = 1, .has_err = 1},
    {F(segno_text_opts_init), .kinds = {FILL}, .names = "opts", .numbers = {SIZE}, OPTIONS(text)},
    {F(segno_text_create), .kinds = {MODEL, OPTS, VALUE}, .names = "model opts out", OPTIONS(text),
        .release = free_text, .has_err = 1},
    {F(segno_text_push), .kinds = {TEXT, BUFFER, LEN}, .names = "text buf len", .numbers = {TOKEN, CAP}, .element = 1,
        .has_err = 1},
    {F(segno_text_flush), .kinds = {TEXT, BUFFER, LEN}, .names = "text buf len", .numbers = {CAP}, .element = 1,
        .has_err = 1},
    {F(segno_text_free), .kinds = {TEXT}, .names = "text", .is_free = 1},
    {F(segno_tools_opts_init), .kinds = {FILL}, .names = "opts", .numbers = {SIZE}, OPTIONS(tools)},
    {F(segno_tools_grammar_create), .kinds = {MODEL, OPTS, VALUE, VALUE}, .names = "model opts out start_token",
        OPTIONS(tools), .release = free_grammar, .has_err = 1},
    {F(segno_version_number)},
    {F(segno_version_string)},
    {F(segno_abi_version)},
    {F(segno_has_feature), .kinds = {NAME}, .names = "name"},
};
#define FUNCTIONS (sizeof functions / sizeof *functions)

#endif
