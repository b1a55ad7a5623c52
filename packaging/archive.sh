#!/usr/bin/env bash
# Makes the static library for hosts: one object that defines the functions of the header and nothing else that a linker could see, so that
# it lives beside other Rust libraries in one program.
#
# usage: packaging/archive.sh LIBSEGNO.A OUT.A
set -euo pipefail
export LC_ALL=C
in=$1 out=$2
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

grep -oE '\bsegno_[a-z_]+\(' "$root/include/segno.h" | grep -v '_fn(' | tr -d '(' | sort -u | sed 's/^/-u /' > "$work/wanted"
ld -r $(cat "$work/wanted") "$in" -o "$work/whole.o"
# The compiler's intermediate code is of no use to a host, and other versions of its tools stumble over it.
objcopy --wildcard --keep-global-symbol='segno_*' --strip-debug --remove-section='.llvm*' "$work/whole.o" "$work/segno.o"
rm -f "$out"
ar rcs "$out" "$work/segno.o"
chmod 644 "$out"
