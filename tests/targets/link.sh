#!/usr/bin/env bash
# Links the shared library for a system of which nothing but Rust's standard library is at hand: libraries without code stand for the system's, so what is
# undefined is not looked for. What it exports, the name by which programs find it, and what the header promises of sizes are those of Linux.
#
# usage: tests/targets/link.sh TRIPLE WORK_DIR
set -euo pipefail
export LC_ALL=C
triple=$1
mkdir -p "$2/sdk/usr/lib"
work=$(cd "$2" && pwd)
cd "$(dirname "$0")/../.."

fail() { echo "targets: $triple: $*" >&2; exit 1; }

# What Apple's linker is told of a library that it does not have.
stub() {
    printf -- '--- !tapi-tbd\ntbd-version: 4\ntargets: [ arm64-macos ]\ninstall-name: /usr/lib/lib%s.dylib\n' "$1"
    printf 'exports:\n  - targets: [ arm64-macos ]\n    symbols: [ dyld_stub_binder ]\n...\n'
}

# Of every crate, since one that is used declares that it is a shared library too, which cargo links as well.
export SEGNO_LINKER=clang
flags="${RUSTFLAGS:-} -Clinker=$PWD/packaging/linker.sh"
case $triple in
    *-android)
        library=libsegno.so system=$triple
        for name in c m dl log; do clang --target=$triple -fuse-ld=lld -nostdlib -shared -x c /dev/null -o "$work/sdk/lib$name.so"; done
        llvm-ar rcs "$work/sdk/libunwind.a"
        flags+=" -Clink-arg=--target=$system -Clink-arg=-fuse-ld=lld -Clink-arg=-nostartfiles -Clink-arg=-L$work/sdk" ;;
    *-apple-darwin)
        library=libsegno.dylib system=arm64-apple-macos11
        export SDKROOT=$work/sdk
        for name in System c m iconv; do stub $name > "$work/sdk/usr/lib/lib$name.tbd"; done
        flags+=" -Clink-arg=--target=$system -Clink-arg=-fuse-ld=lld -Clink-arg=-mlinker-version=705 -Clink-arg=-Wl,-undefined,dynamic_lookup" ;;
esac
RUSTFLAGS=$flags cargo rustc --locked --quiet --lib --crate-type cdylib --no-default-features --target "$triple"
linked=$CARGO_TARGET_DIR/$triple/debug/$library

case $triple in
    *-android)
        llvm-nm -D --defined-only "$linked" | awk '{print $3}' | sort > "$work/exports"
        llvm-readelf -d "$linked" | grep -q 'SONAME.*\[libsegno\.so\.0\]' || fail "SONAME is not libsegno.so.0" ;;
    *-apple-darwin)
        llvm-nm -g --defined-only "$linked" | awk '{print $3}' | sed 's/^_//' | sort > "$work/exports"
        llvm-objdump --macho --dylib-id "$linked" | grep -qx '@rpath/libsegno\.0\.dylib' || fail "the install name is not @rpath/libsegno.0.dylib" ;;
esac
clang --target=$system -std=c11 -ffreestanding -Wall -Wextra -Wpedantic -Werror -fsyntax-only -Iinclude tests/abi/golden.c ||
    fail "sizes, offsets or signatures are not those of the ABI"
diff tests/abi/symbols.txt "$work/exports" > "$work/log" || { head -n 20 "$work/log"; fail "exports (>) something else than tests/abi/symbols.txt (<)"; }
echo "targets: the library links for $triple, with $(wc -l < "$work/exports") exports"
