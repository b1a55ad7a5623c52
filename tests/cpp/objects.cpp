// segno.hpp with exceptions: objects move and free themselves in any order, errors are thrown with code, message and
// item, streams run in a range-for, callbacks may be lambdas and may throw where that is allowed.
#include "check.hpp"

#include <atomic>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <type_traits>

template <class T>
constexpr bool move_only = std::is_nothrow_move_constructible_v<T> && std::is_move_assignable_v<T> &&
    !std::is_copy_constructible_v<T> && !std::is_copy_assignable_v<T>;
static_assert(
    move_only<segno::context> && move_only<segno::model> && move_only<segno::session> && move_only<segno::sequence>);
static_assert(move_only<segno::text> && std::is_nothrow_move_constructible_v<segno::failure>);

static segno::sampler_options seeded(std::uint64_t seed) {
    segno::sampler_options options;
    options.seed = seed;
    return options;
}

template <class F>
static segno_status thrown_by(F &&function, std::int64_t item = -1) {
    try {
        function();
    } catch (const segno::error &e) {
        CHECK(std::string(e.what()).size() > 5);
        CHECK(e.item() == item);
        return e.status();
    }
    return SEGNO_OK;
}

static std::string first_words(const segno::model &model, segno::session &session, std::size_t tokens) {
    auto text = segno::text::create(model);
    auto seq = session.open(seeded(1));
    seq.append(model.tokenize("ROMEO:"));
    std::string words;
    std::size_t count = 0;
    for (const auto &piece : seq.generate(text, tokens)) {
        words += piece.text;
        count += piece.token >= 0 ? 1 : 0;
    }
    CHECK(count == tokens);
    return words;
}

static void errors_are_thrown(const segno::context &context, const segno::model &model) {
    CHECK(thrown_by([&] { segno::model::load(context, "/no/such/file"); }) == SEGNO_E_IO);
    CHECK(thrown_by([&] { model.meta("no.such.key"); }) == SEGNO_E_NOT_FOUND);
    segno::model_options strange;
    strange.quantize = 99;
    CHECK(thrown_by([&] { segno::model::load(context, "/no/such/file", strange); }) == SEGNO_E_INVALID_ARGUMENT);
    CHECK(thrown_by([&] { model.tokenize("\xff"); }) == SEGNO_E_INVALID_ARGUMENT);
    auto session = segno::session::create(model);
    auto seq = session.open();
    CHECK(thrown_by([&] { seq.append(std::vector<segno::token>{1, 2, 1 << 30}); }, 2) == SEGNO_E_INVALID_ARGUMENT);
    CHECK(thrown_by([&] { seq.decode(); }) == SEGNO_E_INVALID_ARGUMENT);
    CHECK(thrown_by([&] { seq.truncate(1); }) == SEGNO_E_INVALID_ARGUMENT);
    segno::sampler_options bad;
    bad.temperature = -1;
    CHECK(thrown_by([&] { session.open(bad); }) == SEGNO_E_INVALID_ARGUMENT);
    seq.close();
    seq.close();
}

static void text_goes_both_ways(const segno::model &model) {
    const std::string words = "To be, or not to be";
    const auto tokens = model.tokenize(words, 0);
    CHECK(tokens.size() > 3 && model.detokenize(tokens) == words);
    CHECK(model.tokenize("", 0).empty());
    CHECK(model.meta("general.architecture") == model.info().arch);

    auto text = segno::text::create(model, {0, {" or"}});
    std::string shown;
    bool done = false;
    for (const segno::token t : tokens) {
        const auto piece = text.push(t);
        shown += piece.text;
        done = done || piece.done;
    }
    CHECK(done && shown == "To be,");
    CHECK(text.flush().done);
    CHECK(!text.flush().done);
}

