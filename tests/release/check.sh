#!/usr/bin/env bash
# A release as a host meets it: the library of a platform is packed, its archive unpacked in an empty folder, and hosts in C and C++ that are built with
# what lies there, and nothing of the tree but their source, write the text that the library of this system writes. Of Linux on this processor Debian's
# packages, the vcpkg port and the Conan recipe are tried too.
#
# usage: tests/release/check.sh PLATFORM RELEASE_DIR BUILD_DIR MODEL.gguf
#   PLATFORM, RELEASE_DIR   as packaging/pack.sh has them
#   BUILD_DIR               has the example `generate`, for comparison, and gets release-test/PLATFORM
#   LD_LIBRARY_PATH         where `generate` finds its library
#   WINEPREFIX              for Windows, a Wine that tests/windows/wine.sh made
set -euo pipefail
export LC_ALL=C.UTF-8
here=$LD_LIBRARY_PATH
unset LD_LIBRARY_PATH PKG_CONFIG_PATH PKG_CONFIG_LIBDIR CMAKE_PREFIX_PATH
# What is packed here goes nowhere.
export SEGNO_PACK_LEVEL=1
platform=$1 release=$(cd "$2" && pwd) build=$(cd "$3" && pwd) model=$(realpath "$4")
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$build/release-test/$platform
rm -rf "$work"
mkdir -p "$work/out" "$work/hosts"

fail() { echo "release: $platform: $*" >&2; exit 1; }

missing=$("$root/tests/need.sh" cmake pkg-config zip unzip dpkg-deb)
if [ -n "$missing" ]; then
    "$root/tests/skip.sh" tool "release: $platform: missing $(paste -sd, <<< "$missing" | sed 's/,/, /g')"
    exit 0
fi

declare -A compilers=([linux-x86_64]=cc [linux-aarch64]=aarch64-linux-gnu-gcc [windows-x86_64]=x86_64-w64-mingw32-gcc-posix)
cc=${compilers[$platform]} cxx=${compilers[$platform]/gcc/g++} cmake=() runner=() exe=''
case $platform in
    linux-x86_64) cxx=c++ ;;
    linux-aarch64)
        export QEMU_LD_PREFIX=/usr/aarch64-linux-gnu QEMU_CPU=max
        runner=(qemu-aarch64-static)
        cmake=(-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64) ;;
    windows-x86_64)
        exe=.exe runner=(wine)
        cmake=(-DCMAKE_SYSTEM_NAME=Windows -DCMAKE_RC_COMPILER=x86_64-w64-mingw32-windres) ;;
esac

# What a program writes, without the line of speeds and what Windows adds to ends of lines.
text_of() { "$root/tests/watchdog.sh" "$@" "$model" -p "ROMEO:" -n 40 -s 1 -j 1 | tr -d '\r' | sed '/tokens\/s$/d'; }

same_text() {
    local name=$1
    shift
    text_of "${runner[@]}" "$@" | diff "$work/expected" - || fail "$name writes (>) something else than the library here (<)"
    programs=$((programs + 1))
}

unpacked() {
    local archive
    "$root/packaging/pack.sh" "$platform" "$release" "$work/out"
    archive=$(echo "$work"/out/segno-*-"$platform".*)
    case $archive in
        *.zip) (cd "$work" && unzip -q "$archive") ;;
        *) tar -C "$work" -xf "$archive" ;;
    esac
    prefix=$work/$(basename "$archive" | sed -E 's/\.(zip|tar\.gz)$//')
    version=$(pkg-config --modversion "$prefix/lib/pkgconfig/segno.pc")
    (cd "$prefix" && find . ! -type d | sort) > "$work/found"
    {
        printf './%s\n' include/segno.h include/segno.hpp lib/cmake/Segno/SegnoConfig.cmake lib/cmake/Segno/SegnoConfigVersion.cmake lib/libsegno.a \
            lib/pkgconfig/segno-static.pc lib/pkgconfig/segno.pc share/doc/segno/LICENSE-APACHE share/doc/segno/LICENSE-MIT \
            share/doc/segno/THIRD-PARTY-NOTICES.txt share/doc/segno/sbom.cdx.json
        case $platform in
            windows-*) printf './%s\n' bin/segno.dll lib/libsegno.dll.a lib/segno.lib ;;
            *) printf './%s\n' lib/libsegno.so lib/libsegno.so.0 "lib/libsegno.so.$version" ;;
        esac
    } | sort | diff - "$work/found" || fail "the archive holds other files (>)"
    # Those who build the library elsewhere get the same archive.
    SOURCE_DATE_EPOCH=$(cd "$root" && git log -1 --format=%ct) "$root/packaging/pack.sh" "$platform" "$release" "$work/again" > "$work/log"
    diff -r "$work/out" "$work/again" || fail "packed again, the packages are others"
}

