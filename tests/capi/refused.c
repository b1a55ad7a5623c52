/* A host that has no memory left. Every exported function is called while the system refuses the first allocation that
 * is made in the call, in another run the second, and so on until the call makes no more, whoever asks for it and
 * however small; and the same with every allocation from there on refused. The call answers OUT_OF_MEMORY or what it
 * answers with memory, with the same results; nothing is lost, and the same call works afterwards. Each series runs in
 * a process of its own, so that one that is ended is reported. Loading a model makes thousands of allocations, most of
 * them while patterns are compiled: behind the first thousand one of 17 is tried, each where a function is named.
 *
 * usage: test_refused MODEL.gguf [function] */
#define _GNU_SOURCE
#include "world.h"

#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* The allocator of the C library, by the names that stay its own. */
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *block, size_t size);
void *__libc_memalign(size_t alignment, size_t size);
void __libc_free(void *block);

static atomic_long live;        /* bytes that are allocated */
static atomic_long asked;       /* allocations since the call began */
static atomic_long refused;     /* of these refused */
static atomic_long first, last; /* numbers of those that are refused; 0 for none */

static int refuse(void) {
    if (atomic_load(&first) == 0) return 0;
    long number = atomic_fetch_add(&asked, 1) + 1;
    if (number < first || number > last) return 0;
    atomic_fetch_add(&refused, 1);
    errno = ENOMEM;
    return 1;
}

static void *counted(void *block) {
    atomic_fetch_add(&live, (long)malloc_usable_size(block));
    return block;
}

void *malloc(size_t size) { return refuse() ? NULL : counted(__libc_malloc(size)); }

/* Whether glibc notes that a value of a thread is to be dropped. It ends the process where it cannot, so nobody answers
 * for that. */
static int notes_destructor(const void *caller) {
    Dl_info found;
    return dladdr(caller, &found) != 0 && found.dli_sname != NULL &&
        strcmp(found.dli_sname, "__cxa_thread_atexit_impl") == 0;
}

void *calloc(size_t count, size_t size) {
    if (atomic_load(&first) != 0 && notes_destructor(__builtin_return_address(0))) {
        return counted(__libc_calloc(count, size));
    }
    return refuse() ? NULL : counted(__libc_calloc(count, size));
}

void *memalign(size_t alignment, size_t size) { return refuse() ? NULL : counted(__libc_memalign(alignment, size)); }
void *aligned_alloc(size_t alignment, size_t size) { return memalign(alignment, size); }

int posix_memalign(void **out, size_t alignment, size_t size) {
    *out = memalign(alignment, size);
    return *out == NULL && size > 0 ? ENOMEM : 0;
}

void free(void *block) {
    atomic_fetch_sub(&live, (long)malloc_usable_size(block));
    __libc_free(block);
}

void *realloc(void *block, size_t size) {
    if (refuse()) return NULL;
    long before = (long)malloc_usable_size(block);
    void *moved = __libc_realloc(block, size);
    if (moved != NULL || size == 0) atomic_fetch_sub(&live, before);
    return counted(moved);
}

/* What a call is made with beside its function: good arguments, one pointer NULL, or an unknown sequence. */
typedef struct {
    const char *name;
    void (*change)(const function *f, args *a);
    int (*suits)(const function *f);
} variant;

static int always(const function *f) { return f != NULL; }
static void nothing(const function *f, args *a) {
    (void)f;
    (void)a;
}

static int has_second(const function *f) { return f->has_err && f->kinds[1] != NONE; }
static void second_null(const function *f, args *a) {
    (void)f;
    a->p[1] = NULL;
}

static int has_id(const function *f) { return f->numbers[0] == ID; }
static void unknown_id(const function *f, args *a) {
    (void)f;
    a->n[0] = 12345;
}

static int renders(const function *f) { return f->call == call_segno_chat_render; }
static void with_template(const function *f, args *a) {
    static const char text[] =
        "{% for m in messages %}<s>{{ m.role }}: {{ m.content | trim }} {{ loop.index }}</s>{% endfor %}"
        "{% set n = namespace(a=[1, 2, 3], b={'x': 1.5}) %}{{ n.a | join('-') }}{{ n | tojson if n is mapping }}"
        "{{ 'é' ~ n.b.x }}{% macro f(x) %}{{ x | upper }}{% endmacro %}{{ f('word') }}{{ messages | tojson }}";
    static const char messages[] =
        "[{\"role\": \"user\", \"content\": \" Wh\\u00e9re \\\"to\\\"? \"},"
        "{\"role\": \"assistant\", \"content\": [{\"type\": \"text\", \"text\": \"There.\"}], \"n\": [1, 2.5, null]}]";
    segno_chat_opts *chat = UNTYPED(a->p[2]);
    (void)f;
    chat->template_text = text;
    chat->template_len = sizeof text - 1;
    chat->vars_json = "{\"a\": [true, 1]}";
    chat->vars_len = strlen(chat->vars_json);
    chat->now = 1;
    a->p[1] = (void *)messages;
    a->n[0] = sizeof messages - 1;
}

