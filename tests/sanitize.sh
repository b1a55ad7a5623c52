#!/usr/bin/env bash
# C tests under AddressSanitizer and UndefinedBehaviorSanitizer, Rust tests under AddressSanitizer: no invalid access, nothing lost. Cargo
# builds the library with the sanitizer and without CUDA; programs and tests are linked with it here, because cargo would build the tools of
# benchmarks and header too. The Rust tests are a choice, for the sake of time: those that read what others wrote, and that open, cut and free
# in many orders. Tests of time, of memory in use and of failing allocations mean nothing under a sanitizer; the backend for CUDA is left out.
#
# usage: tests/sanitize.sh TARGET_DIR BUILD_DIR MODEL.gguf
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$0")/.."
mkdir -p "$1" "$2/sanitize"
target=$(cd "$1" && pwd) build=$(cd "$2/sanitize" && pwd) model=$3
triple=x86_64-unknown-linux-gnu
# A line a folder of tests, with the modules that run, and those that they need without colons: others are not compiled.
tests="files gguf:: model_files::
cpu families:: reference::
api sequences:: sessions:: text:: chats::
text tokenizer::
hostile files:: damage dice gguf host keys memory models mutation"
# What the tests run by cargo say through their environment: the root of the package and a folder for files.
export CARGO_MANIFEST_DIR=$PWD CARGO_TARGET_TMPDIR=$build
# The stable compiler has the sanitizer, but not for everyone.
export RUSTC_BOOTSTRAP=1
export ASAN_OPTIONS=detect_leaks=1:detect_stack_use_after_return=1

if [ "$(uname -m)" != x86_64 ]; then
    exec tests/skip.sh machine "sanitizers: for x86-64 only"
fi

# Builds and runs a program in C with the library. A failure returns by itself, as the shell does not stop in a function whose result is tested.
run_c() {
    local source=$1 program
    program=$build/$(basename "$1" .c)
    shift
    "${CC:-cc}" -std=c11 -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all -Iinclude \
        -DVERSION_SUFFIX='"+testing"' "$source" \
        "$library/libsegno.a" -lpthread -ldl -lm -o "$program" || return
    tests/watchdog.sh "$program" "$@"
}

# The root of a test program that has no modules but these: FOLDER [MODULE...]. What is told of the first, which all have, stands above.
part_of() {
    local root=tests/$1/main.rs
    shift
    grep -v '^mod ' "$root"
    printf 'mod %s;\n' common "${@%::}" | grep -xFf "$root"
}

# Builds and runs tests in Rust with the library, whose root is read: PROGRAM FOLDER [FILTER...].
run_rust() {
    local program=$build/$1 folder=$2
    shift 2
    (cd "$folder" && rustc --edition 2024 --test - --crate-name "$(basename "$program")" -Zsanitizer=address --target $triple -C opt-level=1 \
        -L "dependency=$library/deps" -L "dependency=$target/debug/deps" --extern "segno=$library/libsegno.rlib" --extern "half=$(crate half)" \
        --extern "serde_json=$(crate serde_json)" --extern "libc=$(crate libc)" --extern "regex_automata=$(crate regex_automata)" \
        --extern "twox_hash=$(crate twox_hash)" -o "$program") || return
    tests/watchdog.sh "$program" "$@" --quiet --skip every_limit_of_a_template --skip truncated_models
}

# The archive that a crate of the build is in.
crate() {
    grep -o "\"[^\"]*/$triple/[^\"]*/lib$1-[0-9a-f]*\.rlib\"" "$build/cargo.json" | tr -d '"'
}

RUSTFLAGS=-Zsanitizer=address CARGO_PROFILE_DEV_OPT_LEVEL=1 CARGO_PROFILE_DEV_DEBUG=0 CARGO_PROFILE_DEV_CODEGEN_UNITS=1 CARGO_INCREMENTAL=0 \
    CARGO_TARGET_DIR=$target "${CARGO:-cargo}" build --locked --quiet --lib --no-default-features --features testing --target $triple \
    --message-format=json > "$build/cargo.json"
library=$target/$triple/debug

# A host that has too little room for what the library writes, one that loses a context and one that adds beyond a number must be caught, or
# the rest of this proves nothing.
cat > "$build/faulty.c" << 'EOF'
#include <segno.h>
#include <limits.h>
#include <stdlib.h>
int main(int argc, char **argv)
{
    segno_ctx *lost = NULL;
    (void)argv;
    // Several, as registers and dead places of the stack may still tell where the last one is.
    for (int i = 0; argc == 1 && i < 9; i++)
        segno_ctx_create(SEGNO_ABI_VERSION, NULL, &lost, NULL);
    if (argc == 2)
        segno_ctx_opts_init(malloc(8), sizeof(segno_ctx_opts));
    lost = NULL;
    return argc == 3 ? INT_MAX + argc : 0;
}
EOF
cat > "$build/leak.rs" << 'EOF'
#[test]
fn memory_is_lost() {
    for _ in 0..9 {
        std::hint::black_box(vec![1u8; 8].leak());
    }
}
EOF
caught() {
    local report=$1
    shift
    if "$@" > "$build/faulty.out" 2>&1 || ! grep -q "$report" "$build/faulty.out"; then
        echo "sanitize: a fault was not caught: $report"
        cat "$build/faulty.out"
        exit 1
    fi
}
caught "detected memory leaks" run_c "$build/faulty.c"
caught heap-buffer-overflow run_c "$build/faulty.c" array
caught "signed integer overflow" run_c "$build/faulty.c" a number
caught "detected memory leaks" run_rust leak "$build" < "$build/leak.rs"

for source in tests/capi/*.c; do
    # It puts an allocator of its own in the place of the sanitizer's.
    [ "$source" != tests/capi/refused.c ] || continue
    echo "sanitize: $source"
    run_c "$source" "$model"
done
export SEGNO_HOSTILE_CASES=400
while read -ra words; do
    echo "sanitize: tests/${words[0]}, ${words[*]:1}"
    part_of "${words[@]}" > "$build/root.rs"
    run_rust "${words[0]}" "tests/${words[0]}" $(grep -o '[a-z_]*::' <<< "${words[*]}") > "$build/rust.out" 2>&1 < "$build/root.rs" ||
        { cat "$build/rust.out"; exit 1; }
done <<< "$tests"
echo "sanitize: passed"
