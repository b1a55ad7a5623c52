#!/usr/bin/env bash
# Builds the C++ tests with every compiler at hand, as C++17 and C++20, under the address and undefined-behaviour checkers, and runs them.
#
# usage: tests/cpp/check.sh RELEASE_DIR BUILD_DIR MODEL.gguf
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$0")/../.."
release=$1 build=$2 model=$3
export LD_LIBRARY_PATH=$release
mkdir -p "$build/cpp"
flags=(-Wall -Wextra -Wpedantic -Wshadow -Werror -O1 -g -Iinclude -Ibindings/cpp)
libraries=(-L"$release" -lsegno -lpthread)

for compiler in g++ clang++; do
    command -v "$compiler" > /dev/null || { tests/skip.sh tool "cpp: $compiler not found"; continue; }
    echo "cpp: $compiler c++11, segno.h alone"
    "$compiler" -x c++ -std=c++11 "${flags[@]}" tests/capi/errors.c "${libraries[@]}" -o "$build/cpp/errors"
    tests/watchdog.sh "$build/cpp/errors" "$model"
    for standard in c++17 c++20; do
        sanitize=()
        [ $standard = c++20 ] || sanitize=(-fsanitize=address,undefined -fno-sanitize-recover=all)
        echo "cpp: $compiler $standard ${sanitize[*]}"
        "$compiler" -std=$standard "${flags[@]}" "${sanitize[@]}" tests/cpp/objects.cpp "${libraries[@]}" -o "$build/cpp/objects"
        tests/watchdog.sh "$build/cpp/objects" "$model"
        "$compiler" -std=$standard -fno-exceptions "${flags[@]}" "${sanitize[@]}" tests/cpp/status.cpp "${libraries[@]}" -o "$build/cpp/status"
        tests/watchdog.sh "$build/cpp/status" "$model"
    done
done
