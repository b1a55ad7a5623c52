/* A game that draws 60 frames a second while its characters speak, on one thread. A frame simulates the same amount of
 * work each time and asks the model for news; what is left of its time it waits for news rather than sleeping. One
 * character speaks word by word, another one reads: long prompts, in slices of at most a time budget. They do so for a
 * second and are silent for the next, so that whatever else the machine does falls on both alike. Tells how long the
 * work of a frame took, how long the calls of the model were in it, and how many frames were late.
 *
 *   frame MODEL.gguf [-t SECONDS] [-r FRAMES A SECOND] [-p TOKENS OF A PROMPT] [-b BUDGET IN MICROSECONDS]
 *         [-w STEPS OF THE SIMULATION IN A FRAME] [-s SEED] */
#define _POSIX_C_SOURCE 200809L
#include <segno.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_RATE = 240, MOST_SECONDS = 600, MOST_PROMPT = 16384, PARTICLES = 8192, SPEECH = 64, CUES = 4 };
enum { SPEAKER, READER, CHARACTERS };

static const char *const cues[CUES] = {"ROMEO:\n", "JULIET:\n", "Nurse:\n", "MENENIUS:\n"};

/* The model, and what its characters are about. */
struct stage {
    segno_model *model;
    segno_session *session;
    segno_text *text;
    segno_submit_opts step;
    int32_t seqs[CHARACTERS], prompt[MOST_PROMPT];
    size_t prompt_tokens;
    int speaking, running, left; /* whether they may speak, a step is submitted, and words of the speech that are left */
    long speeches, tokens, prompts;
};

struct options {
    long seconds, rate, prompt, budget_us, steps, seed;
};

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* Ends the program with the library's message when a call has failed. */
static void check(const char *what, segno_status status, segno_error **err) {
    if (SEGNO_FAILED(status)) {
        fprintf(stderr, "%s: %s (%s)\n", what, segno_error_message(*err), segno_status_str(status));
        exit(1);
    }
}

/* Gives a character new lines to read, with a fresh mind. */
static void give_lines(struct stage *s, int character, const int32_t *tokens, size_t count) {
    segno_error *err = NULL;
    check("truncate", segno_seq_truncate(s->session, s->seqs[character], 0, &err), &err);
    check("append", segno_seq_append(s->session, s->seqs[character], tokens, count, &err), &err);
}

static void begin_speech(struct stage *s) {
    int32_t tokens[32];
    size_t count;
    segno_error *err = NULL;
    const char *cue = cues[s->speeches++ % CUES];
    check(
        "cue", segno_tokenize(s->model, cue, strlen(cue), SEGNO_TOKENIZE_ADD_SPECIAL, tokens, 32, &count, &err), &err);
    give_lines(s, SPEAKER, tokens, count);
    fputs(cue, stdout);
    s->left = SPEECH;
}

/* Starts a step of both characters; it runs beside the game. */
static void begin_step(struct stage *s) {
    segno_error *err = NULL;
    if (s->left == 0) begin_speech(s);
    check("submit", segno_session_submit(s->session, s->seqs, CHARACTERS, &s->step, &err), &err);
    s->running = 1;
}

/* Shows the word that has come; the speech may end with it. */
static void show(struct stage *s, int32_t token, segno_status status) {
    segno_error *err = NULL;
    char words[512];
    size_t len;
    segno_status shown = segno_text_push(s->text, token, words, sizeof words, &len, &err);
    check("text", shown, &err);
    fwrite(words, 1, len, stdout);
    s->tokens++;
    if (--s->left == 0 || status == SEGNO_DONE || shown == SEGNO_DONE) {
        s->left = 0;
        check("text", segno_text_flush(s->text, words, sizeof words, &len, &err), &err);
        fwrite(words, 1, len, stdout);
        fputs("\n\n", stdout);
    }
}

/* Asks for news, waits for at most so many microseconds, and keeps the model going while the characters may speak.
 * Whether a step has ended. */
