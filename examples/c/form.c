/* A form filled by a model: whatever it has learnt, what comes out is JSON of the schema, so a program can read it.
 *
 * usage: form MODEL.gguf [PROMPT] [SEED] */
#include <segno.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char schema[] =
    "{\"type\": \"object\", \"properties\": {"
    "  \"name\": {\"type\": \"string\", \"minLength\": 2, \"maxLength\": 24},"
    "  \"age\": {\"type\": \"integer\", \"minimum\": 1, \"maximum\": 99},"
    "  \"mood\": {\"enum\": [\"merry\", \"sad\", \"angry\"]},"
    "  \"words\": {\"type\": \"array\", \"items\": {\"type\": \"string\", \"pattern\": \"^[a-z]{2,10}$\"},"
    "            \"minItems\": 2, \"maxItems\": 4}},"
    " \"required\": [\"name\", \"age\", \"mood\", \"words\"], \"additionalProperties\": false}";

static segno_error *err;

static int failed(const char *what) {
    fprintf(stderr, "%s: %s\n", what, segno_error_message(err));
    segno_error_free(err);
    return 1;
}

/* Steps until the form is filled, and prints it. */
static int fill(segno_session *session, int32_t seq, segno_text *text) {
    segno_status status;
    char piece[256];
    size_t len;
    int32_t token;
    do {
        status = segno_decode_step(session, seq, &token, &err);
        if (SEGNO_FAILED(status)) return failed("decode");
        if (status != SEGNO_OK) continue;
        SEGNO_TRY(segno_text_push(text, token, piece, sizeof piece, &len, &err), return failed("text"));
        fwrite(piece, 1, len, stdout);
    } while (status == SEGNO_OK || status == SEGNO_PENDING);
    puts("");
    return 0;
}

int main(int argc, char **argv) {
    const char *prompt = argc > 2 ? argv[2] : "A form about ROMEO, as JSON:\n";
    segno_ctx *ctx = NULL;
    segno_model *model = NULL;
    segno_grammar *grammar = NULL;
    segno_session *session = NULL;
    segno_text *text = NULL;
    segno_grammar_opts form;
    segno_sampler_opts sampler;
    int32_t seq, tokens[256];
    size_t count;
    int result = 1;
    if (argc < 2) {
        fprintf(stderr, "usage: %s MODEL.gguf [PROMPT] [SEED]\n", argv[0]);
        return 2;
    }
    segno_grammar_opts_init(&form, sizeof form);
    form.flags = SEGNO_GRAMMAR_COMPACT;
    form.text = schema;
    form.text_len = strlen(schema);
    segno_sampler_opts_init(&sampler, sizeof sampler);
    sampler.seed = argc > 3 ? strtoull(argv[3], NULL, 10) : 1;

    SEGNO_TRY(segno_ctx_create(SEGNO_ABI_VERSION, NULL, &ctx, &err), goto failed);
    SEGNO_TRY(segno_model_load(ctx, argv[1], NULL, &model, &err), goto failed);
    SEGNO_TRY(segno_grammar_create(model, &form, &grammar, &err), goto failed);
    SEGNO_TRY(segno_session_create(model, NULL, &session, &err), goto failed);
    SEGNO_TRY(segno_text_create(model, NULL, &text, &err), goto failed);
    SEGNO_TRY(segno_tokenize(model, prompt, strlen(prompt), SEGNO_TOKENIZE_ADD_SPECIAL, tokens, 256, &count, &err),
        goto failed);
    SEGNO_TRY(segno_seq_open(session, &sampler, &seq, &err), goto failed);
    SEGNO_TRY(segno_seq_append(session, seq, tokens, count, &err), goto failed);
    SEGNO_TRY(segno_seq_grammar_set(session, seq, grammar, -1, &err), goto failed);
    result = fill(session, seq, text);
    goto done;
failed:
    result = failed(argv[1]);
done:
    segno_text_free(text);
    segno_session_free(session);
    segno_grammar_free(grammar);
    segno_model_free(model);
    segno_ctx_free(ctx);
    return result;
}
