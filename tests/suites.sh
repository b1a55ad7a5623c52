#!/usr/bin/env bash
# Builds test programs in Rust for another system, and runs them by a program that stands for it, two at a time. Of a program that fails the whole log
# is shown; of each that passes the number of its tests, and how many hostile cases it had and how many allocations were refused.
#
# usage: tests/suites.sh NAME WORK_DIR TRIPLE RUNNER... < LIST
#   CARGO_TARGET_DIR   has the library for that system, as it is released; its neighbour, of that name and `-tests`, gets the programs
#   NAME   what stands before every line that is printed
#   LIST   a line a program: the name of an integration test, then its arguments
set -euo pipefail
cd "$(dirname "$0")/.."
name=$1 work=$2 triple=$3
shift 3
mkdir -p "$work"

fail() { echo "$name: $*" >&2; exit 1; }

mapfile -t list
wanted=()
for suite in $(printf '%s\n' "${list[@]}" | cut -d' ' -f1 | sort -u); do wanted+=(--test "$suite"); done
# Without kernels for GPUs, which do not depend on the system. In the profile of releases, so that the tests are made of the crates that the library is made
# of; a folder has room for one library, so they are copied. Assertions and checks of numbers are those of tests, and what is ours is compiled as fast as
# that goes without programs that take longer.
settings=()
for setting in opt-level=1 debug-assertions=true overflow-checks=true; do settings+=(--config "profile.release.package.segno.$setting"); done
[ -e "$CARGO_TARGET_DIR-tests" ] || cp -a "$CARGO_TARGET_DIR" "$CARGO_TARGET_DIR-tests"
export CARGO_TARGET_DIR=$CARGO_TARGET_DIR-tests
cargo test --release "${settings[@]}" --locked --no-run --no-default-features --target "$triple" --message-format=json-render-diagnostics "${wanted[@]}" \
    > "$work/built"
program_of() {
    sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' "$work/built" | grep -E "/$1-[0-9a-f]+(\.exe)?$" || fail "cargo built no program of $1"
}

run() {
    local suite=$1 program began=$SECONDS
    shift
    program=$(program_of "$suite")
    if "${runner[@]}" "$program" --show-output "$@" > "$work/$suite.log" 2>&1 && grep -q '^test result: ok' "$work/$suite.log"; then
        echo "$suite $(sed -n 's/^test result: ok\. \([0-9]*\) passed.*/\1/p' "$work/$suite.log") ($((SECONDS - began)) s)" > "$work/$suite.passed"
    else
        rm -f "$work/$suite.passed"
    fi
}

runner=(tests/watchdog.sh "$@")
rm -f "$work"/*.passed
for line in "${list[@]}"; do
    read -ra words <<< "$line"
    while [ "$(jobs -rp | wc -l)" -ge 2 ]; do wait -n || true; done
    run "${words[@]}" &
done
wait
for line in "${list[@]}"; do
    suite=${line%% *}
    [ -e "$work/$suite.passed" ] || { cat "$work/$suite.log"; fail "the Rust tests of $suite fail"; }
    grep -hE '^[0-9]+ cases' "$work/$suite.log" | sed "s/^/$name: $suite: /" || true
    sed -nE 's/.* allocations, .*\b([0-9]+) refused.*/\1/p' "$work/$suite.log" |
        awk -v of="$name: $suite" '{sum += $1} END {if (NR > 0) print of ": " NR " series of calls, " sum " allocations refused"}'
done
echo "$name: Rust tests that pass: $(cat "$work"/*.passed | paste -sd, | sed 's/,/, /g')"
