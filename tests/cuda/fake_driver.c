/* A CUDA driver without a device, for tests on machines that have none. Its memory is the host's, its streams end at
 * once, and what its kernels do is up to the test. It counts what lives, and fails or hangs when it is told to. The
 * environment describes it: FAKE_VERSION, FAKE_INIT (what cuInit answers), FAKE_DEVICES. For one thread at a time. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int Result;
enum {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    INVALID_CONTEXT = 201,
    NOT_READY = 600,
    FUNCTIONS = 512,
    DEPTH = 16,
    ASIDE = 4096
};

/* Captures a launch of a kernel with its arguments, runs what was captured, and gives it up. */
typedef struct {
    void *(*capture)(const char *name, void **arguments);
    void (*run)(void *launch);
    void (*drop)(void *launch);
} Kernels;

static Kernels kernels;
static long live, calls, failing_call = -1, used, total = 1L << 40;
static Result failure, broken;
static int hanging;
static const char *failing_name;
static void *stack[DEPTH];
static int depth;
static char names[FUNCTIONS][64];
static char context, host_context;
static int last_priority;

void fake_kernels(const Kernels *given) { kernels = *given; }
long fake_live(void) { return live + depth; }
long fake_calls(void) { return calls; }
void fake_memory(long bytes) { total = bytes; }
/* A context of the host's own, which the library neither makes nor gives back. */
void *fake_host_context(void) { return &host_context; }
int fake_priority(void) { return last_priority; }

/* From call number `at` on every call fails, as after a fault; or each call of `name` does, and no other. */
void fake_fail(long at, const char *name, Result result) {
    failing_call = at < 0 ? -1 : calls + at;
    failing_name = name;
    failure = result;
    broken = SUCCESS;
}

static Result answer(const char *name) {
    if (calls++ == failing_call) broken = failure;
    if (failing_name && strcmp(name, failing_name) == 0) return failure;
    return broken;
}

#define CALL(...)                             \
    do {                                      \
        Result result = answer(__func__);     \
        if (result != SUCCESS) return result; \
        __VA_ARGS__;                          \
        return SUCCESS;                       \
    } while (0)
/* What gives something up does so even when it reports an earlier fault. */
#define RELEASE(...)               \
    do {                           \
        wait_for_device(__func__); \
        __VA_ARGS__;               \
        return answer(__func__);   \
    } while (0)

/* What a real driver would wait in for ever ends the program. */
static void wait_for_device(const char *name) {
    if (!hanging) return;
    fprintf(stderr, "%s waits for a device that hangs\n", name);
    abort();
}

static long number(const char *name, long otherwise) {
    const char *text = getenv(name);
    return text ? atol(text) : otherwise;
}

/* Memory of the device counts as used; its size stands in front of it. */
static void *take(size_t bytes, int on_device) {
    char *memory = calloc(1, bytes + 16);
    *(size_t *)memory = on_device ? bytes : 0;
    used += on_device ? (long)bytes : 0;
    live++;
    return memory + 16;
}

static void give_back(void *memory) {
    char *start = (char *)memory - 16;
    used -= (long)*(size_t *)start;
    live--;
    free(start);
}

Result cuDriverGetVersion(int *version) { CALL(*version = (int)number("FAKE_VERSION", 13000)); }
Result cuInit(unsigned flags) {
    (void)flags;
    calls++;
    return (Result)number("FAKE_INIT", SUCCESS);
}
Result cuGetErrorString(Result result, const char **text) {
    *text = result == OUT_OF_MEMORY ? "out of memory" : "made to fail";
    return SUCCESS;
}
Result cuDeviceGetCount(int *count) { CALL(*count = (int)number("FAKE_DEVICES", 1)); }
Result cuDeviceGet(int *device, int ordinal) { CALL(*device = ordinal); }
Result cuDeviceGetName(char *name, int length, int device) {
    CALL(snprintf(name, (size_t)length, "no device %d", device));
}
Result cuDeviceGetAttribute(int *value, int attribute, int device) {
    (void)attribute, (void)device;
    CALL(*value = 9);
}
Result cuMemGetInfo_v2(size_t *free_bytes, size_t *all) {
    CALL(*all = (size_t)total, *free_bytes = (size_t)(total - used));
}

