#!/usr/bin/env bash
# The header alone, included twice, without a warning in every standard that hosts use, in C and C++, with every compiler at hand; the C++
# header likewise from C++17 on. It includes nothing but <stddef.h> and <stdint.h>.
#
# usage: tests/abi/header.sh
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$0")/../.."
fail() { echo "abi: $*" >&2; exit 1; }

[ "$(sed -nE 's/^#include +//p' include/segno.h | paste -sd' ')" = "<stddef.h> <stdint.h>" ] ||
    fail "segno.h includes more than <stddef.h> and <stdint.h>"

combinations=0
# What is included twice, as which language, in which standards.
compile() {
    local header=$1 language=$2 compiler standard
    for compiler in gcc clang; do
        command -v "$compiler" > /dev/null || { echo "abi: $header: skipped $compiler: not found"; continue; }
        for standard in "${@:3}"; do
            printf '#include <%s>\n#include <%s>\n' "$header" "$header" | "$compiler" -x "$language" "-std=$standard" \
                -Wall -Wextra -Wpedantic -Werror -fsyntax-only -Iinclude -Ibindings/cpp - ||
                fail "$header alone does not compile with $compiler -std=$standard"
            combinations=$((combinations + 1))
        done
    done
}
compile segno.h c c99 c11 c17 c2x
compile segno.h c++ c++11 c++14 c++17 c++20 c++2b
compile segno.hpp c++ c++17 c++20 c++2b
echo "abi: the headers compile in $combinations combinations of compiler and standard"
