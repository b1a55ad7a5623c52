#!/usr/bin/env bash
# Links as the compiler driver that SEGNO_LINKER names does, without exporting what packaging/foreign-symbols.txt lists: rustc exports what the crates below
# the library export for hosts of their own, and of the linkers of all systems only LLVM's for ELF can be told to leave names out of rustc's list (build.rs
# does that). So the names are taken out of the list, which is a version script, a list of symbols, or a module definition.
#
# usage: SEGNO_LINKER=CC cargo ... with packaging/linker.sh as its linker
set -euo pipefail
foreign=$(dirname "${BASH_SOURCE[0]}")/foreign-symbols.txt

for argument in "$@"; do
    list=${argument##*[=,]}
    case $list in
        */list | */list.def)
            # A name stands alone on its line, after Apple's underscore, before a semicolon, or between quotes.
            { grep -vE "^[[:space:]]*[_\"]?($(paste -sd'|' "$foreign"))[;\"]?$" "$list" || true; } > "$list.own"
            mv "$list.own" "$list" ;;
    esac
done
exec "$SEGNO_LINKER" "$@"
