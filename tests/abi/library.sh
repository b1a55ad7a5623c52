#!/usr/bin/env bash
# What the shared library exports, needs and weighs: exported == declared in the header == symbols.txt, its SONAME, no library beyond the C
# runtime, no glibc newer than promised, a bounded size. With --write, adds new functions to symbols.txt.
#
# usage: tests/abi/library.sh LIBSEGNO.SO [--write]
#   BINUTILS   what stands before the names of nm, objdump, readelf and strip, for the library of another processor
set -euo pipefail
export LC_ALL=C
lib=$1
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() { echo "abi: $*" >&2; exit 1; }

"${BINUTILS:-}nm" -D --defined-only "$lib" | awk '{print $3}' | sed 's/@.*//' | sort > "$work/exported"
grep -oE '\bsegno_[a-z_]+\(' "$root/include/segno.h" | grep -vE '_fn\(' | tr -d '(' | sort -u > "$work/declared"
diff "$work/declared" "$work/exported" || fail "exported symbols (>) differ from the functions of the header (<): run \`make header\`"
known=$root/tests/abi/symbols.txt
sort -uc "$known" || fail "symbols.txt is not sorted"
gone=$(comm -23 "$known" "$work/exported")
[ -z "$gone" ] || fail "these functions are gone; hosts that call them would not start: put them back
$gone"
if [ "${2:-}" = --write ]; then cp "$work/exported" "$known"; fi
new=$(comm -13 "$known" "$work/exported")
[ -z "$new" ] || fail "these functions are not in symbols.txt; if the addition is meant, run \`make abi-baseline\` and commit what it adds
$new"

"${BINUTILS:-}readelf" -d "$lib" > "$work/dynamic"
grep -q 'SONAME.*\[libsegno\.so\.0\]' "$work/dynamic" || fail "SONAME is not libsegno.so.0"
grep -q 'NODELETE' "$work/dynamic" || fail "not linked with -z nodelete"
sed -nE 's/.*\(NEEDED\).*\[(.*)\]/\1/p' "$work/dynamic" | sort > "$work/needed"
allowed='^(libc\.so\.6|libm\.so\.6|libgcc_s\.so\.1|ld-linux-(x86-64\.so\.2|aarch64\.so\.1))$'
if grep -vE "$allowed" "$work/needed"; then fail "needs a library beyond the C runtime"; fi

newest=$("${BINUTILS:-}objdump" -T "$lib" | grep -oE 'GLIBC_[0-9.]+' | sort -uV | tail -n 1)
[ "$(printf '%s\nGLIBC_2.34\n' "$newest" | sort -V | tail -n 1)" = GLIBC_2.34 ] || fail "needs $newest, 2.34 is promised"

"${BINUTILS:-}strip" -o "$work/stripped" "$lib"
bytes=$(stat -c %s "$work/stripped")
[ "$bytes" -le $((53 * 256 * 1024)) ] || fail "stripped library has $bytes bytes"
echo "abi: $(wc -l < "$work/exported") symbols, needs $(paste -sd' ' "$work/needed"), $newest, $bytes bytes stripped"