Result cuDevicePrimaryCtxRetain(void **out, int device) {
    (void)device;
    CALL(*out = &context, live++);
}
Result cuDevicePrimaryCtxRelease_v2(int device) {
    (void)device;
    RELEASE(live--);
}
/* The stack of contexts is the thread's own, and works after a fault too. */
Result cuCtxPushCurrent_v2(void *pushed) {
    if (pushed != &context && pushed != &host_context) return INVALID_CONTEXT;
    return depth == DEPTH ? INVALID_VALUE : (stack[depth++] = pushed, SUCCESS);
}
Result cuCtxPopCurrent_v2(void **popped) { return depth == 0 ? INVALID_VALUE : (*popped = stack[--depth], SUCCESS); }
Result cuCtxGetDevice(int *device) { CALL(if (depth == 0) return INVALID_CONTEXT; *device = 0); }
Result cuCtxGetStreamPriorityRange(int *least, int *greatest) { CALL(*least = 0, *greatest = -5); }
Result cuCtxGetCurrent(void **current) { CALL(*current = depth ? stack[depth - 1] : NULL); }

Result cuMemAlloc_v2(uint64_t *out, size_t bytes) {
    CALL(if ((long)bytes > total - used) return OUT_OF_MEMORY; *out = (uint64_t)(uintptr_t)take(bytes, 1));
}
Result cuMemFree_v2(uint64_t memory) { RELEASE(give_back((void *)(uintptr_t)memory)); }
/* Large blocks of host memory are kept for the next who wants as much: fresh pages cost the system time, over and over.
 */
static struct {
    void *memory;
    size_t bytes;
    int taken;
} kept[4];

Result cuMemHostAlloc(void **out, size_t bytes, unsigned flags) {
    (void)flags;
    Result result = answer(__func__);
    if (result != SUCCESS) return result;
    for (int i = 0; i < 4 && bytes >= 1 << 20; i++) {
        if (kept[i].memory == NULL) kept[i].memory = malloc(bytes), kept[i].bytes = bytes;
        if (kept[i].taken || kept[i].bytes != bytes) continue;
        kept[i].taken = 1, live++;
        return *out = kept[i].memory, SUCCESS;
    }
    return *out = take(bytes, 0), SUCCESS;
}
static void give_back_host(void *memory) {
    for (int i = 0; i < 4; i++) {
        if (kept[i].memory == memory) {
            kept[i].taken = 0, live--;
            return;
        }
    }
    give_back(memory);
}
Result cuMemFreeHost(void *memory) { RELEASE(give_back_host(memory)); }
Result cuMemHostGetDevicePointer_v2(uint64_t *out, void *memory, unsigned flags) {
    (void)flags;
    CALL(*out = (uint64_t)(uintptr_t)memory);
}
/* Calls of the default stream are left out on purpose: no stream of the library waits for it. */
Result cuMemsetD8Async(uint64_t to, unsigned char byte, size_t bytes, void *stream) {
    (void)stream;
    /* Memory is zero when it is taken. */
    CALL(if (byte != 0) memset((void *)(uintptr_t)to, byte, bytes));
}
Result cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *stream) {
    (void)stream;
    CALL(memcpy((void *)(uintptr_t)to, from, bytes));
}
Result cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *stream) {
    (void)stream;
    CALL(memcpy(to, (void *)(uintptr_t)from, bytes));
}
Result cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void *stream) {
    (void)stream;
    CALL(memmove((void *)(uintptr_t)to, (void *)(uintptr_t)from, bytes));
}

Result cuModuleLoadData(void **out, const void *image) {
    (void)image;
    CALL(*out = take(1, 0));
}
Result cuModuleUnload(void *module) { RELEASE(give_back(module)); }
Result cuModuleGetFunction(void **out, void *module, const char *name) {
    (void)module;
    Result result = answer(__func__);
    if (result != SUCCESS) return result;
    for (int i = 0; i < FUNCTIONS; i++) {
        if (names[i][0] == 0) snprintf(names[i], sizeof names[i], "%s", name);
        if (strcmp(names[i], name) == 0) return *out = names[i], SUCCESS;
    }
    return INVALID_VALUE;
}
Result cuFuncGetAttribute(int *value, int attribute, void *function) {
    (void)attribute, (void)function;
    CALL(*value = 90);
}
Result cuFuncSetAttribute(void *function, int attribute, int value) {
    (void)attribute, (void)function, (void)value;
    CALL();
}

