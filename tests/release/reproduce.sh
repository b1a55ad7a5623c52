#!/usr/bin/env bash
# Releases of the same commit have the same bytes: what is committed is copied to two folders of other names, the packages are built in each, with homes of
# cargo in other places too, and compared; and no file of them names a folder of this machine.
#
# usage: tests/release/reproduce.sh BUILD_DIR PLATFORM...
#   SEGNO_CUDA_ARCH, NVCC   as build.rs has them; without a compiler of kernels at hand the libraries have none
set -euo pipefail
export LC_ALL=C
mkdir -p "$1/reproduce"
work=$(cd "$1/reproduce" && pwd)
shift
cd "$(dirname "$0")/../.."
home=${CARGO_HOME:-$HOME/.cargo}
export SEGNO_RELEASE_URL=https://example.invalid
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH

fail() { echo "reproduce: $*" >&2; exit 1; }

# FOLDER HOME PLATFORM...
build() {
    local folder=$work/$1 cargo_home=$2
    shift 2
    rm -rf "$folder"
    mkdir -p "$folder"
    git archive HEAD | tar -xf - -C "$folder"
    [ ! -d .cuda ] || ln -s "$PWD/.cuda" "$folder/.cuda"
    (cd "$folder" && CARGO_HOME=$cargo_home packaging/release.sh out "$@") > "$folder.log" 2>&1 || { tail -n 50 "$folder.log"; fail "the build in $folder fails"; }
}

# The same crates under another path, so that nothing is fetched twice.
rm -rf "$work/cargo-home"
mkdir -p "$work/cargo-home"
cp -r "$home/registry" "$work/cargo-home/registry"
build first "$home" "$@"
build "second of two" "$work/cargo-home" "$@"
diff "$work/first/out/SHA256SUMS" "$work/second of two/out/SHA256SUMS" || fail "the packages differ"
diff -r "$work/first/out/vcpkg" "$work/second of two/out/vcpkg" && diff -r "$work/first/out/conan" "$work/second of two/out/conan" || fail "the recipes differ"

rm -rf "$work/unpacked"
for package in "$work"/first/out/segno-*.tar.gz "$work"/first/out/segno-*.zip "$work"/first/out/*.deb; do
    [ -e "$package" ] || continue
    folder=$work/unpacked/$(basename "$package")
    mkdir -p "$folder"
    case $package in
        *.zip) unzip -q "$package" -d "$folder" ;;
        *.deb) dpkg-deb -x "$package" "$folder" ;;
        *) tar -xf "$package" -C "$folder" ;;
    esac
done
if grep -rlF -e "$work" -e "$PWD" -e "$home" "$work/unpacked"; then fail "these files name a folder of this machine"; fi
echo "reproduce: $(wc -l < "$work/first/out/SHA256SUMS") packages are the same, built in two folders"