static void conversations_are_rendered(const segno::model &model) {
    segno::chat_options options;
    options.flags = SEGNO_CHAT_ADD_GENERATION_PROMPT;
    options.template_text =
        "{% for m in messages %}{{ m.role }}={{ m.content }};{% endfor %}{{ mood }}{{ tools | length }}"
        "{% if add_generation_prompt %}!{% endif %}{{ strftime_now('%Y') }}";
    options.tools_json = "[{\"name\": \"dagger\"}]";
    options.vars_json = "{\"mood\": \"grim\"}";
    options.now = 86400;
    const std::string nasty = "\"Nay\" \\ \n\t\x01 \xe2\x9c\x93";
    CHECK(model.render_chat({{"user", "Who's there?"}, {"assistant", nasty}}, options) ==
        "user=Who's there?;assistant=" + nasty + ";grim1!1970");
    CHECK(model.render_chat({}, options) == "grim1!1970");
    const std::vector<segno::message> typed = {{"user", "Who <|endoftext|>?"}};
    const auto written = model.tokenize(model.render_chat(typed, options), SEGNO_TOKENIZE_PARSE_SPECIAL);
    const auto said = model.tokenize_chat(typed, options);
    CHECK(said.size() > written.size() && model.detokenize(said, 0) == model.render_chat(typed, options));
    options.template_text = "{{ messages[0].content[0].text }}";
    CHECK(model.render_chat_json(
              "[{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"ay\"}]}]", options) == "ay");
    CHECK(thrown_by([&] { model.render_chat({{"user", "\xff"}}, options); }) == SEGNO_E_INVALID_ARGUMENT);
    CHECK(thrown_by([&] { model.render_chat_json("[{", options); }) == SEGNO_E_INVALID_ARGUMENT);
    CHECK(thrown_by([&] { model.render_chat({{"user", "x"}}); }) == SEGNO_E_NOT_FOUND);
    options.template_text = "{{ raise_exception('thou art') }}";
    CHECK(thrown_by([&] { model.render_chat({}, options); }) == SEGNO_E_TEMPLATE);
}

static void sequences_branch(const segno::model &model) {
    auto session = segno::session::create(model);
    auto seq = session.open(seeded(5));
    CHECK(seq.prefill(model.tokenize("JULIET:")) == SEGNO_OK);
    const std::size_t length = seq.length();
    CHECK(seq.logits().size() == model.info().vocab);
    auto fork = seq.fork();
    auto other = seq.fork(seeded(6));
    CHECK(fork.id() != seq.id() && other.id() != fork.id());
    std::vector<segno::token> a, b;
    for (int i = 0; i < 8; i++) {
        a.push_back(seq.decode().token);
        b.push_back(fork.decode().token);
    }
    CHECK(a == b);
    seq.mark();
    CHECK(seq.mark_nearest(length) == length &&
        seq.try_mark_nearest(length + 9).error().status() == SEGNO_E_INVALID_ARGUMENT);
    fork.remove(1, 2);
    CHECK(fork.length() == length + 6 && fork.try_remove(length, 9).error().status() == SEGNO_E_INVALID_ARGUMENT);
    seq.truncate(length);
    seq.set_sampler(seeded(6));
    a.clear();
    b.clear();
    segno::batch batch(session);
    batch.add(seq);
    batch.add(other);
    for (int i = 0; i < 8; i++) {
        CHECK(batch.decode() == SEGNO_OK);
        a.push_back(batch[0].token);
        b.push_back(batch[1].token);
    }
    CHECK(a == b);

    other.close();
    CHECK(batch.decode() == SEGNO_E_NOT_FOUND);
    CHECK(batch[0].token >= 0 && batch[1].status == SEGNO_E_NOT_FOUND && batch[1].token == -1);
    fork = std::move(seq);
    CHECK(fork.length() > length && fork.decode().token >= 0);
}

