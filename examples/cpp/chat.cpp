// A conversation on the terminal: turns from standard input go through the model's chat template (or, without one,
// through plain "User:" and "Assistant:" lines), replies stream out. /reset forgets everything.
//
//   chat MODEL.gguf [-s SEED] [-n TOKENS OF A REPLY] [SYSTEM PROMPT]
//
// The conversation is rendered anew for every turn; what the sequence already holds of it is kept. When the context
// runs full, the oldest turns are forgotten: the sequence is cut at the end of the system turn, and the newest turns
// are appended again.
#include <segno.hpp>

#include <algorithm>
#include <iostream>
#include <limits>
#include <string>
#include <vector>

namespace {

constexpr std::size_t room_for_reply = 128;

class conversation {
public:
    conversation(segno::model model, std::uint64_t seed, std::size_t limit)
        : model_(std::move(model)), limit_(limit), templated_(bool(model_.try_meta("tokenizer.chat_template"))),
          capacity_(std::min<std::size_t>(model_.info().context, 8192)),
          session_(segno::session::create(model_, holding(capacity_))),
          text_(segno::text::create(model_,
              {0, templated_ ? std::vector<std::string>{} : std::vector<std::string>{"\nUser:", "\nAssistant:"}})),
          seq_(session_.open(seeded(seed))) {}

    void begin(const std::string &system) {
        turns_ = {{"system", system}};
        system_ = 1;
    }
    void forget() {
        turns_.resize(system_);
        forgotten_ = 0;
    }
    void answer(const std::string &line) {
        turns_.push_back({"user", line});
        evaluate();
        reply();
    }

private:
    static segno::session_options holding(std::size_t tokens) {
        segno::session_options options;
        options.max_seqs = 1;
        options.kv_tokens = tokens;
        return options;
    }
    static segno::sampler_options seeded(std::uint64_t seed) {
        segno::sampler_options options;
        options.seed = seed;
        return options;
    }

    /// The kept turns as the template says, or as plain lines.
    std::string render() const {
        std::vector<segno::message> kept(turns_.begin(), turns_.begin() + system_);
        kept.insert(kept.end(), turns_.begin() + system_ + forgotten_, turns_.end());
        if (templated_) {
            segno::chat_options options;
            options.flags = SEGNO_CHAT_ADD_GENERATION_PROMPT;
            return model_.render_chat(kept, options);
        }
        std::string plain;
        for (const segno::message &turn : kept)
            plain += (turn.role == "system"        ? ""
                             : turn.role == "user" ? "User: "
                                                   : "Assistant: ") +
                turn.content + "\n";
        return plain + "Assistant:";
    }

    /// Brings the sequence to the rendered conversation, forgetting the oldest turns while it does not fit.
    void evaluate() {
        const auto tokenize = [&] {
            return model_.tokenize(render(), templated_ ? SEGNO_TOKENIZE_PARSE_SPECIAL : SEGNO_TOKENIZE_ADD_SPECIAL);
        };
        const std::ptrdiff_t before = forgotten_;
        auto tokens = tokenize();
        while (tokens.size() + room_for_reply > capacity_ && system_ + forgotten_ + 1 < std::ptrdiff_t(turns_.size())) {
            forgotten_++;
            tokens = tokenize();
        }
        const auto differs = std::mismatch(held_.begin(), held_.end(), tokens.begin(), tokens.end()).second;
        const auto same = std::size_t(differs - tokens.begin());
        if (forgotten_ > before)
            std::cout << "[the context is full: " << forgotten_ - before << " turns are forgotten, " << same
                      << " tokens kept]\n";
        seq_.truncate(same);
        seq_.append({tokens.data() + same, tokens.size() - same});
        held_ = std::move(tokens);
    }

    /// Streams one reply and keeps it as a turn.
    void reply() {
        std::string words;
        auto generation = seq_.try_generate(text_, limit_);
        for (const auto &piece : generation) {
            if (piece.token >= 0) held_.push_back(piece.token);
            words += piece.text;
            std::cout << piece.text << std::flush;
        }
        const bool full = generation.status() == SEGNO_E_CONTEXT_FULL || generation.status() == SEGNO_E_KV_FULL;
        if (SEGNO_FAILED(generation.status()) && !full) throw segno::error(generation.error());
        std::cout << (full ? " [the context is full]\n" : "\n");
        turns_.push_back({"assistant", words});
    }

    segno::model model_;
    std::size_t limit_;  // tokens of a reply
    bool templated_;
    std::size_t capacity_;
    segno::session session_;
    segno::text text_;
    segno::sequence seq_;
    std::vector<segno::message> turns_;
    std::ptrdiff_t system_ = 0;     // 1 when the first turn is the system's
    std::ptrdiff_t forgotten_ = 0;  // turns after it that are left out
    std::vector<segno::token> held_;
};

}  // namespace

int main(int argc, char **argv) try {
    std::uint64_t seed = SEGNO_SEED_RANDOM, limit = std::numeric_limits<std::uint64_t>::max();
    int system = 2;
    for (; system + 1 < argc && argv[system][0] == '-'; system += 2)
        (argv[system][1] == 's' ? seed : limit) = std::stoull(argv[system + 1]);
    if (argc < 2 || argc > system + 1) {
        std::cerr << "usage: chat MODEL.gguf [-s SEED] [-n TOKENS OF A REPLY] [SYSTEM PROMPT]\n";
        return 2;
    }
    conversation talk(segno::model::load(segno::context::create(), argv[1]), seed, limit);
    if (argc > system) talk.begin(argv[system]);
    std::string line;
    while (std::cout << "> " << std::flush && std::getline(std::cin, line)) {
        if (line != "/reset") {
            talk.answer(line);
            continue;
        }
        talk.forget();
        std::cout << "[forgotten]\n";
    }
    std::cout << '\n';
    return 0;
} catch (const std::exception &e) {
    std::cerr << e.what() << '\n';
    return 1;
}
