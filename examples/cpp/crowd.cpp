// Characters who share one scene: each forks the long prompt, and all speak in one batch a step, until each has said
// TOKENS.
//
//   crowd MODEL.gguf [-c CHARACTERS] [-n TOKENS] [-s SEED]
#include <segno.hpp>

#include <chrono>
#include <iostream>
#include <string>
#include <vector>

namespace {

const std::vector<std::string> cues = {"ROMEO:\n", "JULIET:\n", "KING RICHARD:\n", "MENENIUS:\n", "LADY ANNE:\n",
    "Nurse:\n", "First Citizen:\n", "GLOUCESTER:\n"};
const char *const scene =
    "Messenger:\nMy lords, the gates are shut against the king,\nAnd every man doth ask his neighbour's mind.\n\n"
    "First Lord:\nWho leads them? Speak, and tell us what they want.\n\n"
    "Messenger:\nThey want for bread, my lord, and for a cause;\nThey say the crown hath eaten up the corn.\n\n"
    "First Lord:\nThen let us hear them all, both friend and foe,\nAnd each shall say what lies upon his heart.\n\n";

class character {
public:
    character(const segno::model &model, const std::string &cue, segno::sequence seq)
        : model_(&model), cue_(cue), seq_(std::move(seq)), text_(segno::text::create(model, {0, {"\n\n"}})) {
        (void)speak();
    }

    const segno::sequence &seq() const { return seq_; }

    /// Takes the outcome of one step; returns whether the character goes on.
    bool hear(const segno::step &step, std::size_t limit) {
        const bool spoke = step.token >= 0;
        const bool paused = spoke && print(text_.push(step.token));
        const bool leaves = (spoke && ++tokens_ == limit) || step.done() || SEGNO_FAILED(step.status);
        if (paused || leaves) end_speech();
        return !leaves && (!paused || speak());
    }

private:
    /// Queues the name and with it the beginning of a speech; false when the context is full.
    bool speak() { return bool(seq_.try_append(model_->tokenize(cue_, 0))); }

    /// Prints lines as they become whole; returns whether the speech has ended.
    bool print(const segno::text::piece &piece) {
        for (const char c : piece.text) c == '\n' ? end_line() : line_.push_back(c);
        return piece.done;
    }
    void end_speech() {
        print(text_.flush());
        end_line();
    }
    void end_line() {
        if (!line_.empty()) std::cout << cue_.substr(0, cue_.size() - 1) << ' ' << line_ << '\n';
        line_.clear();
    }

    const segno::model *model_;
    std::string cue_;
    segno::sequence seq_;
    segno::text text_;
    std::string line_;
    std::size_t tokens_ = 0;
};

/// Lets everyone speak until all have left; returns how many tokens there were.
std::size_t play(const segno::session &session, std::vector<character> cast, std::size_t limit) {
    std::size_t tokens = 0;
    segno::batch batch(session);
    while (!cast.empty()) {
        batch.clear();
        for (const character &c : cast) batch.add(c.seq());
        batch.decode();
        for (std::size_t i = cast.size(); i-- > 0;) {
            tokens += batch[i].token >= 0 ? 1 : 0;
            if (!cast[i].hear(batch[i], limit)) {
                std::swap(cast[i], cast.back());
                cast.pop_back();
            }
        }
    }
    return tokens;
}

void crowd(const std::string &path, std::size_t characters, std::size_t limit, std::uint64_t seed) {
    const auto context = segno::context::create();
    const auto model = segno::model::load(context, path);
    segno::session_options options;
    options.max_seqs = static_cast<std::uint32_t>(characters + 1);
    options.kv_tokens = 1024 + 8 * characters * limit;  // the scene once, speeches and their cues
    auto session = segno::session::create(model, options);
    auto stage = session.open();
    stage.prefill(model.tokenize(scene));
    std::vector<character> cast;
    for (std::size_t i = 0; i < characters; i++) {
        segno::sampler_options sampler;
        sampler.seed = seed + i;
        cast.emplace_back(model, cues[i], stage.fork(sampler));
    }
    const auto start = std::chrono::steady_clock::now();
    const std::size_t tokens = play(session, std::move(cast), limit);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    std::cout << '\n'
              << characters << " characters, " << tokens << " tokens, " << static_cast<double>(tokens) / seconds.count()
              << " tokens/s\n";
}

}  // namespace

int main(int argc, char **argv) try {
    std::size_t characters = 4, limit = 80, seed = 1;
    for (int i = 2; i + 1 < argc; i += 2)
        (argv[i][1] == 'c' ? characters : argv[i][1] == 'n' ? limit : seed) = std::stoul(argv[i + 1]);
    if (argc < 2 || argc % 2 != 0 || characters < 1 || characters > cues.size() || limit < 1) {
        std::cerr << "usage: crowd MODEL.gguf [-c CHARACTERS, 1 to " << cues.size() << "] [-n TOKENS] [-s SEED]\n";
        return 2;
    }
    crowd(argv[1], characters, limit, seed);
    return 0;
} catch (const std::exception &e) {
    std::cerr << e.what() << '\n';
    return 1;
}
