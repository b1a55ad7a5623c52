#!/usr/bin/env bash
# Installs what a host compiles and links against: shared and static library, headers, pkg-config files, CMake package, licences. Nothing in
# the installed files names the prefix, so the folder may be moved.
#
# usage: packaging/install.sh RELEASE_DIR PREFIX [LIBDIR]
#   RELEASE_DIR   libsegno.so or segno.dll and libsegno.dll.a, libsegno.a, and native-static-libs, which rustc printed
#   DESTDIR       put in front of every path that is written, for packagers
#   LIBDIR        folder of the libraries below PREFIX, lib by default
#   BINUTILS      what stands before the names of ld, objcopy, ar and strip, for the library of another system
set -euo pipefail
export LC_ALL=C
release=$1 prefix=$2 libdir=${3:-lib}
root=$(cd "$(dirname "$0")/.." && pwd)
case $prefix in /*) ;; *) prefix=$PWD/$prefix ;; esac
to=${DESTDIR:-}$prefix

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$root/Cargo.toml" | head -n 1)
shared=$release/libsegno.so
[ ! -e "$release/segno.dll" ] || shared=$release/segno.dll
# cargo builds it so for tests and tools, and puts it in the same place where all targets are asked for.
if grep -qF "$version+testing" "$shared"; then
    echo "install: $shared is built with the feature testing: remove it, and run make" >&2
    exit 1
fi
abi=$(sed -n 's/^#define SEGNO_ABI_VERSION \([0-9]*\)$/\1/p' "$root/include/segno.h")
# A compiler driver adds -lgcc_s or its static counterpart, and -lc, by itself.
native=$(tr ' ' '\n' < "$release/native-static-libs" | grep -vxE -e '(-lgcc_s|-lc|)' | paste -sd' ')
up=$(realpath -ms --relative-to="/prefix/$libdir/pkgconfig" /prefix)
# Programs find the library in a prefix of one's own by a path of their own; the loader knows the system's folders.
case $prefix in /usr | /usr/local) rpath='' ;; *) rpath='-Wl,-rpath,${libdir} ' ;; esac

fill() {
    sed -e "s|@VERSION@|$version|g" -e "s|@ABI@|$abi|g" -e "s|@LIBDIR@|$libdir|g" -e "s|@UP@|$up|g" \
        -e "s|@RPATH@|$rpath|g" -e "s|@NATIVE@|$native|g" "$root/packaging/$1" > "$2"
    chmod 644 "$2"
}

install -d "$to/include" "$to/$libdir/pkgconfig" "$to/$libdir/cmake/Segno" "$to/share/doc/segno"
install -m 644 "$root/include/segno.h" "$root/bindings/cpp/segno.hpp" "$to/include/"
install -m 644 "$root/LICENSE-MIT" "$root/LICENSE-APACHE" "$root/packaging/THIRD-PARTY-NOTICES.txt" "$to/share/doc/segno/"

# Written under another name first: a process that has the old library mapped keeps it.
library() {
    install -m 755 "$1" "$2.partial"
    "${BINUTILS:-}strip" --strip-unneeded "$2.partial"
    mv -f "$2.partial" "$2"
}

"$root/packaging/archive.sh" "$release/libsegno.a" "$to/$libdir/libsegno.a"
if [ "$shared" = "$release/segno.dll" ]; then
    config=SegnoConfig-windows.cmake.in rpath=''
    install -d "$to/bin"
    library "$shared" "$to/bin/segno.dll"
    install -m 644 "$release/libsegno.dll.a" "$to/$libdir/"
    "$root/packaging/import-library.sh" "$to/$libdir/segno.lib"
    chmod 644 "$to/$libdir/segno.lib"
else
    config=SegnoConfig.cmake.in
    library "$shared" "$to/$libdir/libsegno.so.$version"
    ln -sfn "libsegno.so.$version" "$to/$libdir/libsegno.so.$abi"
    ln -sfn "libsegno.so.$abi" "$to/$libdir/libsegno.so"
fi

fill segno.pc.in "$to/$libdir/pkgconfig/segno.pc"
fill segno-static.pc.in "$to/$libdir/pkgconfig/segno-static.pc"
fill "$config" "$to/$libdir/cmake/Segno/SegnoConfig.cmake"
fill SegnoConfigVersion.cmake.in "$to/$libdir/cmake/Segno/SegnoConfigVersion.cmake"
echo "installed segno $version (ABI $abi) to $to"
