#!/usr/bin/env bash
# Makes a fresh Wine in the folder WINEPREFIX, unless there is one, with what Debian 12's lacks: the library of random numbers that Rust's needs.
#
# usage: tests/windows/wine.sh
set -euo pipefail
cd "$(dirname "$0")"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
mkdir -p "$WINEPREFIX"
[ -d "$WINEPREFIX/drive_c" ] || ../watchdog.sh wine wineboot -i > "$log" 2>&1 || { cat "$log"; echo "wine: does not start" >&2; exit 1; }
system=$WINEPREFIX/drive_c/windows/system32
[ -e "$system/bcryptprimitives.dll" ] || x86_64-w64-mingw32-gcc-posix -shared prng.c -ladvapi32 -o "$system/bcryptprimitives.dll"
