#!/usr/bin/env bash
# The library on Windows: built by MinGW's linker, run under Wine. The DLL exports what is declared and imports system libraries alone; hosts are built
# from its archive (tests/release); C tests, examples and the frozen programs of ABI 0 pass; what the library writes is what it writes here; and Rust
# tests pass.
#
# usage: tests/windows/check.sh RELEASE_DIR BUILD_DIR MODEL.gguf [library]
#   RELEASE_DIR            has the library of this system, BUILD_DIR the examples `generate` and `crowd`, for comparison
#   library                builds the library and no more
#   SEGNO_HOSTILE_CASES    hostile files and folders to load, 1000 by default
set -euo pipefail
# Wine takes the names of files for what the locale says.
export LC_ALL=C.UTF-8
cd "$(dirname "$0")/../.."
mkdir -p "$2/windows/bin"
release=$(cd "$1" && pwd) build=$(cd "$2" && pwd) work=$(cd "$2/windows" && pwd) model=$(realpath "$3")
triple=x86_64-pc-windows-gnu
cc=x86_64-w64-mingw32-gcc-posix cxx=x86_64-w64-mingw32-g++-posix objdump=x86_64-w64-mingw32-objdump

fail() { echo "windows: $*" >&2; exit 1; }

missing=$(tests/need.sh $cc $cxx $objdump wine clang lld-link llvm-dlltool std:$triple)
if [ -n "$missing" ]; then
    [ "${4:-}" = library ] || tests/skip.sh tool "windows: missing $(paste -sd, <<< "$missing" | sed 's/,/, /g')"
    exit 0
fi

# In a folder of its own, as cargo builds for one system at a time in a folder; without the tools of benchmarks and of the header (Cargo.toml).
export CARGO_TARGET_DIR=$work/target CARGO_INCREMENTAL=0 RUSTFLAGS="--cfg without_tools" SEGNO_LINKER=$cc
export CARGO_TARGET_X86_64_PC_WINDOWS_GNU_LINKER=$PWD/packaging/linker.sh
export WINEPREFIX=$work/wine WINEDEBUG=-all WINEDLLOVERRIDES="mscoree,mshtml="
bin=$CARGO_TARGET_DIR/$triple/release
run() { tests/watchdog.sh wine "$@"; }

# Fatbins do not depend on the host: those that were compiled for this system serve.
build_library() {
    mkdir -p "$release/../kernels" "$bin"
    ln -sfn "$release/../kernels" "$CARGO_TARGET_DIR/$triple/kernels"
    cargo rustc --locked --release --lib --target $triple -- --print "native-static-libs=$bin/native-static-libs"
}

look_inside() {
    $objdump -p "$bin/segno.dll" > "$work/headers"
    awk '/^\[Ordinal\/Name Pointer\] Table/ {names = 1; next} /^$/ {names = 0} names {print $NF}' "$work/headers" | sort > "$work/exports"
    diff tests/abi/symbols.txt "$work/exports" || fail "the DLL exports (>) something else than tests/abi/symbols.txt (<)"
    sed -n 's/^\tDLL Name: //p' "$work/headers" | tr 'A-Z' 'a-z' | sort -u > "$work/imports"
    local system='^(kernel32|ntdll|advapi32|msvcrt|userenv|ws2_32|bcrypt|bcryptprimitives|api-ms-win-[a-z0-9-]*)\.dll$'
    if grep -vE "$system" "$work/imports"; then fail "the DLL imports a library that is no part of Windows"; fi
    local flags=(-std=c11 -Wall -Wextra -Wpedantic -Werror -fsyntax-only -Iinclude)
    { $cc "${flags[@]}" tests/abi/golden.c && clang --target=x86_64-pc-windows-msvc -ffreestanding "${flags[@]}" tests/abi/golden.c; } ||
        fail "sizes, offsets or signatures are not those of the ABI"
    echo "windows: $(wc -l < "$work/exports") exports; imports $(paste -sd' ' "$work/imports")"
}

# C and C++ hosts that MinGW compiles: PROGRAM SOURCE [FLAG...].
host() {
    local program=$work/bin/$1.exe source=$2 compiler=($cc -std=c11)
    shift 2
    [ "${source##*.}" != cpp ] || compiler=($cxx -std=c++17 -Ibindings/cpp)
    "${compiler[@]}" -Wall -Wextra -Wpedantic -Werror -O1 -Iinclude "$@" "$source" -static "$bin/libsegno.dll.a" -lpthread -o "$program"
}

