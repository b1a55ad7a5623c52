#!/usr/bin/env bash
# Runs the tests of the CUDA backend on a machine with a GPU, in a folder that package.sh made: correctness, the kernels compiled by the driver,
# the scan for divergence, sanitizers, then speed. Everything is logged; a line for each step tells how it ended. Exits with 1 when a step failed.
#
# usage: run.sh LOGS [PART...]     parts: tests jit diverge sanitizers speed; all by default
#   SPEED   models to measure, "SHAPE.TYPE" as synth_gguf names them
#   TYPES   models of which only one sequence is measured, for how fast a storage type is; Q2_K, every matrix of that type, and the mixes that
#           llama-quantize calls Q2_K and Q2_K_S by default
#   EMBED   models of which it is measured how fast they make vectors of texts
#   SYNTH   folder of such models that are there already
set -uo pipefail
logs=$(mkdir -p "$1" && cd "$1" && pwd)
shift
parts=${*:-tests jit diverge sanitizers speed}
cd "$(dirname "$0")"
export SEGNO_TEST_ROOT=$PWD/root SEGNO_TEST_DATA=$PWD/data
synth=${SYNTH:-$(mktemp -d)}
speed=${SPEED:-qwen2.5-0.5b.Q8_0 llama-3.2-1b.Q4_K_M qwen2.5-1.5b.Q4_K_M llama-3.1-8b.Q4_K_M}
types=${TYPES:-llama-3.2-1b.Q2_K llama-3.2-1b.Q2_K_MIX llama-3.2-1b.Q2_K_S}
embed=${EMBED:-qwen3-0.6b.Q8_0 embeddinggemma-300m.Q8_0}
failures=0
began=$SECONDS
chmod +x bin/*

wants() { [[ " $parts " == *" $1 "* ]]; }

# step LOG SECONDS NAME COMMAND...: runs a command into a log. `expected` is the exit status that is right.
expected=0
step() {
    local log=$logs/$1.txt limit=$2 name=$3 start=$SECONDS status
    shift 3
    printf '\n$ %s\n' "$*" >> "$log"
    timeout "$limit" "$@" >> "$log" 2>&1
    status=$?
    local verdict=passed
    if [ "$status" != "$expected" ]; then verdict="FAILED ($status)" failures=$((failures + 1)); fi
    echo "$verdict: $name, $((SECONDS - start)) s" | tee -a "$log" "$logs/summary.txt"
}

# Races in any kernel but one: racecheck does not know meetings at barriers in shared memory (kernels/lab/meeting.cu), which gemm_i8_specialized_32_8 has, and fails itself
# where it is to leave out a kernel of clusters. Nor does it know who may fill a ring again by bulk copies, so kernels of large matrices are not tried.
races() {
    local report status
    report=$(mktemp)
    compute-sanitizer --tool racecheck "$@" > "$report" 2>&1
    cat "$report"
    grep -q "RACECHECK SUMMARY" "$report" && grep -q "test result: ok" "$report" && ! grep " reported between " "$report" | grep -qv "gemm_i8_specialized_32_8"
    status=$?
    rm -f "$report"
    return $status
}
export -f races

{
    echo "commit $(cat commit)"
    nvidia-smi --query-gpu=name,driver_version,memory.total,compute_cap --format=csv,noheader
    date -u +%FT%TZ
} | tee "$logs/summary.txt"
for log in tests jit diverge sanitizers speed; do
    if wants "$log"; then cp "$logs/summary.txt" "$logs/$log.txt"; fi
done

# Written meanwhile: the large models take the processor a while.
if wants speed; then
    for model in $(printf '%s\n' $speed $types $embed | sort -u); do
        [ -f "$synth/$model.gguf" ] || { bin/synth_gguf "${model%.*}" "${model##*.}" "$synth/$model.part" > /dev/null &&
            mv "$synth/$model.part" "$synth/$model.gguf"; } &
    done
fi

if wants tests; then
    # Modules one after the other, each in a process of its own: they share the device.
    for module in devices options lowering programs windows types kernels ops batches divided fast embeddings sample masks sessions adapters adapter_launches states drafts predictors eagle speculation models; do
        step tests 150 "$module" bin/cuda $module:: --show-output
    done
    for test in cuda_memory cuda_crowd cuda_steps cuda_fault allocation; do
        step tests 150 "$test" bin/$test --show-output
    done
fi
if wants jit; then
    for module in models sessions; do
        step jit 150 "$module, compiled by the driver" env CUDA_FORCE_PTX_JIT=1 bin/cuda $module:: --show-output
    done
fi
if wants diverge; then
    for model in root/examples/models/shakespeare.gguf data/models/stories260K.gguf; do
        [ -f $model ] || continue
        step diverge 60 "no divergence in $model" bin/diverge $model 0 64
        step diverge 60 "no divergence in $model at 500, eight at once" bin/diverge $model 500 20 8
    done
    expected=1
    step diverge 60 "a launch left out is found" bin/diverge root/examples/models/shakespeare.gguf 40 8 1 --without 6
    expected=0
fi
if wants sanitizers; then
    tiny=(bin/cuda models::a_little_of_everything --show-output) few=(bin/cuda batches::a_few_rows_of_large --show-output)
    step sanitizers 150 memcheck compute-sanitizer --tool memcheck --error-exitcode 9 "${tiny[@]}"
    step sanitizers 100 "memcheck of experts" compute-sanitizer --tool memcheck --kernel-name kernel_substring=expert --error-exitcode 9 bin/cuda ops::experts --show-output
    step sanitizers 100 "memcheck of embeddings" compute-sanitizer --tool memcheck --error-exitcode 9 bin/cuda embeddings::rerankers --show-output
    step sanitizers 100 "memcheck of few rows" compute-sanitizer --tool memcheck --kernel-name kernel_substring=gemm_i8_small_batch --error-exitcode 9 "${few[@]}"
    step sanitizers 300 racecheck bash -c 'races "$@"' races "${tiny[@]}"
    step sanitizers 150 "memcheck of fast batches" compute-sanitizer --tool memcheck --error-exitcode 9 bin/cuda fast::padding --show-output
fi
if wants speed; then
    wait
    for model in $speed $types $embed; do
        [ -f "$synth/$model.gguf" ] || { echo "FAILED: $model was not written" | tee -a "$logs/summary.txt"; failures=$((failures + 1)); }
    done
    files=() typed=() embedded=()
    for model in $speed; do files+=("$synth/$model.gguf"); done
    for model in $types; do typed+=("$synth/$model.gguf"); done
    for model in $embed; do embedded+=("$synth/$model.gguf"); done
    step speed 240 "speed" bin/bench_cuda "${files[@]}"
    step speed 120 "speed of fast batches" bin/bench_cuda --fast --contexts "" --no-sampler "${files[@]}"
    if [ -f data/models/smollm2-135m-instruct.gguf ]; then
        step speed 120 "cost of grammars" bin/bench_grammar --cuda data/models/smollm2-135m-instruct.gguf
    fi
    step speed 120 "speed of embeddings" bin/bench_embeddings --cuda --texts 128 "${embedded[@]}"
    step speed 120 "speed of embeddings in fast batches" bin/bench_embeddings --cuda --fast --texts 128 "${embedded[@]}"
    step speed 120 "speed of storage types" bin/bench_cuda --prompts "" --batches "" --beside "" --no-sampler "${typed[@]}"
    step tests 150 "accuracy at full depth" env SEGNO_CUDA_MODELS="$synth/${speed%% *}.gguf" bin/cuda models::logits_are --show-output
fi
echo "$failures steps failed, $((SECONDS - began)) s" | tee -a "$logs/summary.txt"
[ "$failures" = 0 ]
