/* A conversation on the terminal: turns from standard input go through the model's chat template (or, without one,
 * through plain "User:" and "Assistant:" lines), replies stream out. /reset forgets everything.
 *
 *   chat MODEL.gguf [-s SEED] [-n TOKENS OF A REPLY] [-t TEMPERATURE] [SYSTEM PROMPT]
 *
 * The conversation is rendered anew for every turn; what the sequence already holds of it is kept. When the context
 * runs full, the oldest turns are forgotten: the sequence is cut at the end of the system turn, and the newest turns
 * are appended again. */
#include <segno.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TURNS = 256, MAX_TEXT = 1 << 16, MAX_TOKENS = 1 << 16, ROOM_FOR_REPLY = 128 };

static struct {
    const char *role;
    char *text;
} turns[MAX_TURNS];
static int has_template, turn_count,
    first_kept; /* turn 0 is the system's, if there is one; others before first_kept are forgotten */
static int32_t seq, held[MAX_TOKENS]; /* tokens of the sequence */
static size_t held_count;
static char text[MAX_TEXT];
static segno_model *model;
static segno_session *session;
static segno_text *stream;

static void check(const char *what, segno_status status, segno_error **err) {
    if (SEGNO_FAILED(status)) {
        fprintf(stderr, "%s: %s\n", what, segno_error_message(*err));
        exit(1);
    }
}

static void add_turn(const char *role, const char *words, size_t len) {
    char *copy = calloc(len + 1, 1);
    if (copy == NULL || turn_count == MAX_TURNS) exit(1);
    memcpy(copy, words, len);
    turns[turn_count].role = role;
    turns[turn_count++].text = copy;
}

static int is_system(int turn) { return turn == 0 && strcmp(turns[0].role, "system") == 0; }

/* Appends words to the buffer, quoted as a JSON string unless `plain`. */
static size_t put(char *out, size_t at, const char *words, int plain) {
    for (; *words && at + 8 < MAX_TEXT; words++) {
        unsigned char c = (unsigned char)*words;
        if (!plain && (c == '"' || c == '\\' || c < 32)) at += (size_t)sprintf(out + at, "\\u%04x", c);
        else out[at++] = (char)c;
    }
    return at;
}

/* Writes the kept turns into `text`: as the template says, or as plain lines. */
static size_t render(void) {
    static char json[MAX_TEXT];
    size_t at = put(json, 0, "[", 1), plain_at = 0, len = 0;
    for (int i = 0; i < turn_count; i++) {
        if (i < first_kept && !is_system(i)) continue;
        at = put(json, at, at > 1 ? ",{\"role\":\"" : "{\"role\":\"", 1);
        at = put(json, put(json, at, turns[i].role, 1), "\",\"content\":\"", 1);
        at = put(json, put(json, at, turns[i].text, 0), "\"}", 1);
    }
    at = put(json, at, "]", 1);
    segno_chat_opts opts;
    segno_chat_opts_init(&opts, sizeof opts);
    opts.flags = SEGNO_CHAT_ADD_GENERATION_PROMPT;
    segno_error *err = NULL;
    if (has_template) {
        check("chat template", segno_chat_render(model, json, at, &opts, text, sizeof text, &len, &err), &err);
        return len;
    }
    for (int i = 0; i < turn_count; i++) {
        if (i < first_kept && !is_system(i)) continue;
        const char *label = is_system(i) ? "" : turns[i].role[0] == 'u' ? "User: " : "Assistant: ";
        plain_at = put(text, put(text, put(text, plain_at, label, 1), turns[i].text, 1), "\n", 1);
    }
    return put(text, plain_at, "Assistant:", 1);
}

/* Brings the sequence to the rendered conversation, forgetting the oldest turns while it does not fit. */
static void evaluate(size_t capacity) {
    static int32_t tokens[MAX_TOKENS];
    const uint32_t flags = has_template ? SEGNO_TOKENIZE_PARSE_SPECIAL : SEGNO_TOKENIZE_ADD_SPECIAL;
    segno_error *err = NULL;
    size_t count, same = 0;
    int forgotten = 0;
    for (;;) {
        size_t len = render();
        check("tokenize", segno_tokenize(model, text, len, flags, tokens, MAX_TOKENS, &count, &err), &err);
        if (count + ROOM_FOR_REPLY <= capacity || first_kept + 1 >= turn_count) break;
        first_kept++, forgotten++;
    }
    while (same < held_count && same < count && held[same] == tokens[same]) same++;
    if (forgotten) printf("[the context is full: %d turns are forgotten, %zu tokens kept]\n", forgotten, same);
    check("truncate", segno_seq_truncate(session, seq, same, &err), &err);
    check("append", segno_seq_append(session, seq, tokens + same, count - same, &err), &err);
    memcpy(held, tokens, count * sizeof *tokens);
    held_count = count;
}