hosts() {
    cp "$bin/segno.dll" "$work/bin/"
    local name programs=0
    # Those left out fork, and replace the allocator of the GNU C library.
    for name in $(basename -s .c tests/capi/*.c | grep -vxE 'fork|refused'); do
        # With <windows.h> before all else, as many a host has it; one has names of its own that are macros there.
        local first=(-include windows.h)
        [ "$name" != hostile ] || first=()
        host "test_$name" "tests/capi/$name.c" "${first[@]}"
        run "$work/bin/test_$name.exe" "$model" > "$work/log" 2>&1 || { cat "$work/log"; fail "tests/capi/$name.c fails"; }
        programs=$((programs + 1))
    done
    host objects tests/cpp/objects.cpp -include windows.h
    host status tests/cpp/status.cpp -include windows.h -fno-exceptions
    host host tests/windows/host.c
    (cd "$work" && rm -f segno-*.gguf)
    for name in objects status host; do
        (cd "$work" && "$OLDPWD/tests/watchdog.sh" wine "bin/$name.exe" "$model") > "$work/log" 2>&1 || { cat "$work/log"; fail "$name fails"; }
        programs=$((programs + 1))
    done
    for name in tests/abi/v0/*.c; do
        host "v0_$(basename "$name" .c)" "$name" -std=c99 -Itests/abi/v0 -Wno-error
        run "$work/bin/v0_$(basename "$name" .c).exe" "$model" > "$work/log" 2>&1 || { cat "$work/log"; fail "$name fails"; }
        programs=$((programs + 1))
    done
    echo "windows: $programs programs of C and C++ tests pass"
}

# The same text as here, from the C and the C++ example, and from more characters in one batch.
text() { tr -d '\r' | grep -v 'tokens/s'; }

examples() {
    local name prompt
    for name in generate crowd chat frame; do host "$name" "examples/c/$name.c"; done
    for name in generate crowd chat; do host "cpp_$name" "examples/cpp/$name.cpp"; done
    for prompt in "ROMEO:" "First Citizen: we are"; do
        local arguments=("$model" -p "$prompt" -n 100 -s 7)
        LD_LIBRARY_PATH=$release "$build/generate" "${arguments[@]}" | text > "$work/here"
        [ "$(wc -c < "$work/here")" -gt 100 ] || fail "the example writes nothing here"
        for name in generate cpp_generate; do
            run "$work/bin/$name.exe" "${arguments[@]}" | text | diff "$work/here" - || fail "$name writes (>) something else than here (<)"
        done
    done
    LD_LIBRARY_PATH=$release "$build/crowd" "$model" -c 3 -n 40 | text > "$work/here"
    run "$work/bin/crowd.exe" "$model" -c 3 -n 40 | text | diff "$work/here" - || fail "crowd writes (>) something else than here (<)"
    printf 'Who art thou?\nSpeak more.\n' | run "$work/bin/chat.exe" "$model" "The duke speaks." > "$work/log" || fail "chat fails"
    echo "windows: the examples write the text that they write here"
}

# Left out: the unit tests of the library but for those of the system (`machine`), and of these a figure that Wine gives as 0; what removes or replaces a file
# that is mapped, which Windows refuses; truncated files, refused memory where texts are read and written, plans made and folders loaded, vocabularies, and
# what compares tokens of adapters, conversations, drafts and grammars with those of other ways, since nothing in them depends on the system; and suites that
# are about processes of Unix, or about time. Wine's heap takes more than ten times as long as glibc's, which hostile grammars tell, as they allocate all the
# time: limits of time are four times as long, and a third of the refusals that are samples is taken.
rust_tests() {
    export SEGNO_HOSTILE_CASES=${SEGNO_HOSTILE_CASES:-1000} SEGNO_TEST_SLOWNESS=4 SEGNO_FAULT_SHARE=3
    tests/suites.sh windows "$work/rust" $triple wine << 'LIST'
faults --skip text_without --skip a_template_makes --skip a_conversation --skip a_plan_and_metadata --skip a_folder_without
api --skip every_case_of_the_real_vocabularies --skip adapters:: --skip conversations:: --skip grammar_suite:: --skip grammar_tokens:: --skip grammar_walks:: --skip predictors:: --skip speculation::
hostile --skip truncated_
machine --skip the_machine_tells_its_memory
files --skip public_safetensors_are_read --skip tensors_are_found_by_name --skip parts_that_are_not_run --skip what_cannot_be_written
LIST
}

build_library
[ "${4:-}" != library ] || exit 0
trap 'wineserver -k || true' EXIT
tests/windows/wine.sh
# Beside the Rust tests, as the compiler does not always keep two processors busy.
{
    look_inside
    LD_LIBRARY_PATH=$release tests/release/check.sh windows-x86_64 "$bin" "$build" "$model"
    hosts
    examples
} > "$work/hosts.log" 2>&1 &
hosts=$!
rust_tests
wait $hosts || { cat "$work/hosts.log"; exit 1; }
cat "$work/hosts.log"
