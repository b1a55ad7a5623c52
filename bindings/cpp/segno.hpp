/*
 * Segno for C++17, header-only: the objects of segno.h as move-only classes that free themselves.
 *
 * Every call that can fail comes twice. The plain name throws segno::error; the name with `try_` in front returns a
 * segno::result, which holds the value or the segno::failure, and throws nothing but what memory allocation throws.
 * Under -fno-exceptions, or when SEGNO_NO_EXCEPTIONS is defined (in every file of a program or in none), only the
 * second form exists.
 *
 * Objects may be destroyed in any order. Threads: as segno.h says. What is called on a sequence, a batch or a
 * generation is a call on the session, but for `stats` and `length`, which run beside others.
 */
#ifndef SEGNO_HPP
#define SEGNO_HPP

#include <segno.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#if defined(__cpp_exceptions) && !defined(SEGNO_NO_EXCEPTIONS)
#define SEGNO_EXCEPTIONS 1
#include <exception>
#include <stdexcept>
#else
#define SEGNO_EXCEPTIONS 0
#endif

namespace segno {

using token = std::int32_t;

/// Detail of a failed call.
class failure {
public:
    failure() = default;
    /// Takes over `detail`, which may be null.
    failure(segno_status status, segno_error *detail) : status_(status), detail_(detail) {}

    segno_status status() const { return status_; }
    /// The status by name, for example "SEGNO_E_KV_FULL".
    const char *name() const { return segno_status_str(status_); }
    /// One line that a user can act on, valid while this object lives.
    const char *message() const { return detail_ ? segno_error_message(detail_.get()) : name(); }
    /// Index of the token or batch item at fault, -1 when there is none.
    std::int64_t item() const { return segno_error_item(detail_.get()); }

private:
    struct release {
        void operator()(segno_error *error) const { segno_error_free(error); }
    };
    segno_status status_ = SEGNO_OK;
    std::unique_ptr<segno_error, release> detail_;
};

#if SEGNO_EXCEPTIONS
/// What the throwing forms throw.
class error : public std::runtime_error {
public:
    explicit error(const failure &f) : std::runtime_error(f.message()), status_(f.status()), item_(f.item()) {}
    segno_status status() const noexcept { return status_; }
    std::int64_t item() const noexcept { return item_; }

private:
    segno_status status_;
    std::int64_t item_;
};
#endif

/// A value, or why there is none.
template <class T>
class [[nodiscard]] result {
public:
    result(T value) : value_(std::move(value)) {}
    result(failure f) : failure_(std::move(f)) {}

    explicit operator bool() const { return value_.has_value(); }
    T &operator*() { return *value_; }
    T *operator->() { return &*value_; }
    const failure &error() const & { return failure_; }
    failure error() && { return std::move(failure_); }
#if SEGNO_EXCEPTIONS
    /// Moves the value out; throws segno::error when there is none.
    T value() && {
        if (!value_) throw segno::error(failure_);
        return std::move(*value_);
    }
#endif

private:
    std::optional<T> value_;
    failure failure_;
};

/// A list of tokens that somebody else owns: of a vector, an array, or a pointer and a count.
class token_view {
public:
    token_view(const token *data, std::size_t size) : data_(data), size_(size) {}
    template <class C, class = decltype(std::data(std::declval<const C &>()))>
    token_view(const C &list) : data_(std::data(list)), size_(std::size(list)) {}
    const token *data() const { return data_; }
    std::size_t size() const { return size_; }

private:
    const token *data_;
    std::size_t size_;
};

/// Outcome of one step of one sequence. `token` is -1 unless the status is SEGNO_OK or SEGNO_DONE.
struct step {
    segno_status status;
    segno::token token;
    /// A token came, and it ended generation.
    bool done() const { return status == SEGNO_DONE; }
    /// The prompt needs another step first.
    bool pending() const { return status == SEGNO_PENDING; }
};

/// Options of a context: the fields of segno_ctx_opts with their defaults. `on_log`, when set, takes the place of the
/// fields `log` and `log_user`, lives as long as anything made from the context, and is called from any thread, one
/// call at a time.
struct context_options : segno_ctx_opts {
    context_options() { segno_ctx_opts_init(this, sizeof(segno_ctx_opts)); }
    std::function<void(std::int32_t level, std::string_view line)> on_log;
};

/// Options of a model. `on_progress`, when set, takes the place of the fields `progress` and `progress_user`: it hears
/// from 0 to 1 how far the load has come, on the loading thread, and returns whether to go on. What it throws leaves
/// the call that loads.
struct model_options : segno_model_opts {
    model_options() { segno_model_opts_init(this, sizeof(segno_model_opts)); }
    std::function<bool(float done)> on_progress;
};

/// Options of saving: the fields of segno_save_opts with their defaults.
struct save_options : segno_save_opts {
    save_options() { segno_save_opts_init(this, sizeof(segno_save_opts)); }
    std::function<bool(float done)> on_progress;
};

/// Options of a session: the fields of segno_session_opts with their defaults. `draft` is what `model::get` gives.
struct session_options : segno_session_opts {
    session_options() { segno_session_opts_init(this, sizeof(segno_session_opts)); }
};

/// Options of a step that is submitted: the fields of segno_submit_opts with their defaults.
struct submit_options : segno_submit_opts {
    explicit submit_options(std::uint64_t budget = 0) {
        segno_submit_opts_init(this, sizeof(segno_submit_opts));
        budget_us = budget;
    }
};

/// Options of a sampler: the fields of segno_sampler_opts with their defaults. Its arrays need to live during the call
/// only.
struct sampler_options : segno_sampler_opts {
    sampler_options() { segno_sampler_opts_init(this, sizeof(segno_sampler_opts)); }
};

/// Options of embeddings: the fields of segno_embed_opts with their defaults.
struct embed_options : segno_embed_opts {
    embed_options() { segno_embed_opts_init(this, sizeof(segno_embed_opts)); }
};

/// Options of a text stream.
struct text_options {
    std::uint32_t flags = 0;
    std::vector<std::string> stops;
};

/// Options of a reader of replies. Empty texts stand for what is not given.
struct reply_options {
    std::string format;         ///< Name of the format; empty: the template tells.
    std::string prompt;         ///< What replies follow, or its end; empty: what the template makes of a short message.
    std::string template_text;  ///< In place of the model's own; empty: the model's.
    std::string tools_json;     ///< A JSON array of tools; empty: none.
    std::vector<std::string> stops;
};

/// Something that happened in a reply; the texts are valid until the next call on the object that gave them.
struct event {
    std::int32_t kind;      ///< SEGNO_EVENT_...
    std::int32_t index;     ///< Number of the call in its reply, from 0.
    std::string_view text;  ///< Reasoning, content, the name of a function, or a part of its arguments.
    std::string_view id;    ///< Of a call.
};

/// What a grammar is compiled from.
struct grammar_options {
    std::int32_t kind = SEGNO_GRAMMAR_JSON_SCHEMA;
    std::uint32_t flags = 0;  ///< SEGNO_GRAMMAR_COMPACT
    std::string text;         ///< The grammar; empty, and of a schema, for any JSON value.
};

/// What a grammar of calls of tools is made of.
struct tools_options {
    std::int32_t choice = SEGNO_TOOLS_AUTO;
    std::uint32_t flags = 0;  ///< SEGNO_TOOLS_ONE_CALL
    std::string tools_json;   ///< A JSON array of tools; empty: none.
    std::string name;         ///< The tool of SEGNO_TOOLS_NAMED.
    std::string format;       ///< Name of the format; empty: the template tells.
    std::string prompt;  ///< What the reply follows, or its end; empty: what the template makes of a short message.
    std::string template_text;  ///< In place of the model's own; empty: the model's.
};

/// One turn of a conversation, as every chat service takes it. `render_chat_json` takes turns with parts and tool
/// calls.
struct message {
    std::string role;
    std::string content;
};

/// Options of a rendered conversation.
struct chat_options {
    std::uint32_t flags = 0;    ///< SEGNO_CHAT_...
    std::string template_text;  ///< In place of the model's own; empty: the model's.
    std::string tools_json;     ///< A JSON array of tools; empty: none.
    std::string vars_json;      ///< A JSON object of further variables of the template; empty: none.
    std::int64_t now = 0;       ///< The time that the template sees, in Unix seconds; 0: the clock.
};

class grammar;

/// Options of a conversation. Empty texts stand for what is not given.
struct chat_create_options {
    std::uint32_t flags = 0;    ///< SEGNO_CHAT_FORGET
    std::string system_text;    ///< What the system says, the first message.
    std::string template_text;  ///< In place of the model's own; empty: the model's.
    std::string tools_json;     ///< A JSON array of tools; empty: none.
    std::string vars_json;      ///< A JSON object of further variables of the template; empty: none.
    std::int64_t now = 0;       ///< The time that the template sees, in Unix seconds; 0: the clock at the beginning.
    std::string format;         ///< Name of the format of replies; empty: the template tells.
    std::vector<std::string> stops;
    sampler_options sampler;
    const segno::grammar *grammar = nullptr;  ///< What the content of each reply follows.
    token grammar_start = -1;                 ///< The sampled token behind which the grammar begins instead.
    std::uint32_t max_tokens = 0;             ///< Most tokens of a reply; 0: as many as fit.
    std::int64_t reasoning_tokens = -1;       ///< Most tokens of a reply's reasoning; -1: no limit.
    std::uint64_t context_tokens = 0;  ///< Most tokens of the conversation in the cache; 0: as many as there are.
};

namespace detail {

using log_sink = std::function<void(std::int32_t, std::string_view)>;

struct release {
    void operator()(segno_ctx *p) const { segno_ctx_free(p); }
    void operator()(segno_model *p) const { segno_model_free(p); }
    void operator()(segno_session *p) const { segno_session_free(p); }
    void operator()(segno_text *p) const { segno_text_free(p); }
    void operator()(segno_reply *p) const { segno_reply_free(p); }
    void operator()(segno_grammar *p) const { segno_grammar_free(p); }
    void operator()(segno_adapter *p) const { segno_adapter_free(p); }
    void operator()(segno_chat *p) const { segno_chat_free(p); }
};

/// Makes a call that ends in `segno_error **`; a negative status is a failure, any other the value.
template <class F>
result<segno_status> call(F &&function) {
    segno_error *err = nullptr;
    const segno_status status = function(&err);
    if (SEGNO_FAILED(status)) return failure(status, err);
    return status;
}

/// The same where an outcome other than SEGNO_OK leaves nothing to return.
template <class F>
std::optional<failure> fails(F &&function) {
    segno_error *err = nullptr;
    const segno_status status = function(&err);
    if (status == SEGNO_OK) return std::nullopt;
    return failure(status, err);
}

/// Makes a call that writes one value. The function takes a pointer to it and an error.
template <class T, class F>
result<T> read(F &&function) {
    T out{};
    if (auto f = fails([&](segno_error **err) { return function(&out, err); })) return std::move(*f);
    return out;
}

/// Makes a call that fills a buffer: asks for the size, then fetches. The function takes a pointer, a capacity, a size
/// and an error.
template <class C, class F>
result<C> fetch(F &&function) {
    C out;
    std::size_t size = 0;
    if (auto f = fails([&](segno_error **err) { return function(nullptr, 0, &size, err); })) return std::move(*f);
    out.resize(size);
    if (size == 0) return out;
    if (auto f = fails([&](segno_error **err) { return function(out.data(), out.size(), &size, err); }))
        return std::move(*f);
    out.resize(size);
    return out;
}

/// Appends text as a JSON string.
inline void quote(std::string &json, std::string_view text) {
    constexpr char digits[] = "0123456789abcdef";
    json += '"';
    for (const char c : text) {
        const auto byte = static_cast<unsigned char>(c);
        if (byte < 32 || c == '"' || c == '\\') json.append("\\u00").append({digits[byte >> 4], digits[byte & 15]});
        else json += c;
    }
    json += '"';
}

/// A host's log function must not unwind into the library.
inline void forward_log(void *user, std::int32_t level, const char *line) noexcept {
    (*static_cast<const log_sink *>(user))(level, line);
}

/// A progress function beside the call that uses it; keeps what it threw.
struct progress {
    const std::function<bool(float)> &function;
#if SEGNO_EXCEPTIONS
    std::exception_ptr thrown = nullptr;
#endif

