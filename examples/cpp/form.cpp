// A form filled by a model: whatever it has learnt, what comes out is JSON of the schema, so a program can read it.
//
//   form MODEL.gguf [PROMPT] [SEED]
#include <segno.hpp>

#include <cstdlib>
#include <iostream>
#include <string>

namespace {

const char *const schema = R"({"type": "object", "properties": {
    "name": {"type": "string", "minLength": 2, "maxLength": 24},
    "age": {"type": "integer", "minimum": 1, "maximum": 99},
    "mood": {"enum": ["merry", "sad", "angry"]},
    "words": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]{2,10}$"}, "minItems": 2, "maxItems": 4}},
    "required": ["name", "age", "mood", "words"], "additionalProperties": false})";

void fill(const std::string &path, const std::string &prompt, std::uint64_t seed) {
    const auto context = segno::context::create();
    const auto model = segno::model::load(context, path);
    auto session = segno::session::create(model);
    auto text = segno::text::create(model);
    segno::grammar_options form;
    form.flags = SEGNO_GRAMMAR_COMPACT;
    form.text = schema;
    segno::sampler_options sampler;
    sampler.seed = seed;
    auto seq = session.open(sampler);
    seq.append(model.tokenize(prompt));
    seq.set_grammar(segno::grammar::create(model, form));
    for (const auto &piece : seq.generate(text)) std::cout << piece.text << std::flush;
    std::cout << '\n';
}

}  // namespace

int main(int argc, char **argv) try {
    if (argc < 2) {
        std::cerr << "usage: form MODEL.gguf [PROMPT] [SEED]\n";
        return 2;
    }
    fill(argv[1], argc > 2 ? argv[2] : "A form about ROMEO, as JSON:\n", argc > 3 ? std::stoull(argv[3]) : 1);
    return 0;
} catch (const std::exception &e) {
    std::cerr << e.what() << '\n';
    return 1;
}
