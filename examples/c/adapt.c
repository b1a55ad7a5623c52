/* Lets a model go on with a prompt by itself, with each of several adapters, and with all of them together: sequences
 * of one session, which advance in the same passes. An adapter is a LoRA in a GGUF file, as llama.cpp's
 * convert_lora_to_gguf.py writes it.
 *
 *   adapt MODEL.gguf PROMPT ADAPTER.gguf[=SCALE]...
 */
#include <segno.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 48, MOST = 16 };

static segno_error *err; /* of the last call */

/* Ends the program with the library's message when a call has failed. */
static void check(const char *what, segno_status status) {
    if (SEGNO_FAILED(status)) {
        fprintf(stderr, "%s: %s (%s)\n", what, segno_error_message(err), segno_status_str(status));
        exit(1);
    }
}

/* The adapter that an argument names, and the scale behind its last `=`. */
static segno_adapter *load(const segno_model *model, char *argument, float *scale) {
    segno_adapter *adapter;
    char *number = strrchr(argument, '=');
    *scale = 1;
    if (number != NULL) {
        *scale = strtof(number + 1, NULL);
        *number = 0;
    }
    check("load the adapter", segno_adapter_load(model, argument, NULL, &adapter, &err));
    return adapter;
}

static int32_t open_with(segno_session *session, const segno_adapter *const *adapters, const float *scales,
    size_t count, const int32_t *prompt, size_t length) {
    segno_sampler_opts greedy;
    int32_t seq;
    segno_sampler_opts_init(&greedy, sizeof greedy);
    greedy.temperature = 0;
    greedy.flags = SEGNO_SAMPLER_IGNORE_EOG;
    check("open", segno_seq_open(session, &greedy, &seq, &err));
    /* Before the prompt: what a sequence has evaluated it evaluates again with other adapters. */
    check("set adapters", segno_seq_adapters_set(session, seq, adapters, scales, count, &err));
    check("append", segno_seq_append(session, seq, prompt, length, &err));
    return seq;
}

static void write_text(const segno_model *model, const char *name, const int32_t *tokens, size_t count) {
    static char text[TOKENS * 64];
    size_t len;
    check("detokenize", segno_detokenize(model, tokens, count, 0, text, sizeof text, &len, &err));
    printf("--- %s\n%.*s\n", name, (int)len, text);
}

int main(int argc, char **argv) {
    if (argc < 4 || argc > 3 + MOST) {
        fprintf(stderr, "usage: adapt MODEL.gguf PROMPT ADAPTER.gguf[=SCALE]... (at most %d)\n", MOST);
        return 2;
    }
    const size_t count = (size_t)argc - 3, seqs = count > 1 ? count + 2 : count + 1;
    segno_ctx *ctx;
    segno_model *model;
    segno_session_opts opts;
    segno_session *session;
    const segno_adapter *adapters[MOST];
    segno_adapter *own[MOST];
    float scales[MOST];
    check("create a context", segno_ctx_create(SEGNO_ABI_VERSION, NULL, &ctx, &err));
    check("load the model", segno_model_load(ctx, argv[1], NULL, &model, &err));
    for (size_t i = 0; i < count; i++) adapters[i] = own[i] = load(model, argv[3 + i], &scales[i]);
    segno_session_opts_init(&opts, sizeof opts);
    opts.max_seqs = (uint32_t)seqs;
    check("create a session", segno_session_create(model, &opts, &session, &err));

    static int32_t prompt[4096], texts[MOST + 2][TOKENS];
    size_t length, done = 0, lengths[MOST + 2] = {0};
    const uint32_t flags = SEGNO_TOKENIZE_ADD_SPECIAL;
    check("tokenize", segno_tokenize(model, argv[2], strlen(argv[2]), flags, prompt, 4096, &length, &err));
    int32_t ids[MOST + 2], tokens[MOST + 2];
    segno_status statuses[MOST + 2];
    ids[0] = open_with(session, NULL, NULL, 0, prompt, length);
    for (size_t i = 0; i < count; i++) ids[i + 1] = open_with(session, &adapters[i], &scales[i], 1, prompt, length);
    if (count > 1) ids[count + 1] = open_with(session, adapters, scales, count, prompt, length);
    while (done < seqs) {
        check("decode", segno_decode_batch(session, ids, seqs, tokens, statuses, &err));
        done = 0;
        for (size_t i = 0; i < seqs; i++) {
            if (statuses[i] != SEGNO_PENDING && lengths[i] < TOKENS) texts[i][lengths[i]++] = tokens[i];
            done += lengths[i] == TOKENS;
        }
    }
    write_text(model, "no adapter", texts[0], TOKENS);
    for (size_t i = 0; i < count; i++) write_text(model, argv[3 + i], texts[i + 1], TOKENS);
    if (count > 1) write_text(model, "all of them", texts[count + 1], TOKENS);

    segno_session_free(session);
    for (size_t i = 0; i < count; i++) segno_adapter_free(own[i]);
    segno_model_free(model);
    segno_ctx_free(ctx);
    return 0;
}
