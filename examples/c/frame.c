/* A game that draws 60 frames a second while its characters speak. A frame simulates the same amount of work each time
 * and polls for new words; the model runs on one thread beside it. The characters speak for a second and are silent for
 * the next, so that whatever else the machine does falls on both alike. Tells how long the work of a frame took, and
 * how many frames were late.
 *
 *   frame MODEL.gguf [-t SECONDS] [-w STEPS OF THE SIMULATION IN A FRAME] [-s SEED] */
#define _POSIX_C_SOURCE 200809L
#include <segno.h>

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { RATE = 60, MOST_SECONDS = 600, PARTICLES = 8192, SPEECH = 64, CUES = 4 };
enum mode { SILENT, SPEAK, LEAVE };

static const char *const cues[CUES] = {"ROMEO:\n", "JULIET:\n", "Nurse:\n", "MENENIUS:\n"};

/* The model with its thread, and what they share with the game. */
struct speaker {
    segno_model *model;
    segno_session *session;
    segno_text *text;
    int32_t seq;
    pthread_t thread;
    sem_t mode_changed;
    atomic_int mode;
    char words[4096]; /* a ring: the thread writes, the game reads, neither waits */
    atomic_size_t written, read;
    long tokens;
};

/* Ends the program with the library's message when a call has failed. */
static void check(const char *what, segno_status status, segno_error **err) {
    if (SEGNO_FAILED(status)) {
        fprintf(stderr, "%s: %s (%s)\n", what, segno_error_message(*err), segno_status_str(status));
        exit(1);
    }
}

/* Hands words to the game; those for which there is no room are lost. */
static void say(struct speaker *s, const char *words, size_t len) {
    size_t at = s->written;
    for (size_t i = 0; i < len && at - s->read < sizeof s->words; i++) s->words[at++ % sizeof s->words] = words[i];
    s->written = at;
}

/* Shows the words that have come. */
static void poll_words(struct speaker *s) {
    size_t at = s->read;
    for (size_t end = s->written; at < end; at++) putchar(s->words[at % sizeof s->words]);
    s->read = at;
}

/* Begins the speech of a character, each with a fresh mind. */
static void begin_speech(struct speaker *s, const char *cue) {
    int32_t tokens[32];
    size_t count;
    segno_error *err = NULL;
    check("truncate", segno_seq_truncate(s->session, s->seq, 0, &err), &err);
    check(
        "cue", segno_tokenize(s->model, cue, strlen(cue), SEGNO_TOKENIZE_ADD_SPECIAL, tokens, 32, &count, &err), &err);
    check("cue", segno_seq_append(s->session, s->seq, tokens, count, &err), &err);
    say(s, cue, strlen(cue));
}

/* The life of the model's thread: one speech after the other. It sleeps while the characters are silent. */
static void *speak(void *user) {
    struct speaker *s = user;
    segno_error *err = NULL;
    char words[512];
    size_t len, speeches = 0;
    for (int left = 0; s->mode != LEAVE;) {
        if (s->mode == SILENT) {
            sem_wait(&s->mode_changed);
            continue;
        }
        if (left == 0) {
            begin_speech(s, cues[speeches++ % CUES]);
            left = SPEECH;
        }
        int32_t token;
        segno_status status = segno_decode_step(s->session, s->seq, &token, &err), shown = SEGNO_OK;
        check("decode", status, &err);
        if (token < 0) continue; /* cancelled: the same step is made again when the characters may speak */
        s->tokens++;
        check("text", shown = segno_text_push(s->text, token, words, sizeof words, &len, &err), &err);
        say(s, words, len);
        if (--left == 0 || status == SEGNO_DONE || shown == SEGNO_DONE) {
            left = 0;
            check("text", segno_text_flush(s->text, words, sizeof words, &len, &err), &err);
            say(s, "\n\n", 2);
        }
    }
    return NULL;
}

