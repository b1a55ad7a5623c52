// A conversation on the terminal: turns from standard input go through the model's chat template (or, without one,
// through plain "User:" and "Assistant:" lines), replies stream out. /reset forgets everything.
//
//   chat MODEL.gguf [-s SEED] [-n TOKENS OF A REPLY] [SYSTEM PROMPT]
//
// What the cache has of earlier turns is kept. When the context runs full, the oldest turns are forgotten.
#include <segno.hpp>

#include <algorithm>
#include <iostream>
#include <string>

namespace {

constexpr auto plain =
    "{{ bos_token }}{% for m in messages %}{% if m.role != 'system' %}{{ m.role | capitalize }}: {% endif %}"
    "{{ m.content }}\n{% endfor %}Assistant:";

/// A session for one conversation.
segno::session make_session(const segno::model &model) {
    segno::session_options options;
    options.max_seqs = 1;
    options.kv_tokens = std::min<std::uint64_t>(model.info().context, 8192);
    return segno::session::create(model, options);
}

/// Streams a reply to what the user has said; `forgotten` are the messages that are forgotten.
void answer(segno::chat &chat, std::uint64_t &forgotten) {
    const auto status = chat.try_reply([](const segno::event &event) {
        if (event.kind == SEGNO_EVENT_CONTENT) std::cout << event.text << std::flush;
    });
    if (!status) {
        // Nothing is left to forget. What there is of the reply becomes a message when the user goes on.
        const auto code = status.error().status();
        if (code != SEGNO_E_CONTEXT_FULL && code != SEGNO_E_KV_FULL) throw segno::error(status.error());
        std::cout << " [the context is full]";
    }
    std::cout << '\n';
    const auto now = chat.stats().forgotten;
    if (now > forgotten) std::cout << "[the context is full: " << now - forgotten << " messages are forgotten]\n";
    forgotten = now;
}

}  // namespace

int main(int argc, char **argv) try {
    segno::chat_create_options options;
    int system = 2;
    for (; system + 1 < argc && argv[system][0] == '-'; system += 2) {
        const auto number = std::stoull(argv[system + 1]);
        if (argv[system][1] == 's') options.sampler.seed = number;
        else options.max_tokens = static_cast<std::uint32_t>(number);
    }
    if (argc < 2 || argc > system + 1) {
        std::cerr << "usage: chat MODEL.gguf [-s SEED] [-n TOKENS OF A REPLY] [SYSTEM PROMPT]\n";
        return 2;
    }
    const auto model = segno::model::load(segno::context::create(), argv[1]);
    options.flags = SEGNO_CHAT_FORGET;
    if (argc > system) options.system_text = argv[system];
    if (!model.try_meta("tokenizer.chat_template")) {
        options.template_text = plain;
        options.stops = {"\nUser:", "\nAssistant:"};
    }
    auto chat = segno::chat::create(make_session(model), options);
    std::uint64_t forgotten = 0;
    std::string line;
    while (std::cout << "> " << std::flush && std::getline(std::cin, line)) {
        if (line == "/reset") {
            chat.truncate(options.system_text.empty() ? 0 : 1);
            std::cout << "[forgotten]\n";
            continue;
        }
        chat.say("user", line);
        answer(chat, forgotten);
    }
    std::cout << '\n';
    return 0;
} catch (const std::exception &e) {
    std::cerr << e.what() << '\n';
    return 1;
}
