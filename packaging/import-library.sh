#!/usr/bin/env bash
# Writes the import library of segno.dll for the linkers of Microsoft and LLVM, from the list of functions alone. MinGW's, libsegno.dll.a, comes
# with the DLL from cargo.
#
# usage: packaging/import-library.sh SEGNO.LIB
#   LLVM_DLLTOOL   the tool that writes it, `llvm-dlltool` by default
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
definition=$(mktemp)
trap 'rm -f "$definition"' EXIT
{ printf 'LIBRARY segno.dll\nEXPORTS\n'; cat "$root/tests/abi/symbols.txt"; } > "$definition"
"${LLVM_DLLTOOL:-llvm-dlltool}" -m i386:x86-64 -d "$definition" -D segno.dll -l "$1"
