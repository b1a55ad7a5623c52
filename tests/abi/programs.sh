#!/usr/bin/env bash
# Programs against an installed prefix. Every C test as C and as C++, linked with the shared and with the static library; and the programs of
# v0, which were written for ABI 0 and are compiled against the header of that time, with the library of today.
#
# usage: tests/abi/programs.sh PREFIX WORK_DIR MODEL.gguf
set -euo pipefail
export LC_ALL=C
root=$(cd "$(dirname "$0")/../.." && pwd)
prefix=$(cd "$1" && pwd) model=$(realpath "$3")
mkdir -p "$2"
cd "$2"

fail() { echo "abi: $*" >&2; exit 1; }

warnings=(-Wall -Wextra -Wpedantic -Werror)
declare -A compile=([c]="gcc -std=c11 -x c" [cpp]="g++ -std=c++20 -Wno-missing-field-initializers -x c++")
declare -A link=([shared]="-L$prefix/lib -Wl,-rpath,$prefix/lib -lsegno"
                 [static]="$prefix/lib/libsegno.a $(sed -n 's/^Libs.private: //p' "$prefix/lib/pkgconfig/segno.pc")")

one_test() {
    local source=$1 language=$2 way=$3 program
    program=$(basename "$source" .c)-$language-$way
    ${compile[$language]} "${warnings[@]}" -O1 -I"$prefix/include" "$source" -x none ${link[$way]} -lpthread -o "$program" ||
        fail "$program does not compile or link"
    if readelf -d "$program" | grep -q 'NEEDED.*libsegno'; then [ "$way" = shared ]; else [ "$way" = static ]; fi ||
        fail "$program is not linked with the $way library"
    "$root/tests/watchdog.sh" "./$program" "$model" > "$program.log" 2>&1 || { cat "$program.log" >&2; fail "$program fails"; }
    tests=$((tests + 1))
}

tests=0
for source in "$root"/tests/capi/*.c; do
    # It replaces the C library's allocator, for which C++ has no words; make c-test runs it.
    [ "$source" != "$root/tests/capi/refused.c" ] || continue
    for language in c cpp; do
        for way in shared static; do one_test "$source" $language $way; done
    done
done
echo "abi: $tests programs of C tests, as C and as C++, with the shared and the static library, pass"

frozen=$root/tests/abi/v0
rm -f v0-*
for source in "$frozen"/*.c; do
    program=v0-$(basename "$source" .c)
    gcc -std=c99 -O1 "$source" ${link[shared]} -o "$program" || fail "$program no longer compiles and links"
    "$root/tests/watchdog.sh" "./$program" "$model" || fail "$program no longer runs with this library"
done
nm -D -u v0-* | sed -n 's/^ *U \(segno_[a-z_]*\)$/\1/p' | sort -u > called
"$root/tests/abi/pins.sh" "$frozen/segno.h" | sed -nE 's/^FUNCTION\(.*[ *](segno_[a-z_]+)\(.*/\1/p' | sort | diff - called > missing ||
    fail "functions of v0/segno.h that no program of v0 calls: $(cat missing)"
echo "abi: the programs of v0 call all $(wc -l < called) functions of their header, and run"
