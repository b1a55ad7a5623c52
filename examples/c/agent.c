/* An agent: a model that answers with the help of two tools, a calculator and a list of files. A grammar of calls keeps
 * every call to the schema of its tool, so the program takes arguments apart without looking for mistakes.
 *
 * usage: agent MODEL.gguf [QUESTION] [SEED] */
#include <segno.h>

#include <dirent.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TURNS = 4, MAX_REPLY = 300, ROOM = 1 << 14 };

static const char tools[] =
    "[{\"name\": \"calculate\", \"parameters\": {\"type\": \"object\", \"properties\": {"
    "   \"left\": {\"type\": \"integer\", \"minimum\": -9999, \"maximum\": 9999},"
    "   \"operator\": {\"enum\": [\"+\", \"-\", \"*\"]},"
    "   \"right\": {\"type\": \"integer\", \"minimum\": -9999, \"maximum\": 9999}},"
    "  \"required\": [\"left\", \"operator\", \"right\"]}},"
    " {\"name\": \"list_files\", \"parameters\": {\"type\": \"object\", \"properties\": {"
    "   \"folder\": {\"type\": \"string\", \"pattern\": \"^[a-z]{0,20}$\"}}, \"required\": [\"folder\"]}}]";

/* For models without a template of their own. */
static const char plain_template[] =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n";

static segno_error *err;
static segno_model *model;
static segno_session *session;
static int32_t seq;
static char messages[ROOM]; /* JSON, without the closing bracket */
static size_t written;

static void check(segno_status status) {
    if (!SEGNO_FAILED(status)) return;
    fprintf(stderr, "agent: %s\n", segno_error_message(err));
    exit(1);
}

/* Adds a message; its text may hold anything. */
static void say(const char *role, const char *format, ...) {
    char text[ROOM / 4];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    written += (size_t)snprintf(
        messages + written, ROOM - written, "%s{\"role\":\"%s\",\"content\":\"", written ? "," : "[", role);
    for (const char *c = text; *c && written + 16 < ROOM; c++) {
        if (*c == '"' || *c == '\\' || (unsigned char)*c < 32)
            written += (size_t)sprintf(messages + written, "\\u%04x", (unsigned char)*c);
        else messages[written++] = *c;
    }
    written += (size_t)sprintf(messages + written, "\"}");
}

/* The tools. What they are given meets their schemas: every number and text is there, in this order. */
static void use(const char *name, const char *arguments, char *answer, size_t room) {
    int left, right;
    char operation, folder[32] = "";
    if (sscanf(arguments, "{\"left\":%d,\"operator\":\"%c\",\"right\":%d", &left, &operation, &right) == 3) {
        const int result = operation == '+' ? left + right : operation == '-' ? left - right : left * right;
        snprintf(answer, room, "%d", result);
        return;
    }
    sscanf(arguments, "{\"folder\":\"%20[a-z]", folder);
    DIR *files = opendir(*folder ? folder : ".");
    snprintf(answer, room, files ? "" : "%s: there is no such folder", name);
    for (struct dirent *file; files && (file = readdir(files)) != NULL;)
        if (file->d_name[0] != '.' && strlen(answer) + strlen(file->d_name) + 2 < room)
            strcat(strcat(answer, file->d_name), " ");
    if (files) closedir(files);
}