    static std::int32_t forward(void *user, float done) noexcept {
        auto *self = static_cast<progress *>(user);
#if SEGNO_EXCEPTIONS
        try {
            return self->function(done) ? 0 : 1;
        } catch (...) {
            self->thrown = std::current_exception();
            return 1;
        }
#else
        return self->function(done) ? 0 : 1;
#endif
    }
};

/// A host's function that takes or gives bytes, beside the call that uses it; keeps what it threw.
template <class Result, class Byte>
struct transfer {
    const std::function<Result(Byte *, std::size_t)> &function;
#if SEGNO_EXCEPTIONS
    std::exception_ptr thrown = nullptr;
#endif

    Result forward(void *data, std::size_t len) noexcept {
#if SEGNO_EXCEPTIONS
        try {
            return function(static_cast<Byte *>(data), len);
        } catch (...) {
            thrown = std::current_exception();
            return {};
        }
#else
        return function(static_cast<Byte *>(data), len);
#endif
    }
    void rethrow() const {
#if SEGNO_EXCEPTIONS
        if (thrown) std::rethrow_exception(thrown);
#endif
    }
};

using writing = transfer<bool, const char>;
using reading = transfer<std::size_t, char>;

inline std::int32_t write_forward(void *user, const void *data, std::size_t len) noexcept {
    // The bytes stay const: `forward` gives them to a function that takes them so.
    return static_cast<writing *>(user)->forward(const_cast<void *>(data), len) ? 0 : 1;
}

inline std::size_t read_forward(void *user, void *data, std::size_t len) noexcept {
    return static_cast<reading *>(user)->forward(data, len);
}

}  // namespace detail

/// Takes bytes and returns whether it could.
using write_function = std::function<bool(const char *data, std::size_t len)>;
/// Fills up to `len` bytes and returns how many; 0 is the end.
using read_function = std::function<std::size_t(char *data, std::size_t len)>;

class model;
class sequence;
class text;
class reply;

/// One device with its worker threads.
class context {
public:
    static result<context> try_create(const context_options &options = {}) {
        segno_ctx_opts opts = options;
        context made;
        if (options.on_log) {
            made.log_ = std::make_shared<const detail::log_sink>(options.on_log);
            opts.log = detail::forward_log;
            opts.log_user = const_cast<detail::log_sink *>(made.log_.get());
        }
        segno_ctx *ctx = nullptr;
        if (auto f =
                detail::fails([&](segno_error **e) { return segno_ctx_create(SEGNO_ABI_VERSION, &opts, &ctx, e); }))
            return std::move(*f);
        made.handle_.reset(ctx);
        return made;
    }
#if SEGNO_EXCEPTIONS
    static context create(const context_options &options = {}) { return try_create(options).value(); }
#endif
    const segno_ctx *get() const { return handle_.get(); }

private:
    friend class model;
    context() = default;
    std::shared_ptr<const detail::log_sink> log_;
    std::unique_ptr<segno_ctx, detail::release> handle_;
};

/// Weights, tokenizer and metadata; immutable, shared by any number of threads.
class model {
public:
    /// Loads a GGUF file. A load that `on_progress` ends fails with SEGNO_CANCELLED.
    static result<model> try_load(const context &ctx, const std::string &path, const model_options &options = {}) {
        return make(ctx, options, [&](const segno_model_opts *opts, segno_model **out, segno_error **err) {
            return segno_model_load(ctx.get(), path.c_str(), opts, out, err);
        });
    }
    /// Loads the bytes of a GGUF file, which may be freed afterwards.
    static result<model> try_load_buffer(
        const context &ctx, const void *data, std::size_t len, const model_options &options = {}) {
        return make(ctx, options, [&](const segno_model_opts *opts, segno_model **out, segno_error **err) {
            return segno_model_load_buffer(ctx.get(), data, len, opts, out, err);
        });
    }
    result<segno_model_info> try_info() const {
        return detail::read<segno_model_info>(
            [&](auto *out, auto **err) { return segno_model_info_get(get(), out, sizeof *out, err); });
    }
    /// One entry of the metadata as text; an absent key is SEGNO_E_NOT_FOUND.
    result<std::string> try_meta(const std::string &key) const {
        return detail::fetch<std::string>([&](char *buf, std::size_t cap, std::size_t *len, segno_error **err) {
            return segno_model_meta(get(), key.c_str(), buf, cap, len, err);
        });
    }
    /// Writes one GGUF file, which takes the place of another once it is whole. What `on_progress` ends fails with
    /// SEGNO_CANCELLED.
    result<segno_status> try_save(const std::string &path, const save_options &options = {}) const {
        segno_save_opts opts = options;
        detail::progress progress{options.on_progress};
        if (options.on_progress) {
            opts.progress = detail::progress::forward;
            opts.progress_user = &progress;
        }
        auto f = detail::fails([&](segno_error **err) { return segno_model_save(get(), path.c_str(), &opts, err); });
#if SEGNO_EXCEPTIONS
        if (progress.thrown) std::rethrow_exception(progress.thrown);
#endif
        if (f) return std::move(*f);
        return segno_status{SEGNO_OK};
    }
    /// Text to tokens; `flags` are SEGNO_TOKENIZE_...
    result<std::vector<token>> try_tokenize(
        std::string_view text, std::uint32_t flags = SEGNO_TOKENIZE_ADD_SPECIAL) const {
        return detail::fetch<std::vector<token>>(
            [&](token *buf, std::size_t cap, std::size_t *count, segno_error **err) {
                return segno_tokenize(get(), text.data(), text.size(), flags, buf, cap, count, err);
            });
    }
    /// Tokens to text; `flags` are SEGNO_DETOKENIZE_...
    result<std::string> try_detokenize(token_view tokens, std::uint32_t flags = 0) const {
        return detail::fetch<std::string>([&](char *buf, std::size_t cap, std::size_t *len, segno_error **err) {
            return segno_detokenize(get(), tokens.data(), tokens.size(), flags, buf, cap, len, err);
        });
    }
    /// A conversation as the model's chat template renders it. Tokenize the result with SEGNO_TOKENIZE_PARSE_SPECIAL
    /// alone.
    result<std::string> try_render_chat(const std::vector<message> &messages, const chat_options &options = {}) const {
        return try_render_chat_json(json_of(messages), options);
    }
    /// The same with messages that are a JSON array already.
    result<std::string> try_render_chat_json(std::string_view messages, const chat_options &options = {}) const {
        const segno_chat_opts opts = given(options);
        return detail::fetch<std::string>([&](char *buf, std::size_t cap, std::size_t *len, segno_error **err) {
            return segno_chat_render(get(), messages.data(), messages.size(), &opts, buf, cap, len, err);
        });
    }
    /// The tokens of a conversation, in which no text of a message becomes a special token.
    result<std::vector<token>> try_tokenize_chat(
        const std::vector<message> &messages, const chat_options &options = {}) const {
        return try_tokenize_chat_json(json_of(messages), options);
    }
    /// The same with messages that are a JSON array already.
    result<std::vector<token>> try_tokenize_chat_json(
        std::string_view messages, const chat_options &options = {}) const {
        const segno_chat_opts opts = given(options);
        return detail::fetch<std::vector<token>>(
            [&](token *buf, std::size_t cap, std::size_t *count, segno_error **err) {
                return segno_chat_tokenize(get(), messages.data(), messages.size(), &opts, buf, cap, count, err);
            });
    }
#if SEGNO_EXCEPTIONS
    static model load(const context &ctx, const std::string &path, const model_options &options = {}) {
        return try_load(ctx, path, options).value();
    }
    static model load_buffer(const context &ctx, const void *data, std::size_t len, const model_options &options = {}) {
        return try_load_buffer(ctx, data, len, options).value();
    }
    segno_model_info info() const { return try_info().value(); }
    std::string meta(const std::string &key) const { return try_meta(key).value(); }
    void save(const std::string &path, const save_options &options = {}) const {
        (void)try_save(path, options).value();
    }
    std::vector<token> tokenize(std::string_view text, std::uint32_t flags = SEGNO_TOKENIZE_ADD_SPECIAL) const {
        return try_tokenize(text, flags).value();
    }
    std::string detokenize(token_view tokens, std::uint32_t flags = 0) const {
        return try_detokenize(tokens, flags).value();
    }
    std::string render_chat(const std::vector<message> &messages, const chat_options &options = {}) const {
        return try_render_chat(messages, options).value();
    }
    std::string render_chat_json(std::string_view messages, const chat_options &options = {}) const {
        return try_render_chat_json(messages, options).value();
    }
    std::vector<token> tokenize_chat(const std::vector<message> &messages, const chat_options &options = {}) const {
        return try_tokenize_chat(messages, options).value();
    }
    std::vector<token> tokenize_chat_json(std::string_view messages, const chat_options &options = {}) const {
        return try_tokenize_chat_json(messages, options).value();
    }
#endif
    const segno_model *get() const { return handle_.get(); }

private:
    friend class session;
    model() = default;

