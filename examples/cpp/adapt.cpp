// Lets a model go on with a prompt by itself, with each of several adapters, and with all of them together: sequences
// of one session, which advance in the same passes. An adapter is a LoRA in a GGUF file, as llama.cpp's
// convert_lora_to_gguf.py writes it.
//
//   adapt MODEL.gguf PROMPT ADAPTER.gguf[=SCALE]...
#include <segno.hpp>

#include <cstddef>
#include <cstdint>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

namespace {

constexpr std::size_t tokens_each = 48;

struct text {
    std::string name;
    segno::sequence seq;
    std::vector<segno::token> tokens;
};

void adapt(const std::string &path, const std::string &prompt, std::vector<std::string> names) {
    const auto context = segno::context::create();
    const auto model = segno::model::load(context, path);
    std::vector<segno::adapter> adapters;
    std::vector<float> scales;
    for (auto &name : names) {
        const auto at = name.rfind('=');
        scales.push_back(at == std::string::npos ? 1.0f : std::stof(name.substr(at + 1)));
        name.resize(at == std::string::npos ? name.size() : at);
        adapters.push_back(segno::adapter::load(model, name));
    }
    std::vector<std::pair<std::string, std::vector<segno::scaled_adapter>>> sets{{"no adapter", {}}};
    std::vector<segno::scaled_adapter> all;
    for (std::size_t i = 0; i < names.size(); i++) {
        sets.push_back({names[i], {{adapters[i], scales[i]}}});
        all.emplace_back(adapters[i], scales[i]);
    }
    if (all.size() > 1) sets.push_back({"all of them", all});

    segno::session_options options;
    options.max_seqs = static_cast<std::uint32_t>(sets.size());
    auto session = segno::session::create(model, options);
    segno::sampler_options greedy;
    greedy.temperature = 0;
    greedy.flags = SEGNO_SAMPLER_IGNORE_EOG;
    const auto start = model.tokenize(prompt);
    std::vector<text> texts;
    segno::batch batch(session);
    for (auto &[name, set] : sets) {
        auto seq = session.open(greedy);
        // Before the prompt: what a sequence has evaluated it evaluates again with other adapters.
        seq.set_adapters(set);
        seq.append(start);
        batch.add(seq);
        texts.push_back({name, std::move(seq), {}});
    }
    for (std::size_t done = 0; done < texts.size();) {
        batch.decode();
        done = 0;
        for (std::size_t i = 0; i < texts.size(); i++) {
            auto &tokens = texts[i].tokens;
            if (batch[i].token >= 0 && tokens.size() < tokens_each) tokens.push_back(batch[i].token);
            done += tokens.size() == tokens_each;
        }
    }
    for (const auto &t : texts) std::cout << "--- " << t.name << '\n' << model.detokenize(t.tokens) << '\n';
}

}  // namespace

int main(int argc, char **argv) try {
    if (argc < 4) {
        std::cerr << "usage: adapt MODEL.gguf PROMPT ADAPTER.gguf[=SCALE]...\n";
        return 2;
    }
    adapt(argv[1], argv[2], {argv + 3, argv + argc});
    return 0;
} catch (const std::exception &e) {
    std::cerr << e.what() << '\n';
    return 1;
}
