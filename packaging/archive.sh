#!/usr/bin/env bash
# Makes the static library for hosts: one object that defines the functions of the header and nothing else that a linker could see, so that
# it lives beside other Rust libraries in one program. MinGW's linker joins no objects of this size, so for Windows the objects stay apart, and all their
# symbols visible.
#
# usage: packaging/archive.sh LIBSEGNO.A OUT.A
#   BINUTILS   what stands before the names of ld, objcopy and ar, for the library of another system
set -euo pipefail
export LC_ALL=C
in=$1 out=$2 prefix=${BINUTILS:-}
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# The compiler's intermediate code is of no use to a host, and other versions of its tools stumble over it.
lean=(--enable-deterministic-archives --strip-debug --remove-section='.llvm*')

# A plugin of binutils that reads the intermediate code of its own version alone complains about each object.
quietly() {
    if ! "$@" 2> "$work/errors"; then
        cat "$work/errors" >&2
        return 1
    fi
}

case $prefix in
    *mingw32-)
        cp "$in" "$work/all.a"
        # What the compiler wrote of debugging, in files that are no objects.
        quietly "${prefix}ar" t "$work/all.a" | sed -n '/\.dwo$/p' | sort -u > "$work/unwanted"
        quietly "${prefix}ar" dD "$work/all.a" $(cat "$work/unwanted")
        quietly "${prefix}objcopy" "${lean[@]}" "$work/all.a" "$work/lean.a"
        mv -f "$work/lean.a" "$out" ;;
    *)
        grep -oE '\bsegno_[a-z_]+\(' "$root/include/segno.h" | grep -v '_fn(' | tr -d '(' | sort -u | sed 's/^/-u /' > "$work/wanted"
        "${prefix}ld" -r $(cat "$work/wanted") "$in" -o "$work/whole.o"
        "${prefix}objcopy" --wildcard --keep-global-symbol='segno_*' "${lean[@]}" "$work/whole.o" "$work/segno.o"
        rm -f "$out"
        "${prefix}ar" rcsD "$out" "$work/segno.o" ;;
esac
chmod 644 "$out"
