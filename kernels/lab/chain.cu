// The products of a step of one row, chained in a graph as the library chains them, without attention and the step's
// ends: what rows a warp and the stages of rings cost. Weights are random bytes, different ones in every layer. Prints
// the median time of the whole chain, and for each kind of launch its blocks, what the chain loses when that kind is
// left out, and its share of the byte floor.
//
// usage: chain SHAPE[.TYPE] [KIND=ROWS,STAGES[,UNITS]]...     KIND is qkv, out, gate, down or head; SHAPE is 0.5b,
// 1b, 1.5b or 8b; TYPE is that of all matrices, as in Q4_0, in place of the mix of the shape
#include "gemv/gemv_b1.cu"
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

// Bytes a microsecond that one H200 reads at best.
constexpr double READ_BYTES_A_US = 4541e3;
constexpr int REPLAYS = 300;
// As in the library: quantized products ask for so much shared memory that no SM takes more blocks than its share,
// where that pays.
constexpr uint32_t PROCESSORS = 132, SHARED_OF_PROCESSOR = 228 << 10, SHARED_OF_BLOCK = 10 << 10;

#define CHECK(call) check(call, #call)
static void check(cudaError_t result, const char *call) {
    if (result == cudaSuccess) return;
    fprintf(stderr, "%s: %s\n", call, cudaGetErrorString(result));
    exit(1);
}

enum Kind { QKV, OUT, GATE, DOWN, HEAD, KINDS };
constexpr const char *NAMES[] = {"qkv", "out", "gate", "down", "head"};

// Rows a warp (pairs for the gated unit), stages of a ring, and units of a stage.
struct Tiles {
    uint32_t rows, stages, units = 4;
};

struct Type {
    const char *name;
    DType type;
};
constexpr Type TYPES[] = {
#define WEIGHT_TYPE(name, ...) {#name, name},
#include "quant/types.def"
};

// A kernel, and the types that it multiplies by.
struct Kernel {
    DType type, other;
    void (*launch)(MatvecArgs, Shape);
};
const Kernel KERNELS[] = {
#define GEMV_B1(family, file, name, TYPE, OTHER) {TYPE, OTHER, name},
#define GEMV_B1_FLOAT(family, file, name, TYPE) {TYPE, TYPE, name},
#include "kernels.def"
};

struct Model {
    const char *name;
    uint32_t layers, width, kv_width, hidden, vocab;
    DType most, some;    // of most matrices, and of values, half of the down projections, and the head
    Tiles tiles[KINDS];  // those of the library
};
constexpr Model MODELS[] = {{"0.5b", 24, 896, 128, 4864, 151936, Q8_0, Q8_0, {{1, 1}, {1, 1}, {4, 4}, {1, 2}, {16, 4}}},
    {"1b", 16, 2048, 512, 8192, 128256, Q4_K, Q6_K, {{2, 1}, {2, 3}, {4, 2}, {2, 4}, {16, 2}}},
    {"1.5b", 28, 1536, 256, 8960, 151936, Q4_K, Q6_K, {{2, 3}, {2, 3}, {4, 2}, {1, 3}, {16, 2}}},
    {"8b", 32, 4096, 1024, 14336, 128256, Q4_K, Q6_K, {{2, 2}, {2, 2}, {4, 2}, {2, 3}, {16, 2}}}};

// A launch, and how many bytes of weights it reads.
struct Step {
    Kind kind;
    MatvecArgs args;
    uint32_t tiles, shared;
    size_t bytes;
};

__global__ void scatter(uint32_t *words, size_t count) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count; i += (size_t)gridDim.x * blockDim.x) {
        words[i] = (uint32_t)(i * 2654435761u) ^ (uint32_t)(i >> 7) * 40503u;
    }
}

template <typename T>
static T *device(size_t count) {
    void *memory;
    const size_t words = (count * sizeof(T) + 3) / 4;
    CHECK(cudaMalloc(&memory, words * 4));
    scatter<<<512, 256>>>((uint32_t *)memory, words);
    return (T *)memory;
}

