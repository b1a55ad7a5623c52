/* Characters who share one scene: each forks the long prompt, and all speak in one batch a step, until each has said
 * TOKENS.
 *
 *   crowd MODEL.gguf [-c CHARACTERS] [-n TOKENS] [-s SEED]
 */
#include <segno.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST 8
static const char *const cues[MOST] = {"ROMEO:\n", "JULIET:\n", "KING RICHARD:\n", "MENENIUS:\n", "LADY ANNE:\n",
    "Nurse:\n", "First Citizen:\n", "GLOUCESTER:\n"};
static const char *const scene =
    "Messenger:\nMy lords, the gates are shut against the king,\nAnd every man doth ask his neighbour's mind.\n\n"
    "First Lord:\nWho leads them? Speak, and tell us what they want.\n\n"
    "Messenger:\nThey want for bread, my lord, and for a cause;\nThey say the crown hath eaten up the corn.\n\n"
    "First Lord:\nThen let us hear them all, both friend and foe,\nAnd each shall say what lies upon his heart.\n\n";

struct character {
    const char *cue; /* the name and how a speech begins */
    int32_t seq;
    segno_text *text; /* makes words of tokens, and knows when a speech ends */
    char line[256];
    size_t used;
    long tokens;
};

struct play {
    segno_model *model;
    segno_session *session;
    struct character cast[MOST];
    long active, limit, tokens;
};

static segno_error *err; /* of the last call */

/* Ends the program with the library's message when a call has failed. */
static void check(const char *what, segno_status status) {
    if (SEGNO_FAILED(status)) {
        fprintf(stderr, "%s: %s (%s)\n", what, segno_error_message(err), segno_status_str(status));
        exit(1);
    }
}

/* Queues `words` for a sequence; the next call that needs them evaluates them. Fails when the context is full. */
static segno_status tell(struct play *p, int32_t seq, const char *words, uint32_t flags) {
    int32_t tokens[1024];
    size_t count;
    check("tokenize", segno_tokenize(p->model, words, strlen(words), flags, tokens, 1024, &count, &err));
    return segno_seq_append(p->session, seq, tokens, count, &err);
}

/* Takes one token of a character, -1 for the end of its speech, and prints its lines as they become whole. */
static segno_status hear(struct character *c, int32_t token) {
    char piece[512];
    size_t len;
    segno_status status = token < 0 ? segno_text_flush(c->text, piece, sizeof piece - 1, &len, &err)
                                    : segno_text_push(c->text, token, piece, sizeof piece - 1, &len, &err);
    check("text", status);
    if (token < 0) piece[len++] = '\n';
    for (size_t i = 0; i < len; i++) {
        if (piece[i] != '\n') c->line[c->used++] = piece[i];
        if (c->used == sizeof c->line || (c->used > 0 && piece[i] == '\n')) {
            printf("%.*s %.*s\n", (int)strlen(c->cue) - 1, c->cue, (int)c->used, c->line);
            c->used = 0;
        }
    }
    return status;
}

/* Lets every character say one token, all in one pass over the model; those who have said enough leave. */
static void step(struct play *p) {
    int32_t seqs[MOST], tokens[MOST];
    segno_status statuses[MOST];
    for (long i = 0; i < p->active; i++) seqs[i] = p->cast[i].seq;
    segno_status all = segno_decode_batch(p->session, seqs, (size_t)p->active, tokens, statuses, &err);
    check("decode", all == SEGNO_E_CONTEXT_FULL ? SEGNO_OK : all);
    segno_error_free(err);
    for (long i = p->active - 1; i >= 0; i--) {
        struct character *c = &p->cast[i];
        int spoke = tokens[i] >= 0;
        int paused = spoke && hear(c, tokens[i]) == SEGNO_DONE;
        int leaves = (spoke && ++c->tokens == p->limit) || statuses[i] == SEGNO_DONE || SEGNO_FAILED(statuses[i]);
        p->tokens += spoke;
        if (paused || leaves) hear(c, -1);
        if (leaves || (paused && SEGNO_FAILED(tell(p, c->seq, c->cue, 0)))) {
            segno_error_free(err);
            segno_text_free(c->text);
            *c = p->cast[--p->active];
        }
    }
}

int main(int argc, char **argv) {
    struct play p = {.limit = 80};
    long characters = 4, seed = 1;
    for (int i = 2; i + 1 < argc; i += 2)
        *(argv[i][1] == 'c' ? &characters : argv[i][1] == 'n' ? &p.limit : &seed) = strtol(argv[i + 1], NULL, 10);
    if (argc < 2 || argc % 2 != 0 || characters < 1 || characters > MOST || p.limit < 1)
        return fprintf(stderr, "usage: crowd MODEL.gguf [-c CHARACTERS, 1 to %d] [-n TOKENS] [-s SEED]\n", MOST), 2;
    segno_ctx *ctx;
    segno_session_opts opts;
    segno_sampler_opts sampler;
    segno_text_opts text;
    segno_session_stats stats;
    int32_t stage;
    check("context", segno_ctx_create(SEGNO_ABI_VERSION, NULL, &ctx, &err));
    check("load", segno_model_load(ctx, argv[1], NULL, &p.model, &err));
    segno_session_opts_init(&opts, sizeof opts);
    opts.max_seqs = (uint32_t)characters + 1;
    opts.kv_tokens = 1024 + 8 * (uint64_t)(characters * p.limit); /* the scene once, speeches and their cues */
    check("session", segno_session_create(p.model, &opts, &p.session, &err));
    check("stage", segno_seq_open(p.session, NULL, &stage, &err));
    check("scene", tell(&p, stage, scene, SEGNO_TOKENIZE_ADD_SPECIAL));
    check("scene", segno_seq_prefill(p.session, stage, NULL, 0, &err));
    segno_sampler_opts_init(&sampler, sizeof sampler);
    segno_text_opts_init(&text, sizeof text);
    text.stops = &(segno_string){"\n\n", 2};
    text.stop_count = 1;
    for (; p.active < characters; p.active++) {
        struct character *c = &p.cast[p.active];
        c->cue = cues[p.active];
        sampler.seed = (uint64_t)(seed + p.active);
        check("fork", segno_seq_fork(p.session, stage, &sampler, &c->seq, &err));
        check("text", segno_text_create(p.model, &text, &c->text, &err));
        check("cue", tell(&p, c->seq, c->cue, 0));
    }
    while (p.active > 0) step(&p);
    check("figures", segno_session_stats_get(p.session, &stats, sizeof stats, &err));
    printf("\n%ld characters, %ld tokens, %.1f tokens/s\n", characters, p.tokens,
        (double)stats.decoded_tokens * 1e6 / (double)(stats.decode_us + 1));
    segno_session_free(p.session);
    segno_model_free(p.model);
    segno_ctx_free(ctx);
    return 0;
}
