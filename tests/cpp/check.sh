#!/usr/bin/env bash
# Builds the C++ tests with every compiler at hand, as C++17 and C++20, under the address and undefined-behaviour checkers, and runs them. The
# C++ examples must write what the C examples write.
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
    command -v "$compiler" > /dev/null || { echo "cpp: skipped $compiler: not found"; continue; }
    for standard in c++17 c++20; do
        sanitize=()
        [ $standard = c++20 ] || sanitize=(-fsanitize=address,undefined -fno-sanitize-recover=all)
        echo "cpp: $compiler $standard ${sanitize[*]}"
        "$compiler" -std=$standard "${flags[@]}" "${sanitize[@]}" tests/cpp/objects.cpp "${libraries[@]}" -o "$build/cpp/objects"
        "$build/cpp/objects" "$model"
        "$compiler" -std=$standard -fno-exceptions "${flags[@]}" "${sanitize[@]}" tests/cpp/status.cpp "${libraries[@]}" -o "$build/cpp/status"
        "$build/cpp/status" "$model"
    done
done

# An example's output without its line of speeds.
words() { "$@" | head -n -1; }
for example in examples/cpp/*.cpp; do
    name=$(basename "$example" .cpp)
    g++ -std=c++17 "${flags[@]}" "$example" "${libraries[@]}" -o "$build/cpp/$name"
done
diff <(words "$build/generate" "$model" -p "First Citizen:" -n 600 -s 1) <(words "$build/cpp/generate" "$model" -p "First Citizen:" -n 600 -s 1)
diff <(words "$build/crowd" "$model" -c 5 -n 60 -s 2) <(words "$build/cpp/crowd" "$model" -c 5 -n 60 -s 2)
echo "cpp: the examples write what the C examples write"