    static std::string json_of(const std::vector<message> &messages) {
        std::string json = "[";
        for (const message &m : messages) {
            json += json.size() > 1 ? ",{\"role\":" : "{\"role\":";
            detail::quote(json, m.role);
            json += ",\"content\":";
            detail::quote(json, m.content);
            json += '}';
        }
        return json + "]";
    }

    /// The options as C takes them, valid while `options` lives.
    static segno_chat_opts given(const chat_options &options) {
        segno_chat_opts opts;
        segno_chat_opts_init(&opts, sizeof opts);
        const auto set = [](const std::string &text, const char *&data, std::size_t &len) {
            data = text.empty() ? nullptr : text.data();
            len = text.size();
        };
        opts.flags = options.flags;
        opts.now = options.now;
        set(options.template_text, opts.template_text, opts.template_len);
        set(options.tools_json, opts.tools_json, opts.tools_len);
        set(options.vars_json, opts.vars_json, opts.vars_len);
        return opts;
    }

    template <class F>
    static result<model> make(const context &ctx, const model_options &options, F &&load) {
        segno_model_opts opts = options;
        detail::progress progress{options.on_progress};
        if (options.on_progress) {
            opts.progress = detail::progress::forward;
            opts.progress_user = &progress;
        }
        segno_model *handle = nullptr;
        auto failed = detail::fails([&](segno_error **err) { return load(&opts, &handle, err); });
        model made;
        made.log_ = ctx.log_;
        made.handle_.reset(handle);
#if SEGNO_EXCEPTIONS
        if (progress.thrown) std::rethrow_exception(progress.thrown);
#endif
        if (failed) return std::move(*failed);
        return made;
    }

    // Destroyed last: the library may log until the handle is gone.
    std::shared_ptr<const detail::log_sink> log_;
    std::unique_ptr<segno_model, detail::release> handle_;
};

/// Number of devices of a kind (SEGNO_DEVICE_...).
inline result<std::int32_t> try_device_count(std::int32_t kind) {
    std::int32_t count = 0;
    if (auto f = detail::fails([&](segno_error **err) { return segno_device_count(kind, &count, err); }))
        return std::move(*f);
    return count;
}

/// Device number `index` of a kind.
inline result<segno_device_info> try_device(std::int32_t kind, std::int32_t index = 0) {
    return detail::read<segno_device_info>(
        [&](auto *out, auto **err) { return segno_device_info_get(kind, index, out, sizeof *out, err); });
}

/// What loading a model and creating a session would take, from the file's header alone.
inline result<segno_plan> try_plan(
    const context &ctx, const std::string &path, const model_options &model = {}, const session_options &session = {}) {
    return detail::read<segno_plan>([&](auto *out, auto **err) {
        return segno_plan_get(ctx.get(), path.c_str(), &model, &session, out, sizeof *out, err);
    });
}

/// A streaming detokenizer: tokens in, whole UTF-8 characters out, stop strings held back.
class text {
public:
    struct piece {
        std::string_view text;  ///< Valid until the next call on the stream.
        bool done;              ///< A stop string is complete.
    };

    static result<text> try_create(const model &m, const text_options &options = {}) {
        std::vector<segno_string> stops;
        for (const std::string &stop : options.stops) stops.push_back({stop.data(), stop.size()});
        segno_text_opts opts;
        segno_text_opts_init(&opts, sizeof opts);
        opts.flags = options.flags;
        opts.stops = stops.data();
        opts.stop_count = stops.size();
        segno_text *handle = nullptr;
        if (auto f = detail::fails([&](segno_error **err) { return segno_text_create(m.get(), &opts, &handle, err); }))
            return std::move(*f);
        text made;
        made.handle_.reset(handle);
        return made;
    }
    /// Puts one token in and gets the characters that it releases, often none.
    result<piece> try_push(token t) {
        return give([&](char *buf, std::size_t cap, std::size_t *len, segno_error **err) {
            return segno_text_push(get(), t, buf, cap, len, err);
        });
    }
    /// Ends the stream: gets what was held back, and readies the object for the next.
    result<piece> try_flush() {
        return give([&](char *buf, std::size_t cap, std::size_t *len, segno_error **err) {
            return segno_text_flush(get(), buf, cap, len, err);
        });
    }
#if SEGNO_EXCEPTIONS
    static text create(const model &m, const text_options &options = {}) { return try_create(m, options).value(); }
    piece push(token t) { return try_push(t).value(); }
    piece flush() { return try_flush().value(); }
#endif
    segno_text *get() const { return handle_.get(); }

private:
    text() : buffer_(64, '\0') {}