static int attend(struct stage *s, uint64_t timeout_us) {
    int32_t tokens[CHARACTERS];
    segno_status statuses[CHARACTERS], status;
    segno_error *err = NULL;
    int ended = 0;
    if (s->running) {
        check("step", status = segno_session_poll(s->session, timeout_us, tokens, statuses, &err), &err);
        if (status == SEGNO_PENDING) return 0;
        ended = 1;
        s->running = 0;
        if (status != SEGNO_CANCELLED) { /* else the same step is made again when the characters may speak */
            if (tokens[SPEAKER] >= 0) show(s, tokens[SPEAKER], statuses[SPEAKER]);
            if (tokens[READER] >= 0) { /* the whole prompt is read */
                s->prompts++;
                give_lines(s, READER, s->prompt, s->prompt_tokens);
            }
        }
    }
    if (s->speaking) begin_step(s);
    return ended;
}

/* Silence begins within a fraction of a step, whatever the size of the model: the step that runs is cancelled. */
static void let_speak(struct stage *s, int speaking) {
    s->speaking = speaking;
    segno_session_cancel(s->session, !speaking);
}

/* What is left of a frame: the game waits for news of the model, or sleeps. */
static void wait_until(struct stage *s, double due) {
    for (double left; (left = due - now_ms()) > 0;) {
        if (s->running) {
            attend(s, (uint64_t)(left * 1e3));
        } else {
            nanosleep(&(struct timespec){0, (long)(left * 1e6)}, NULL);
        }
    }
}

/* Lines for the reader: as many tokens as asked for, or as the model can read. */
static void write_prompt(struct stage *s, long wanted) {
    segno_model_info info;
    segno_error *err = NULL;
    size_t count;
    check("model", segno_model_info_get(s->model, &info, sizeof info, &err), &err);
    s->prompt_tokens = (size_t)wanted < info.context - 1 ? (size_t)wanted : (size_t)info.context - 1;
    const char *line = "The bells ring, the crowd parts, and a herald comes down the steps.\n";
    for (size_t at = 0; at < s->prompt_tokens; at += count) {
        int32_t tokens[64];
        check("line", segno_tokenize(s->model, line, strlen(line), 0, tokens, 64, &count, &err), &err);
        for (size_t i = 0; i < count && at + i < s->prompt_tokens; i++) s->prompt[at + i] = tokens[i];
    }
}

static void open_stage(struct stage *s, const char *path, const struct options *o) {
    segno_error *err = NULL;
    segno_ctx *ctx;
    segno_ctx_opts opts;
    segno_text_opts text;
    segno_session_opts session;
    segno_sampler_opts sampler;
    segno_ctx_opts_init(&opts, sizeof opts);
    opts.device = SEGNO_DEVICE_CPU;
    opts.n_threads = 1; /* the session's: the game keeps its core */
    segno_text_opts_init(&text, sizeof text);
    text.stops = &(segno_string){"\n\n", 2};
    text.stop_count = 1;
    segno_sampler_opts_init(&sampler, sizeof sampler);
    sampler.seed = (uint64_t)o->seed;
    segno_submit_opts_init(&s->step, sizeof s->step);
    s->step.budget_us = (uint64_t)o->budget_us;
    check("context", segno_ctx_create(SEGNO_ABI_VERSION, &opts, &ctx, &err), &err);
    check("load", segno_model_load(ctx, path, NULL, &s->model, &err), &err);
    segno_ctx_free(ctx);
    write_prompt(s, o->prompt);
    segno_session_opts_init(&session, sizeof session);
    session.max_seqs = CHARACTERS;
    session.kv_tokens = s->prompt_tokens + 32 + SPEECH + 1;
    check("session", segno_session_create(s->model, &session, &s->session, &err), &err);
    check("text", segno_text_create(s->model, &text, &s->text, &err), &err);
    for (int i = 0; i < CHARACTERS; i++)
        check("sequence", segno_seq_open(s->session, &sampler, &s->seqs[i], &err), &err);
    give_lines(s, READER, s->prompt, s->prompt_tokens);
    /* The first submit starts the session's thread: before the first frame. */
    check("submit", segno_session_submit(s->session, NULL, 0, NULL, &err), &err);
    check("poll", segno_session_poll(s->session, UINT64_MAX, NULL, NULL, &err), &err);
}