static void sequences_are_saved(const segno::model &model) {
    auto session = segno::session::create(model);
    auto seq = session.open(seeded(5));
    CHECK(seq.prefill(model.tokenize("JULIET:")) == SEGNO_OK && seq.decode().token >= 0);
    std::string bytes;
    CHECK(seq.save([&](const char *data, std::size_t len) { return bytes.append(data, len), true; }) == SEGNO_OK);
    CHECK(seq.save_file("segno-cpp-saved.seq") == SEGNO_OK);
    std::size_t at = 0;
    const segno::read_function read = [&](char *data, std::size_t len) {
        const std::size_t count = bytes.copy(data, len, at);
        at += count;
        return count;
    };
    auto other = segno::session::create(model);
    auto again = other.restore(read);
    auto of_file = other.restore_file("segno-cpp-saved.seq");
    const auto others = seeded(6);
    at = 0;
    auto otherwise = other.restore(read, &others);
    CHECK(std::remove("segno-cpp-saved.seq") == 0 && otherwise.length() == seq.length());
    for (int i = 0; i < 8; i++) {
        const segno::token expected = seq.decode().token;
        CHECK(again.decode().token == expected && of_file.decode().token == expected);
    }
    CHECK(thrown_by([&] { (void)other.restore(read); }) == SEGNO_E_FORMAT);
    CHECK(thrown_by([&] { (void)other.restore_file("segno-cpp-saved.seq"); }) == SEGNO_E_IO);
    CHECK(thrown_by([&] { (void)seq.save([](const char *, std::size_t) { return false; }); }) == SEGNO_E_IO);
    try {
        (void)seq.save([](const char *, std::size_t) -> bool { throw std::string("of the host's own"); });
        CHECK(!"it was thrown");
    } catch (const std::string &thrown) {
        CHECK(thrown == "of the host's own");
    }
}

static void figures_are_told(const segno::model &model) {
    segno::session_options options;
    options.max_seqs = 4;
    auto session = segno::session::create(model, options);
    auto seq = session.open(seeded(5));
    CHECK(seq.prefill(model.tokenize("JULIET:")) == SEGNO_OK);
    const std::size_t length = seq.length();
    seq.decode();
    seq.decode();
    const segno_seq_stats told = seq.stats();
    CHECK(told.tokens == length + 2 && told.decoded_tokens == 2 && told.prompt_tokens == length && told.seed == 5 &&
        told.pages == 1);
    const segno_session_stats all = session.stats();
    CHECK(all.seqs == 1 && all.max_seqs == 4 && all.tokens == told.tokens && all.pages_used == 1 && all.passes == 2);
    CHECK(all.prompt_tokens == length && all.decoded_tokens == 2 && all.page_tokens > 0);
    CHECK(seq.fork().stats().seed == 5);
    auto random = session.open();
    CHECK(random.fork().stats().seed != random.stats().seed);
    seq.close();
    CHECK(thrown_by([&] { seq.stats(); }) == SEGNO_E_NULL_POINTER);
}

static void caches_have_types(const segno::model &model) {
    segno::session_options options;
    const std::uint64_t halves = segno::session::create(model, options).memory().host_kv;
    options.kv_type = SEGNO_KV_Q8;
    auto session = segno::session::create(model, options);
    CHECK(32 * session.memory().host_kv == 17 * halves);
    auto seq = session.open(seeded(5));
    CHECK(seq.prefill(model.tokenize("JULIET:")) == SEGNO_OK && seq.decode().token >= 0);
    options.kv_type = 3;
    CHECK(segno::session::try_create(model, options).error().status() == SEGNO_E_INVALID_ARGUMENT);
}