    template <class F>
    result<piece> give(F &&function) {
        for (;;) {
            std::size_t len = 0;
            auto status =
                detail::call([&](segno_error **err) { return function(buffer_.data(), buffer_.size(), &len, err); });
            if (status) return piece{std::string_view(buffer_.data(), len), *status == SEGNO_DONE};
            if (status.error().status() != SEGNO_E_BUFFER_TOO_SMALL) return std::move(status).error();
            buffer_.resize(len);
        }
    }

    std::string buffer_;
    std::unique_ptr<segno_text, detail::release> handle_;
};

/// A reader of replies: tokens in; reasoning, content and calls of tools out.
class reply {
public:
    struct step {
        std::vector<event> events;
        bool done;  ///< The reply is over.
    };

    static result<reply> try_create(const model &m, const reply_options &options = {}) {
        std::vector<segno_string> stops;
        for (const std::string &stop : options.stops) stops.push_back({stop.data(), stop.size()});
        segno_reply_opts opts;
        segno_reply_opts_init(&opts, sizeof opts);
        opts.flags = 0;
        opts.format = options.format.empty() ? nullptr : options.format.c_str();
        opts.prompt = options.prompt.empty() ? nullptr : options.prompt.data();
        opts.prompt_len = options.prompt.size();
        opts.template_text = options.template_text.empty() ? nullptr : options.template_text.data();
        opts.template_len = options.template_text.size();
        opts.tools_json = options.tools_json.empty() ? nullptr : options.tools_json.data();
        opts.tools_len = options.tools_json.size();
        opts.stops = stops.data();
        opts.stop_count = stops.size();
        segno_reply *handle = nullptr;
        if (auto f = detail::fails([&](segno_error **err) { return segno_reply_create(m.get(), &opts, &handle, err); }))
            return std::move(*f);
        reply made;
        made.handle_.reset(handle);
        return made;
    }
    /// Puts one token in and gets the events that it brings, often one or none.
    result<step> try_push(token t) {
        return give([&](segno_event *events, std::size_t cap, std::size_t *count, segno_error **err) {
            return segno_reply_push(get(), t, events, cap, count, err);
        });
    }
    /// Ends the reply: gets what was held back, and readies the object for the next.
    result<step> try_flush() {
        return give([&](segno_event *events, std::size_t cap, std::size_t *count, segno_error **err) {
            return segno_reply_flush(get(), events, cap, count, err);
        });
    }
    /// The name of the format that replies are read in.
    result<std::string> try_format() {
        return detail::fetch<std::string>([&](char *buf, std::size_t cap, std::size_t *len, segno_error **err) {
            return segno_reply_format(get(), buf, cap, len, err);
        });
    }
#if SEGNO_EXCEPTIONS
    static reply create(const model &m, const reply_options &options = {}) { return try_create(m, options).value(); }
    step push(token t) { return try_push(t).value(); }
    step flush() { return try_flush().value(); }
    std::string format() { return try_format().value(); }
#endif
    segno_reply *get() const { return handle_.get(); }

private:
    reply() : events_(8) {}

    template <class F>
    result<step> give(F &&function) {
        for (;;) {
            std::size_t count = 0;
            auto status =
                detail::call([&](segno_error **err) { return function(events_.data(), events_.size(), &count, err); });
            if (status) return taken(count, *status == SEGNO_DONE);
            if (status.error().status() != SEGNO_E_BUFFER_TOO_SMALL) return std::move(status).error();
            events_.resize(count);
        }
    }

    step taken(std::size_t count, bool done) const {
        step made{{}, done};
        for (std::size_t i = 0; i < count; i++) {
            const segno_event &e = events_[i];
            made.events.push_back({e.kind, e.index, {e.text, e.len}, {e.id, e.id_len}});
        }
        return made;
    }

    std::vector<segno_event> events_;
    std::unique_ptr<segno_reply, detail::release> handle_;
};

/// Which tokens of a model may follow which. Immutable; any number of sequences share it, and may outlive it.
class grammar {
public:
    static result<grammar> try_create(const model &m, const grammar_options &options = {}) {
        segno_grammar_opts opts;
        segno_grammar_opts_init(&opts, sizeof opts);
        opts.kind = options.kind;
        opts.flags = options.flags;
        opts.text = options.text.empty() ? nullptr : options.text.data();
        opts.text_len = options.text.size();
        segno_grammar *handle = nullptr;
        if (auto f =
                detail::fails([&](segno_error **err) { return segno_grammar_create(m.get(), &opts, &handle, err); }))
            return std::move(*f);
        grammar made;
        made.handle_.reset(handle);
        return made;
    }
#if SEGNO_EXCEPTIONS
    static grammar create(const model &m, const grammar_options &options = {}) {
        return try_create(m, options).value();
    }
#endif
    /// A grammar of replies that call tools, with arguments that meet their schemas. A sequence that is given it begins
    /// it where calls begin.
    static result<grammar> try_create_for_tools(const model &m, const tools_options &options) {
        segno_tools_opts opts;
        segno_tools_opts_init(&opts, sizeof opts);
        opts.choice = options.choice;
        opts.flags = options.flags;
        opts.tools_json = options.tools_json.empty() ? nullptr : options.tools_json.data();
        opts.tools_len = options.tools_json.size();
        opts.name = options.name.empty() ? nullptr : options.name.c_str();
        opts.format = options.format.empty() ? nullptr : options.format.c_str();
        opts.prompt = options.prompt.empty() ? nullptr : options.prompt.data();
        opts.prompt_len = options.prompt.size();
        opts.template_text = options.template_text.empty() ? nullptr : options.template_text.data();
        opts.template_len = options.template_text.size();
        segno_grammar *handle = nullptr;
        grammar made;
        if (auto f = detail::fails([&](segno_error **err) {
                return segno_tools_grammar_create(m.get(), &opts, &handle, &made.start_token_, err);
            }))
            return std::move(*f);
        made.handle_.reset(handle);
        return made;
    }
#if SEGNO_EXCEPTIONS
    static grammar create_for_tools(const model &m, const tools_options &options) {
        return try_create_for_tools(m, options).value();
    }
#endif
    const segno_grammar *get() const { return handle_.get(); }
    /// The token behind which it begins, -1 for one that begins at once.
    token start_token() const { return start_token_; }

private:
    grammar() = default;
    std::unique_ptr<segno_grammar, detail::release> handle_;
    token start_token_ = -1;
};

/// A low-rank change of a model (LoRA). Immutable; any number of sequences share it, and may outlive it.
class adapter {
public:
    /// Loads an adapter for a model from a GGUF file.
    static result<adapter> try_load(const model &m, const std::string &path) {
        segno_adapter_opts opts;
        segno_adapter_opts_init(&opts, sizeof opts);
        opts.flags = 0;  // there are none yet
        segno_adapter *handle = nullptr;
        if (auto f = detail::fails(
                [&](segno_error **err) { return segno_adapter_load(m.get(), path.c_str(), &opts, &handle, err); }))
            return std::move(*f);
        adapter made;
        made.handle_.reset(handle);
        return made;
    }
#if SEGNO_EXCEPTIONS
    static adapter load(const model &m, const std::string &path) { return try_load(m, path).value(); }
#endif
    const segno_adapter *get() const { return handle_.get(); }

private:
    adapter() = default;
    std::unique_ptr<segno_adapter, detail::release> handle_;
};

/// An adapter, and the factor on what it adds.
struct scaled_adapter {
    scaled_adapter(const adapter &a, float factor = 1) : which(&a), scale(factor) {}
    const adapter *which;
    float scale;
};

namespace detail {

/// A list of adapters as calls take it.
struct adapter_list {
    explicit adapter_list(const std::vector<scaled_adapter> &adapters) {
        for (const auto &a : adapters) {
            handles.push_back(a.which->get());
            scales.push_back(a.scale);
        }
    }
    std::vector<const segno_adapter *> handles;
    std::vector<float> scales;
};

}  // namespace detail

/// What one step of a conversation brought.
struct chat_step {
    segno_status status;
    std::vector<event> events;
    /// The reply is over, and a message of the conversation.
    bool done() const { return status == SEGNO_DONE; }
};

/// Everything that changes while a model runs. Takes one call at a time; `cancel` and `stats` may run beside another.
class session {
public:
    session(session &&) noexcept = default;
    session &operator=(session &&) noexcept = default;

