/* Streams a continuation of a prompt, and tells how fast prompt and continuation went.
 *
 *   generate MODEL.gguf [-p PROMPT] [-n TOKENS] [-s SEED] [-t TEMPERATURE] [-j THREADS]
 */
#include <segno.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct options {
    const char *model;
    const char *prompt;
    long tokens;
    long seed;
    float temperature;
    long threads;
};

/* Ends the program with the library's message when a call has failed. */
static void check(const char *what, segno_status status, segno_error **err) {
    if (SEGNO_FAILED(status)) {
        fprintf(stderr, "%s: %s (%s)\n", what, segno_error_message(*err), segno_status_str(status));
        segno_error_free(*err);
        exit(1);
    }
}

static double per_second(uint64_t count, uint64_t microseconds) {
    return microseconds == 0 ? 0 : (double)count * 1e6 / (double)microseconds;
}

static struct options parse(int argc, char **argv) {
    struct options o = {NULL, "", 200, -1, 0.8f, 0};
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (argv[i][0] != '-') {
            o.model = argv[i];
            continue;
        }
        if (value == NULL) {
            fprintf(stderr, "%s needs a value\n", argv[i]);
            exit(2);
        }
        switch (argv[i][1]) {
            case 'p': o.prompt = value; break;
            case 'n': o.tokens = strtol(value, NULL, 10); break;
            case 's': o.seed = strtol(value, NULL, 10); break;
            case 't': o.temperature = strtof(value, NULL); break;
            case 'j': o.threads = strtol(value, NULL, 10); break;
            default: fprintf(stderr, "unknown option %s\n", argv[i]); exit(2);
        }
        i++;
    }
    if (o.model == NULL) {
        fprintf(stderr, "usage: generate MODEL.gguf [-p PROMPT] [-n TOKENS] [-s SEED] [-t TEMPERATURE] [-j THREADS]\n");
        exit(2);
    }
    return o;
}

static int32_t *tokenize(const segno_model *model, const char *text, size_t *count) {
    segno_error *err = NULL;
    const uint32_t flags = SEGNO_TOKENIZE_ADD_SPECIAL;
    check("tokenize", segno_tokenize(model, text, strlen(text), flags, NULL, 0, count, &err), &err);
    int32_t *tokens = malloc((*count + 1) * sizeof *tokens);
    if (tokens == NULL) exit(1);
    check("tokenize", segno_tokenize(model, text, strlen(text), flags, tokens, *count, count, &err), &err);
    return tokens;
}

/* Decodes up to `limit` tokens and prints whole characters as they come; returns how many tokens there were. */
static long stream(segno_session *session, int32_t seq, segno_text *text, long limit) {
    segno_error *err = NULL;
    segno_status status = SEGNO_OK;
    char piece[512];
    size_t len;
    long count = 0;
    while (count < limit && status != SEGNO_DONE) {
        int32_t token;
        status = segno_decode_step(session, seq, &token, &err);
        if (status == SEGNO_E_CONTEXT_FULL || status == SEGNO_E_KV_FULL) {
            segno_error_free(err);
            break;
        }
        check("decode", status, &err);
        if (status == SEGNO_PENDING) continue;
        count++;
        check("text", segno_text_push(text, token, piece, sizeof piece, &len, &err), &err);
        fwrite(piece, 1, len, stdout);
        fflush(stdout);
    }
    check("text", segno_text_flush(text, piece, sizeof piece, &len, &err), &err);
    fwrite(piece, 1, len, stdout);
    return count;
}

int main(int argc, char **argv) {
    struct options o = parse(argc, argv);
    segno_error *err = NULL;
    segno_ctx *ctx;
    segno_model *model;
    segno_session *session;
    segno_text *text;
    int32_t seq;
    segno_ctx_opts ctx_opts;
    segno_ctx_opts_init(&ctx_opts, sizeof ctx_opts);
    ctx_opts.n_threads = (uint32_t)o.threads;
    check("context", segno_ctx_create(SEGNO_ABI_VERSION, &ctx_opts, &ctx, &err), &err);
    check("load", segno_model_load(ctx, o.model, NULL, &model, &err), &err);
    check("session", segno_session_create(model, NULL, &session, &err), &err);
    check("text", segno_text_create(model, NULL, &text, &err), &err);

    segno_sampler_opts sampler;
    segno_sampler_opts_init(&sampler, sizeof sampler);
    sampler.temperature = o.temperature;
    if (o.seed >= 0) sampler.seed = (uint64_t)o.seed;
    check("sequence", segno_seq_open(session, &sampler, &seq, &err), &err);

    size_t prompt_count;
    int32_t *prompt = tokenize(model, o.prompt, &prompt_count);
    check("prompt", segno_seq_prefill(session, seq, prompt, prompt_count, &err), &err);
    printf("%s", o.prompt);
    long count = stream(session, seq, text, o.tokens);
    segno_session_stats stats;
    check("figures", segno_session_stats_get(session, &stats, sizeof stats, &err), &err);
    printf("\n\nprompt: %zu tokens, %.1f tokens/s; decode: %ld tokens, %.1f tokens/s\n", prompt_count,
        per_second(stats.prompt_tokens, stats.prompt_us), count, per_second(stats.decoded_tokens, stats.decode_us));

    free(prompt);
    segno_text_free(text);
    segno_session_free(session);
    segno_model_free(model);
    segno_ctx_free(ctx);
    return 0;
}
