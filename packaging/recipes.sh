#!/usr/bin/env bash
# Fills in the vcpkg port and the Conan recipe of a release, which take its archives, and writes the sums of all packages.
#
# usage: packaging/recipes.sh OUT_DIR
#   OUT_DIR             has the archives
#   SEGNO_RELEASE_URL   the folder from which the recipes take them; OUT_DIR itself by default
set -euo pipefail
export LC_ALL=C
out=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
source packaging/platforms.sh
rm -rf "$out/vcpkg" "$out/conan"
mkdir -p "$out/vcpkg/segno" "$out/conan"

values=(-e "s|@VERSION@|$(version)|g" -e "s|@URL@|${SEGNO_RELEASE_URL:-file://$out}|g")
for platform in "${!triples[@]}"; do
    archive=$out/$(archive_of "$platform")
    # A platform that this release lacks has no sum, and the recipes refuse it.
    [ -e "$archive" ] || continue
    values+=(-e "s|@SHA256_$platform@|$(sha256sum "$archive" | cut -d' ' -f 1)|g" -e "s|@SHA512_$platform@|$(sha512sum "$archive" | cut -d' ' -f 1)|g")
done
values+=(-e 's|@SHA[0-9]*_[a-z0-9_-]*@||g')
for file in vcpkg/portfile.cmake vcpkg/vcpkg.json conan/conandata.yml; do
    sed "${values[@]}" "packaging/$file.in" > "$out/${file/vcpkg\//vcpkg/segno/}"
done
cp packaging/conan/conanfile.py "$out/conan/"
(cd "$out" && sha256sum segno-*.tar.gz segno-*.zip ./*.deb 2> /dev/null | sed 's|  \./|  |' | sort -k 2) > "$out/SHA256SUMS" || [ -s "$out/SHA256SUMS" ]