    static result<session> try_create(const model &m, const session_options &options = {}) {
        segno_session *handle = nullptr;
        if (auto f =
                detail::fails([&](segno_error **err) { return segno_session_create(m.get(), &options, &handle, err); }))
            return std::move(*f);
        session made;
        // The log function must outlive the handle: the deleter holds it.
        made.handle_ =
            std::shared_ptr<segno_session>(handle, [log = m.log_](segno_session *p) { segno_session_free(p); });
        return made;
    }
    /// Opens an empty sequence.
    result<sequence> try_open(const sampler_options &options = {});
    /// Opens a sequence as `sequence::try_save` has given it out, of a session of the same model and KV type. It goes
    /// on as it was, or draws by `options`. Throws what `read` throws.
    result<sequence> try_restore(const read_function &read, const sampler_options *options = nullptr);
    /// The same from a file.
    result<sequence> try_restore_file(const char *path, const sampler_options *options = nullptr);
    result<segno_memory> try_memory() const {
        return detail::read<segno_memory>(
            [&](auto *out, auto **err) { return segno_session_memory(get(), out, sizeof *out, err); });
    }
    /// How full the session is and what it has done. Any thread, beside a running call too.
    result<segno_session_stats> try_stats() const {
        return detail::read<segno_session_stats>(
            [&](auto *out, auto **err) { return segno_session_stats_get(get(), out, sizeof *out, err); });
    }
    /// Vectors of texts, or with SEGNO_POOLING_NONE of their tokens, one text after the other; none when the outcome is
    /// SEGNO_CANCELLED, which is the only one beside SEGNO_OK. The texts are evaluated with `adapters`.
    result<segno_status> try_embed(const std::vector<std::vector<token>> &texts,
        std::vector<std::vector<float>> &vectors, const embed_options &options = {},
        const std::vector<scaled_adapter> &adapters = {}) {
        const detail::adapter_list list(adapters);
        embed_options with = options;
        if (!adapters.empty()) {
            with.adapters = list.handles.data();
            with.scales = list.scales.data();
            with.adapter_count = list.handles.size();
        }
        std::vector<token> tokens;
        std::vector<std::size_t> lengths;
        for (const auto &text : texts) {
            tokens.insert(tokens.end(), text.begin(), text.end());
            lengths.push_back(text.size());
        }
        std::size_t dims = 0;
        std::vector<float> room;
        const auto ask = [&](segno_error **err) {
            return segno_embed(get(), tokens.data(), lengths.data(), lengths.size(), &with,
                room.empty() ? nullptr : room.data(), room.size(), &dims, err);
        };
        vectors.clear();
        if (auto f = detail::fails(ask)) return std::move(*f);
        const std::size_t count = options.pooling == SEGNO_POOLING_NONE ? tokens.size() : lengths.size();
        if (count == 0) return SEGNO_OK;
        room.resize(count * dims);
        auto done = detail::call(ask);
        if (!done || *done != SEGNO_OK) return done;
        for (std::size_t i = 0; i < count; i++)
            vectors.emplace_back(room.begin() + static_cast<std::ptrdiff_t>(i * dims),
                room.begin() + static_cast<std::ptrdiff_t>((i + 1) * dims));
        return done;
    }
    /// Raises or lowers the cancel flag: while it is raised, calls that evaluate end with SEGNO_CANCELLED. Any thread.
    void cancel(bool on) const { segno_session_cancel(get(), on ? 1 : 0); }
#if SEGNO_EXCEPTIONS
    static session create(const model &m, const session_options &options = {}) {
        return try_create(m, options).value();
    }
    sequence open(const sampler_options &options = {});
    sequence restore(const read_function &read, const sampler_options *options = nullptr);
    sequence restore_file(const char *path, const sampler_options *options = nullptr);
    segno_status embed(const std::vector<std::vector<token>> &texts, std::vector<std::vector<float>> &vectors,
        const embed_options &options = {}, const std::vector<scaled_adapter> &adapters = {}) {
        return try_embed(texts, vectors, options, adapters).value();
    }
    segno_memory memory() const { return try_memory().value(); }
    segno_session_stats stats() const { return try_stats().value(); }
#endif
    segno_session *get() const { return handle_.get(); }

private:
    friend class batch;
    friend class submission;
    friend class chat;
    friend class chat_batch;
    friend class chat_submission;
    session() = default;
    // Shared with its sequences, so that they may outlive it.
    std::shared_ptr<segno_session> handle_;
};

class generation;

/// One stream of tokens inside a session. Closed when destroyed, which counts as a call on the session.
class sequence {
public:
    sequence(sequence &&other) noexcept : session_(std::move(other.session_)), id_(other.id_) {}
    sequence &operator=(sequence &&other) noexcept {
        if (this != &other) {
            close();
            session_ = std::move(other.session_);
            id_ = other.id_;
        }
        return *this;
    }
    ~sequence() { close(); }

    /// Gives the pages back to the pool; a second call does nothing.
    void close() {
        if (session_) segno_seq_close(session_.get(), id_, nullptr);
        session_.reset();
    }
    std::int32_t id() const { return id_; }

    /// Queues prompt tokens; the next step, or several, evaluate them.
    result<segno_status> try_append(token_view tokens) {
        return detail::call(
            [&](segno_error **e) { return segno_seq_append(get(), id_, tokens.data(), tokens.size(), e); });
    }
    /// Queues prompt tokens and evaluates them now: SEGNO_OK or SEGNO_CANCELLED.
    result<segno_status> try_prefill(token_view tokens) {
        return detail::call(
            [&](segno_error **e) { return segno_seq_prefill(get(), id_, tokens.data(), tokens.size(), e); });
    }
    /// Number of tokens: evaluated, queued and sampled. Any thread, beside a running call too.
    result<std::size_t> try_length() const {
        return detail::read<std::size_t>([&](auto *out, auto **err) { return segno_seq_length(get(), id_, out, err); });
    }
    /// Its tokens, pages and seed, and what has been done for it. Any thread, beside a running call too.
    result<segno_seq_stats> try_stats() const {
        return detail::read<segno_seq_stats>(
            [&](auto *out, auto **err) { return segno_seq_stats_get(get(), id_, out, sizeof *out, err); });
    }
    /// Raw logits after the last token.
    result<std::vector<float>> try_logits() {
        return detail::fetch<std::vector<float>>(
            [&](float *buf, std::size_t cap, std::size_t *count, segno_error **err) {
                return segno_seq_logits(get(), id_, buf, cap, count, err);
            });
    }
    result<segno_status> try_set_sampler(const sampler_options &options) {
        return detail::call([&](segno_error **err) { return segno_seq_sampler_set(get(), id_, &options, err); });
    }
    /// Lets the tokens that are sampled follow `rules`, from the next one on, or behind the next one that is the
    /// grammar's start token.
    result<segno_status> try_set_grammar(const grammar &rules) { return try_set_grammar(rules, rules.start_token()); }
    /// The same behind the next one that is `start_token`; -1: at once.
    result<segno_status> try_set_grammar(const grammar &rules, token start_token) {
        return detail::call(
            [&](segno_error **err) { return segno_seq_grammar_set(get(), id_, rules.get(), start_token, err); });
    }
    /// Sets the sequence free of its grammar.
    result<segno_status> try_clear_grammar() {
        return detail::call([&](segno_error **err) { return segno_seq_grammar_set(get(), id_, nullptr, -1, err); });
    }
    /// Gives the sequence adapters in place of those that it has; none takes all away. What it has evaluated it
    /// evaluates again, so they are set before the prompt.
    result<segno_status> try_set_adapters(const std::vector<scaled_adapter> &adapters) {
        const detail::adapter_list list(adapters);
        return detail::call([&](segno_error **err) {
            return segno_seq_adapters_set(
                get(), id_, list.handles.data(), list.scales.data(), list.handles.size(), err);
        });
    }
    /// Opens a sequence with this one's history and options, and its seed if one was given; instead of a random seed it
    /// gets another.
    result<sequence> try_fork() const { return fork_with(nullptr); }
    result<sequence> try_fork(const sampler_options &options) const { return fork_with(&options); }
    /// Keeps the first `tokens` tokens.
    result<segno_status> try_truncate(std::size_t tokens) {
        return detail::call([&](segno_error **err) { return segno_seq_truncate(get(), id_, tokens, err); });
    }
    /// Takes `count` tokens out, from the index `first` on; those behind them are evaluated again by the calls that
    /// need them.
    result<segno_status> try_remove(std::size_t first, std::size_t count) {
        return detail::call([&](segno_error **err) { return segno_seq_remove(get(), id_, first, count, err); });
    }
    /// Gives out all that `session::try_restore` needs: SEGNO_OK or SEGNO_CANCELLED. Throws what `write` throws.
    result<segno_status> try_save(const write_function &write) {
        detail::writing writing{write};
        auto status = detail::call(
            [&](segno_error **err) { return segno_seq_save(get(), id_, detail::write_forward, &writing, err); });
        writing.rethrow();
        return status;
    }
    /// The same to a file, which appears, or takes the place of another, when it is whole.
    result<segno_status> try_save_file(const char *path) {
        return detail::call([&](segno_error **err) { return segno_seq_save_file(get(), id_, path, err); });
    }
    /// Sets a mark at the present length, to which `truncate` can go back in models whose layers have a state.
    result<segno_status> try_mark() {
        return detail::call([&](segno_error **err) { return segno_seq_mark(get(), id_, err); });
    }
    /// How many tokens would stay evaluated if the sequence were cut to its first `tokens`.
    result<std::size_t> try_mark_nearest(std::size_t tokens) {
        std::size_t found = 0;
        auto status =
            detail::call([&](segno_error **err) { return segno_seq_mark_nearest(get(), id_, tokens, &found, err); });
        if (!status) return std::move(status).error();
        return found;
    }
    /// Evaluates what is queued and samples a token.
    result<step> try_decode() {
        token t = -1;
        auto status = detail::call([&](segno_error **err) { return segno_decode_step(get(), id_, &t, err); });
        if (!status) return std::move(status).error();
        return step{*status, *status == SEGNO_OK || *status == SEGNO_DONE ? t : -1};
    }
    /// The same, and where the session drafts, all tokens that the pass has settled: `room` for so many, one at least.
    /// `tokens` gets those that came, the result is the outcome of the last.
    result<segno_status> try_decode_many(std::vector<token> &tokens, std::size_t room = 16) {
        tokens.resize(room);
        std::size_t count = 0;
        auto status = detail::call([&](segno_error **err) {
            return segno_decode_many(get(), id_, tokens.data(), tokens.size(), &count, err);
        });
        tokens.resize(status ? count : 0);
        return status;
    }
    /// A range over at most `limit` further tokens and their text. Its loop never throws: ask the range afterwards how
    /// it ended.
    generation try_generate(text &stream, std::size_t limit = (std::numeric_limits<std::size_t>::max)());
#if SEGNO_EXCEPTIONS
    segno_status append(token_view tokens) { return try_append(tokens).value(); }
    segno_status prefill(token_view tokens) { return try_prefill(tokens).value(); }
    std::size_t length() const { return try_length().value(); }
    segno_seq_stats stats() const { return try_stats().value(); }
    std::vector<float> logits() { return try_logits().value(); }
    void set_sampler(const sampler_options &options) { (void)try_set_sampler(options).value(); }
    void set_grammar(const grammar &rules) { (void)try_set_grammar(rules).value(); }
    void set_grammar(const grammar &rules, token start_token) { (void)try_set_grammar(rules, start_token).value(); }
    void clear_grammar() { (void)try_clear_grammar().value(); }
    void set_adapters(const std::vector<scaled_adapter> &adapters) { (void)try_set_adapters(adapters).value(); }
    sequence fork() const { return try_fork().value(); }
    sequence fork(const sampler_options &options) const { return try_fork(options).value(); }
    void truncate(std::size_t tokens) { (void)try_truncate(tokens).value(); }
    void remove(std::size_t first, std::size_t count) { (void)try_remove(first, count).value(); }
    segno_status save(const write_function &write) { return try_save(write).value(); }
    segno_status save_file(const char *path) { return try_save_file(path).value(); }
    void mark() { (void)try_mark().value(); }
    std::size_t mark_nearest(std::size_t tokens) { return try_mark_nearest(tokens).value(); }
    step decode() { return try_decode().value(); }
    segno_status decode_many(std::vector<token> &tokens, std::size_t room = 16) {
        return try_decode_many(tokens, room).value();
    }
    /// A range over at most `limit` further tokens and their text, for one loop:
    /// `for (auto piece : seq.generate(stream)) std::cout << piece.text;`
    generation generate(text &stream, std::size_t limit = (std::numeric_limits<std::size_t>::max)());
#endif

private:
    friend class session;
    sequence(std::shared_ptr<segno_session> session, std::int32_t id) : session_(std::move(session)), id_(id) {}
    segno_session *get() const { return session_.get(); }