/* The game's own work in a frame: particles on springs, which bounce off the ground. */
static void simulate(long steps) {
    static float place[PARTICLES], speed[PARTICLES];
    for (long step = 0; step < steps; step++)
        for (int i = 0; i < PARTICLES; i++) {
            speed[i] += 0.01f * (0.5f - place[i]) * (float)(i % 7 + 1);
            place[i] += 0.01f * speed[i];
            if (place[i] < 0) place[i] = -place[i], speed[i] *= -0.9f;
        }
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Reads the options; 0 for what is none. */
static int read_options(int argc, char **argv, struct options *o) {
    for (int i = 2; i + 1 < argc; i += 2) {
        const char *names = "trpbws", *name = argv[i][0] == '-' ? strchr(names, argv[i][1]) : NULL;
        long *const places[] = {&o->seconds, &o->rate, &o->prompt, &o->budget_us, &o->steps, &o->seed};
        if (name == NULL || *name == 0) return 0;
        *places[name - names] = strtol(argv[i + 1], NULL, 10);
    }
    if (o->budget_us == 0) o->budget_us = 500000 / (o->rate > 0 ? o->rate : 1);
    return argc >= 2 && argc % 2 == 0 && o->seconds >= 2 && o->seconds <= MOST_SECONDS && o->rate >= 1 &&
        o->rate <= MOST_RATE && o->prompt >= 2 && o->prompt <= MOST_PROMPT && o->budget_us > 0 && o->steps >= 1;
}

/* Plays, and notes of each frame its work, and the calls of the model in it; how many were late in silence and in
 * speech. */
static void play(struct stage *s, const struct options *o, double *work[2], double *calls, long late[2]) {
    const double frame = 1000.0 / (double)o->rate;
    const size_t rate = (size_t)o->rate, frames = (size_t)o->seconds / 2 * 2 * rate;
    double start = now_ms();
    for (size_t i = 0; i < frames; i++) {
        size_t second = i / rate, place = second / 2 * rate + i % rate;
        int speaking = second % 2 == 1;
        double due = start + (double)i * frame;
        wait_until(s, due);
        double begun = now_ms();
        if (i % rate == 0) let_speak(s, speaking);
        simulate(o->steps);
        double simulated = now_ms();
        attend(s, 0);
        double ended = now_ms();
        work[speaking][place] = ended - begun;
        if (speaking) calls[place] = ended - simulated;
        if (ended > due + frame) {
            late[speaking]++;
            start += ended - (due + frame); /* one late frame does not make the next one late */
        }
    }
}

int main(int argc, char **argv) {
    static struct stage s;
    struct options o = {.seconds = 20, .rate = 60, .prompt = 2000, .steps = 200, .seed = 1};
    if (!read_options(argc, argv, &o)) {
        fprintf(stderr, "usage: frame MODEL.gguf [-t SECONDS, 2 to %d] [-r FRAMES, to %d] [-p TOKENS, 2 to %d] "
            "[-b MICROSECONDS] [-w STEPS] [-s SEED]\n", MOST_SECONDS, MOST_RATE, MOST_PROMPT);
        return 2;
    }
    open_stage(&s, argv[1], &o);
    const size_t count = (size_t)(o.seconds / 2 * o.rate);
    double *work[2] = {calloc(count, sizeof(double)), calloc(count, sizeof(double))};
    double *calls = calloc(count, sizeof(double));
    long late[2] = {0, 0};
    if (work[0] == NULL || work[1] == NULL || calls == NULL) return 1;
    play(&s, &o, work, calls, late);
    printf("\n%ld tokens and %ld prompts of %zu tokens in %ld seconds of speech; budget %ld us, %ld steps of %d "
        "particles in each of %ld frames a second\n", s.tokens, s.prompts, s.prompt_tokens, o.seconds / 2, o.budget_us,
        o.steps, PARTICLES, o.rate);
    qsort(calls, count, sizeof(double), compare);
    printf("calls:    p50 %.3f ms, p99 %.3f ms, most %.3f ms in a frame\n", calls[count / 2], calls[count * 99 / 100],
        calls[count - 1]);
    for (int speaking = 0; speaking < 2; speaking++) {
        qsort(work[speaking], count, sizeof(double), compare);
        printf("%-9s %zu frames, work p50 %.2f ms, p99 %.2f ms, %.2f %% late\n",
            speaking ? "speaking:" : "silent:", count, work[speaking][count / 2], work[speaking][count * 99 / 100],
            100.0 * (double)late[speaking] / (double)count);
        free(work[speaking]);
    }
    free(calls);
    segno_session_free(s.session); /* whatever it is doing */
    segno_text_free(s.text);
    segno_model_free(s.model);
    return 0;
}
