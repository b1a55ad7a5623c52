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
#include <vector>

namespace {

const char *const tools = R"([{"name": "calculate", "parameters": {"type": "object", "properties": {
    "left": {"type": "integer", "minimum": -9999, "maximum": 9999}, "operator": {"enum": ["+", "-", "*"]},
    "right": {"type": "integer", "minimum": -9999, "maximum": 9999}}, "required": ["left", "operator", "right"]}},
    {"name": "list_files", "parameters": {"type": "object", "properties": {
    "folder": {"type": "string", "pattern": "^[a-z]{0,20}$"}}, "required": ["folder"]}}])";
const char *const prompt_end = "assistant\n";
constexpr int max_turns = 4, max_reply = 300;

// For models without a template of their own.
const char *const plain_template =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n";

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

class agent {
public:
    agent(const std::string &path, std::uint64_t seed)
        : model_(segno::model::load(segno::context::create(), path)), session_(segno::session::create(model_)),
          seq_(session_.open(seeded(seed))), reply_(segno::reply::create(model_, reading())) {
        if (!model_.try_meta("tokenizer.chat_template")) chat_.template_text = plain_template;
        chat_.flags = SEGNO_CHAT_ADD_GENERATION_PROMPT;
    }

    void say(const char *role, std::string text) { messages_.push_back({role, std::move(text)}); }

    // One reply: shows its text and uses the tool that it calls. Whether it called one.
    bool answer(std::int32_t choice) {
        seq_.truncate(0);
        seq_.append(model_.tokenize_chat(messages_, chat_));
        segno::tools_options calls;
        calls.choice = choice;
        calls.flags = SEGNO_TOOLS_ONE_CALL;
        calls.format = "hermes";
        calls.prompt = prompt_end;
        calls.tools_json = tools;
        seq_.set_grammar(segno::grammar::create_for_tools(model_, calls));
        const call made = read();
        if (!made.whole) return false;
        const std::string result = use(made);
        std::cout << '[' << made.name << ' ' << made.arguments << ": " << result << "]\n";
        say("assistant",
            "<tool_call>\n{\"name\": \"" + made.name + "\", \"arguments\": " + made.arguments + "}\n</tool_call>");
        say("user", "<tool_response>\n" + result + "\n</tool_response>");
        return true;
    }

private:
    static segno::sampler_options seeded(std::uint64_t seed) {
        segno::sampler_options options;
        options.seed = seed;
        return options;
    }
    static segno::reply_options reading() {
        segno::reply_options options;
        options.format = "hermes";
        options.prompt = prompt_end;
        options.tools_json = tools;
        return options;
    }

    call read() {
        call made;
        for (int i = 0; i < max_reply; i++) {
            const auto step = seq_.decode();
            if (step.token >= 0) take(reply_.push(step.token).events, made);
            if (step.status != SEGNO_OK && !step.pending()) break;
        }
        take(reply_.flush().events, made);
        std::cout << std::endl;
        return made;
    }

    static void take(const std::vector<segno::event> &events, call &made) {
        for (const auto &event : events) {
            if (event.kind == SEGNO_EVENT_CONTENT) std::cout << event.text << std::flush;
            if (event.kind == SEGNO_EVENT_TOOL_BEGIN) made.name = event.text;
            if (event.kind == SEGNO_EVENT_TOOL_ARGUMENTS) made.arguments += event.text;
            if (event.kind == SEGNO_EVENT_TOOL_END) made.whole = true;
        }
    }

    segno::model model_;
    segno::session session_;
    segno::sequence seq_;
    segno::reply reply_;
    segno::chat_options chat_;
    std::vector<segno::message> messages_;
};

}  // namespace

int main(int argc, char **argv) try {
    if (argc < 2) {
        std::cerr << "usage: agent MODEL.gguf [QUESTION] [SEED]\n";
        return 2;
    }
    agent helper(argv[1], argc > 3 ? std::stoull(argv[3]) : 1);
    helper.say("system",
        std::string("Call a tool by writing <tool_call>\n{\"name\": ..., \"arguments\": ...}\n"
                    "</tool_call>. Tools: ") +
            tools);
    helper.say("user", argc > 2 ? argv[2] : "What is 6 times 7?");
    // Small models would rather guess, so the first reply has to call a tool, and the last none.
    for (int turn = 0; turn < max_turns; turn++) {
        const bool is_last = turn + 1 == max_turns;
        if (!helper.answer(turn == 0 ? SEGNO_TOOLS_REQUIRED : is_last ? SEGNO_TOOLS_NONE : SEGNO_TOOLS_AUTO)) break;
    }
    return 0;
} catch (const std::exception &e) {
    std::cerr << e.what() << '\n';
    return 1;
}
