// Streams a continuation of a prompt, and tells how fast prompt and continuation went.
//
//   generate MODEL.gguf [-p PROMPT] [-n TOKENS] [-s SEED] [-t TEMPERATURE] [-j THREADS]
#include <segno.hpp>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <string>

namespace {

struct options {
    std::string model;
    std::string prompt;
    std::size_t tokens = 200;
    segno::context_options context;
    segno::sampler_options sampler;
};

const char *const usage = "usage: generate MODEL.gguf [-p PROMPT] [-n TOKENS] [-s SEED] [-t TEMPERATURE] [-j THREADS]";

options parse(int argc, char **argv) {
    options o;
    for (int i = 1; i < argc; i++) {
        const std::string name = argv[i];
        if (name[0] != '-') {
            o.model = name;
            continue;
        }
        const std::string value = i + 1 < argc ? argv[++i] : throw std::invalid_argument(name + " needs a value");
        switch (name.size() == 2 ? name[1] : '?') {
            case 'p': o.prompt = value; break;
            case 'n': o.tokens = std::stoul(value); break;
            case 's': o.sampler.seed = std::stoull(value); break;
            case 't': o.sampler.temperature = std::stof(value); break;
            case 'j': o.context.n_threads = static_cast<std::uint32_t>(std::stoul(value)); break;
            default: throw std::invalid_argument("unknown option " + name);
        }
    }
    if (o.model.empty()) throw std::invalid_argument(usage);
    return o;
}

void generate(const options &o) {
    using clock = std::chrono::steady_clock;
    const auto context = segno::context::create(o.context);
    const auto model = segno::model::load(context, o.model);
    auto session = segno::session::create(model);
    auto text = segno::text::create(model);
    auto seq = session.open(o.sampler);

    const auto prompt = model.tokenize(o.prompt);
    const auto start = clock::now();
    seq.prefill(prompt);
    const std::chrono::duration<double> prefill = clock::now() - start;
    std::cout << o.prompt;
    std::size_t count = 0;
    // The context may fill up before the limit is reached: the loop then just ends.
    auto generation = seq.try_generate(text, o.tokens);
    for (const auto &piece : generation) {
        std::cout << piece.text << std::flush;
        count += piece.token >= 0 ? 1 : 0;
    }
    const std::chrono::duration<double> decode = clock::now() - start - prefill;
    if (SEGNO_FAILED(generation.status()) && generation.status() != SEGNO_E_CONTEXT_FULL)
        throw segno::error(generation.error());
    std::cout.setf(std::ios::fixed);
    std::cout.precision(1);
    std::cout << "\n\nprompt: " << prompt.size() << " tokens, " << static_cast<double>(prompt.size()) / prefill.count()
              << " tokens/s; decode: " << count << " tokens, " << static_cast<double>(count) / decode.count()
              << " tokens/s\n";
}

}  // namespace

int main(int argc, char **argv) try {
    generate(parse(argc, argv));
    return 0;
} catch (const std::exception &e) {
    std::cerr << e.what() << '\n';
    return 1;
}
