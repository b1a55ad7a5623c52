#!/usr/bin/env bash
# The header alone, included twice, its macros in use, without a warning in every standard that hosts use, in C and C++, with every compiler at hand; the C++
# header likewise from C++17 on. It includes nothing but <stddef.h> and <stdint.h>.
#
# usage: tests/abi/header.sh
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$0")/../.."
fail() { echo "abi: $*" >&2; exit 1; }

[ "$(sed -nE 's/^#include +//p' include/segno.h | paste -sd' ')" = "<stddef.h> <stdint.h>" ] ||
    fail "segno.h includes more than <stddef.h> and <stdint.h>"

macros='int try_it(segno_session *s, segno_error **err); int try_it(segno_session *s, segno_error **err) {
    SEGNO_TRY(segno_seq_close(s, 0, err), return 1); if (s == 0) SEGNO_TRY(segno_session_cancel(s, 0), return 2); else return 3; return 0; }'
combinations=0
# What is included twice, as which language, in which standards.
compile() {
    local header=$1 language=$2 compiler standard
    for compiler in gcc clang; do
        command -v "$compiler" > /dev/null || { tests/skip.sh tool "abi: $header: $compiler not found"; continue; }
        for standard in "${@:3}"; do
            printf '#include <%s>\n#include <%s>\n%s\n' "$header" "$header" "$macros" | "$compiler" -x "$language" "-std=$standard" \
                -Wall -Wextra -Wpedantic -Werror -fsyntax-only -Iinclude -Ibindings/cpp - ||
                fail "$header alone does not compile with $compiler -std=$standard"
            combinations=$((combinations + 1))
        done
    done
}
compile segno.h c c89 c99 c11 c17 c2x
compile segno.h c++ c++11 c++14 c++17 c++20 c++2b
compile segno.hpp c++ c++17 c++20 c++2b

# windows.h defines min and max as macros. Standard headers undefine them, so those that segno.hpp includes come first.
for compiler in g++ clang++; do
    command -v "$compiler" > /dev/null || { tests/skip.sh tool "abi: segno.hpp beside min and max: $compiler not found"; continue; }
    {
        grep -E '^#include <[a-z_]+>$' bindings/cpp/segno.hpp
        printf '#define min(a, b) ((a) < (b) ? (a) : (b))\n#define max(a, b) ((a) > (b) ? (a) : (b))\n#include <segno.hpp>\n'
    } | "$compiler" -x c++ -std=c++17 -Wall -Wextra -Wpedantic -Werror -fsyntax-only -Iinclude -Ibindings/cpp - ||
        fail "segno.hpp does not compile with $compiler beside the macros min and max"
done
echo "abi: the headers compile in $combinations combinations of compiler and standard"
