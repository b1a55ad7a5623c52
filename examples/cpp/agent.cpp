// An agent: a model that answers with the help of two tools, a calculator and a list of files. A grammar of calls keeps
// every call to the schema of its tool, so the program takes arguments apart without looking for mistakes.
//
//   agent MODEL.gguf [QUESTION] [SEED]
#include <segno.hpp>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string>

namespace {

const char *const tools = R"([{"name": "calculate", "parameters": {"type": "object", "properties": {
    "left": {"type": "integer", "minimum": -9999, "maximum": 9999}, "operator": {"enum": ["+", "-", "*"]},
    "right": {"type": "integer", "minimum": -9999, "maximum": 9999}}, "required": ["left", "operator", "right"]}},
    {"name": "list_files", "parameters": {"type": "object", "properties": {
    "folder": {"type": "string", "pattern": "^[a-z]{0,20}$"}}, "required": ["folder"]}}])";
// ChatML with calls, which the templates of small models leave out.
const char *const template_text =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls %}<tool_call>\n"
    "{\"name\": \"{{ c.function.name }}\", \"arguments\": {{ c.function.arguments | tojson }}}\n</tool_call>"
    "{% endfor %}<|im_end|>\n{% endfor %}<|im_start|>assistant\n";
constexpr int max_turns = 4, max_reply = 300;

struct call {
    std::string name, arguments;
    bool whole = false;
};

// The tools. What they are given meets their schemas: every number and text is there, in this order.
std::string use(const call &made) {
    int left = 0, right = 0;
    char operation = 0, folder[32] = "";
    if (std::sscanf(made.arguments.c_str(), R"({"left":%d,"operator":"%c","right":%d)", &left, &operation, &right) == 3)
        return std::to_string(operation == '+' ? left + right : operation == '-' ? left - right : left * right);
    std::sscanf(made.arguments.c_str(), R"({"folder":"%20[a-z])", folder);
    std::error_code error;
    std::string names;
    for (const auto &file : std::filesystem::directory_iterator(*folder ? folder : ".", error))
        names += file.path().filename().string() + " ";
    return error ? "there is no such folder" : names;
}

segno::chat_create_options options(std::uint64_t seed) {
    segno::chat_create_options options;
    options.system_text =
        "Call a tool by writing <tool_call>\n{\"name\": ..., \"arguments\": ...}\n</tool_call>. Tools: ";
    options.system_text += tools;
    options.template_text = template_text;
    options.tools_json = tools;
    options.format = "hermes";
    options.sampler.seed = seed;
    options.max_tokens = max_reply;
    return options;
}

// One reply: shows its text and answers the call in it. Whether there was one.
bool answer(segno::chat &chat) {
    call made;
    chat.reply([&](const segno::event &event) {
        if (event.kind == SEGNO_EVENT_CONTENT) std::cout << event.text << std::flush;
        if (event.kind == SEGNO_EVENT_TOOL_BEGIN) made.name = event.text;
        if (event.kind == SEGNO_EVENT_TOOL_ARGUMENTS) made.arguments += event.text;
        if (event.kind == SEGNO_EVENT_TOOL_END) made.whole = true;
    });
    std::cout << std::endl;
    if (!made.whole) return false;
    const std::string result = use(made);
    std::cout << '[' << made.name << ' ' << made.arguments << ": " << result << "]\n";
    chat.say("user", result);
    return true;
}

}  // namespace

int main(int argc, char **argv) try {
    if (argc < 2) {
        std::cerr << "usage: agent MODEL.gguf [QUESTION] [SEED]\n";
        return 2;
    }
    const auto model = segno::model::load(segno::context::create(), argv[1]);
    const auto session = segno::session::create(model);
    auto chat = segno::chat::create(session, options(argc > 3 ? std::stoull(argv[3]) : 1));
    chat.say("user", argc > 2 ? argv[2] : "What is 6 times 7?");
    // Small models would rather guess, so the first reply has to call a tool, and the last none.
    for (int turn = 0; turn < max_turns; turn++) {
        const bool is_last = turn + 1 == max_turns;
        chat.set_tools(turn == 0 ? SEGNO_TOOLS_REQUIRED
                : is_last        ? SEGNO_TOOLS_NONE
                                 : SEGNO_TOOLS_AUTO,
            SEGNO_TOOLS_ONE_CALL);
        if (!answer(chat)) break;
    }
    return 0;
} catch (const std::exception &e) {
    std::cerr << e.what() << '\n';
    return 1;
}
