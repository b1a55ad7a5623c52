// segno.hpp without exceptions: every call returns a result that holds the value or the reason.
#include "check.hpp"

#include <string>

static_assert(SEGNO_EXCEPTIONS == 0);

int main(int argc, char **argv) {
    CHECK(argc == 2);
    auto context = segno::context::try_create();
    CHECK(context);
    auto missing = segno::model::try_load(*context, "/no/such/file");
    CHECK(!missing && missing.error().status() == SEGNO_E_IO);
    CHECK(std::string(missing.error().name()) == "SEGNO_E_IO");
    CHECK(std::string(missing.error().message()).find("/no/such/file") != std::string::npos);
    segno::model_options options;
    options.on_progress = [](float) { return false; };
    auto cancelled = segno::model::try_load(*context, argv[1], options);
    CHECK(!cancelled && cancelled.error().status() == SEGNO_CANCELLED);
    CHECK(std::string(cancelled.error().message()) == "SEGNO_CANCELLED");

    auto model = segno::model::try_load(*context, argv[1]);
    CHECK(model && model->try_info() && model->try_info()->vocab > 0);
    segno::chat_options chat;
    chat.template_text = "{{ messages[0].content }}";
    auto rendered = model->try_render_chat({{"user", "Ay"}}, chat);
    CHECK(rendered && *rendered == "Ay");
    auto untemplated = model->try_render_chat_json("[]");
    CHECK(!untemplated && untemplated.error().status() == SEGNO_E_NOT_FOUND);
    auto session = segno::session::try_create(*model);
    CHECK(session && session->try_memory());
    segno::sampler_options sampler;
    sampler.seed = 1;
    auto seq = session->try_open(sampler);
    CHECK(seq);
    auto step = seq->try_decode();
    CHECK(!step && step.error().status() == SEGNO_E_INVALID_ARGUMENT);
    auto prompt = model->try_tokenize("ROMEO:");
    CHECK(prompt && prompt->size() > 1);
    auto refused = seq->try_append(std::vector<segno::token>{5, -7});
    CHECK(!refused && refused.error().item() == 1);
    CHECK(seq->try_prefill(*prompt));
    CHECK(seq->try_length() && *seq->try_length() == prompt->size());

    auto text = segno::text::try_create(*model);
    CHECK(text);
    std::vector<segno::token> tokens;
    std::string words;
    auto generation = seq->try_generate(*text, 20);
    for (const auto &piece : generation) {
        if (piece.token >= 0) tokens.push_back(piece.token);
        words += piece.text;
    }
    CHECK(generation.status() == SEGNO_OK && tokens.size() == 20);
    auto whole = model->try_detokenize(tokens);
    CHECK(whole && *whole == words);

    auto grammar = segno::grammar::try_create(*model);
    CHECK(grammar && seq->try_set_grammar(*grammar, 7) && seq->try_clear_grammar());

    const std::string path = argv[1];
    std::string beside = path;
    beside.insert(beside.rfind('.'), "-lora");
    auto adapter = segno::adapter::try_load(*model, beside);
    CHECK(adapter && seq->try_set_adapters({{*adapter, 0.5f}, *adapter}) && seq->try_set_adapters({}));
    CHECK(segno::adapter::try_load(*model, path).error().status() == SEGNO_E_UNSUPPORTED);

    auto fork = seq->try_fork();
    CHECK(fork && fork->try_mark() && fork->try_mark_nearest(1) && fork->try_truncate(prompt->size()) &&
        fork->try_set_sampler(sampler));
    segno::batch batch(*session);
    batch.add(*fork);
    CHECK(batch.try_decode() && batch[0].token == tokens[0]);
    batch.add(*fork);
    auto twice = batch.try_decode();
    CHECK(twice && *twice == SEGNO_E_INVALID_ARGUMENT && batch[1].status == SEGNO_E_INVALID_ARGUMENT);
    CHECK(fork->try_logits() && fork->try_logits()->size() == model->try_info()->vocab);
    CHECK(*segno::try_device_count(SEGNO_DEVICE_CPU) == 1 && segno::try_device(SEGNO_DEVICE_CPU) &&
        !segno::try_device(SEGNO_DEVICE_CPU, 1));
    CHECK(segno::try_plan(*context, argv[1]) && !segno::try_plan(*context, "/no/such/file"));
    std::puts("status: passed");
    return 0;
}
