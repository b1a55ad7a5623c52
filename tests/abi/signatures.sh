#!/usr/bin/env bash
# Compares the types of every function, down to the fields of structs, with the baseline x86_64.abi, by libabigail. The types come from a
# library of empty functions that is made from the header, which is what hosts are compiled against: no second build of the real library is
# needed, and const is kept, which debug information of Rust code does not have. That the real library has these functions, library.sh makes
# sure; that the header is made from its source, tests/style/header.rs. With --write, renews the baseline after an addition.
#
# usage: tests/abi/signatures.sh [--write]
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() { echo "abi: $*" >&2; exit 1; }

for tool in abidw abidiff; do
    command -v $tool > /dev/null || exec ../skip.sh tool "abi: types of functions: $tool not found"
done
[ "$(uname -m)" = x86_64 ] || exec ../skip.sh machine "abi: types of functions: the baseline is one for x86-64"

{
    printf '#include <segno.h>\n#define FUNCTION(...) __VA_ARGS__ { __builtin_trap(); }\n'
    ./pins.sh ../../include/segno.h | grep '^FUNCTION'
} > "$work/empty.c"
gcc -std=c2x -w -g -fPIC -shared -I../../include "$work/empty.c" -o "$work/empty.so"
abidw --no-corpus-path --no-comp-dir-path --no-show-locs "$work/empty.so" > "$work/today.abi"

# What abidiff says of removed functions, changed signatures and changed fields, and never of an addition.
incompatible="[1-9][0-9]* (Removed|data member (change|deletion))|return type changed|parameter [0-9]+ of type '.*' (changed:|was )"
report=$work/report
same=0
[ ! -e x86_64.abi ] || abidiff --harmless x86_64.abi "$work/today.abi" > "$report" || same=$?
if [ "${1:-}" = --write ]; then
    if [ $same -ne 0 ] && grep -qE "$incompatible" "$report"; then
        cat "$report" >&2
        fail "this is no addition; the baseline stays as it is"
    fi
    [ $same -ne 0 ] || [ ! -e x86_64.abi ] || exit 0
    cp "$work/today.abi" x86_64.abi
    echo "abi: wrote x86_64.abi; read what was added before you commit it"
    cat "$report" 2> /dev/null || true
    exit 0
fi
[ $same -eq 0 ] || {
    cat "$report" >&2
    fail "types differ from the baseline: if all of it is an addition (a function, or a field at the end of a struct), run
     \`make abi-baseline\` and commit what it writes; otherwise put the old signature back and give the new one a new name"
}
echo "abi: types of all functions are those of the baseline"
