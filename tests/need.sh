#!/usr/bin/env bash
# Makes sure that tools are there, and Rust's standard library of other systems: on Debian, as root, what is missing is installed, and rustup adds
# its targets. Prints what is missing then, a name a line.
#
# usage: tests/need.sh TOOL... [std:TRIPLE]...
set -euo pipefail
# Scripts that run beside each other install one after the other.
exec 9< "$0"
! command -v flock > /dev/null || flock 9

declare -A package=(
    [clang]=clang [cmake]=cmake [valgrind]=valgrind [abidiff]=abigail-tools [pkg-config]=pkg-config [gcc]=gcc [g++]=g++ [readelf]=binutils
    [go]=golang-go [lld-link]=lld [ld.lld]=lld [llvm-dlltool]=llvm [llvm-nm]=llvm [wine]="wine wine64" [dpkg-deb]=dpkg [zip]=zip [unzip]=unzip
    [x86_64-w64-mingw32-gcc-posix]=gcc-mingw-w64-x86-64-posix [x86_64-w64-mingw32-g++-posix]=g++-mingw-w64-x86-64-posix
    [x86_64-w64-mingw32-objdump]=binutils-mingw-w64-x86-64
    [aarch64-linux-gnu-gcc]="gcc-aarch64-linux-gnu libc6-dev-arm64-cross" [aarch64-linux-gnu-g++]=g++-aarch64-linux-gnu
    [qemu-aarch64-static]=qemu-user-static)

# Whether the compiler has the standard library of a target; without rustup another package may have brought it.
has() {
    case $1 in
        std:*) rustc --print target-libdir --target "${1#std:}" 2> /dev/null | xargs -r test -d ;;
        # With its sanitizers, which Debian has in a package of their own.
        clang) command -v clang > /dev/null && compgen -G "$(clang -print-runtime-dir)/libclang_rt.asan*" > /dev/null ;;
        *) command -v "$1" > /dev/null ;;
    esac
}

lacking() {
    local name
    for name in "$@"; do has "$name" || echo "$name"; done
}

packages=()
for name in $(lacking "$@"); do
    case $name in
        std:*) if command -v rustup > /dev/null; then rustup target add "${name#std:}" >&2 || true; fi ;;
        # A tool may have several packages.
        *) read -ra more <<< "${package[$name]}"; packages+=("${more[@]}") ;;
    esac
done
if [ ${#packages[@]} -gt 0 ] && [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null; then
    echo "tools: installing ${packages[*]}" >&2
    export DEBIAN_FRONTEND=noninteractive
    # One package that cannot be had does not keep the others away.
    apt-get update -qq >&2 || true
    # The package of clang's sanitizers is named by the version that `clang` stands for.
    case " ${packages[*]} " in
        *" clang "*) read -ra more <<< "$(apt-cache depends clang | sed -n 's/.*Depends: clang-\([0-9]*\)$/libclang-rt-\1-dev/p')"
            packages+=("${more[@]}") ;;
    esac
    apt-get install -y -qq --no-install-recommends "${packages[@]}" > /dev/null ||
        for name in "${packages[@]}"; do apt-get install -y -qq --no-install-recommends "$name" > /dev/null || true; done
    hash -r
fi
lacking "$@" | sed -E "s/^std:(.*)/Rust's standard library for \1/"
