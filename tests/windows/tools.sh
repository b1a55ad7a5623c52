#!/usr/bin/env bash
# Makes sure that the tools of check.sh are there: on Debian, as root, what is missing is installed. Prints what is missing then, a name a line.
#
# usage: tests/windows/tools.sh
set -euo pipefail

declare -A package=([x86_64-w64-mingw32-gcc-posix]=gcc-mingw-w64-x86-64-posix [x86_64-w64-mingw32-g++-posix]=g++-mingw-w64-x86-64-posix
                    [x86_64-w64-mingw32-objdump]=binutils-mingw-w64-x86-64 [wine]="wine wine64" [clang]=clang [lld-link]=lld
                    [llvm-dlltool]=llvm)
rust_has() { rustc --print target-libdir --target x86_64-pc-windows-gnu 2> /dev/null | xargs test -d; }

missing=()
for tool in "${!package[@]}"; do
    command -v "$tool" > /dev/null || missing+=("$tool")
done
if [ ${#missing[@]} -gt 0 ] && [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null; then
    echo "tools: installing ${missing[*]}" >&2
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    for tool in "${missing[@]}"; do
        # shellcheck disable=SC2086 # A tool may have several packages.
        apt-get install -y -qq --no-install-recommends ${package[$tool]} > /dev/null || true
    done
    hash -r
fi
rust_has || ! command -v rustup > /dev/null || rustup target add x86_64-pc-windows-gnu >&2 || true
for tool in "${missing[@]}"; do
    command -v "$tool" > /dev/null || echo "$tool"
done
rust_has || echo "the standard library for x86_64-pc-windows-gnu (rustup target add)"
