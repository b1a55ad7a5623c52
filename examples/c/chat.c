/* A conversation on the terminal: turns from standard input go through the model's chat template (or, without one,
 * through plain "User:" and "Assistant:" lines), replies stream out. /reset forgets everything.
 *
 *   chat MODEL.gguf [-s SEED] [-n TOKENS OF A REPLY] [-t TEMPERATURE] [SYSTEM PROMPT]
 *
 * What the cache has of earlier turns is kept. When the context runs full, the oldest turns are forgotten. */
#include <segno.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char plain[] =
    "{{ bos_token }}{% for m in messages %}{% if m.role != 'system' %}{{ m.role | capitalize }}: {% endif %}"
    "{{ m.content }}\n{% endfor %}Assistant:";
static const segno_string stops[] = {{"\nUser:", 6}, {"\nAssistant:", 11}};

static void check(const char *what, segno_status status, segno_error **err) {
    if (SEGNO_FAILED(status)) {
        fprintf(stderr, "%s: %s\n", what, segno_error_message(*err));
        exit(1);
    }
}

/* A session for one conversation with the model. */
static segno_session *make_session(const char *path, int *has_template) {
    segno_error *err = NULL;
    segno_ctx *ctx;
    segno_model *model;
    segno_model_info info;
    segno_session *session;
    segno_session_opts opts;
    size_t len;
    check("context", segno_ctx_create(SEGNO_ABI_VERSION, NULL, &ctx, &err), &err);
    check("load", segno_model_load(ctx, path, NULL, &model, &err), &err);
    check("info", segno_model_info_get(model, &info, sizeof info, &err), &err);
    *has_template = segno_model_meta(model, "tokenizer.chat_template", NULL, 0, &len, NULL) == SEGNO_OK;
    segno_session_opts_init(&opts, sizeof opts);
    opts.max_seqs = 1;
    opts.kv_tokens = info.context < 8192 ? info.context : 8192;
    check("session", segno_session_create(model, &opts, &session, &err), &err);
    segno_model_free(model); /* the session keeps it alive, and the model its context */
    segno_ctx_free(ctx);
    return session;
}

/* Streams a reply to what the user has said. */
static void answer(segno_chat *chat) {
    static uint64_t forgotten;
    segno_chat_stats stats;
    segno_event events[16];
    segno_error *err = NULL;
    segno_status status;
    size_t count;
    do {
        status = segno_chat_next(chat, events, 16, &count, &err);
        if (status == SEGNO_E_CONTEXT_FULL || status == SEGNO_E_KV_FULL) {
            /* Nothing is left to forget. What there is of the reply becomes a message when the user goes on. */
            printf(" [the context is full]");
            segno_error_free(err);
            break;
        }
        check("reply", status, &err);
        for (size_t i = 0; i < count; i++)
            if (events[i].kind == SEGNO_EVENT_CONTENT) fwrite(events[i].text, 1, events[i].len, stdout);
        fflush(stdout);
    } while (status != SEGNO_DONE);
    puts("");
    check("figures", segno_chat_stats_get(chat, &stats, sizeof stats, &err), &err);
    if (stats.forgotten > forgotten)
        printf("[the context is full: %d messages are forgotten]\n", (int)(stats.forgotten - forgotten));
    forgotten = stats.forgotten;
}

int main(int argc, char **argv) {
    static char line[4096];
    segno_chat_create_opts opts;
    segno_sampler_opts sampler;
    segno_error *err = NULL;
    segno_chat *chat;
    int system = 2, has_template;
    segno_chat_create_opts_init(&opts, sizeof opts);
    segno_sampler_opts_init(&sampler, sizeof sampler);
    for (; system + 1 < argc && argv[system][0] == '-'; system += 2) {
        const char *number = argv[system + 1];
        if (argv[system][1] == 't') sampler.temperature = strtof(number, NULL);
        else if (argv[system][1] == 's') sampler.seed = strtoull(number, NULL, 10);
        else opts.max_tokens = (uint32_t)strtoul(number, NULL, 10);
    }
    if (argc < 2 || argc > system + 1) {
        fprintf(stderr, "usage: chat MODEL.gguf [-s SEED] [-n TOKENS OF A REPLY] [-t TEMPERATURE] [SYSTEM PROMPT]\n");
        return 2;
    }
    segno_session *session = make_session(argv[1], &has_template);
    opts.flags = SEGNO_CHAT_FORGET;
    opts.sampler = &sampler;
    if (argc > system) opts.system_text = argv[system], opts.system_len = strlen(argv[system]);
    if (!has_template) {
        opts.template_text = plain, opts.template_len = sizeof plain - 1;
        opts.stops = stops, opts.stop_count = 2;
    }
    check("conversation", segno_chat_create(session, &opts, &chat, &err), &err);
    while (printf("> "), fflush(stdout), fgets(line, sizeof line, stdin) != NULL) {
        line[strcspn(line, "\n")] = 0;
        if (strcmp(line, "/reset") == 0) {
            check("reset", segno_chat_truncate(chat, argc > system, &err), &err);
            puts("[forgotten]");
            continue;
        }
        check("message", segno_chat_say(chat, "user", line, strlen(line), &err), &err);
        answer(chat);
    }
    puts("");
    segno_chat_free(chat);
    segno_session_free(session);
    return 0;
}