static Matrix matrix(DType type, uint32_t rows, uint32_t cols) {
    if (type < Q8_0) return Matrix{device<uint8_t>((size_t)rows * cols * 2), cols * 2, 512, type, rows, cols, 0};
    const uint32_t whole = bytes_of_slice(type, SLICE_GROUPS), rest = cols % QUANT_COLS / 32;
    const uint32_t row_bytes = cols / QUANT_COLS * whole + (rest ? bytes_of_slice(type, rest) : 0);
    return Matrix{device<uint8_t>((size_t)rows * row_bytes), row_bytes, whole, type, rows, cols, 0};
}

static uint32_t unit_bytes(const Matrix &m) { return m.dtype < Q8_0 ? 2 * m.slice_bytes : m.slice_bytes; }

struct Chain {
    const Model &model;
    Tiles tiles[KINDS];
    float *norm, *x, *hidden;
    int8_t *q;
    Meta *meta;
    unsigned long long *best;
    std::vector<Step> steps;

    Chain(const Model &model, const Tiles (&chosen)[KINDS]) : model(model) {
        std::copy(chosen, chosen + KINDS, tiles);
        const uint32_t most = std::max(model.hidden, model.width);
        norm = device<float>(most), x = device<float>(most), hidden = device<float>(std::max(most, model.vocab));
        q = device<int8_t>(most), meta = device<Meta>(most / 32), best = device<unsigned long long>(1);
        for (uint32_t layer = 0; layer < model.layers; layer++) {
            const DType some = layer % 2 ? model.some : model.most;
            add(QKV, model.width, {{model.most, model.width}, {model.most, model.kv_width}, {some, model.kv_width}});
            add(OUT, model.width, {{model.most, model.width}});
            add(GATE, model.width, {{model.most, model.hidden}, {model.most, model.hidden}});
            add(DOWN, model.hidden, {{some, model.width}});
        }
        add(HEAD, model.width, {{model.some, model.vocab}});
    }

    void add(Kind kind, uint32_t cols, const std::vector<std::pair<DType, uint32_t>> &parts) {
        Step step{kind, {}, 0, 0, 0};
        MatvecArgs &args = step.args;
        const Activation input{x, q, meta, nullptr};
        args.x = input, args.eps = 1e-5f, args.cols = cols, args.count = parts.size();
        args.norm = kind == OUT || kind == DOWN ? nullptr : norm;
        if (kind == GATE) args.gated = Activation{hidden, q, meta, nullptr}, args.unit = Sigmoid{1.0f, 0.0f};
        if (kind == HEAD) args.best = best;
        args.rows_a_warp = tiles[kind].rows, args.stages = tiles[kind].stages, args.units = tiles[kind].units;
        for (size_t i = 0; i < parts.size(); i++) {
            const Matrix m = matrix(parts[i].first, parts[i].second, cols);
            args.segments[i] = Segment{m, nullptr, hidden, step.tiles, kind == OUT || kind == DOWN ? 1.0f : 0.0f};
            args.stage_bytes = std::max(args.stage_bytes, std::min(args.units * unit_bytes(m), 2 * m.row_bytes));
            step.bytes += (size_t)m.rows * m.row_bytes;
            if (kind != GATE || i == 0)
                step.tiles += (m.rows + WARPS * args.rows_a_warp - 1) / (WARPS * args.rows_a_warp);
        }
        step.shared = WARPS * args.stages * args.stage_bytes +
            (model.most < Q8_0 ? 4 * cols : (cols + QUANT_COLS - 1) / QUANT_COLS * ROW_OF_UNIT);
        const uint32_t each = (step.tiles + PROCESSORS - 1) / PROCESSORS;
        const bool is_even = 10 * step.tiles >= 9 * each * PROCESSORS;
        if (model.most >= Q8_0 && (is_even || (args.norm != nullptr && each <= 2))) {
            step.shared = std::max(step.shared, SHARED_OF_PROCESSOR / (each + 1) - SHARED_OF_BLOCK);
        }
        steps.push_back(step);
    }

    auto kernel() const {
        const auto takes = [&](const Kernel &kernel) {
            return kernel.type == model.most || kernel.other == model.most;
        };
        return std::find_if(KERNELS, std::end(KERNELS), takes)->launch;
    }

