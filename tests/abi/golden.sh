#!/usr/bin/env bash
# Holds the header against golden.c: all that golden.c pins is still so, for C and for C++; all that the header promises is pinned; and
# golden.c has lost nothing of what the frozen header v0/segno.h promised, which itself never changes. With --write, adds what is not pinned yet.
#
# usage: tests/abi/golden.sh [--write]
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() { echo "abi: $*" >&2; exit 1; }

(cd v0 && sha256sum --check --quiet --strict SHA256SUMS) ||
    fail "tests/abi/v0 is what hosts of ABI 0 were compiled with, and never changes: put it back"

# A struct that tells its size may grow; its earlier sizes stay as lower bounds.
exact() { grep -v '^GROWING' "$1" || true; }

./pins.sh ../../include/segno.h > "$work/today"
./pins.sh v0/segno.h > "$work/frozen"
sed -n "/^PIN(/,\$p" golden.c | tail -n +2 | grep -v "^\$" > "$work/pinned" || true
lost=$(exact "$work/pinned" | grep -vxFf "$work/today" || true)
[ -z "$lost" ] || fail "these promises of golden.c are gone or changed; within an ABI number they are kept: put the old ones back and
     give what is new a new name (CONTRIBUTING.md, \"The ABI\")
$lost"
lost=$(grep -vxFf "$work/pinned" "$work/frozen" || true)
[ -z "$lost" ] || fail "golden.c lacks what v0/segno.h promised; its lines are never removed: put them back
$lost"
new=$(grep -vxFf "$work/pinned" "$work/today" || true)
if [ "${1:-}" = --write ]; then
    [ -z "$new" ] || echo "$new" >> golden.c
elif [ -n "$new" ]; then
    fail "these are not pinned yet; if the addition is meant, run \`make abi-baseline\` and commit what it adds
$new"
fi

flags=(-Wall -Wextra -Wpedantic -Werror -fsyntax-only -I../../include)
for compiler in gcc clang; do
    command -v "$compiler" > /dev/null || { ../skip.sh tool "abi: golden.c: $compiler not found"; continue; }
    "$compiler" -x c -std=c11 "${flags[@]}" golden.c || fail "golden.c does not hold in C with $compiler"
    "$compiler" -x c++ -std=c++11 "${flags[@]}" golden.c || fail "golden.c does not hold in C++ with $compiler"
done
echo "abi: $(wc -l < "$work/today") promises of the header are pinned"