static void drafts_change_no_token(const segno::model &model) {
    auto plain = segno::session::create(model).open(seeded(5));
    plain.append(model.tokenize("ROMEO:"));
    segno::session_options options;
    options.speculation = SEGNO_SPECULATION_DRAFT + SEGNO_SPECULATION_ALWAYS;
    options.draft = model.get();
    auto session = segno::session::create(model, options);
    auto seq = session.open(seeded(5));
    seq.append(model.tokenize("ROMEO:"));
    std::vector<segno::token> tokens;
    for (int round = 0; round < 12; round++) {
        CHECK(seq.decode_many(tokens, 5) == SEGNO_OK && !tokens.empty() && tokens.size() <= 5);
        for (const segno::token token : tokens) CHECK(plain.decode().token == token);
    }
    CHECK(session.stats().accepted > 20 && session.stats().drafted == seq.stats().drafted);
    CHECK(seq.try_decode_many(tokens, 0).error().status() == SEGNO_E_INVALID_ARGUMENT && tokens.empty());
    options.speculation = SEGNO_SPECULATION_OFF;
    CHECK(segno::session::try_create(model, options).error().status() == SEGNO_E_INVALID_ARGUMENT);
}

static void texts_become_vectors(const segno::model &model) {
    segno::session_options options;
    options.max_seqs = 2;
    auto session = segno::session::create(model, options);
    const auto a = model.tokenize("Speak, my lord."), b = model.tokenize("What says the king?");
    std::vector<std::vector<float>> all, one;
    CHECK(session.embed({a, b, a}, all) == SEGNO_OK && all.size() == 3 && all[0] == all[2] && all[0] != all[1]);
    CHECK(session.embed({b}, one) == SEGNO_OK && one.size() == 1 && one[0] == all[1]);
    float square = 0;
    for (const float value : one[0]) square += value * value;
    CHECK(square > 0.999f && square < 1.001f && one[0].size() == model.info().hidden);
    segno::embed_options of_tokens;
    of_tokens.pooling = SEGNO_POOLING_NONE;
    of_tokens.dims = 3;
    CHECK(session.embed({a, b}, all, of_tokens) == SEGNO_OK && all.size() == a.size() + b.size() && all[0].size() == 3);
    CHECK(session.embed({}, all) == SEGNO_OK && all.empty());
    const auto failed = session.try_embed({a, {}}, all);
    CHECK(failed.error().status() == SEGNO_E_INVALID_ARGUMENT && failed.error().item() == 1 && all.empty());
    session.cancel(true);
    CHECK(session.embed({a}, all) == SEGNO_CANCELLED && all.empty());
}

static void submitted_steps_give_the_tokens_of_batches(const segno::model &model) {
    auto session = segno::session::create(model);
    auto alone = session.open(seeded(3)), seq = session.open(seeded(3)), empty = session.open(seeded(4));
    for (auto *one : {&alone, &seq}) one->append(model.tokenize("JULIET:"));
    std::vector<segno::token> expected, got;
    for (int i = 0; i < 20; i++) expected.push_back(alone.decode().token);
    segno::submission steps(session);
    CHECK(!steps.running() && thrown_by([&] { steps.poll(); }) == SEGNO_E_INVALID_ARGUMENT);
    steps.add(seq);
    while (got.size() < expected.size()) {
        steps.submit(segno::submit_options(2000));
        CHECK(steps.running() && thrown_by([&] { steps.submit(); }) == SEGNO_E_BUSY);
        CHECK(thrown_by([&] { alone.decode(); }) == SEGNO_E_BUSY && session.stats().seqs == 3);
        while (steps.poll(1000) == SEGNO_PENDING) CHECK(steps[0].status == SEGNO_PENDING && steps[0].token == -1);
        if (steps[0].status == SEGNO_OK) got.push_back(steps[0].token);
    }
    CHECK(got == expected);
    steps.add(empty);
    steps.submit();
    CHECK(steps.poll(UINT64_MAX) == SEGNO_E_INVALID_ARGUMENT && !steps.running());
    CHECK(steps[0].status == SEGNO_OK && steps[1].status == SEGNO_E_INVALID_ARGUMENT);
    {
        segno::submission abandoned(session);
        abandoned.add(seq);
        abandoned.submit();
    }
    CHECK(alone.decode().token >= 0);
    steps.clear();
    steps.add(seq);
    session.cancel(true);
    steps.submit();
    CHECK(steps.poll(UINT64_MAX) == SEGNO_CANCELLED && steps[0].status == SEGNO_CANCELLED);
}