static int tokenizes(const function *f) { return f->call == call_segno_tokenize; }
static void a_text(const function *f, args *a) {
    static const char text[] =
        "First Citizen:\nBefore we proceed any further, hear me speak. \xe4\xbd\xa0\xe5\xa5\xbd 12345 \t\n\n ...";
    (void)f;
    a->p[1] = (void *)text;
    a->n[0] = sizeof text - 1;
    a->n[1] = SEGNO_TOKENIZE_ADD_SPECIAL | SEGNO_TOKENIZE_PARSE_SPECIAL;
}

static void *file;
static size_t file_bytes;
static int loads_bytes(const function *f) { return f->call == call_segno_model_load_buffer; }
static void whole_file(const function *f, args *a) {
    (void)f;
    a->p[1] = file;
    a->n[0] = (int64_t)file_bytes;
}

static int loads(const function *f) { return f->call == call_segno_model_load; }
static void read_file(const function *f, args *a) {
    (void)f;
    ((segno_model_opts *)UNTYPED(a->p[2]))->flags = SEGNO_MODEL_NO_MMAP;
}

static int samples(const function *f) { return f->init == init_sampler && f->kinds[0] == SESSION; }
static void with_lists(const function *f, args *a) {
    static const segno_logit_bias bias[2] = {{3, 1.0f}, {4, -1.0f}};
    int place = 0;
    while (f->kinds[place] != OPTS) place++;
    segno_sampler_opts *sampler = UNTYPED(a->p[place]);
    sampler->bias = bias;
    sampler->bias_count = 2;
    sampler->stop_tokens = tokens;
    sampler->stop_token_count = 4;
}

static int streams(const function *f) { return f->call == call_segno_text_create; }
static void with_stops(const function *f, args *a) {
    static const segno_string stops[2] = {{"aaab", 4}, {"\n\n", 2}};
    segno_text_opts *stream = UNTYPED(a->p[1]);
    (void)f;
    stream->stops = stops;
    stream->stop_count = 2;
}

static int tells(const function *f) { return f->call == call_segno_model_meta; }
static void a_list(const function *f, args *a) {
    (void)f;
    a->p[1] = (void *)"tokenizer.ggml.tokens";
}

static int answers(const function *f) { return f->call == call_segno_chat_next || f->call == call_segno_chat_say; }
static void amid_a_reply(const function *f, args *a) {
    size_t count;
    (void)f;
    (void)a;
    for (int i = 0; i < 3; i++)
        EXPECT(SEGNO_OK, segno_chat_next(conversation, UNTYPED((void *)buffer), 8, &count, &err));
}

static int adds(const function *f) { return f->call == call_segno_chat_add; }
static void a_call(const function *f, args *a) {
    static const char json[] =
        "[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"call00007\",\"function\":{\"name\":\"f\","
        "\"arguments\":{}}}]},{\"role\":\"tool\",\"content\":\"\\u00e9\"}]";
    (void)f;
    a->p[1] = (void *)json;
    a->n[0] = sizeof json - 1;
}

static int converses(const function *f) { return f->call == call_segno_chat_create; }
static void with_everything(const function *f, args *a) {
    static const segno_string stops[1] = {{"aaab", 4}};
    segno_chat_create_opts *o = UNTYPED(a->p[1]);
    (void)f;
    o->template_text = plain_template;
    o->template_len = sizeof plain_template - 1;
    o->system_text = "Be short.";
    o->system_len = 9;
    o->tools_json = "[]";
    o->tools_len = 2;
    o->vars_json = "{}";
    o->vars_len = 2;
    o->format = "hermes";
    o->stops = stops;
    o->stop_count = 1;
    o->grammar = grammar;
}

static const variant variants[] = {
    {"good arguments", nothing, always},
    {"NULL", second_null, has_second},
    {"an unknown sequence", unknown_id, has_id},
    {"a template", with_template, renders},
    {"a text", a_text, tokenizes},
    {"the whole file", whole_file, loads_bytes},
    {"without mapping", read_file, loads},
    {"lists", with_lists, samples},
    {"stop strings", with_stops, streams},
    {"a list", a_list, tells},
    {"amid a reply", amid_a_reply, answers},
    {"a call of a tool", a_call, adds},
    {"everything", with_everything, converses},
};
#define VARIANTS (sizeof variants / sizeof *variants)