    // Median microseconds of a replay without the launches of one kind.
    double time(int without) const {
        CHECK(cudaFuncSetAttribute(kernel(), cudaFuncAttributeMaxDynamicSharedMemorySize, 200 << 10));
        CHECK(cudaFuncSetAttribute(
            kernel(), cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared));
        cudaStream_t stream;
        cudaGraph_t graph;
        cudaGraphExec_t exec;
        CHECK(cudaStreamCreate(&stream));
        CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
        cudaLaunchAttribute early{};
        early.id = cudaLaunchAttributeProgrammaticStreamSerialization,
        early.val.programmaticStreamSerializationAllowed = 1;
        for (const Step &step : steps) {
            if (step.kind == without) continue;
            cudaLaunchConfig_t config{dim3(step.tiles), dim3(WARPS * WARP), step.shared, stream, &early, 1};
            CHECK(cudaLaunchKernelEx(&config, kernel(), step.args, Shape{1, 1, 1, 0}));
        }
        CHECK(cudaStreamEndCapture(stream, &graph));
        CHECK(cudaGraphInstantiate(&exec, graph, 0));
        cudaEvent_t begin, end;
        CHECK(cudaEventCreate(&begin)), CHECK(cudaEventCreate(&end));
        std::vector<float> times(REPLAYS);
        for (float &time : times) {
            CHECK(cudaEventRecord(begin, stream)), CHECK(cudaGraphLaunch(exec, stream)),
                CHECK(cudaEventRecord(end, stream));
            CHECK(cudaEventSynchronize(end)), CHECK(cudaEventElapsedTime(&time, begin, end));
        }
        std::nth_element(times.begin(), times.begin() + REPLAYS / 2, times.end());
        CHECK(cudaGraphExecDestroy(exec)), CHECK(cudaGraphDestroy(graph)), CHECK(cudaStreamDestroy(stream));
        return 1e3 * times[REPLAYS / 2];
    }

    void report() const {
        size_t all = 0;
        for (const Step &step : steps) all += step.bytes;
        const double whole = time(KINDS);
        const char *type =
            std::find_if(TYPES, std::end(TYPES), [&](const Type &type) { return type.type == model.most; })->name;
        printf("%s.%s: %.1f us, floor %.1f\n", model.name, type, whole, all / READ_BYTES_A_US);
        for (int kind = 0; kind < KINDS; kind++) {
            const auto of_kind = [&](const Step &step) { return step.kind == kind; };
            const double count = std::count_if(steps.begin(), steps.end(), of_kind),
                         share = (whole - time(kind)) / count;
            const Step &step = *std::find_if(steps.begin(), steps.end(), of_kind);
            size_t bytes = 0;
            for (const Step &other : steps) bytes += other.kind == kind ? other.bytes : 0;
            printf("  %-4s %3u blocks, rows %2u, stages %u of %u units, shared %6u: %6.2f us each, floor %.2f\n",
                NAMES[kind], step.tiles, step.args.rows_a_warp, step.args.stages, step.args.units, step.shared, share,
                bytes / count / READ_BYTES_A_US);
        }
    }
};

int main(int count, char **words) {
    const std::string named = count > 1 ? words[1] : "", shape = named.substr(0, named.find('.', 2));
    const std::string type = named.substr(std::min(named.size(), shape.size() + 1));
    const Model *found = nullptr;
    for (const Model &other : MODELS) found = shape == other.name ? &other : found;
    Model model = found != nullptr ? *found : MODELS[0];
    bool is_right = found != nullptr && type.empty();
    for (const Type &other : TYPES) {
        if (found != nullptr && type == other.name) model.most = model.some = other.type, is_right = true;
    }
    for (int i = 2; i < count; i++) {
        Tiles chosen;
        char name[8];
        is_right =
            is_right && sscanf(words[i], "%7[a-z]=%u,%u,%u", name, &chosen.rows, &chosen.stages, &chosen.units) >= 3;
        const int kind = std::find(NAMES, NAMES + KINDS, std::string(name)) - NAMES;
        is_right = is_right && kind < KINDS;
        if (is_right) model.tiles[kind] = chosen;
    }
    if (!is_right) {
        fprintf(stderr, "usage: chain 0.5b|1b|1.5b|8b[.TYPE] [qkv|out|gate|down|head=ROWS,STAGES[,UNITS]]...\n");
        return 2;
    }
    Chain(model, model.tiles).report();
}