/// Conversations whose steps are submitted say what they say in blocking steps.
static void conversations_are_submitted_and_polled(const segno::model &model) {
    const auto session = segno::session::create(model);
    segno::chat_create_options options;
    options.template_text = "{% for m in messages %}{{ m.content }}{% endfor %}";
    options.sampler = seeded(1);
    options.max_tokens = 12;
    auto blocking = segno::chat::create(session, options), chat = segno::chat::create(session, options);
    std::string expected, got;
    const auto take = [](const segno::chat_step &step, std::string &to) {
        for (const auto &e : step.events) to += e.text;
    };
    blocking.say("user", "ROMEO:");
    for (bool done = false; !done;) {
        const auto step = blocking.next();
        take(step, expected);
        done = step.done();
    }
    segno::chat_submission steps(session);
    CHECK(!steps.running() && thrown_by([&] { steps.poll(); }) == SEGNO_E_INVALID_ARGUMENT);
    chat.say("user", "ROMEO:");
    steps.add(chat);
    for (bool done = false; !done;) {
        steps.submit(segno::submit_options(2000));
        CHECK(steps.running() && thrown_by([&] { chat.say("user", "x"); }) == SEGNO_E_BUSY);
        CHECK(thrown_by([&] { steps.submit(); }, 0) == SEGNO_E_BUSY);
        while (steps.poll(1000) == SEGNO_PENDING) CHECK(steps.running());
        take(steps[0], got);
        done = steps[0].done();
    }
    CHECK(!expected.empty() && got == expected);
    // One of them has nothing to answer.
    auto empty = segno::chat::create(session, options);
    empty.say("user", "JULIET:");
    steps.add(empty);
    steps.submit();
    CHECK(steps.poll(UINT64_MAX) == SEGNO_E_INVALID_ARGUMENT && !steps.running());
    CHECK(steps[0].status == SEGNO_E_INVALID_ARGUMENT && steps[1].status == SEGNO_OK);
    {
        segno::chat_submission abandoned(session);
        abandoned.add(empty);
        abandoned.submit();
    }
    CHECK(empty.next().status >= SEGNO_OK);
}

static void any_order_of_destruction(const std::string &path, const std::string &expected) {
    std::optional<segno::sequence> seq;
    std::atomic<int> lines{0};
    {
        std::optional<segno::session> session;
        {
            segno::context_options options;
            options.on_log = [&lines](std::int32_t, std::string_view line) { lines += line.empty() ? 0 : 1; };
            const auto context = segno::context::create(options);
            const auto model = segno::model::load(context, path);
            session.emplace(segno::session::create(model));
            CHECK(first_words(model, *session, 12) == expected);
            seq.emplace(session->open(seeded(1)));
            seq->append(model.tokenize("ROMEO:"));
        }
        auto moved = std::move(*session);
        CHECK(moved.memory().host_kv > 0);
    }
    CHECK(seq->decode().token >= 0);
    CHECK(lines > 0);
}

