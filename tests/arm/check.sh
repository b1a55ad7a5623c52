#!/usr/bin/env bash
# The library on Linux with AArch64, under qemu: exports and sizes are those of the ABI, C tests and the frozen programs of ABI 0 pass, the examples write
# what they write here, and Rust tests pass, those of the kernels on a processor that has every instruction and on one that has the oldest alone.
#
# usage: tests/arm/check.sh RELEASE_DIR BUILD_DIR MODEL.gguf
#   RELEASE_DIR   has the library of this system, BUILD_DIR the examples `generate` and `crowd`, for comparison
#   SEGNO_HOSTILE_CASES   hostile files and folders to load, 1000 by default
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$0")/../.."
mkdir -p "$2/arm/bin"
release=$(cd "$1" && pwd) build=$(cd "$2" && pwd) work=$(cd "$2/arm" && pwd) model=$(realpath "$3")
triple=aarch64-unknown-linux-gnu cc=aarch64-linux-gnu-gcc

fail() { echo "arm: $*" >&2; exit 1; }

missing=$(tests/need.sh $cc aarch64-linux-gnu-g++ qemu-aarch64-static std:$triple)
if [ -n "$missing" ]; then
    tests/skip.sh tool "arm: missing $(paste -sd, <<< "$missing" | sed 's/,/, /g')"
    exit 0
fi

# In a folder of its own, as cargo builds for one system at a time in a folder; without the tools of benchmarks and of the header (Cargo.toml).
export CARGO_TARGET_DIR=$work/target CARGO_INCREMENTAL=0 RUSTFLAGS="--cfg without_tools" SEGNO_LINKER=$cc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=$PWD/packaging/linker.sh
bin=$CARGO_TARGET_DIR/$triple/release
# QEMU_CPU names the processor: `max` has dot products and I8MM, `cortex-a53` neither.
export QEMU_LD_PREFIX=/usr/aarch64-linux-gnu QEMU_CPU=max
run() { tests/watchdog.sh qemu-aarch64-static -E LD_LIBRARY_PATH="$bin" "$@"; }

# Fatbins do not depend on the host: those that were compiled for this system serve.
build_library() {
    mkdir -p "$release/../kernels" "$bin"
    ln -sfn "$release/../kernels" "$CARGO_TARGET_DIR/$triple/kernels"
    cargo rustc --locked --release --lib --target $triple -- --print "native-static-libs=$bin/native-static-libs"
    ln -sf libsegno.so "$bin/libsegno.so.0"
}

look_inside() {
    BINUTILS=aarch64-linux-gnu- tests/abi/library.sh "$bin/libsegno.so"
    $cc -std=c11 -Wall -Wextra -Wpedantic -Werror -fsyntax-only -Iinclude tests/abi/golden.c || fail "sizes, offsets or signatures are not those of the ABI"
}

# PROGRAM SOURCE [FLAG...].
host() {
    local program=$work/bin/$1 source=$2 compiler=($cc -std=c11)
    shift 2
    [ "${source##*.}" != cpp ] || compiler=(aarch64-linux-gnu-g++ -std=c++17 -Ibindings/cpp)
    "${compiler[@]}" -Wall -Wextra -Wpedantic -Werror -O1 -Iinclude "$@" "$source" -L"$bin" -lsegno -lpthread -o "$program"
}

hosts() {
    local source name programs=0
    for source in tests/capi/*.c tests/cpp/{objects,status}.cpp tests/abi/v0/*.c; do
        name=$(basename "${source%.*}") flags=()
        case $source in
            # Refuses each allocation of the C library in turn, in a process of its own, which is too slow under qemu.
            */refused.c) continue ;;
            */status.cpp) flags=(-fno-exceptions) ;;
            */v0/*) name=v0_$name flags=(-std=c99 -Itests/abi/v0 -Wno-error) ;;
        esac
        host "$name" "$source" "${flags[@]}"
        (cd "$work" && "$OLDPWD/tests/watchdog.sh" qemu-aarch64-static -E LD_LIBRARY_PATH="$bin" "bin/$name" "$model") > "$work/log" 2>&1 ||
            { cat "$work/log"; fail "$source fails"; }
        programs=$((programs + 1))
    done
    echo "arm: $programs programs of C and C++ tests pass"
}

text() { grep -v 'tokens/s'; }

examples() {
    local prompt cpu
    host generate examples/c/generate.c
    host crowd examples/c/crowd.c
    for prompt in "ROMEO:" "First Citizen: we are"; do
        LD_LIBRARY_PATH=$release "$build/generate" "$model" -p "$prompt" -n 100 -s 7 | text > "$work/here"
        [ "$(wc -c < "$work/here")" -gt 100 ] || fail "the example writes nothing here"
        for cpu in max cortex-a53; do
            QEMU_CPU=$cpu run "$work/bin/generate" "$model" -p "$prompt" -n 100 -s 7 | text | diff "$work/here" - ||
                fail "generate writes on $cpu (>) something else than here (<)"
        done
    done
    LD_LIBRARY_PATH=$release "$build/crowd" "$model" -c 3 -n 40 | text > "$work/here"
    run "$work/bin/crowd" "$model" -c 3 -n 40 | text | diff "$work/here" - || fail "crowd writes (>) something else than here (<)"
    echo "arm: the examples write the text that they write here"
}

# Left out: the unit tests of the library but for those of the system (`machine`); suites with limits of time or of resident memory (cancel, cycles,
# fair_share, plan, soak, text), with limits of the system that qemu does not keep (host_memory, system_faults), and what takes minutes there and depends on
# the processor in nothing that other tests do not have: families, sequences, truncated files, hostile grammars, the perplexity of 8-bit caches (their bits
# stay, in `machine`), distributions of draws (their bits stay), small models of every type (their products stay), and refused memory where models and folders
# are loaded and planned, texts read and templates run; of refusals that are samples a third is taken. The oldest processor runs the kernels that `max`
# has too, so there what is asked is that they are chosen and suffice.
rust_tests() {
    export SEGNO_HOSTILE_CASES=${SEGNO_HOSTILE_CASES:-1000} SEGNO_TEST_SLOWNESS=20 SEGNO_FAULT_SHARE=3
    tests/suites.sh "arm: max" "$work/max" $triple qemu-aarch64-static << 'LIST'
machine
faults calls::a_session calls::sequences_without
hostile --skip truncated_ --skip grammars::
cpu types:: reference:: sample:: quant:: --skip cache_types:: --skip every_type_runs --skip draws_over --skip filtered_draws
api sessions:: sampling:: steps:: structs:: saved::
files save:: model_files:: gguf::
LIST
    QEMU_CPU=cortex-a53 tests/suites.sh "arm: cortex-a53" "$work/a53" $triple qemu-aarch64-static << 'LIST'
machine kernels:: --skip encode:: --skip company_and_tiles
cpu reference::
LIST
}

build_library
# Beside the Rust tests, as the compiler does not always keep two processors busy.
{
    look_inside
    LD_LIBRARY_PATH=$release tests/release/check.sh linux-aarch64 "$bin" "$build" "$model"
    hosts
    examples
} > "$work/hosts.log" 2>&1 &
hosts=$!
rust_tests
wait $hosts || { cat "$work/hosts.log"; exit 1; }
cat "$work/hosts.log"
