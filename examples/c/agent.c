/* An agent: a model that answers with the help of two tools, a calculator and a list of files. A grammar of calls keeps
 * every call to the schema of its tool, so the program takes arguments apart without looking for mistakes.
 *
 * usage: agent MODEL.gguf [QUESTION] [SEED] */
#include <segno.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TURNS = 4, MAX_REPLY = 300 };

#define TOOLS                                                                              \
    "[{\"name\": \"calculate\", \"parameters\": {\"type\": \"object\", \"properties\": {"  \
    "   \"left\": {\"type\": \"integer\", \"minimum\": -9999, \"maximum\": 9999},"         \
    "   \"operator\": {\"enum\": [\"+\", \"-\", \"*\"]},"                                  \
    "   \"right\": {\"type\": \"integer\", \"minimum\": -9999, \"maximum\": 9999}},"       \
    "  \"required\": [\"left\", \"operator\", \"right\"]}},"                               \
    " {\"name\": \"list_files\", \"parameters\": {\"type\": \"object\", \"properties\": {" \
    "   \"folder\": {\"type\": \"string\", \"pattern\": \"^[a-z]{0,20}$\"}}, \"required\": [\"folder\"]}}]"

static const char tools[] = TOOLS;
static const char rules[] =
    "Call a tool by writing <tool_call>\n{\"name\": ..., \"arguments\": ...}\n</tool_call>. Tools: " TOOLS;

/* ChatML with calls, which the templates of small models leave out. */
static const char template_text[] =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls %}<tool_call>\n"
    "{\"name\": \"{{ c.function.name }}\", \"arguments\": {{ c.function.arguments | tojson }}}\n</tool_call>"
    "{% endfor %}<|im_end|>\n{% endfor %}<|im_start|>assistant\n";

static segno_error *err;

static segno_status check(segno_status status) {
    if (!SEGNO_FAILED(status)) return status;
    fprintf(stderr, "agent: %s\n", segno_error_message(err));
    exit(1);
}

/* The tools. What they are given meets their schemas: every number and text is there, in this order. */
static void use(const char *arguments, char *answer, size_t room) {
    int left, right;
    char operation, folder[32] = "";
    if (sscanf(arguments, "{\"left\":%d,\"operator\":\"%c\",\"right\":%d", &left, &operation, &right) == 3) {
        const int result = operation == '+' ? left + right : operation == '-' ? left - right : left * right;
        snprintf(answer, room, "%d", result);
        return;
    }
    sscanf(arguments, "{\"folder\":\"%20[a-z]", folder);
    DIR *files = opendir(*folder ? folder : ".");
    snprintf(answer, room, files ? "" : "there is no such folder");
    for (struct dirent *file; files && (file = readdir(files)) != NULL;)
        if (file->d_name[0] != '.' && strlen(answer) + strlen(file->d_name) + 2 < room)
            strcat(strcat(answer, file->d_name), " ");
    if (files) closedir(files);
}

/* One reply: shows its text and answers the call in it. Whether there was one. */
static int answer(segno_chat *chat) {
    char name[64] = "", arguments[512] = "", result[1024];
    segno_status status = SEGNO_OK;
    segno_event events[8];
    size_t count;
    int called = 0;
    while (status != SEGNO_DONE) {
        status = check(segno_chat_next(chat, events, 8, &count, &err));
        for (size_t e = 0; e < count; e++) {
            const int len = (int)events[e].len;
            if (events[e].kind == SEGNO_EVENT_CONTENT) printf("%.*s", len, events[e].text);
            if (events[e].kind == SEGNO_EVENT_TOOL_BEGIN) snprintf(name, sizeof name, "%.*s", len, events[e].text);
            if (events[e].kind == SEGNO_EVENT_TOOL_ARGUMENTS && strlen(arguments) + events[e].len < sizeof arguments)
                strncat(arguments, events[e].text, events[e].len);
            called |= events[e].kind == SEGNO_EVENT_TOOL_END;
        }
        fflush(stdout);
    }
    puts("");
    if (!called) return 0;
    use(arguments, result, sizeof result);
    printf("[%s %s: %s]\n", name, arguments, result);
    check(segno_chat_say(chat, "user", result, strlen(result), &err));
    return 1;
}

int main(int argc, char **argv) {
    segno_ctx *ctx;
    segno_model *model;
    segno_session *session;
    segno_chat *chat;
    segno_chat_create_opts opts;
    segno_sampler_opts sampler;
    if (argc < 2) {
        fprintf(stderr, "usage: %s MODEL.gguf [QUESTION] [SEED]\n", argv[0]);
        return 2;
    }
    const char *question = argc > 2 ? argv[2] : "What is 6 times 7?";
    check(segno_ctx_create(SEGNO_ABI_VERSION, NULL, &ctx, &err));
    check(segno_model_load(ctx, argv[1], NULL, &model, &err));
    check(segno_session_create(model, NULL, &session, &err));
    segno_sampler_opts_init(&sampler, sizeof sampler);
    sampler.seed = argc > 3 ? strtoull(argv[3], NULL, 10) : 1;
    segno_chat_create_opts_init(&opts, sizeof opts);
    opts.system_text = rules, opts.system_len = strlen(rules);
    opts.template_text = template_text, opts.template_len = strlen(template_text);
    opts.tools_json = tools, opts.tools_len = strlen(tools);
    opts.format = "hermes";
    opts.sampler = &sampler;
    opts.max_tokens = MAX_REPLY;
    check(segno_chat_create(session, &opts, &chat, &err));
    check(segno_chat_say(chat, "user", question, strlen(question), &err));
    /* Small models would rather guess, so the first reply has to call a tool, and the last none. */
    for (int turn = 0; turn < MAX_TURNS; turn++) {
        const int32_t choice = turn == 0 ? SEGNO_TOOLS_REQUIRED
            : turn + 1 < MAX_TURNS       ? SEGNO_TOOLS_AUTO
                                         : SEGNO_TOOLS_NONE;
        check(segno_chat_tools_set(chat, choice, SEGNO_TOOLS_ONE_CALL, NULL, &err));
        if (!answer(chat)) break;
    }
    segno_chat_free(chat);
    segno_session_free(session);
    segno_model_free(model);
    segno_ctx_free(ctx);
    return 0;
}
