#!/usr/bin/env bash
# Builds the library for platforms and packs it for each. What was built in one folder is, byte by byte, what is built in another by the same tools.
#
# usage: packaging/release.sh OUT_DIR PLATFORM...
#   OUT_DIR   gets the packages, and in target/ what cargo builds
#   PLATFORM, SOURCE_DATE_EPOCH   as packaging/pack.sh has them; SEGNO_RELEASE_URL as packaging/recipes.sh; SEGNO_CUDA_ARCH as build.rs
set -euo pipefail
export LC_ALL=C
mkdir -p "$1/target/kernels"
out=$(cd "$1" && pwd)
shift
cd "$(dirname "$0")/.."
source packaging/platforms.sh

needed=(zip dpkg-deb llvm-dlltool)
for platform in "$@"; do needed+=("${linkers[$platform]}" "std:${triples[$platform]}"); done
missing=$(tests/need.sh "${needed[@]}")
[ -z "$missing" ] || { echo "release: missing $(paste -sd, <<< "$missing" | sed 's/,/, /g')" >&2; exit 1; }

# Names of folders that panics would tell become names of their own, those of Rust's library what they are without its source.
separator=$'\x1f' flags=''
remap() { flags+="${flags:+$separator}--remap-path-prefix=$1=$2"; }
remap "$PWD" /segno
remap "$out/target" /segno/target
remap "${CARGO_HOME:-$HOME/.cargo}" /cargo
remap "$(rustc --print sysroot)/lib/rustlib/src/rust" "/rustc/$(rustc --version --verbose | sed -n 's/^commit-hash: //p')"

for platform in "$@"; do
    triple=${triples[$platform]}
    upper=${triple^^}
    release=$out/target/$triple/release
    mkdir -p "$release"
    # Kernels do not depend on the system.
    ln -sfn ../kernels "$out/target/$triple/kernels"
    env -u RUSTFLAGS CARGO_ENCODED_RUSTFLAGS="$flags" CARGO_TARGET_DIR="$out/target" "SEGNO_LINKER=${linkers[$platform]}" \
        "CARGO_TARGET_${upper//-/_}_LINKER=$PWD/packaging/linker.sh" \
        "${CARGO:-cargo}" rustc --locked --release --lib --target "$triple" -- --print "native-static-libs=$release/native-static-libs"
    packaging/pack.sh "$platform" "$release" "$out"
done
cat "$out/target/${triples[$1]}"/release/build/segno-*/out/registers.txt
packaging/recipes.sh "$out"
cat "$out/SHA256SUMS"
