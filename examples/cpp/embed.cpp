// Finds the texts that are nearest to a query: each becomes a vector, and the cosine of two says how much they mean the
// same. Models that were made for that know it best; some want a word before a query, which comes as a part of it.
//
//   embed MODEL.gguf QUERY TEXT...
#include <segno.hpp>

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace {

void embed(const char *path, const std::vector<std::string> &texts) {
    segno::context_options options;
    options.device = SEGNO_DEVICE_CPU;
    const auto context = segno::context::create(options);
    const auto model = segno::model::load(context, path);
    segno::session_options of_session;
    of_session.max_seqs = 32;  // most texts of a pass
    auto session = segno::session::create(model, of_session);

    std::vector<std::vector<segno::token>> tokens;
    for (const auto &text : texts) tokens.push_back(model.tokenize(text));
    std::vector<std::vector<float>> vectors;
    session.embed(tokens, vectors);

    std::vector<std::pair<float, std::string>> found;
    for (std::size_t i = 1; i < texts.size(); i++) {
        const auto &a = vectors[0], &b = vectors[i];
        found.emplace_back(std::inner_product(a.begin(), a.end(), b.begin(), 0.0f), texts[i]);
    }
    std::stable_sort(found.begin(), found.end(), [](const auto &a, const auto &b) { return a.first > b.first; });
    for (const auto &[cosine, text] : found) std::printf("%6.3f  %s\n", static_cast<double>(cosine), text.c_str());
}

}  // namespace

int main(int argc, char **argv) try {
    if (argc < 4) {
        std::cerr << "usage: embed MODEL.gguf QUERY TEXT...\n";
        return 2;
    }
    embed(argv[1], {argv + 2, argv + argc});
    return 0;
} catch (const std::exception &e) {
    std::cerr << e.what() << '\n';
    return 1;
}