/* Silence begins within a fraction of a step, whatever the size of the model: the step that runs is cancelled. */
static void set_mode(struct speaker *s, int mode) {
    s->mode = mode;
    segno_session_cancel(s->session, mode != SPEAK);
    sem_post(&s->mode_changed);
}

static void open_speaker(struct speaker *s, const char *path, uint64_t seed) {
    segno_error *err = NULL;
    segno_ctx *ctx;
    segno_ctx_opts opts;
    segno_text_opts text;
    segno_sampler_opts sampler;
    segno_ctx_opts_init(&opts, sizeof opts);
    opts.device = SEGNO_DEVICE_CPU;
    opts.n_threads = 1; /* the one that calls: the game keeps its core */
    segno_text_opts_init(&text, sizeof text);
    text.stops = &(segno_string){"\n\n", 2};
    text.stop_count = 1;
    segno_sampler_opts_init(&sampler, sizeof sampler);
    sampler.seed = seed;
    check("context", segno_ctx_create(SEGNO_ABI_VERSION, &opts, &ctx, &err), &err);
    check("load", segno_model_load(ctx, path, NULL, &s->model, &err), &err);
    segno_ctx_free(ctx);
    check("session", segno_session_create(s->model, NULL, &s->session, &err), &err);
    check("text", segno_text_create(s->model, &text, &s->text, &err), &err);
    check("sequence", segno_seq_open(s->session, &sampler, &s->seq, &err), &err);
    if (sem_init(&s->mode_changed, 0, 0) != 0 || pthread_create(&s->thread, NULL, speak, s) != 0) exit(1);
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

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    static double work[2][MOST_SECONDS * RATE];
    static struct speaker s;
    const double frame = 1000.0 / RATE;
    long seconds = 20, steps = 200, seed = 1, late[2] = {0, 0};
    for (int i = 2; i + 1 < argc; i += 2)
        *(argv[i][1] == 't' ? &seconds : argv[i][1] == 'w' ? &steps : &seed) = strtol(argv[i + 1], NULL, 10);
    if (argc < 2 || argc % 2 != 0 || seconds < 2 || seconds > MOST_SECONDS || steps < 1)
        return fprintf(stderr, "usage: frame MODEL.gguf [-t SECONDS, 2 to %d] [-w STEPS] [-s SEED]\n", MOST_SECONDS), 2;
    open_speaker(&s, argv[1], (uint64_t)seed);
    const size_t count = (size_t)seconds / 2 * RATE;
    double start = now_ms();
    for (size_t i = 0; i < 2 * count; i++) {
        size_t second = i / RATE, speaking = second % 2;
        double due = start + (double)i * frame, sleep = due - now_ms();
        if (i % RATE == 0) set_mode(&s, speaking ? SPEAK : SILENT);
        if (sleep > 0) nanosleep(&(struct timespec){0, (long)(sleep * 1e6)}, NULL);
        double begun = now_ms();
        simulate(steps);
        poll_words(&s);
        double ended = now_ms();
        work[speaking][second / 2 * RATE + i % RATE] = ended - begun;
        if (ended > due + frame) {
            late[speaking]++;
            start += ended - (due + frame); /* one late frame does not make the next one late */
        }
    }
    set_mode(&s, LEAVE);
    pthread_join(s.thread, NULL);
    printf("\n%ld tokens in %ld seconds of speech; %ld simulation steps of %d particles in a frame\n", s.tokens,
        seconds / 2, steps, PARTICLES);
    for (int speaking = 0; speaking < 2; speaking++) {
        qsort(work[speaking], count, sizeof(double), compare);
        printf("%-9s %zu frames, work p50 %.2f ms, p99 %.2f ms, %.2f %% late\n",
            speaking ? "speaking:" : "silent:", count, work[speaking][count / 2], work[speaking][count * 99 / 100],
            100.0 * (double)late[speaking] / (double)count);
    }
    segno_text_free(s.text);
    segno_session_free(s.session);
    segno_model_free(s.model);
    return 0;
}