    result<sequence> fork_with(const sampler_options *options) const {
        std::int32_t id = 0;
        if (auto f = detail::fails([&](segno_error **err) { return segno_seq_fork(get(), id_, options, &id, err); }))
            return std::move(*f);
        return sequence(session_, id);
    }

    std::shared_ptr<segno_session> session_;
    std::int32_t id_;
};

inline result<sequence> session::try_open(const sampler_options &options) {
    std::int32_t id = 0;
    if (auto f = detail::fails([&](segno_error **err) { return segno_seq_open(get(), &options, &id, err); }))
        return std::move(*f);
    return sequence(handle_, id);
}

inline result<sequence> session::try_restore(const read_function &read, const sampler_options *options) {
    detail::reading reading{read};
    std::int32_t id = 0;
    auto failed = detail::fails(
        [&](segno_error **err) { return segno_seq_restore(get(), detail::read_forward, &reading, options, &id, err); });
    reading.rethrow();
    if (failed) return std::move(*failed);
    return sequence(handle_, id);
}

inline result<sequence> session::try_restore_file(const char *path, const sampler_options *options) {
    std::int32_t id = 0;
    if (auto f =
            detail::fails([&](segno_error **err) { return segno_seq_restore_file(get(), path, options, &id, err); }))
        return std::move(*f);
    return sequence(handle_, id);
}

/// Tokens of one sequence as they are decoded, with their text. Ends with the token that ends generation, a complete
/// stop string, the limit, a cancel, or a failure. The sequence and the text stream must outlive it, and it is walked
/// once.
class generation {
public:
    /// One token and the whole characters that it released. What the text stream held back comes last, with the token
    /// -1.
    struct piece {
        segno::token token;
        std::string_view text;  ///< Valid until the next piece.
    };
    struct sentinel {};

    class iterator {
    public:
        using iterator_category = std::input_iterator_tag;
        using value_type = piece;
        using difference_type = std::ptrdiff_t;
        using pointer = const piece *;
        using reference = const piece &;

        explicit iterator(generation *owner) : owner_(owner) {}
        reference operator*() const { return owner_->piece_; }
        pointer operator->() const { return &owner_->piece_; }
        iterator &operator++() {
            owner_->advance();
            return *this;
        }
        void operator++(int) { owner_->advance(); }
        friend bool operator==(const iterator &it, sentinel) { return it.owner_->ended(); }
        friend bool operator!=(const iterator &it, sentinel) { return !it.owner_->ended(); }

    private:
        generation *owner_;
    };

    iterator begin() {
        advance();
        return iterator(this);
    }
    sentinel end() const { return {}; }
    bool ended() const { return ended_; }
    /// How it ended: SEGNO_OK at the limit, SEGNO_DONE, SEGNO_GRAMMAR_END, SEGNO_CANCELLED, or an error.
    segno_status status() const { return status_; }
    const failure &error() const { return failure_; }

private:
    friend class sequence;
    generation(sequence *seq, text *stream, std::size_t limit, bool throws)
        : seq_(seq), stream_(stream), left_(limit), throws_(throws) {}

    void advance() {
        if (finishing_) return end_loop();
        if (left_ == 0 || status_ != SEGNO_OK) return finish();
        result<step> next = seq_->try_decode();
        while (next && next->pending()) next = seq_->try_decode();
        if (!next) return fail(std::move(next).error());
        status_ = next->status;
        if (status_ == SEGNO_CANCELLED || status_ == SEGNO_GRAMMAR_END) return finish();
        left_--;
        auto got = stream_->try_push(next->token);
        if (!got) return fail(std::move(got).error());
        piece_ = piece{next->token, got->text};
        if (got->done) status_ = SEGNO_DONE;
    }
    void fail(failure f) {
        status_ = f.status();
        failure_ = std::move(f);
        finish();
    }
    /// Gives out what the stream held back, if anything; a failure is told after that.
    void finish() {
        finishing_ = true;
        auto rest = stream_->try_flush();
        if (!rest || rest->text.empty()) return end_loop();
        piece_ = piece{-1, rest->text};
    }
    void end_loop() {
        ended_ = true;
#if SEGNO_EXCEPTIONS
        if (throws_ && SEGNO_FAILED(status_)) throw segno::error(failure_);
#endif
    }

    sequence *seq_;
    text *stream_;
    std::size_t left_;
    [[maybe_unused]] bool throws_;
    bool finishing_ = false;
    bool ended_ = false;
    segno_status status_ = SEGNO_OK;
    piece piece_{-1, {}};
    failure failure_;
};

inline generation sequence::try_generate(text &stream, std::size_t limit) {
    return generation(this, &stream, limit, false);
}

/// A list of sequences that advance together, in one pass.
class batch {
public:
    explicit batch(const session &s) : session_(s.handle_) {}
    void add(const sequence &seq) { seqs_.push_back(seq.id()); }
    void clear() { seqs_.clear(); }
    std::size_t size() const { return seqs_.size(); }

