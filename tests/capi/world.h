/* The objects and places that calls are made with, and good arguments for every function of functions.h. */
#ifndef SEGNO_TEST_WORLD_H
#define SEGNO_TEST_WORLD_H

#include "functions.h"

#include <unistd.h>

/* The world of a call, made anew for each. */
static const char *path;
static segno_ctx *ctx;
static segno_model *model;
static segno_session *session;
static segno_text *text;
static segno_reply *reply;
static segno_chat *conversation;
static segno_grammar *grammar;
static segno_adapter *adapter;
static const float scale = 0.5f;
static int32_t seq, closed;
static size_t len;
static int32_t tokens[4] = {40, 41, 42, 43};
static const size_t length = 4;
static void *value, *opts[256], *info[256], *buffer[4096], *rooms[2];
static struct {
    segno_session_opts opts;
    unsigned char later[80];
} second;
static segno_error *error;

/* A file to write, of this process alone, removed at its end. */
static char target_path[256];

static void remove_target(void) { remove(target_path); }

static const char *target(void) {
    if (target_path[0] == 0) {
        const char *folder = getenv("TMPDIR");
        snprintf(target_path, sizeof target_path, "%s/segno-saved-%ld.gguf", folder != NULL ? folder : "/tmp",
            (long)getpid());
        atexit(remove_target);
    }
    return target_path;
}

/* The adapter lies beside the model, with -lora behind its name. */
static const char *change(void) {
    static char beside[1024];
    snprintf(beside, sizeof beside, "%.*s-lora.gguf", (int)(strlen(path) - strlen(".gguf")), path);
    return beside;
}

/* The model of the tests has no template. */
static const char plain_template[] = "{% for m in messages %}{{ m.content }}\n{% endfor %}";

/* A conversation whose next step begins a reply. */
static void make_conversation(const segno_sampler_opts *sampler) {
    static const char messages[] = "[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"}]";
    segno_chat_create_opts of;
    segno_chat_create_opts_init(&of, sizeof of);
    of.sampler = sampler;
    of.template_text = plain_template;
    of.template_len = sizeof plain_template - 1;
    EXPECT(SEGNO_OK, segno_chat_create(session, &of, &conversation, &err));
    EXPECT(SEGNO_OK, segno_chat_add(conversation, messages, sizeof messages - 1, &err));
    EXPECT(SEGNO_OK, segno_chat_say(conversation, "user", "c", 1, &err));
}

static void make_world(void) {
    segno_session_opts small;
    segno_sampler_opts greedy;
    segno_sampler_opts_init(&greedy, sizeof greedy);
    greedy.temperature = 0;
    segno_session_opts_init(&small, sizeof small);
    small.max_seqs = 4;
    small.kv_tokens = 64;
    small.max_prefill = 16;
    EXPECT(SEGNO_OK, segno_session_create(model, &small, &session, &err));
    EXPECT(SEGNO_OK, segno_text_create(model, NULL, &text, &err));
    EXPECT(SEGNO_OK, segno_reply_create(model, NULL, &reply, &err));
    EXPECT(SEGNO_OK, segno_grammar_create(model, NULL, &grammar, &err));
    EXPECT(SEGNO_OK, segno_adapter_load(model, change(), NULL, &adapter, &err));
    EXPECT(SEGNO_OK, segno_seq_open(session, NULL, &closed, &err));
    EXPECT(SEGNO_OK, segno_seq_close(session, closed, &err));
    make_conversation(&greedy);
    EXPECT(SEGNO_OK, segno_seq_open(session, &greedy, &seq, &err));
    EXPECT(SEGNO_OK, segno_seq_prefill(session, seq, tokens, 4, &err));
    submitted = seq;
    submitted_chat = conversation;
    EXPECT(SEGNO_OK, save_again(session, seq, 1, NULL, &err));
}

static void end_world(void) {
    segno_chat_free(conversation);
    segno_session_free(session);
    segno_text_free(text);
    segno_reply_free(reply);
    segno_grammar_free(grammar);
    segno_adapter_free(adapter);
}

static void *good(kind k, int index) {
    switch (k) {
        case CTX: return ctx;
        case MODEL: return model;
        case SESSION: return session;
        case TEXT: return text;
        case REPLY: return reply;
        case CHAT: return conversation;
        case CHATS: return &conversation;
        case PLACES: return buffer;
        case RULES:
        case GRAMMAR: return grammar;
        case ADAPTER: return adapter;
        case ADAPTERS: return &adapter;
        case SCALES: return (void *)&scale;
        case CHANGE: return (void *)change();
        case PATH: return (void *)path;
        case TARGET: return (void *)target();
        case KEY: return (void *)"general.architecture";
        case NAME: return (void *)"avx2";
        case JSON: return (void *)"[{}]";
        case BYTES:
        case TOKENS: return tokens;
        case LENGTHS: return (void *)&length;
        case SEQS: return &seq;
        case OPTS:
        case FILL: return opts;
        case SECOND: return &second.opts;
        case INFO: return info;
        case VALUE: return &value;
        case BUFFER: return buffer;
        case ROOM: return &rooms[index % 2];
        case LEN: return &len;
        case USER: return &value;
        case NONE:
        case ERROR: break;
    }
    return NULL;
}

static int64_t good_number(const function *f, number k) {
    switch (k) {
        case ABI: return SEGNO_ABI_VERSION;
        case SIZE: return (int64_t)(f->info_size > 0 ? f->info_size : f->opts_size);
        case CAP: return (int64_t)(sizeof buffer / f->element);
        case COUNT:
            return f->kinds[1] == SEQS || f->kinds[1] == CHATS || f->kinds[1] == ADAPTERS || f->kinds[2] == LENGTHS ? 1
                                                                                                                    : 4;
        case ID: return seq;
        case START:
        case TOKEN: return 40;
        case KEPT: return 2;
        case CALLED: return 1;
        case WAIT: return 60000000;
        case DEVICE: return SEGNO_DEVICE_CPU;
        case FLAGS:
        case INDEX:
        case SWITCH:
        case CHOICE:
        case CODE:
        case NO_NUMBER: break;
    }
    return 0;
}

static args good_args(const function *f) {
    args a = {.err = &error};
    for (int i = 0; i < 6; i++) a.p[i] = good(f->kinds[i], i);
    for (int i = 0; i < 4; i++) a.n[i] = good_number(f, f->numbers[i]);
    memset(opts, 0xAA, sizeof opts);
    segno_session_opts_init(&second.opts, sizeof second.opts);
    if (f->init != NULL) f->init(opts, f->opts_size);
    return a;
}

#endif
