#!/usr/bin/env bash
# Packs the library that cargo built for a platform: an archive with headers, libraries, pkg-config files, CMake package, licences and the list of what
# is linked; for Linux Debian's packages too. The same library gives the same bytes, whenever and wherever it is packed.
#
# usage: packaging/pack.sh PLATFORM RELEASE_DIR OUT_DIR
#   PLATFORM            linux-x86_64, linux-aarch64 or windows-x86_64
#   RELEASE_DIR         what packaging/install.sh takes
#   SOURCE_DATE_EPOCH   the date of all files, in seconds since 1970; that of the commit by default
#   SEGNO_PACK_LEVEL    how hard to compress, from 1 to 9; 9 by default, and 6 for Debian's packages
set -euo pipefail
export LC_ALL=C TZ=UTC
umask 022
platform=$1 release=$(cd "$2" && pwd)
mkdir -p "$3"
out=$(cd "$3" && pwd)
cd "$(dirname "$0")/.."
source packaging/platforms.sh
SOURCE_DATE_EPOCH=$(epoch)
export SOURCE_DATE_EPOCH BINUTILS=${binutils[$platform]}
archive=$(archive_of "$platform")
name=segno-$(version)-$platform
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cargo metadata --locked --format-version 1 --filter-platform "${triples[$platform]}" |
    "${PYTHON:-python3}" packaging/sbom.py "${triples[$platform]}" > "$work/sbom.cdx.json"
packaging/install.sh "$release" "$work/$name" > /dev/null
bytes=$(find "$work/$name" -type f \( -name 'libsegno.so*' -o -name segno.dll \) -printf %s)
[ "$bytes" -le $((40 * 1024 * 1024)) ] || { echo "release: the shared library for $platform has $bytes bytes" >&2; exit 1; }
install -m 644 "$work/sbom.cdx.json" "$work/$name/share/doc/segno/"
find "$work" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
rm -f "$out/$archive"
case $archive in
    *.zip) (cd "$work" && find "$name" -type f | sort | zip -q "-${SEGNO_PACK_LEVEL:-9}" -X -@ "$out/$archive") ;;
    *) tar --sort=name --owner=0 --group=0 --numeric-owner --format=gnu -C "$work" -cf - "$name" | gzip "-${SEGNO_PACK_LEVEL:-9}n" > "$out/$archive" ;;
esac
echo "release: $archive, $(stat -c %s "$out/$archive") bytes"
case $platform in linux-*) packaging/deb.sh "$platform" "$release" "$work/sbom.cdx.json" "$out" ;; esac