Result cuStreamCreate(void **out, unsigned flags) {
    (void)flags;
    CALL(*out = take(1, 0));
}
Result cuStreamCreateWithPriority(void **out, unsigned flags, int priority) {
    (void)flags;
    CALL(*out = take(1, 0); last_priority = priority);
}
/* Streams end at once, so whoever comes to a gate finds it as open as it will ever be. */
Result cuStreamWaitValue32_v2(void *stream, uint64_t gate, unsigned value, unsigned flags) {
    (void)stream, (void)gate, (void)value, (void)flags;
    CALL();
}
Result cuStreamDestroy_v2(void *stream) { RELEASE(give_back(stream)); }
Result cuStreamSynchronize(void *stream) {
    (void)stream;
    wait_for_device(__func__);
    CALL();
}
Result cuStreamQuery(void *stream) {
    (void)stream;
    CALL(if (hanging) return NOT_READY);
}

/* Events count the moments at which they were recorded, two microseconds apart. */
static long moment;
Result cuEventCreate(void **out, unsigned flags) {
    (void)flags;
    CALL(*out = take(sizeof(long), 0));
}
Result cuEventRecord(void *event, void *stream) {
    (void)stream;
    CALL(*(long *)event = ++moment);
}
Result cuEventElapsedTime(float *milliseconds, void *begin, void *end) {
    CALL(*milliseconds = 0.002f * (float)(*(long *)end - *(long *)begin));
}
Result cuEventDestroy_v2(void *event) { RELEASE(give_back(event)); }

Result cuOccupancyMaxActiveBlocksPerMultiprocessor(int *out, void *function, int threads, size_t shared) {
    (void)function, (void)threads, (void)shared;
    CALL(*out = 1);
}

/* Launches that were started while the device hangs, and whether each is given up once it has run. */
static struct {
    void *launch;
    int once;
} aside[ASIDE];
static int put_aside;

static void start(void *launch, int once) {
    if (hanging && put_aside < ASIDE) {
        aside[put_aside].launch = launch, aside[put_aside++].once = once;
        return;
    }
    kernels.run(launch);
    if (once) kernels.drop(launch);
}

/* From now on no stream ends, until the device goes on and does what it was given meanwhile. */
void fake_hang(int on) {
    hanging = on;
    if (on) return;
    for (int i = 0; i < put_aside; i++) start(aside[i].launch, aside[i].once);
    put_aside = 0;
}

Result cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned block_x, unsigned block_y,
    unsigned block_z, unsigned shared, void *stream, void **arguments, void **extra) {
    (void)block_y, (void)block_z, (void)shared, (void)stream, (void)extra;
    Result result = answer(__func__);
    if (result != SUCCESS) return result;
    if (x == 0 || y == 0 || z == 0 || block_x == 0) return INVALID_VALUE;
    start(kernels.capture(function, arguments), 1);
    return SUCCESS;
}

/* A graph is a list of captured launches; one that was instantiated shares them and outlives the other. */
typedef struct {
    void *launches[4096];
    int count, holders;
} Graph;
typedef struct {
    void *function;
    unsigned x, y, z, block_x, block_y, block_z, shared;
    void **arguments, **extra;
} Node;

static void release_graph(Graph *graph) {
    live--;
    if (--graph->holders > 0) return;
    for (int i = 0; i < graph->count; i++) kernels.drop(graph->launches[i]);
    free(graph);
}

Result cuGraphCreate(void **out, unsigned flags) {
    (void)flags;
    CALL(Graph *graph = calloc(1, sizeof *graph); graph->holders = 1; live++; *out = graph);
}
Result cuGraphAddKernelNode_v2(void **out, void *graph, const void **after, size_t count, const Node *node) {
    (void)after, (void)count;
    Graph *list = graph;
    CALL(list->launches[list->count++] = kernels.capture(node->function, node->arguments);
        *out = &list->launches[list->count - 1]);
}
Result cuGraphAddDependencies_v2(void *graph, const void **from, const void **to, const void *edges, size_t count) {
    (void)graph, (void)from, (void)to, (void)edges, (void)count;
    CALL();
}
Result cuGraphInstantiateWithFlags(void **out, void *graph, unsigned long long flags) {
    (void)flags;
    CALL(((Graph *)graph)->holders++; live++; *out = graph);
}
Result cuGraphUpload(void *graph, void *stream) {
    (void)graph, (void)stream;
    CALL();
}
Result cuGraphLaunch(void *graph, void *stream) {
    (void)stream;
    CALL(Graph *list = graph; for (int i = 0; i < list->count; i++) start(list->launches[i], 0));
}
Result cuGraphDestroy(void *graph) { RELEASE(release_graph(graph)); }
Result cuGraphExecDestroy(void *graph) { RELEASE(release_graph(graph)); }
