#!/usr/bin/env bash
# Runs a program, and ends it and what it has started when it takes too long: a test that waits for ever is a failure. cargo starts every test
# binary through this (.cargo/config.toml), make and the scripts the programs of the other languages. Benchmarks may take as long as they do.
#
# usage: tests/watchdog.sh PROGRAM [ARGUMENT...]
#   SEGNO_TEST_SECONDS   how long it may take, 900 by default; 0 for as long as it does
set -uo pipefail
export SEGNO_TEST_SECONDS=${SEGNO_TEST_SECONDS:-900}
case " $* " in *" --bench "*) SEGNO_TEST_SECONDS=0 ;; esac
# These tests count and refuse what the whole process allocates. One after the other, so that the harness, which allocates when it starts a test and
# takes what one has printed, never does so while another test counts.
case " $* " in *"/faults-"*) export RUST_TEST_THREADS=1 ;; esac
# At a terminal the program stays with its process group, so that Ctrl-C reaches it.
foreground=()
[ ! -t 0 ] || foreground=(--foreground)
timeout "${foreground[@]}" --kill-after=10 "$SEGNO_TEST_SECONDS" "$@"
status=$?
# 124 is timeout's own, 137 that of a program which had to be killed.
if [ "$SEGNO_TEST_SECONDS" != 0 ] && { [ $status = 124 ] || [ $status = 137 ]; }; then
    echo "watchdog: $* was ended after $SEGNO_TEST_SECONDS s (SEGNO_TEST_SECONDS)" >&2
fi
exit $status