/* Evaluates the conversation so far, and gives the sequence the grammar of a reply to it. */
static void begin(int32_t choice) {
    static int32_t tokens[ROOM];
    segno_chat_opts chat;
    segno_tools_opts calls;
    segno_grammar *grammar;
    size_t count, len;
    int32_t start;
    segno_chat_opts_init(&chat, sizeof chat);
    chat.flags = SEGNO_CHAT_ADD_GENERATION_PROMPT;
    if (segno_model_meta(model, "tokenizer.chat_template", NULL, 0, &len, NULL) != SEGNO_OK) {
        chat.template_text = plain_template;
        chat.template_len = strlen(plain_template);
    }
    messages[written] = ']';
    check(segno_chat_tokenize(model, messages, written + 1, &chat, tokens, ROOM, &count, &err));
    check(segno_seq_truncate(session, seq, 0, &err));
    check(segno_seq_append(session, seq, tokens, count, &err));
    segno_tools_opts_init(&calls, sizeof calls);
    calls.choice = choice;
    calls.flags = SEGNO_TOOLS_ONE_CALL;
    calls.format = "hermes";
    calls.prompt = "assistant\n";
    calls.prompt_len = strlen(calls.prompt);
    calls.tools_json = tools;
    calls.tools_len = strlen(tools);
    check(segno_tools_grammar_create(model, &calls, &grammar, &start, &err));
    check(segno_seq_grammar_set(session, seq, grammar, start, &err));
    segno_grammar_free(grammar);
}

/* One reply: shows its text and uses the tool that it calls. Whether it called one. */
static int answer(segno_reply *reply, int32_t choice) {
    char name[64] = "", arguments[512] = "", result[1024];
    segno_status status = SEGNO_OK;
    segno_event events[8];
    size_t count;
    int32_t token;
    int called = 0;
    begin(choice);
    for (int i = 0; i < MAX_REPLY && (status == SEGNO_OK || status == SEGNO_PENDING); i++) {
        check(status = segno_decode_step(session, seq, &token, &err));
        if (token < 0) continue;
        check(segno_reply_push(reply, token, events, 8, &count, &err));
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
    check(segno_reply_flush(reply, events, 8, &count, &err));
    puts("");
    if (!called) return 0;
    use(name, arguments, result, sizeof result);
    printf("[%s %s: %s]\n", name, arguments, result);
    say("assistant", "<tool_call>\n{\"name\": \"%s\", \"arguments\": %s}\n</tool_call>", name, arguments);
    say("user", "<tool_response>\n%s\n</tool_response>", result);
    return 1;
}

int main(int argc, char **argv) {
    segno_ctx *ctx;
    segno_reply *reply;
    segno_reply_opts read;
    segno_sampler_opts sampler;
    if (argc < 2) {
        fprintf(stderr, "usage: %s MODEL.gguf [QUESTION] [SEED]\n", argv[0]);
        return 2;
    }
    check(segno_ctx_create(SEGNO_ABI_VERSION, NULL, &ctx, &err));
    check(segno_model_load(ctx, argv[1], NULL, &model, &err));
    check(segno_session_create(model, NULL, &session, &err));
    segno_sampler_opts_init(&sampler, sizeof sampler);
    sampler.seed = argc > 3 ? strtoull(argv[3], NULL, 10) : 1;
    check(segno_seq_open(session, &sampler, &seq, &err));
    segno_reply_opts_init(&read, sizeof read);
    read.format = "hermes";
    read.prompt = "assistant\n";
    read.prompt_len = strlen(read.prompt);
    read.tools_json = tools;
    read.tools_len = strlen(tools);
    check(segno_reply_create(model, &read, &reply, &err));

    say("system", "Call a tool by writing <tool_call>\n{\"name\": ..., \"arguments\": ...}\n</tool_call>. Tools: %s",
        tools);
    say("user", "%s", argc > 2 ? argv[2] : "What is 6 times 7?");
    /* Small models would rather guess, so the first reply has to call a tool, and the last none. */
    for (int turn = 0; turn < MAX_TURNS; turn++) {
        const int32_t choice = turn == 0 ? SEGNO_TOOLS_REQUIRED
            : turn + 1 < MAX_TURNS       ? SEGNO_TOOLS_AUTO
                                         : SEGNO_TOOLS_NONE;
        if (!answer(reply, choice)) break;
    }
    segno_reply_free(reply);
    segno_session_free(session);
    segno_model_free(model);
    segno_ctx_free(ctx);
    return 0;
}