# Every crate that the notices name is in the list of what is linked, and the other way round, but for those of other systems.
bill_of_materials() {
    local notices=$prefix/share/doc/segno/THIRD-PARTY-NOTICES.txt linked=$work/linked
    sed -n 's|.*"purl": "pkg:cargo/\(.*\)@\(.*\)",\{0,1\}$|\1 \2|p' "$prefix/share/doc/segno/sbom.cdx.json" | sort > "$linked"
    [ "$(wc -l < "$linked")" -gt 20 ] || fail "the list of what is linked is too short"
    grep -A 1 -x -e '-\{80\}' "$notices" | grep -v -x -e '-\{2,80\}' | sed 's/, /\n/g' | grep -E '^[a-z0-9_-]+ [0-9.]+$' | sort -u > "$work/noticed"
    comm -23 "$linked" "$work/noticed" > "$work/unnoticed"
    [ ! -s "$work/unnoticed" ] || fail "linked, and not in THIRD-PARTY-NOTICES: $(cat "$work/unnoticed")"
    comm -13 "$linked" "$work/noticed" | grep -vE '^(libc|windows-(sys|link|targets)) ' > "$work/unlinked" || true
    [ ! -s "$work/unlinked" ] || fail "in THIRD-PARTY-NOTICES, and not in the list of what is linked: $(cat "$work/unlinked")"
}

# C and C++ hosts by pkg-config, with the shared and the static library.
with_pkg_config() {
    local warnings=(-Wall -Wextra -Wpedantic -Werror -O1) way
    export PKG_CONFIG_LIBDIR=$1
    for way in segno segno-static; do
        $cc -std=c11 "${warnings[@]}" "$root/examples/c/generate.c" $(pkg-config --cflags --libs $way) -o "$work/hosts/c-$way$exe"
        $cxx -std=c++17 "${warnings[@]}" "$root/examples/cpp/generate.cpp" $(pkg-config --cflags --libs $way) -o "$work/hosts/cpp-$way$exe"
        same_text "a host in C, by pkg-config $way" "$work/hosts/c-$way$exe"
        same_text "a host in C++, by pkg-config $way" "$work/hosts/cpp-$way$exe"
    done
    unset PKG_CONFIG_LIBDIR
}

with_cmake() {
    local folder=$1 static=$2 to=$work/cmake-$2 name
    rm -rf "$to"
    {
        cmake -S "$root/examples" -B "$to" -DCMAKE_PREFIX_PATH="$folder" -DSEGNO_STATIC="$static" -DCMAKE_BUILD_TYPE=Release \
            -DCMAKE_C_COMPILER="$cc" -DCMAKE_CXX_COMPILER="$cxx" "${cmake[@]}" && cmake --build "$to" --target generate_c generate_cpp
    } > "$work/log" 2>&1 || { cat "$work/log"; fail "cmake does not build the examples"; }
    [ -z "$exe" ] || for name in c cpp; do cp "$prefix/bin/segno.dll" "$to/$name/"; done
    same_text "a host in C, by CMake, static $static" "$to/c/generate$exe"
    same_text "a host in C++, by CMake, static $static" "$to/cpp/generate$exe"
}

# Hosts of Windows find DLLs beside them: Segno's, and those of their own compiler.
dlls() {
    cp "$prefix/bin/segno.dll" "$work/hosts/"
    local name folders=()
    for name in libstdc++-6.dll libwinpthread-1.dll; do folders+=("Z:$(dirname "$(realpath "$($cxx -print-file-name=$name)")")"); done
    export WINEPATH
    WINEPATH=$(IFS=';'; echo "${folders[*]}")
}

# A host of the linkers of Microsoft's kind, with segno.lib, and nothing of MinGW's.
with_lld_link() {
    printf 'LIBRARY kernel32.dll\nEXPORTS\nExitProcess\nGetStdHandle\nWriteFile\n' > "$work/kernel32.def"
    llvm-dlltool -m i386:x86-64 -d "$work/kernel32.def" -l "$work/kernel32.lib"
    clang --target=x86_64-pc-windows-msvc -std=c11 -ffreestanding -O1 -Wall -Wextra -Werror -I"$prefix/include" -c "$root/tests/windows/msvc.c" \
        -o "$work/msvc.obj"
    lld-link /nologo /machine:x64 /subsystem:console /entry:start /nodefaultlib "$work/msvc.obj" "$prefix/lib/segno.lib" "$work/kernel32.lib" \
        "/out:$work/hosts/msvc.exe"
    cp "$model" "$work/hosts/model.gguf"
    (cd "$work/hosts" && "$root/tests/watchdog.sh" wine msvc.exe) | diff "$work/expected" - || fail "a host that lld-link joined with segno.lib writes (>) something else"
    programs=$((programs + 1))
}

text_of env LD_LIBRARY_PATH="$here" "$build/generate" > "$work/expected"
[ "$(wc -c < "$work/expected")" -gt 60 ] || fail "the example writes nothing here"
programs=0
unpacked
bill_of_materials
case $platform in windows-*) dlls ;; esac
with_pkg_config "$prefix/lib/pkgconfig"
with_cmake "$prefix" OFF
with_cmake "$prefix" ON
case $platform in
    windows-*) with_lld_link ;;
    linux-x86_64) source "$root/tests/release/packages.sh" ;;
esac
echo "release: $platform: $programs hosts, built with what lay in the archive, write the text that is written here"