/* What a call gave. */
typedef struct {
    segno_status status;
    uint64_t digest;
    int64_t item;
} outcome;

static uint64_t digest_of(const void *bytes, size_t count, uint64_t digest) {
    for (size_t i = 0; i < count; i++) digest = (digest ^ ((const unsigned char *)bytes)[i]) * 1099511628211u;
    return digest;
}

/* Texts of events stand anywhere in memory. */
static void hide_addresses(const function *f) {
    segno_event *events = (segno_event *)(void *)buffer;
    size_t count = len;
    if (f->call == call_segno_chat_next_batch) count = (size_t)rooms[1];
    if (f->call == call_segno_chat_poll) count = (size_t)rooms[0];
    for (size_t i = 0; i < count; i++) events[i].text = events[i].id = NULL;
}

/* One call in the world as it is, the allocations from number `from` to number `to` refused. */
static outcome call(const function *f, const variant *v, long from, long to) {
    args a = good_args(f);
    v->change(f, &a);
    error = NULL;
    value = NULL;
    len = 0;
    memset(buffer, 0, sizeof buffer);
    memset(rooms, 0, sizeof rooms);
    atomic_store(&asked, 0);
    atomic_store(&refused, 0);
    atomic_store(&last, to);
    atomic_store(&first, from);
    outcome result = {.status = f->call(&a), .item = -1};
    atomic_store(&first, 0);
    CHECK(result.status != SEGNO_E_PANIC && result.status != SEGNO_E_POISONED);
    if (f->has_err) {
        CHECK((error != NULL) == SEGNO_FAILED(result.status));
        CHECK(error == NULL || segno_error_code(error) == result.status);
        CHECK(error == NULL || strlen(segno_error_message(error)) > 5);
        result.item = segno_error_item(error);
        segno_error_free(error);
    }
    if (f->release != NULL) {
        CHECK(result.status >= 0 || value == NULL);
        f->release(value);
        value = NULL;
    }
    if (f->element == sizeof(segno_event)) hide_addresses(f);
    result.digest =
        digest_of(buffer, sizeof buffer, digest_of(rooms, sizeof rooms, digest_of(&value, sizeof value, len)));
    return result;
}

/* Frees take their object with them: a copy of the world's place is not to be freed again. */
static void forget_freed(const function *f) {
    session = f->call == call_segno_session_free ? NULL : session;
    text = f->call == call_segno_text_free ? NULL : text;
    conversation = f->call == call_segno_chat_free ? NULL : conversation;
    model = f->call == call_segno_model_free ? NULL : model;
    ctx = f->call == call_segno_ctx_free ? NULL : ctx;
}

/* A push that gets no memory ends its reply, as its documentation says; a flush begins the next. */
static void begin_reply(const function *f) {
    size_t count;
    if (f->call == call_segno_reply_push) (void)segno_reply_flush(reply, NULL, 0, &count, NULL);
}

/* Between a series and the process that watches it. */
typedef struct {
    long number, refusals, without_error;
    int from_there_on, each, done;
} progress;

static long after(const progress *at) { return at->number + (at->each || at->number < 1000 ? 1 : 17); }

static int same(outcome a, outcome b) { return a.status == b.status && a.digest == b.digest; }

static void load(void) {
    if (ctx == NULL) EXPECT(SEGNO_OK, segno_ctx_create(SEGNO_ABI_VERSION, NULL, &ctx, &err));
    if (model == NULL) EXPECT(SEGNO_OK, segno_model_load(ctx, path, NULL, &model, &err));
}