static void loads_report_progress(const segno::context &context, const std::string &path, const std::string &expected) {
    segno::model_options options;
    float last = 0;
    options.on_progress = [&](float done) {
        CHECK(done >= last);
        last = done;
        return true;
    };
    const auto model = segno::model::load(context, path, options);
    CHECK(last == 1.0f);
    options.on_progress = [](float) { return false; };
    CHECK(thrown_by([&] { segno::model::load(context, path, options); }) == SEGNO_CANCELLED);
    options.on_progress = [](float) -> bool { throw std::string("mine"); };
    bool caught = false;
    try {
        segno::model::load(context, path, options);
    } catch (const std::string &s) {
        caught = s == "mine";
    }
    CHECK(caught);

    std::ifstream file(path, std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    const auto copy = segno::model::load_buffer(context, bytes.data(), bytes.size());
    auto session = segno::session::create(copy);
    CHECK(first_words(copy, session, 12) == expected);
    CHECK(segno::plan(context, path).host_kv == session.memory().host_kv);
    segno::model_options limited;
    limited.device_memory = 1;  // which says nothing to the processor
    CHECK(segno::plan(context, path, limited).host_layers == 0);
    CHECK(segno::device_count(SEGNO_DEVICE_CPU) == 1 && segno::device(SEGNO_DEVICE_CPU).memory_total > 0);
}

static void models_are_saved(const segno::context &context, const segno::model &model, const std::string &expected) {
    const std::string path = "/tmp/segno-cpp-" + std::to_string(std::random_device()()) + ".gguf";
    segno::save_options options;
    options.on_progress = [](float) { return false; };
    CHECK(thrown_by([&] { model.save(path, options); }) == SEGNO_CANCELLED);
    CHECK(!std::ifstream(path));
    float last = 0;
    options.on_progress = [&](float done) {
        last = done;
        return true;
    };
    model.save(path, options);
    CHECK(last == 1.0f);
    {
        const auto saved = segno::model::load(context, path);
        auto session = segno::session::create(saved);
        CHECK(first_words(saved, session, 12) == expected);
    }
    CHECK(std::remove(path.c_str()) == 0);
    CHECK(thrown_by([&] { model.save("/no/such/folder/file"); }) == SEGNO_E_IO);
}

static void streams_end_for_a_reason(const segno::model &model) {
    auto session = segno::session::create(model);
    auto text = segno::text::create(model);
    auto seq = session.open(seeded(3));
    seq.append(model.tokenize("ROMEO:"));
    auto full = seq.try_generate(text);
    std::size_t tokens = 0;
    for (const auto &piece : full) tokens += piece.token >= 0 ? 1 : 0;
    CHECK(full.status() == SEGNO_E_CONTEXT_FULL && seq.length() == model.info().context && tokens > 100);
    CHECK(thrown_by([&] {
        for (const auto &piece : seq.generate(text)) CHECK(piece.token == -1);
    }) == SEGNO_E_CONTEXT_FULL);

    seq.truncate(4);
    session.cancel(true);
    auto cancelled = seq.generate(text);
    for (const auto &piece : cancelled) CHECK(piece.text.empty());
    CHECK(cancelled.status() == SEGNO_CANCELLED && seq.length() == 4);
    session.cancel(false);

    std::thread canceller([&] { session.cancel(true); });
    auto running = seq.try_generate(text, 400);
    for (const auto &piece : running) CHECK(piece.token >= -1);
    canceller.join();
    CHECK(running.status() == SEGNO_CANCELLED || running.status() == SEGNO_OK);
    session.cancel(false);
    CHECK(seq.decode().token >= 0);
}

static void replies_are_told(const segno::model &model) {
    segno::reply_options options;
    options.format = "think";
    options.prompt = "<think>";
    auto reply = segno::reply::create(model, options);
    CHECK(reply.format() == "think");
    for (int round = 0; round < 2; round++) {
        std::string reasoning, content;
        std::size_t ends = 0;
        const auto take = [&](const segno::reply::step &step) {
            for (const auto &event : step.events) {
                if (event.kind == SEGNO_EVENT_REASONING) reasoning += event.text;
                if (event.kind == SEGNO_EVENT_CONTENT) content += event.text;
                if (event.kind == SEGNO_EVENT_END) ends++;
            }
        };
        for (const auto token : model.tokenize("Who? </think> The duke.", 0)) take(reply.push(token));
        take(reply.flush());
        CHECK(reasoning == "Who?" && content == "The duke." && ends == 1);
    }
    options.format = "iambic";
    CHECK(thrown_by([&] { segno::reply::create(model, options); }) == SEGNO_E_NOT_FOUND);
}

static void grammars_are_followed(const segno::model &model) {
    auto session = segno::session::create(model);
    auto text = segno::text::create(model);
    auto seq = session.open(seeded(5));
    seq.append(model.tokenize("ROMEO:"));
    segno::grammar_options options;
    options.kind = SEGNO_GRAMMAR_REGEX;
    options.text = "(yes|no), my lord [A-Z]{3}";
    {
        const auto grammar = segno::grammar::create(model, options);
        seq.set_grammar(grammar);
    }
    auto fork = seq.fork();
    std::string words;
    for (const auto &piece : seq.generate(text)) words += piece.text;
    CHECK(words.find(", my lord ") != std::string::npos && words.size() <= 16);
    std::string others;
    for (const auto &piece : fork.generate(text)) others += piece.text;
    CHECK(others == words);
    seq.clear_grammar();
    CHECK(seq.decode().status == SEGNO_OK);
    options.text = "a(";
    CHECK(thrown_by([&] { segno::grammar::create(model, options); }) == SEGNO_E_GRAMMAR);
}

static void adapters_change_what_is_said(const segno::model &model, const std::string &path) {
    auto session = segno::session::create(model);
    auto loaded = segno::adapter::load(model, path);
    const auto moved = std::move(loaded);
    const auto said = [&](const std::vector<segno::scaled_adapter> &set) {
        segno::sampler_options greedy;
        greedy.temperature = 0;
        auto seq = session.open(greedy);
        seq.set_adapters(set);
        seq.append(model.tokenize("ROMEO:"));
        std::vector<segno::token> tokens;
        while (tokens.size() < 12) {
            const auto step = seq.decode();
            if (!step.pending()) tokens.push_back(step.token);
        }
        return tokens;
    };
    CHECK(said({}) != said({moved}));
    CHECK(said({}) == said({{moved, 0}}) && said({moved}) == said({{moved, 0.5f}, {moved, 0.5f}}));
    const auto vector = [&](const std::vector<segno::scaled_adapter> &set) {
        std::vector<std::vector<float>> vectors;
        CHECK(session.embed({model.tokenize("ROMEO:")}, vectors, segno::embed_options(), set) == SEGNO_OK);
        return vectors[0];
    };
    CHECK(vector({}) != vector({moved}) && vector({}) == vector({{moved, 0}}));
    CHECK(thrown_by([&] { segno::adapter::load(model, path + ".none"); }) == SEGNO_E_IO);
    CHECK(thrown_by([&] { said({{moved, std::numeric_limits<float>::infinity()}}); }, 0) == SEGNO_E_INVALID_ARGUMENT);
}

static void tools_are_called(const segno::model &model) {
    auto session = segno::session::create(model);
    auto seq = session.open(seeded(5));
    seq.append(model.tokenize("ROMEO:"));
    segno::tools_options options;
    options.choice = SEGNO_TOOLS_NAMED;
    options.flags = SEGNO_TOOLS_ONE_CALL;
    options.name = "add";
    options.format = "hermes";
    options.prompt = "assistant\n";
    options.tools_json =
        R"([{"name": "add", "parameters": {"properties": {"a": {"type": "integer", "minimum": 10, "maximum": 99}}, "required": ["a"]}}])";
    const auto grammar = segno::grammar::create_for_tools(model, options);
    CHECK(grammar.start_token() == -1);
    seq.set_grammar(grammar);
    auto text = segno::text::create(model);
    std::string words;
    for (const auto &piece : seq.generate(text)) words += piece.text;
    CHECK(words.find("{\"name\": \"add\", \"arguments\": {\"a\":") != std::string::npos);
    options.name = "subtract";
    CHECK(thrown_by([&] { segno::grammar::create_for_tools(model, options); }) == SEGNO_E_NOT_FOUND);
}

/// The content of a reply.
static std::string reply_of(segno::chat &chat) {
    std::string content;
    CHECK(chat.reply([&](const segno::event &e) {
        if (e.kind == SEGNO_EVENT_CONTENT) content += e.text;
    }) == SEGNO_DONE);
    return content;
}

static void conversations_are_held(const segno::model &model) {
    segno::chat_create_options options;
    options.template_text = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:";
    options.system_text = "The duke speaks.";
    options.max_tokens = 8;
    options.flags = SEGNO_CHAT_FORGET;
    options.sampler = seeded(9);
    std::optional<segno::chat> kept;
    {
        const auto session = segno::session::create(model);
        auto chat = segno::chat::create(session, options);
        chat.say("user", "Who art thou?");
        auto fork = chat.fork();
        const std::string words = reply_of(chat);
        CHECK(!words.empty() && reply_of(fork) == words);
        const auto stats = chat.stats();
        CHECK(stats.messages == 3 && stats.turns == 1 && stats.last_turn == 1 && stats.reply_tokens <= 8);
        CHECK(session.stats().seqs == 2 && chat.seq() != fork.seq());
        chat.truncate(2);
        CHECK(reply_of(chat) == words && chat.stats().evaluated_tokens == 1);
        CHECK(thrown_by([&] { chat.set_tools(SEGNO_TOOLS_NAMED, 0, "none"); }) == SEGNO_E_NOT_FOUND);
        chat.set_tools(SEGNO_TOOLS_AUTO, SEGNO_TOOLS_ONE_CALL);
        chat.set_tools(SEGNO_TOOLS_FREE);
        options.system_text.clear();
        auto loaded = segno::chat::create(session, options);
        loaded.add(chat.messages());
        CHECK(loaded.messages() == chat.messages());
        segno::chat_batch batch(session);
        for (auto *one : {&chat, &loaded}) {
            one->say("user", "Speak.");
            batch.add(*one);
        }
        std::string said[2];
        for (bool going = true; going;) {
            CHECK(batch.next() == SEGNO_OK);
            for (std::size_t i = 0; i < 2; i++)
                for (const auto &e : batch[i].events)
                    if (e.kind == SEGNO_EVENT_CONTENT) said[i] += e.text;
            going = !batch[0].done();
            CHECK(batch[0].done() == batch[1].done());
        }
        CHECK(said[0] == said[1]);
        CHECK(thrown_by([&] { chat.next(); }) == SEGNO_E_INVALID_ARGUMENT);
        kept.emplace(std::move(loaded));
    }
    kept->say("user", "Again.");
    CHECK(!reply_of(*kept).empty());
    options.format = "iambic";
    const auto session = segno::session::create(model);
    CHECK(thrown_by([&] { segno::chat::create(session, options); }) == SEGNO_E_NOT_FOUND);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    const auto context = segno::context::create();
    const auto model = segno::model::load(context, argv[1]);
    auto session = segno::session::create(model);
    const std::string expected = first_words(model, session, 12);
    errors_are_thrown(context, model);
    text_goes_both_ways(model);
    conversations_are_rendered(model);
    sequences_branch(model);
    sequences_are_saved(model);
    figures_are_told(model);
    caches_have_types(model);
    drafts_change_no_token(model);
    texts_become_vectors(model);
    submitted_steps_give_the_tokens_of_batches(model);
    conversations_are_submitted_and_polled(model);
    any_order_of_destruction(argv[1], expected);
    loads_report_progress(context, argv[1], expected);
    models_are_saved(context, model, expected);
    streams_end_for_a_reason(model);
    replies_are_told(model);
    grammars_are_followed(model);
    const std::string file = argv[1];
    adapters_change_what_is_said(model, file.substr(0, file.rfind('.')) + "-lora.gguf");
    tools_are_called(model);
    conversations_are_held(model);
    std::puts("objects: passed");
    return 0;
}
