#!/usr/bin/env bash
# The library compiles without a warning and links for systems on which no test runs it; and it compiles with the oldest Rust that Cargo.toml allows.
#
# usage: tests/targets/check.sh RELEASE_DIR BUILD_DIR
set -euo pipefail
cd "$(dirname "$0")/../.."
mkdir -p "$1/../kernels" "$2/targets/oldest"
release=$(cd "$1" && pwd) work=$(cd "$2/targets" && pwd)
export CARGO_TARGET_DIR=$work CARGO_INCREMENTAL=0 RUSTFLAGS="-D warnings"

for triple in aarch64-linux-android aarch64-apple-darwin; do
    missing=$(tests/need.sh clang ld.lld llvm-nm std:$triple)
    if [ -n "$missing" ]; then
        tests/skip.sh tool "targets: $triple: missing $(paste -sd, <<< "$missing" | sed 's/,/, /g')"
        continue
    fi
    CARGO_PROFILE_DEV_OPT_LEVEL=0 CARGO_PROFILE_DEV_DEBUG=false tests/targets/link.sh $triple "$work/$triple-link"
done

# AArch64 asks for the newest functions of Rust's library, those of 16-bit floats.
oldest=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml) arm=aarch64-unknown-linux-gnu
if command -v rustup > /dev/null; then
    { rustup toolchain install "$oldest" --profile minimal --no-self-update && rustup target add --toolchain "$oldest" $arm; } > "$work/log" 2>&1 || true
fi
if ! rustc "+$oldest" --print target-libdir --target $arm 2> /dev/null | xargs -r test -d; then
    tests/skip.sh tool "targets: missing Rust $oldest"
    exit 0
fi
# The kernels that were compiled with the library serve.
ln -sfn "$release/../kernels" "$work/oldest/kernels"
export RUSTFLAGS='' CARGO_TARGET_DIR=$work/oldest
cargo "+$oldest" check --locked --quiet --lib
cargo "+$oldest" check --locked --quiet --lib --no-default-features --target $arm
echo "targets: the library compiles with Rust $oldest, for x86-64 and AArch64"
