#!/usr/bin/env bash
# Debian's packages of a platform, of the same files as its archive: libsegno0, which programs run with, and libsegno-dev, which they are built with.
#
# usage: packaging/deb.sh PLATFORM RELEASE_DIR SBOM OUT_DIR
#   BINUTILS, SOURCE_DATE_EPOCH   as packaging/pack.sh sets them
#   SEGNO_PACK_LEVEL              as packaging/pack.sh has it
#   SEGNO_MAINTAINER              who answers for the packages, as `Name <address>`
set -euo pipefail
platform=$1 release=$2 sbom=$3 out=$4
cd "$(dirname "$0")/.."
source packaging/platforms.sh
machine=${platform#linux-}
declare -A architectures=([x86_64]=amd64 [aarch64]=arm64)
architecture=${architectures[$machine]} libdir=lib/$machine-linux-gnu
version=$(version) abi=$(sed -n 's/^#define SEGNO_ABI_VERSION \([0-9]*\)$/\1/p' include/segno.h)
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
# mktemp keeps others out, which a package must not.
chmod 755 "$stage"

DESTDIR=$stage/dev packaging/install.sh "$release" /usr "$libdir" > /dev/null
install -d "$stage/run/usr/$libdir"
mv "$stage/dev/usr/$libdir/libsegno.so.$abi" "$stage/dev/usr/$libdir/libsegno.so.$version" "$stage/run/usr/$libdir/"
rm -r "$stage/dev/usr/share"

# FOLDER PACKAGE SECTION DEPENDS, and what it is for on standard input.
package() {
    local folder=$stage/$1 name=$2 doc=$stage/$1/usr/share/doc/$2
    install -d "$doc" "$folder/DEBIAN"
    { cat LICENSE-MIT; printf '\nOr, as you choose:\n\n'; cat LICENSE-APACHE; printf '\n'; cat packaging/THIRD-PARTY-NOTICES.txt; } > "$doc/copyright"
    install -m 644 "$sbom" "$doc/"
    {
        printf '%s\n' "Package: $name" "Version: $version" "Architecture: $architecture" "Multi-Arch: same" "Section: $3" "Priority: optional" \
            "Maintainer: ${SEGNO_MAINTAINER:-Segno <segno@localhost>}" "Installed-Size: $(du -sk --apparent-size "$folder/usr" | cut -f 1)" "Depends: $4"
        cat
    } > "$folder/DEBIAN/control"
    (cd "$folder" && find usr -type f | sort | xargs md5sum) > "$folder/DEBIAN/md5sums"
    find "$folder" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
    dpkg-deb --root-owner-group -Zxz "-z${SEGNO_PACK_LEVEL:-6}" --build "$folder" "$out/${name}_${version}_$architecture.deb" > /dev/null
    echo "release: ${name}_${version}_$architecture.deb"
}

install -d "$stage/run/DEBIAN"
echo "libsegno $abi libsegno$abi (>= $version)" > "$stage/run/DEBIAN/shlibs"
echo "activate-noawait ldconfig" > "$stage/run/DEBIAN/triggers"
package run "libsegno$abi" libs "libc6 (>= 2.34), libgcc-s1 (>= 4.2)" << 'END'
Description: language models inside other programs
 A shared library with a stable C ABI that runs language models on processors
 and on NVIDIA GPUs, inside the program that calls it.
END
package dev libsegno-dev libdevel "libsegno$abi (= $version), libc6-dev" << 'END'
Description: language models inside other programs (for building them)
 Headers for C and C++, the static library, pkg-config files and the CMake
 package of Segno, a shared library that runs language models.
END
