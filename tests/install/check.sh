#!/usr/bin/env bash
# Segno as a host meets it: installed into an empty prefix, found by pkg-config, CMake and Go from a folder outside the tree, moved
# elsewhere, found again. Every program must print the same text for the same seed, in whatever language it is written.
#
# usage: tests/install/check.sh RELEASE_DIR MODEL.gguf
set -euo pipefail
export LC_ALL=C
unset LD_LIBRARY_PATH PKG_CONFIG_PATH CMAKE_PREFIX_PATH
root=$(cd "$(dirname "$0")/../.." && pwd)
release=$(cd "$1" && pwd)
model=$(realpath "$2")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

fail() { echo "install: $*" >&2; exit 1; }

# What the program at the end of the arguments writes, without its line of speeds.
text_of() { "$root/tests/watchdog.sh" "$@" "$model" -p "ROMEO:" -n 40 -s 1 -j 1 | head -n -1; }

same_text() {
    local name=$1
    shift
    text_of "$@" > "$work/text"
    [ -s "$work/expected" ] || cp "$work/text" "$work/expected"
    diff "$work/expected" "$work/text" || fail "$name writes another text"
    programs=$((programs + 1))
}

# The model with a chat template. A pair of a length that is a multiple of 32 keeps the tensors aligned.
templated() {
    local key=tokenizer.chat_template pairs
    local template='{%- for m in messages %}{{ m.role }}: {{ m.content }}{{ "\n" }}{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}'
    while (((20 + ${#key} + ${#template}) % 32)); do template=" $template"; done
    pairs=$(od -An -t u8 -j 16 -N 8 "$model")
    head -c 16 "$model"
    number 8 $((pairs + 1)); number 8 ${#key}; printf %s "$key"; number 4 8; number 8 ${#template}; printf %s "$template"
    tail -c +25 "$model"
}

# A little-endian number of $1 bytes.
number() {
    local i
    for ((i = 0; i < $1; i++)); do printf "\\x$(printf %02x $(($2 >> 8 * i & 255)))"; done
}

# What the programs of one language say, without their lines of speeds.
same_words() {
    local folder=$2 turns='Who art thou?\nSpeak \\ "more".\nAnd thou?\nAgain.\nAy?\n/reset\nAgain.\nNay.\n'
    {
        "$folder/generate" "$model" -p "First Citizen:" -n 600 -s 1 | head -n -1
        "$folder/crowd" "$model" -c 5 -n 60 -s 2 | head -n -1
        printf "$turns" | "$folder/chat" "$model" -s 3 -n 99 "The duke speaks."
        printf "$turns" | "$folder/chat" "$work/templated.gguf" -s 4 -n 50 "The duke speaks."
        printf "$turns" | "$folder/chat" "$model" -s 5
    } > "$work/words"
    [ -s "$work/expected-words" ] || cp "$work/words" "$work/expected-words"
    diff "$work/expected-words" "$work/words" || fail "the programs in $1 say other words"
    languages=$((languages + 1))
}

with_pkg_config() {
    local prefix=$1 program
    export PKG_CONFIG_PATH=$prefix/lib/pkgconfig
    cc "$root/examples/c/generate.c" $(pkg-config --cflags --libs segno) -o shared
    same_text "pkg-config, shared" ./shared
    cc "$root/examples/c/generate.c" $(pkg-config --cflags --libs segno-static) -o static
    same_text "pkg-config, static library" ./static
    if readelf -d static | grep -q libsegno; then fail "segno-static links the shared library"; fi
    cc -static "$root/examples/c/generate.c" $(pkg-config --static --cflags --libs segno) -o alone 2> warnings ||
        { cat warnings; fail "cc -static fails"; }
    same_text "pkg-config, wholly static" ./alone
    if readelf -d alone | grep -q NEEDED; then fail "cc -static needs shared libraries"; fi
    mkdir c cpp
    for program in generate chat crowd; do
        cc -std=c11 "${warnings[@]}" "$root/examples/c/$program.c" $(pkg-config --cflags --libs segno) -o c/$program
        c++ -std=c++17 "${warnings[@]}" "$root/examples/cpp/$program.cpp" $(pkg-config --cflags --libs segno) -o cpp/$program
    done
    same_text "pkg-config, C++" cpp/generate
    same_words C c
    same_words C++ cpp
    [ "$(pkg-config --modversion segno)" = "$(sed -n 's/^version = "\(.*\)"/\1/p' "$root/Cargo.toml" | head -n 1)" ] ||
        fail "pkg-config tells another version"
}

with_go() {
    command -v go > /dev/null || { "$root/tests/skip.sh" tool "install: go not found"; return; }
    # Go's build cache does not see what pkg-config answers, so each prefix has a module in a place of its own.
    local host
    host=$(mktemp -d "$work/go.XXXXXX")
    cp -r "$root/bindings/go" "$host/segno"
    cp -r "$root"/examples/go/{generate,chat,crowd} "$host/"
    sed "s|=> .*|=> ./segno|" "$root/examples/go/go.mod" > "$host/go.mod"
    cd "$host"
    same_text "go run" go run ./generate
    go build -o built/ ./generate ./chat ./crowd
    cd "$work/hosts"
    if ! readelf -d "$host/built/chat" | grep -q "RUNPATH.*\[$1/"; then fail "the Go programs were built for another prefix"; fi
    same_words Go "$host/built"
}

with_cmake() {
    local prefix=$1 static
    command -v cmake > /dev/null || { "$root/tests/skip.sh" tool "install: cmake not found"; return; }
    for static in OFF ON; do
        rm -rf cmake-build
        cmake -S "$root/examples" -B cmake-build -DCMAKE_PREFIX_PATH="$prefix" -DSEGNO_STATIC=$static -DCMAKE_BUILD_TYPE=Release > log ||
            { cat log; fail "cmake does not find Segno"; }
        cmake --build cmake-build -j2 > log 2>&1 || { cat log; fail "cmake does not build the examples"; }
        same_text "CMake, C, static $static" cmake-build/c/generate
        same_text "CMake, C++, static $static" cmake-build/cpp/generate
    done
    for version in 0.1 0.1.0 0 "0.1.0 EXACT" 0.0...0.9; do finds "$prefix" "$version" || fail "find_package(Segno $version) finds nothing"; done
    for version in 0.2 1.0 0.1.9 "0.0.9 EXACT" 0.2...0.9; do ! finds "$prefix" "$version" || fail "find_package(Segno $version) takes 0.1.0"; done
}

finds() {
    mkdir -p version
    printf 'cmake_minimum_required(VERSION 3.19)\nproject(p LANGUAGES NONE)\nfind_package(Segno %s REQUIRED)\n' "$2" > version/CMakeLists.txt
    cmake -S version -B version/build -DCMAKE_PREFIX_PATH="$1" > /dev/null 2>&1
}

# Every tool that a host might use, against one prefix.
consume() {
    rm -rf "$work/hosts"
    mkdir "$work/hosts"
    cd "$work/hosts"
    with_pkg_config "$1"
    with_go "$1"
    with_cmake "$1"
    cd "$work"
}

contents() {
    local prefix=$1 version
    version=$(pkg-config --modversion "$prefix/lib/pkgconfig/segno.pc")
    (cd "$prefix" && find . ! -type d | sort) > found
    printf './%s\n' include/segno.h include/segno.hpp lib/cmake/Segno/SegnoConfig.cmake lib/cmake/Segno/SegnoConfigVersion.cmake \
        lib/libsegno.a lib/libsegno.so lib/libsegno.so.0 "lib/libsegno.so.$version" lib/pkgconfig/segno-static.pc \
        lib/pkgconfig/segno.pc share/doc/segno/LICENSE-APACHE share/doc/segno/LICENSE-MIT share/doc/segno/THIRD-PARTY-NOTICES.txt | sort > wanted
    diff wanted found || fail "the prefix holds other files"
    if grep -rlF -e "$work" -e "$root" "$prefix/include" "$prefix/lib/cmake" "$prefix/lib/pkgconfig"; then fail "these files name a path"; fi
    nm -g --defined-only "$prefix/lib/libsegno.a" | awk 'NF == 3 {print $3}' | sort > visible
    nm -D --defined-only "$prefix/lib/libsegno.so" | awk '{print $3}' | sort > exported
    diff exported visible || fail "the static library shows other symbols than the shared one"
}

warnings=(-Wall -Wextra -Wpedantic -Wshadow -Werror)
programs=0
languages=0
templated > templated.gguf
"$root/packaging/install.sh" "$release" p
contents "$work/p"
consume "$work/p"
mkdir elsewhere
mv p elsewhere/q
consume "$work/elsewhere/q"

DESTDIR=$work/stage "$root/packaging/install.sh" "$release" /usr lib/x86_64-linux-gnu > /dev/null
stage=$work/stage/usr/lib/x86_64-linux-gnu
[ -e "$stage/libsegno.so" ] && [ -e "$work/stage/usr/include/segno.h" ] || fail "DESTDIR and LIBDIR are not heeded"
if grep -q rpath "$stage/pkgconfig/segno.pc"; then fail "a system's prefix needs no path in programs"; fi
found=$(PKG_CONFIG_PATH=$stage/pkgconfig pkg-config --variable=includedir segno)
[ "$(realpath "$found")" = "$(realpath "$work/stage/usr/include")" ] || fail "the header is not where segno.pc says"
echo "install: $programs programs wrote the same text, and $languages times generate, chat and crowd the same words,"
echo "install: from a prefix and from where it was moved"