    /// Advances every sequence by one step. The value is the status of the first item that failed, or SEGNO_OK, or
    /// SEGNO_CANCELLED: what became of each item tells `operator[]`. A failure means that the call as a whole was
    /// refused.
    result<segno_status> try_decode() {
        tokens_.assign(seqs_.size(), -1);
        statuses_.assign(seqs_.size(), untouched);
        auto status = detail::call([&](segno_error **err) {
            return segno_decode_batch(
                session_.get(), seqs_.data(), seqs_.size(), tokens_.data(), statuses_.data(), err);
        });
        if (!status && !statuses_.empty() && statuses_[0] != untouched) return status.error().status();
        return status;
    }
    /// Outcome of item `i` in the last call.
    step operator[](std::size_t i) const { return step{statuses_[i], tokens_[i]}; }
#if SEGNO_EXCEPTIONS
    segno_status decode() { return try_decode().value(); }
#endif

private:
    static constexpr segno_status untouched = (std::numeric_limits<segno_status>::min)();
    std::shared_ptr<segno_session> session_;
    std::vector<std::int32_t> seqs_;
    std::vector<token> tokens_;
    std::vector<segno_status> statuses_;
};

/// A list of sequences that advance together while the host goes on: `try_submit` starts a step and returns at once,
/// `try_poll` tells what became of it. Until then other calls on the session are SEGNO_E_BUSY, but for cancel, stats
/// and the length of a sequence; a `sequence` that is destroyed meanwhile stays open until its session is freed.
/// Destroyed amid a step, it cancels the step and waits for its end, which lowers the session's cancel flag.
class submission {
public:
    explicit submission(const session &s) : session_(s.handle_) {}
    submission(const submission &) = delete;
    submission &operator=(const submission &) = delete;
    ~submission() {
        if (!running_) return;
        segno_session_cancel(session_.get(), 1);
        (void)try_poll(UINT64_MAX);
        segno_session_cancel(session_.get(), 0);
    }

    /// What the next step advances; the one that runs has a copy.
    void add(const sequence &seq) { seqs_.push_back(seq.id()); }
    void clear() { seqs_.clear(); }
    std::size_t size() const { return seqs_.size(); }

    /// Starts a step of every sequence; `budget_us` of the options bounds the slices of prompts.
    result<segno_status> try_submit(const submit_options &options = submit_options()) {
        auto status = detail::call([&](segno_error **err) {
            return segno_session_submit(session_.get(), seqs_.data(), seqs_.size(), &options, err);
        });
        if (!status) return status;
        tokens_.assign(seqs_.size(), -1);
        statuses_.assign(seqs_.size(), SEGNO_PENDING);
        running_ = true;
        return status;
    }
    /// Asks, and waits for at most `timeout_us` microseconds: SEGNO_PENDING while the step runs. Otherwise it is over:
    /// the value is the status of the first item that failed, or SEGNO_OK, or SEGNO_CANCELLED.
    result<segno_status> try_poll(std::uint64_t timeout_us = 0) {
        if (!running_) return failure(SEGNO_E_INVALID_ARGUMENT, nullptr);
        auto status = detail::call([&](segno_error **err) {
            return segno_session_poll(session_.get(), timeout_us, tokens_.data(), statuses_.data(), err);
        });
        const segno_status code = status ? *status : status.error().status();
        const auto is_pending = [](segno_status item) { return item == SEGNO_PENDING; };
        // A poll that fails by itself has written nothing, and the step goes on; of a step, some item has failed.
        running_ = code == SEGNO_PENDING || (!status && std::all_of(statuses_.begin(), statuses_.end(), is_pending));
        if (!status && !running_ && code != SEGNO_E_PANIC) return code;
        return status;
    }
    /// Whether a step was submitted whose end no poll has told.
    bool running() const { return running_; }
    /// Outcome of item `i` in the last step that was submitted; SEGNO_PENDING while it runs.
    step operator[](std::size_t i) const { return step{statuses_[i], tokens_[i]}; }
#if SEGNO_EXCEPTIONS
    void submit(const submit_options &options = submit_options()) { (void)try_submit(options).value(); }
    segno_status poll(std::uint64_t timeout_us = 0) { return try_poll(timeout_us).value(); }
#endif

private:
    std::shared_ptr<segno_session> session_;
    std::vector<std::int32_t> seqs_;
    std::vector<token> tokens_;
    std::vector<segno_status> statuses_;
    bool running_ = false;
};

/// A conversation: its messages, and a sequence of a session that answers them. Keeps its session alive.
class chat {
public:
    static result<chat> try_create(const session &s, const chat_create_options &options = {}) {
        std::vector<segno_string> stops;
        for (const std::string &stop : options.stops) stops.push_back({stop.data(), stop.size()});
        segno_chat_create_opts opts;
        segno_chat_create_opts_init(&opts, sizeof opts);
        const auto set = [](const std::string &text, const char *&data, std::size_t &len) {
            data = text.empty() ? nullptr : text.data();
            len = text.size();
        };
        opts.flags = options.flags;
        set(options.system_text, opts.system_text, opts.system_len);
        set(options.template_text, opts.template_text, opts.template_len);
        set(options.tools_json, opts.tools_json, opts.tools_len);
        set(options.vars_json, opts.vars_json, opts.vars_len);
        opts.now = options.now;
        opts.format = options.format.empty() ? nullptr : options.format.c_str();
        opts.stops = stops.data();
        opts.stop_count = stops.size();
        opts.sampler = &options.sampler;
        opts.grammar = options.grammar ? options.grammar->get() : nullptr;
        opts.grammar_start = options.grammar_start;
        opts.max_tokens = options.max_tokens;
        opts.reasoning_tokens = options.reasoning_tokens;
        opts.context_tokens = options.context_tokens;
        segno_chat *handle = nullptr;
        if (auto f = detail::fails([&](segno_error **err) { return segno_chat_create(s.get(), &opts, &handle, err); }))
            return std::move(*f);
        return chat(s.handle_, handle);
    }
    /// Adds a message. A reply that is being written ends there.
    result<segno_status> try_say(const std::string &role, std::string_view text) {
        return detail::call(
            [&](segno_error **err) { return segno_chat_say(get(), role.c_str(), text.data(), text.size(), err); });
    }
    /// Adds a message, or an array of messages, as JSON.
    result<segno_status> try_add(std::string_view json) {
        return detail::call([&](segno_error **err) { return segno_chat_add(get(), json.data(), json.size(), err); });
    }
    /// One step of the reply: SEGNO_OK, SEGNO_PENDING, SEGNO_DONE or SEGNO_CANCELLED, and what it brought.
    result<chat_step> try_next() {
        for (;;) {
            std::size_t count = 0;
            auto status = detail::call(
                [&](segno_error **err) { return segno_chat_next(get(), events_.data(), events_.size(), &count, err); });
            if (status) return chat_step{*status, views(events_.data(), count)};
            if (status.error().status() != SEGNO_E_BUFFER_TOO_SMALL) return std::move(status).error();
            events_.resize(count);
        }
    }
    /// Steps until the reply is over, and calls `on_event` with each event: SEGNO_DONE or SEGNO_CANCELLED.
    template <class F>
    result<segno_status> try_reply(F &&on_event) {
        for (;;) {
            auto got = try_next();
            if (!got) return std::move(got).error();
            for (const event &e : got->events) on_event(e);
            if (got->status != SEGNO_OK && got->status != SEGNO_PENDING) return got->status;
        }
    }
    /// A conversation with the same messages, the reply that is being written included, which goes on apart.
    result<chat> try_fork() const { return fork_with(nullptr); }
    result<chat> try_fork(const sampler_options &options) const { return fork_with(&options); }
    /// Lets the replies that begin from now on call tools as a grammar has it: SEGNO_TOOLS_..., with `name` the tool of
    /// SEGNO_TOOLS_NAMED; `flags`: SEGNO_TOOLS_ONE_CALL.
    result<segno_status> try_set_tools(
        std::int32_t choice, std::uint32_t flags = 0, const std::string &name = std::string()) {
        const char *tool = name.empty() ? nullptr : name.c_str();
        return detail::call([&](segno_error **err) { return segno_chat_tools_set(get(), choice, flags, tool, err); });
    }
    /// Keeps the first `messages` messages.
    result<segno_status> try_truncate(std::size_t messages) {
        return detail::call([&](segno_error **err) { return segno_chat_truncate(get(), messages, err); });
    }
    /// All messages as a JSON array, which `add` takes.
    result<std::string> try_messages() const {
        return detail::fetch<std::string>([&](char *buf, std::size_t cap, std::size_t *len, segno_error **err) {
            return segno_chat_messages(get(), buf, cap, len, err);
        });
    }
    result<segno_chat_stats> try_stats() const {
        return detail::read<segno_chat_stats>(
            [&](auto *out, auto **err) { return segno_chat_stats_get(get(), out, sizeof *out, err); });
    }
    /// The id of its sequence.
    result<std::int32_t> try_seq() const {
        return detail::read<std::int32_t>([&](auto *out, auto **err) { return segno_chat_seq(get(), out, err); });
    }
#if SEGNO_EXCEPTIONS
    static chat create(const session &s, const chat_create_options &options = {}) {
        return try_create(s, options).value();
    }
    void say(const std::string &role, std::string_view text) { (void)try_say(role, text).value(); }
    void add(std::string_view json) { (void)try_add(json).value(); }
    chat_step next() { return try_next().value(); }
    template <class F>
    segno_status reply(F &&on_event) {
        return try_reply(std::forward<F>(on_event)).value();
    }
    chat fork() const { return try_fork().value(); }
    chat fork(const sampler_options &options) const { return try_fork(options).value(); }
    void set_tools(std::int32_t choice, std::uint32_t flags = 0, const std::string &name = std::string()) {
        (void)try_set_tools(choice, flags, name).value();
    }
    void truncate(std::size_t messages) { (void)try_truncate(messages).value(); }
    std::string messages() const { return try_messages().value(); }
    segno_chat_stats stats() const { return try_stats().value(); }
    std::int32_t seq() const { return try_seq().value(); }
#endif
    segno_chat *get() const { return handle_.get(); }

private:
    friend class chat_batch;
    chat(std::shared_ptr<segno_session> session, segno_chat *handle)
        : session_(std::move(session)), events_(8), handle_(handle) {}

