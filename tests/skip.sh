#!/usr/bin/env bash
# Says that a test is skipped, in the form that `make test` counts at its end; tests in Rust say it through tests/common/skip.rs. Where CI is
# true a missing tool fails.
#
# usage: tests/skip.sh tool|gpu|data|machine "TEST: WHAT IS MISSING"
#        tests/skip.sh report
#   SEGNO_SKIPS   file that lists what was skipped, a line each
set -euo pipefail

if [ "$1" != report ]; then
    echo "skipped: $2"
    [ -z "${SEGNO_SKIPS:-}" ] || printf '%s\t%s\n' "$1" "$2" >> "$SEGNO_SKIPS"
    [ "$1" != tool ] || [ "${CI:-}" != true ] || { echo "skip: continuous integration needs every tool" >&2; exit 1; }
    exit 0
fi

list=$(sort -u "${SEGNO_SKIPS:?}" 2> /dev/null || true)
others=$(printf %s "$list" | grep -vP '^gpu\t' || true)
echo "skipped: $(printf %s "$list" | grep -cP '^gpu\t' || true) tests for want of a GPU, $(printf %s "$others" | grep -c . || true) for other reasons"
[ -z "$others" ] || printf '%s\n' "$others" | sed 's/\t/: /; s/^/    /'
