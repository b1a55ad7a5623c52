#!/usr/bin/env bash
# What the Makefile and the scripts of the tests promise: the library is built and found where cargo is told to build, a test that waits for ever
# is ended, so is what is made beside a target that fails, skipped tests are counted, a missing tool fails in continuous integration, no build changes
# Cargo.lock, and no library with the feature `testing` is installed.
#
# usage: tests/make/check.sh RELEASE_DIR BUILD_DIR MODEL.gguf
set -euo pipefail
export LC_ALL=C
unset MAKEFLAGS MAKELEVEL MFLAGS
cd "$(dirname "$0")/../.."
mkdir -p "$2/make"
release=$(cd "$1" && pwd) work=$(cd "$2/make" && pwd) model=$3
rm -rf "${work:?}"/*

fail() { echo "make: $*" >&2; exit 1; }

# Where make expects the library, with the settings of the arguments.
place_with() { env "$@" make --silent --eval='place: ; @echo $(LIB)' place; }

places() {
    local elsewhere=$work/elsewhere
    [ "$(place_with CARGO_TARGET_DIR="$elsewhere")" = "$elsewhere/release/libsegno.so" ] || fail "CARGO_TARGET_DIR is not heeded"
    [ "$(place_with CARGO_TARGET_DIR=build/make/x)" = "$PWD/build/make/x/release/libsegno.so" ] || fail "a relative CARGO_TARGET_DIR is not heeded"
    [ "$(place_with -u CARGO_TARGET_DIR CARGO="cargo --config 'build.target-dir=\"$elsewhere\"'")" = "$elsewhere/release/libsegno.so" ] ||
        fail "build.target-dir of a cargo configuration is not heeded"
    [ "$(place_with CARGO_TARGET_DIR="$elsewhere" CARGO_BUILD_TARGET=triple)" = "$elsewhere/triple/release/libsegno.so" ] ||
        fail "CARGO_BUILD_TARGET is not heeded"
}

# `make demo` and `make install` where cargo builds elsewhere: what was compiled is taken along, so that the library alone is compiled here, as fast as
# that goes.
elsewhere() {
    local target=$work/target before
    export CARGO="cargo --config profile.release.package.segno.opt-level=0 --config profile.release.package.segno.codegen-units=16"
    mkdir -p "$target"
    cp -a "$release" "$target/release"
    ln -s "$release/../kernels" "$target/kernels"
    rm "$target"/release/libsegno.*
    before=$(stat -c '%y %s' "$release/libsegno.so")
    CARGO_TARGET_DIR=$target make --silent BUILD="$work/build" demo > "$work/demo" 2> "$work/log" || { cat "$work/log"; fail "make demo fails elsewhere"; }
    grep -q "First Citizen:" "$work/demo" || fail "make demo writes nothing elsewhere"
    CARGO_TARGET_DIR=$target make --silent BUILD="$work/build" install PREFIX="$work/prefix" > "$work/log" 2>&1 ||
        { cat "$work/log"; fail "make install fails elsewhere"; }
    for library in "$target/release/libsegno.so" "$work/prefix/lib/libsegno.so" "$work/prefix/lib/libsegno.a"; do
        [ -s "$library" ] || fail "$library is missing"
    done
    [ "$(stat -c '%y %s' "$release/libsegno.so")" = "$before" ] || fail "the library of the usual folder was touched"
    rm -rf "$target"
    unset CARGO
}

watchdog() {
    local status=0
    SEGNO_TEST_SECONDS=1 tests/watchdog.sh sleep 60 2> "$work/log" < /dev/null || status=$?
    [ $status = 124 ] && grep -q "sleep 60 was ended after 1 s" "$work/log" || fail "the watchdog lets a program wait for ever"
    status=0
    SEGNO_TEST_SECONDS=9 tests/watchdog.sh sh -c 'exit 7' || status=$?
    [ $status = 7 ] || fail "the watchdog hides the status of a program"
    SEGNO_TEST_SECONDS=1 tests/watchdog.sh sh -c 'sleep 2' --bench || fail "the watchdog ends benchmarks"
}

skips() {
    local list=$work/skips
    SEGNO_SKIPS=$list tests/skip.sh gpu "one: no gpu" > "$work/log"
    SEGNO_SKIPS=$list tests/skip.sh gpu "two: no gpu" > "$work/log"
    SEGNO_SKIPS=$list CI=false tests/skip.sh tool "three: no tool" > "$work/log"
    if SEGNO_SKIPS=$list CI=true tests/skip.sh tool "three: no tool" > "$work/log" 2>&1; then fail "continuous integration skips for want of a tool"; fi
    SEGNO_SKIPS=$list CI=true tests/skip.sh gpu "two: no gpu" > "$work/log" || fail "continuous integration wants a gpu"
    [ "$(SEGNO_SKIPS=$list tests/skip.sh report)" = "skipped: 2 tests for want of a GPU, 1 for other reasons
    tool: three: no tool" ] || fail "skips are not counted"
    [ "$(SEGNO_SKIPS=$work/none tests/skip.sh report)" = "skipped: 0 tests for want of a GPU, 0 for other reasons" ] || fail "no skip is one"
    grep -qx "export CI=true" .ci/run || fail ".ci/run does not set CI"
}

# Targets that are made beside each other: all are, in the order of their list, and what is still made when one fails is ended.
beside() {
    printf 'one two:; @echo $@ is made\nfails:; @sleep 1; false\nwaits:; @tests/watchdog.sh sh -c "echo \\$$\\$$ > %s; exec sleep 600"\n' "$work/waits" > "$work/makefile"
    printf '#!/bin/sh\nexec make -f %s "$@"\n' "$work/makefile" > "$work/make"
    chmod +x "$work/make"
    MAKE=$work/make tests/beside.sh "one two" two | grep "is made" | sort | tr '\n' ' ' > "$work/log"
    [ "$(cat "$work/log")" = "one is made two is made two is made " ] || fail "not everything is made beside each other"
    if MAKE=$work/make tests/beside.sh waits "one fails two" > "$work/log" 2>&1; then fail "a target that fails beside others is not told"; fi
    grep -q "one is made" "$work/log" && ! grep -q "two is made" "$work/log" || fail "what fails is not shown"
    sleep 1
    if kill -0 "$(cat "$work/waits")" 2> /dev/null; then fail "what is made beside a target that fails goes on"; fi
}

locked() {
    local loose
    loose=$(grep -nE '(CARGO\)|cargo\}"?|cargo) (build|test|rustc|clippy|doc|bench|run)\b' Makefile tests/*.sh tests/*/*.sh packaging/*.sh | grep -v -- --locked |
        grep -v '^[^:]*:[0-9]*:#' || true)
    [ -z "$loose" ] || fail "these builds may change Cargo.lock: give them --locked
$loose"
}

# A library with what tests need is never installed.
shipped() {
    local library=$work/testing/libsegno.so
    mkdir -p "${library%/*}"
    printf 'x%s+testing\0' "$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)" > "$library"
    if packaging/install.sh "${library%/*}" "$work/prefix" > "$work/log" 2>&1; then fail "a library with the feature testing is installed"; fi
    grep -q "is built with the feature testing: remove it, and run make" "$work/log" && [ ! -e "$work/prefix" ] ||
        { cat "$work/log"; fail "a library with the feature testing is refused for another reason"; }
}

places
watchdog
shipped
skips
beside
locked
elsewhere
echo "make: cargo's folder is followed, tests are watched, targets are made beside each other, skips are counted, builds are locked, what is installed is not for tests"