static void series(const function *f, const variant *v, progress *at) {
    outcome expected = {0};
    int lost = 0;
    for (int i = 0; i < 3; i++) {
        load();
        make_world();
        expected = call(f, v, 0, 0);
        forget_freed(f);
        end_world();
    }
    for (;; at->number = lost > 0 ? at->number : after(at)) {
        alarm(60);
        load();
        long before = live;
        make_world();
        outcome got = call(f, v, at->number, at->from_there_on ? INT32_MAX : at->number);
        long refusals = refused;
        int as_before = same(got, expected);
        /* Whether memory or the number of threads is short the C library does not tell who starts one. */
        int starts_threads = f->call == call_segno_ctx_create || f->call == call_segno_session_submit ||
            f->call == call_segno_session_poll || f->call == call_segno_chat_submit || f->call == call_segno_chat_poll;
        int no_thread = got.status == SEGNO_E_DEVICE && starts_threads;
        if (got.status != SEGNO_E_OUT_OF_MEMORY && !as_before && !no_thread) {
            fprintf(stderr, "%s, %s: refusal of %s%ld: %s, expected %s or out of memory\n", f->name, v->name,
                at->from_there_on ? "all from " : "", at->number, segno_status_str(got.status),
                segno_status_str(expected.status));
            exit(1);
        }
        forget_freed(f);
        if (!as_before) begin_reply(f);
        if (!as_before && !f->is_free && !same(call(f, v, 0, 0), expected)) {
            fprintf(stderr, "%s, %s: does not work after refusal of %ld\n", f->name, v->name, at->number);
            exit(1);
        }
        end_world();
        if (refusals == 0) break;
        at->refusals += refusals;
        at->without_error += as_before;
        /* What is kept for the next call may have grown once. */
        if (live > before && ++lost < 3) {
            continue;
        }
        if (live > before) {
            fprintf(stderr, "%s, %s: %ld bytes lost after refusal of %s%ld\n", f->name, v->name, live - before,
                at->from_there_on ? "all from " : "", at->number);
            exit(1);
        }
        lost = 0;
    }
    segno_model_free(model);
    segno_ctx_free(ctx);
    at->done = 1;
}

/* Runs a series to its end, again behind each call that ended the process; how many did. */
static int watch(const function *f, const variant *v, int from_there_on, int each, progress *at) {
    int ended = 0;
    *at = (progress){.number = 1, .from_there_on = from_there_on, .each = each};
    while (!at->done) {
        fflush(NULL);
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            series(f, v, at);
            exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child);
        if (WIFEXITED(status) && WEXITSTATUS(status) != 0) exit(1);
        if (WIFSIGNALED(status)) {
            fprintf(stderr, "%s, %s: refusal of %s%ld ended the process by signal %d\n", f->name, v->name,
                from_there_on ? "all from " : "", at->number, WTERMSIG(status));
            at->number = after(at);
            ended++;
        }
    }
    return ended;
}

static void read_model(void) {
    FILE *stream = fopen(path, "rb");
    CHECK(stream != NULL && fseek(stream, 0, SEEK_END) == 0);
    file_bytes = (size_t)ftell(stream);
    rewind(stream);
    file = malloc(file_bytes);
    CHECK(file != NULL && fread(file, 1, file_bytes, stream) == file_bytes && fclose(stream) == 0);
}

/* What became of many series. */
typedef struct {
    long refusals, without_error;
    int ended;
} totals;

/* Every series of the functions of that name, or of all: each refuses one allocation a call, or all from one on. */
static totals all_series(int from_there_on, const char *name, progress *at) {
    totals sum = {0};
    for (size_t i = 0; i < FUNCTIONS * VARIANTS; i++) {
        const function *f = &functions[i / VARIANTS];
        const variant *v = &variants[i % VARIANTS];
        if (!v->suits(f) || (name != NULL && strcmp(name, f->name) != 0)) continue;
        sum.ended += watch(f, v, from_there_on, name != NULL, at);
        sum.refusals += at->refusals;
        sum.without_error += at->without_error;
        if (name != NULL)
            printf("%s, %s%s: %ld refusals, %ld without an error\n", f->name, v->name,
                from_there_on ? ", all from there on" : "", at->refusals, at->without_error);
    }
    return sum;
}

/* What two processes share: each kind of series has one of its own, as they take minutes. */
typedef struct {
    progress at[2];
    totals sums[2];
} shared;

int main(int argc, char **argv) {
    CHECK(argc >= 2);
    const char *name = argc > 2 ? argv[2] : NULL;
    path = argv[1];
    read_model();
    shared *both = mmap(NULL, sizeof *both, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(both != MAP_FAILED);
    fflush(NULL);
    pid_t other = fork();
    CHECK(other >= 0);
    int which = other == 0;
    both->sums[which] = all_series(which, name, &both->at[which]);
    if (other == 0) exit(0);
    int status;
    CHECK(waitpid(other, &status, 0) == other && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    free(file);
    const totals *sums = both->sums;
    long refusals = sums[0].refusals + sums[1].refusals, without_error = sums[0].without_error + sums[1].without_error;
    int ended = sums[0].ended + sums[1].ended;
    if (name == NULL) CHECK(refusals > 5000 && without_error < refusals);
    printf("refused: %ld allocations, %ld without an error, %d ended the process\n", refusals, without_error, ended);
    return ended > 0;
}
