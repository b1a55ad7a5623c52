/* A game that draws 60 frames a second while its characters speak, on one thread. A frame simulates the same amount of
 * work each time and asks the model for news; what is left of its time it waits for news rather than sleeping. One
 * character speaks word by word, another one reads long prompts, in slices of two frames. They do so for a second and
 * are silent for the next, so that whatever else the machine does falls on both alike. Tells how long the work of a
 * frame took, the calls of the model in it, and how many frames were late.
 *
 *   frame MODEL.gguf [-t SECONDS] [-r FRAMES A SECOND] [-p TOKENS OF A PROMPT] [-w STEPS OF A FRAME'S SIMULATION] */
#define _POSIX_C_SOURCE 200809L
#include <segno.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_SECONDS = 600, MOST_RATE = 240, MOST_PROMPT = 16384, PARTICLES = 8192, SPEECH = 64, CUES = 4 };
enum { SPEAKER, READER, CHARACTERS };

static const char line[] = "The bells ring, the crowd parts, and a herald comes down the steps.\n";
static const char *const cues[CUES] = {"ROMEO:\n", "JULIET:\n", "Nurse:\n", "MENENIUS:\n"};
static long seconds = 20, rate = 60, prompt_tokens = 2000, steps = 200; /* the options */

/* The model, and what its characters are about. */
static segno_model *model;
static segno_session *session;
static segno_text *text;
static segno_submit_opts slice;
static segno_error *err;
static int32_t seqs[CHARACTERS], prompt[MOST_PROMPT];
static int speaking, running, left; /* whether they may speak, a step runs, and words that are left of the speech */
static long speeches, tokens, prompts;

/* What was measured of every frame, in silence and in speech. */
static double work[2][MOST_SECONDS / 2 * MOST_RATE], calls[2][MOST_SECONDS / 2 * MOST_RATE], late[2];

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* Ends the program with the library's message when a call has failed. */
static segno_status check(segno_status status) {
    if (!SEGNO_FAILED(status)) return status;
    fprintf(stderr, "%s (%s)\n", segno_error_message(err), segno_status_str(status));
    exit(1);
}

/* Gives a character lines to read, with a fresh mind. */
static void give_lines(int character, const int32_t *lines, size_t count) {
    check(segno_seq_truncate(session, seqs[character], 0, &err));
    check(segno_seq_append(session, seqs[character], lines, count, &err));
}

/* Starts a step of both characters, which runs beside the game; a new speech if the last one is over. */
static void begin_step(void) {
    if (left == 0) {
        const char *cue = cues[speeches++ % CUES];
        int32_t words[64];
        size_t count;
        check(segno_tokenize(model, cue, strlen(cue), SEGNO_TOKENIZE_ADD_SPECIAL, words, 64, &count, &err));
        give_lines(SPEAKER, words, count);
        fputs(cue, stdout);
        left = SPEECH;
    }
    check(segno_session_submit(session, seqs, CHARACTERS, &slice, &err));
    running = 1;
}

/* Shows the word that has come; the speech may end with it. */
static void show(int32_t token, segno_status status) {
    char words[512];
    size_t len;
    segno_status shown = check(segno_text_push(text, token, words, sizeof words, &len, &err));
    fwrite(words, 1, len, stdout);
    tokens++;
    if (--left > 0 && status != SEGNO_DONE && shown != SEGNO_DONE) return;
    left = 0;
    check(segno_text_flush(text, words, sizeof words, &len, &err));
    fputs("\n\n", stdout);
}

/* Asks for news, waits for at most so many microseconds, and keeps the model going while the characters may speak. */
static void attend(uint64_t timeout_us) {
    int32_t given[CHARACTERS];
    segno_status statuses[CHARACTERS], status = SEGNO_CANCELLED;
    if (running) status = check(segno_session_poll(session, timeout_us, given, statuses, &err));
    running = status == SEGNO_PENDING;
    if (status == SEGNO_OK && given[SPEAKER] >= 0) show(given[SPEAKER], statuses[SPEAKER]);
    if (status == SEGNO_OK && given[READER] >= 0) { /* the whole prompt is read: the next one */
        prompts++;
        give_lines(READER, prompt, (size_t)prompt_tokens);
    }
    if (speaking && !running) begin_step(); /* behind a cancelled step the same one again */
}

/* What is left of a frame: the game waits for news of the model, or sleeps. */
static void wait_until(double due) {
    for (double wait; (wait = due - now_ms()) > 0;)
        if (running) attend((uint64_t)(wait * 1e3));
        else nanosleep(&(struct timespec){0, (long)(wait * 1e6)}, NULL);
}

