#!/usr/bin/env bash
# The system's libraries that a static link needs: what rustc printed when it made the archive is what native-static-libs.txt expects and
# what the pkg-config files and the CMake package of a prefix link. A compiler driver adds -lgcc_s and -lc by itself.
#
# usage: tests/abi/native.sh RELEASE_DIR PREFIX
set -euo pipefail
export LC_ALL=C
release=$(cd "$1" && pwd) prefix=$(cd "$2" && pwd)
cd "$(dirname "$0")"

differs() {
    echo "abi: $1 has '$2' where a static link needs '$printed'" >&2
    exit 1
}

printed=$(tr ' ' '\n' < "$release/native-static-libs" | grep -vxE -e '(-lgcc_s|-lc|)' | paste -sd' ')
expected=$(cat native-static-libs.txt)
[ "$expected" = "$printed" ] || differs "native-static-libs.txt (if the new library may be asked of hosts, change it there)" "$expected"
found=$(sed -n 's/^Libs.private: //p' "$prefix/lib/pkgconfig/segno.pc")
[ "$found" = "$printed" ] || differs "Libs.private of segno.pc" "$found"
found=$(sed -n 's/^Libs: ${libdir}\/libsegno\.a //p' "$prefix/lib/pkgconfig/segno-static.pc")
[ "$found" = "$printed" ] || differs "Libs of segno-static.pc" "$found"
found=$(sed -nE 's/^ +INTERFACE_LINK_LIBRARIES "(.*)"$/\1/p' "$prefix/lib/cmake/Segno/SegnoConfig.cmake")
[ "$found" = "$printed" ] || differs "Segno::segno_static of SegnoConfig.cmake" "$found"
echo "abi: a static link needs $printed, and every package says so"
