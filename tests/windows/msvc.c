/* A host for the linkers of Microsoft's kind, without a C runtime: writes what examples/c/generate.c writes of
 * "ROMEO:" with 40 tokens, seed 1 and one thread, but for the line of speeds. The model is model.gguf. */
#include <segno.h>

__declspec(dllimport) void *__stdcall GetStdHandle(unsigned long);
__declspec(dllimport) int __stdcall WriteFile(void *, const void *, unsigned long, unsigned long *, void *);
__declspec(dllimport) void __stdcall ExitProcess(unsigned int);

/* What the compiler asks of a runtime where floats are used. */
int _fltused = 1;

static void check(segno_status status) {
    if (SEGNO_FAILED(status)) ExitProcess(1);
}

static void put(const char *text, size_t len) {
    const unsigned long standard_output = (unsigned long)-11;
    unsigned long written;
    if (!WriteFile(GetStdHandle(standard_output), text, (unsigned long)len, &written, 0) || written != len)
        ExitProcess(2);
}

void start(void) {
    static const char prompt[] = "ROMEO:";
    static int32_t tokens[64];
    static char piece[512];
    static segno_ctx_opts opts;
    static segno_sampler_opts sampler;
    segno_ctx *ctx;
    segno_model *model;
    segno_session *session;
    segno_text *text;
    int32_t seq, token;
    size_t count, len;
    segno_ctx_opts_init(&opts, sizeof opts);
    opts.n_threads = 1;
    check(segno_ctx_create(SEGNO_ABI_VERSION, &opts, &ctx, 0));
    check(segno_model_load(ctx, "model.gguf", 0, &model, 0));
    check(segno_session_create(model, 0, &session, 0));
    check(segno_text_create(model, 0, &text, 0));
    segno_sampler_opts_init(&sampler, sizeof sampler);
    sampler.temperature = 0.8f;
    sampler.seed = 1;
    check(segno_seq_open(session, &sampler, &seq, 0));
    check(segno_tokenize(model, prompt, sizeof prompt - 1, SEGNO_TOKENIZE_ADD_SPECIAL, tokens, 64, &count, 0));
    check(segno_seq_prefill(session, seq, tokens, count, 0));
    put(prompt, sizeof prompt - 1);
    for (int made = 0; made < 40;) {
        segno_status status = segno_decode_step(session, seq, &token, 0);
        check(status);
        if (status == SEGNO_PENDING) continue;
        made++;
        check(segno_text_push(text, token, piece, sizeof piece, &len, 0));
        put(piece, len);
        if (status == SEGNO_DONE) break;
    }
    check(segno_text_flush(text, piece, sizeof piece, &len, 0));
    put(piece, len);
    put("\n\n", 2);
    segno_text_free(text);
    segno_session_free(session);
    segno_model_free(model);
    segno_ctx_free(ctx);
    ExitProcess(0);
}