    static std::vector<event> views(const segno_event *events, std::size_t count) {
        std::vector<event> made;
        for (const segno_event *e = events; e != events + count; e++)
            made.push_back({e->kind, e->index, {e->text, e->len}, {e->id, e->id_len}});
        return made;
    }

    result<chat> fork_with(const sampler_options *options) const {
        segno_chat *handle = nullptr;
        if (auto f = detail::fails([&](segno_error **err) { return segno_chat_fork(get(), options, &handle, err); }))
            return std::move(*f);
        return chat(session_, handle);
    }

    std::shared_ptr<segno_session> session_;
    std::vector<segno_event> events_;
    std::unique_ptr<segno_chat, detail::release> handle_;
};

/// A list of conversations of a session that advance together, in one pass.
class chat_batch {
public:
    explicit chat_batch(const session &s) : session_(s.handle_) {}
    void add(const chat &c) { chats_.push_back(c.get()); }
    void clear() { chats_.clear(); }
    std::size_t size() const { return chats_.size(); }

    /// Advances every conversation by one step. The value is the status of the first that failed, or SEGNO_OK, or
    /// SEGNO_CANCELLED: what became of each tells `operator[]`; one without room for its events is
    /// SEGNO_E_BUFFER_TOO_SMALL, and gives them in the next call. A failure means that the call as a whole was refused.
    result<segno_status> try_next() {
        expect();
        return settle(detail::call([&](segno_error **err) {
            return segno_chat_next_batch(session_.get(), chats_.data(), chats_.size(), events_.data(), room_,
                counts_.data(), statuses_.data(), err);
        }));
    }
    /// What the last call brought for conversation `i`; the texts are valid until the next call on it.
    chat_step operator[](std::size_t i) const {
        const std::size_t count = SEGNO_FAILED(statuses_[i]) ? 0 : counts_[i];
        return {statuses_[i], chat::views(events_.data() + i * shown_, count)};
    }
#if SEGNO_EXCEPTIONS
    segno_status next() { return try_next().value(); }
#endif

private:
    friend class chat_submission;
    static constexpr segno_status untouched = (std::numeric_limits<segno_status>::min)();

    // Makes room for the results of a step.
    void expect() {
        counts_.assign(chats_.size(), 0);
        statuses_.assign(chats_.size(), untouched);
        events_.resize(chats_.size() * room_);
        shown_ = room_;
    }
    // What the results of a step mean for the call.
    result<segno_status> settle(result<segno_status> status) {
        for (std::size_t i = 0; i < statuses_.size(); i++) {
            if (statuses_[i] == SEGNO_E_BUFFER_TOO_SMALL) room_ = (std::max)(room_, counts_[i]);
        }
        if (!status && !statuses_.empty() && statuses_[0] != untouched) return status.error().status();
        return status;
    }

    std::shared_ptr<segno_session> session_;
    std::vector<segno_chat *> chats_;
    std::size_t room_ = 8, shown_ = 8;
    std::vector<segno_event> events_;
    std::vector<std::size_t> counts_;
    std::vector<segno_status> statuses_;
};

/// A list of conversations that advance together while the host goes on: `try_submit` starts a step and returns at
/// once, `try_poll` tells what became of it. Until then other calls on the session and on these conversations are
/// SEGNO_E_BUSY, but for cancel and stats of the session. Destroyed amid a step, it cancels the step and waits for its
/// end, which lowers the session's cancel flag.
class chat_submission {
public:
    explicit chat_submission(const session &s) : batch_(s) {}
    chat_submission(const chat_submission &) = delete;
    chat_submission &operator=(const chat_submission &) = delete;
    ~chat_submission() {
        if (!running_) return;
        segno_session_cancel(batch_.session_.get(), 1);
        (void)try_poll(UINT64_MAX);
        segno_session_cancel(batch_.session_.get(), 0);
    }

    /// What the next step advances; the one that runs has a copy.
    void add(const chat &c) { batch_.add(c); }
    void clear() { batch_.clear(); }
    std::size_t size() const { return batch_.size(); }

    /// Starts a step of every conversation; `budget_us` of the options bounds the slices of prompts.
    result<segno_status> try_submit(const submit_options &options = submit_options()) {
        auto status = detail::call([&](segno_error **err) {
            return segno_chat_submit(batch_.session_.get(), batch_.chats_.data(), batch_.chats_.size(), &options, err);
        });
        if (!status) return status;
        batch_.expect();
        running_ = true;
        return status;
    }
    /// Asks, and waits for at most `timeout_us` microseconds: SEGNO_PENDING while the step runs. Otherwise it is over,
    /// and the value is that of `chat_batch::try_next`.
    result<segno_status> try_poll(std::uint64_t timeout_us = 0) {
        if (!running_) return failure(SEGNO_E_INVALID_ARGUMENT, nullptr);
        auto status = detail::call([&](segno_error **err) {
            return segno_chat_poll(batch_.session_.get(), timeout_us, batch_.events_.data(), batch_.shown_,
                batch_.counts_.data(), batch_.statuses_.data(), err);
        });
        const auto &told = batch_.statuses_;
        // A poll that fails by itself has written nothing, and the step goes on.
        running_ = status ? *status == SEGNO_PENDING : told.empty() || told[0] == chat_batch::untouched;
        if (running_ || (!status && status.error().status() == SEGNO_E_PANIC)) return status;
        return batch_.settle(std::move(status));
    }
    /// Whether a step was submitted whose end no poll has told.
    bool running() const { return running_; }
    /// What the last step brought for conversation `i`, once it is over; the texts are valid until the next call on it.
    chat_step operator[](std::size_t i) const { return batch_[i]; }
#if SEGNO_EXCEPTIONS
    void submit(const submit_options &options = submit_options()) { (void)try_submit(options).value(); }
    segno_status poll(std::uint64_t timeout_us = 0) { return try_poll(timeout_us).value(); }
#endif

private:
    chat_batch batch_;
    bool running_ = false;
};

#if SEGNO_EXCEPTIONS
inline std::int32_t device_count(std::int32_t kind) { return try_device_count(kind).value(); }
inline segno_device_info device(std::int32_t kind, std::int32_t index = 0) { return try_device(kind, index).value(); }
inline segno_plan plan(
    const context &ctx, const std::string &path, const model_options &model = {}, const session_options &session = {}) {
    return try_plan(ctx, path, model, session).value();
}
inline sequence session::open(const sampler_options &options) { return try_open(options).value(); }
inline sequence session::restore(const read_function &read, const sampler_options *options) {
    return try_restore(read, options).value();
}
inline sequence session::restore_file(const char *path, const sampler_options *options) {
    return try_restore_file(path, options).value();
}
inline generation sequence::generate(text &stream, std::size_t limit) { return generation(this, &stream, limit, true); }
#endif

}  // namespace segno

#endif