/* Lines for the reader: as many tokens as asked for, or as the model can read. */
static void write_prompt(void) {
    segno_model_info info;
    int32_t words[64];
    size_t count;
    check(segno_tokenize(model, line, strlen(line), 0, words, 64, &count, &err));
    check(segno_model_info_get(model, &info, sizeof info, &err));
    if ((uint64_t)prompt_tokens >= info.context) prompt_tokens = (long)info.context - 1;
    for (size_t i = 0; i < (size_t)prompt_tokens; i++) prompt[i] = words[i % count];
    give_lines(READER, prompt, (size_t)prompt_tokens);
}

static void open_stage(const char *path) {
    segno_ctx *ctx;
    segno_ctx_opts opts;
    segno_text_opts stream;
    segno_session_opts room;
    segno_ctx_opts_init(&opts, sizeof opts);
    opts.device = SEGNO_DEVICE_CPU;
    opts.n_threads = 1; /* the session's: the game keeps its core */
    opts.flags = SEGNO_CTX_BACKGROUND;
    segno_text_opts_init(&stream, sizeof stream);
    stream.stops = &(segno_string){"\n\n", 2};
    stream.stop_count = 1;
    segno_session_opts_init(&room, sizeof room);
    room.max_seqs = CHARACTERS;
    room.kv_tokens = (uint64_t)prompt_tokens + 2 * SPEECH;
    segno_submit_opts_init(&slice, sizeof slice);
    slice.budget_us = 2000000 / (uint64_t)rate; /* a word for every other frame */
    check(segno_ctx_create(SEGNO_ABI_VERSION, &opts, &ctx, &err));
    check(segno_model_load(ctx, path, NULL, &model, &err));
    segno_ctx_free(ctx);
    check(segno_session_create(model, &room, &session, &err));
    check(segno_text_create(model, &stream, &text, &err));
    for (int i = 0; i < CHARACTERS; i++) check(segno_seq_open(session, NULL, &seqs[i], &err));
    write_prompt();
    check(segno_session_submit(session, NULL, 0, NULL, &err)); /* starts the session's thread */
    check(segno_session_poll(session, UINT64_MAX, NULL, NULL, &err));
}

/* The game's own work in a frame: particles on springs, which bounce off the ground. */
static void simulate(void) {
    static float place[PARTICLES], speed[PARTICLES];
    for (long step = 0; step < steps; step++)
        for (int i = 0; i < PARTICLES; i++) {
            speed[i] += 0.01f * (0.5f - place[i]) * (float)(i % 7 + 1);
            place[i] += 0.01f * speed[i];
            if (place[i] < 0) place[i] = -place[i], speed[i] *= -0.9f;
        }
}

static void play(void) {
    const double frame = 1000.0 / (double)rate;
    double start = now_ms();
    for (long i = 0; i < seconds / 2 * 2 * rate; i++) {
        const long at = i / rate / 2 * rate + i % rate;
        const double due = start + (double)i * frame;
        wait_until(due);
        const double begun = now_ms();
        /* Silence begins within a fraction of a step: the one that runs is cancelled. */
        if (i % rate == 0) segno_session_cancel(session, !(speaking = i / rate % 2 == 1));
        simulate();
        const double simulated = now_ms();
        attend(0);
        const double ended = now_ms();
        work[speaking][at] = ended - begun;
        calls[speaking][at] = ended - simulated;
        if (ended <= due + frame) continue;
        late[speaking]++;
        start += ended - (due + frame); /* one late frame does not make the next one late */
    }
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void tell(const char *mode, double *w, double *c, double after) {
    const size_t count = (size_t)(seconds / 2 * rate);
    qsort(w, count, sizeof *w, compare);
    qsort(c, count, sizeof *c, compare);
    printf("%-9s %zu frames, work p50 %.2f ms, p99 %.2f ms, %.2f %% late; calls p50 %.3f ms, p99 %.3f ms\n", mode,
        count, w[count / 2], w[count * 99 / 100], 100 * after / (double)count, c[count / 2], c[count * 99 / 100]);
}

int main(int argc, char **argv) {
    for (int i = 2; i + 1 < argc; i += 2) {
        const char name = argv[i][1];
        long *option = name == 't' ? &seconds : name == 'r' ? &rate : name == 'p' ? &prompt_tokens : &steps;
        *option = strtol(argv[i + 1], NULL, 10);
    }
    if (argc < 2 || argc % 2 != 0 || seconds < 2 || seconds > MOST_SECONDS || rate < 1 || rate > MOST_RATE ||
        prompt_tokens < 2 || prompt_tokens > MOST_PROMPT || steps < 1)
        return fputs("usage: frame MODEL.gguf [-t SECONDS] [-r FRAMES] [-p TOKENS] [-w STEPS]\n", stderr), 2;
    open_stage(argv[1]);
    play();
    printf("\n%ld tokens and %ld prompts of %ld in %ld s of speech\n", tokens, prompts, prompt_tokens, seconds / 2);
    tell("silent:", work[0], calls[0], late[0]);
    tell("speaking:", work[1], calls[1], late[1]);
    segno_session_free(session); /* whatever it is doing */
    segno_text_free(text);
    segno_model_free(model);
    return 0;
}