/* Streams one reply of at most `limit` tokens and keeps it as a turn. */
static void reply(uint64_t limit) {
    segno_error *err = NULL;
    segno_status status = SEGNO_OK, shown = SEGNO_OK;
    size_t len, total = 0;
    int32_t token;
    while (
        limit > 0 && status != SEGNO_DONE && shown != SEGNO_DONE && held_count < MAX_TOKENS && total + 512 < MAX_TEXT) {
        status = segno_decode_step(session, seq, &token, &err);
        if (status == SEGNO_E_CONTEXT_FULL || status == SEGNO_E_KV_FULL) {
            segno_error_free(err);
            break;
        }
        check("decode", status, &err);
        if (status == SEGNO_PENDING) continue;
        held[held_count++] = token;
        limit--;
        shown = segno_text_push(stream, token, text + total, MAX_TEXT - total, &len, &err);
        check("text", shown, &err);
        fwrite(text + total, 1, len, stdout);
        fflush(stdout);
        total += len;
    }
    check("text", segno_text_flush(stream, text + total, MAX_TEXT - total, &len, &err), &err);
    fwrite(text + total, 1, len, stdout);
    puts(SEGNO_FAILED(status) ? " [the context is full]" : "");
    add_turn("assistant", text, total + len);
}

/* Loads the model; the tokens that a conversation may have. */
static size_t make(const char *path, uint64_t seed, float temperature) {
    segno_error *err = NULL;
    segno_ctx *ctx;
    segno_model_info info;
    segno_session_opts opts;
    segno_text_opts text_opts;
    segno_sampler_opts sampler;
    const segno_string stops[] = {{"\nUser:", 6}, {"\nAssistant:", 11}};
    size_t len;
    check("context", segno_ctx_create(SEGNO_ABI_VERSION, NULL, &ctx, &err), &err);
    check("load", segno_model_load(ctx, path, NULL, &model, &err), &err);
    segno_ctx_free(ctx);
    check("info", segno_model_info_get(model, &info, sizeof info, &err), &err);
    has_template = segno_model_meta(model, "tokenizer.chat_template", NULL, 0, &len, NULL) == SEGNO_OK;
    segno_session_opts_init(&opts, sizeof opts);
    opts.max_seqs = 1;
    opts.kv_tokens = info.context < 8192 ? info.context : 8192;
    check("session", segno_session_create(model, &opts, &session, &err), &err);
    segno_text_opts_init(&text_opts, sizeof text_opts);
    text_opts.stops = stops;
    text_opts.stop_count = has_template ? 0 : 2;
    check("text", segno_text_create(model, &text_opts, &stream, &err), &err);
    segno_sampler_opts_init(&sampler, sizeof sampler);
    sampler.seed = seed;
    sampler.temperature = temperature >= 0 ? temperature : sampler.temperature;
    check("sequence", segno_seq_open(session, &sampler, &seq, &err), &err);
    return (size_t)opts.kv_tokens;
}

int main(int argc, char **argv) {
    static char line[4096];
    uint64_t seed = SEGNO_SEED_RANDOM, limit = MAX_TOKENS;
    float temperature = -1;
    int system = 2;
    for (; system + 1 < argc && argv[system][0] == '-'; system += 2)
        if (argv[system][1] == 't') temperature = strtof(argv[system + 1], NULL);
        else *(argv[system][1] == 's' ? &seed : &limit) = strtoull(argv[system + 1], NULL, 10);
    if (argc < 2 || argc > system + 1) {
        fprintf(stderr, "usage: chat MODEL.gguf [-s SEED] [-n TOKENS OF A REPLY] [-t TEMPERATURE] [SYSTEM PROMPT]\n");
        return 2;
    }
    size_t capacity = make(argv[1], seed, temperature);
    if (argc > system) add_turn("system", argv[system], strlen(argv[system]));
    first_kept = turn_count;
    while (printf("> "), fflush(stdout), fgets(line, sizeof line, stdin) != NULL) {
        line[strcspn(line, "\n")] = 0;
        if (strcmp(line, "/reset") == 0) {
            while (turn_count > (argc > system)) free(turns[--turn_count].text);
            first_kept = turn_count;
            puts("[forgotten]");
            continue;
        }
        add_turn("user", line, strlen(line));
        evaluate(capacity);
        reply(limit);
    }
    puts("");
    segno_text_free(stream);
    segno_session_free(session);
    segno_model_free(model);
    return 0;
}
