#!/usr/bin/env bash
# The game of examples/c/frame.c: while its characters speak and read long prompts, the model has one thread, and the frames stay nearly as they
# are in silence. A machine with other work to do is given three tries.
#
# usage: tests/frame/check.sh BUILD_DIR MODEL.gguf SECONDS RATE MOST_P99_RATIO MOST_POINTS_LATER
set -euo pipefail
export LC_ALL=C
frame=$1/frame model=$2 seconds=$3 rate=$4 ratio=$5 points=$6
out=$(mktemp)
trap 'rm -f "$out"' EXIT

# Plays once, and counts the threads of the game half way, when the characters speak.
play() {
    "$frame" "$model" -t "$seconds" -r "$rate" > "$out" &
    local game=$! threads
    sleep "$((seconds / 4 * 2 + 1)).5"
    threads=$(sed -n 's/^Threads:\t//p' "/proc/$game/status")
    wait "$game"
    tail -n 4 "$out"
    [ "$threads" = 2 ] || { echo "frame: $threads threads, not the game's and the session's" >&2; exit 1; }
}

# Whether the last game kept within the limits.
within() {
    awk -v ratio="$ratio" -v points="$points" '
        / s of speech$/ {tokens = $1; prompts = $4}
        /^(silent|speaking):/ {p99[$1] = $9; late[$1] = $11}
        END {
            a = "silent:"; b = "speaking:"
            printf "frame: p99 %.2f times that of silence, %.2f points more are late\n", p99[b] / p99[a], late[b] - late[a]
            exit !(tokens > 0 && prompts > 0 && p99[a] > 0 && p99[b] <= ratio * p99[a] && late[b] - late[a] <= points)
        }' "$out"
}

for _ in 1 2 3; do
    play
    if within; then exit 0; fi
done
echo "frame: the limits are $ratio times and $points points" >&2
exit 1
