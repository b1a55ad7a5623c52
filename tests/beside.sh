#!/usr/bin/env bash
# Makes lists of targets beside each other, each list in its order, for what leaves processors idle when it runs alone: linkers, single units of code,
# hosts that run one after the other. What a list prints is shown when it ends; the first that fails ends the others.
#
# usage: tests/beside.sh "TARGET..." "TARGET..." ...
#   MAKE   the make to use
set -euo pipefail
cd "$(dirname "$0")/.."
logs=$(mktemp -d)
# The number of a list by the process that makes it.
declare -A numbers=()

# Each list is a session of its own, which ends with everything that it has started; the watchdog's programs are no part of a process group of make.
end_all() {
    local session
    for session in "${!numbers[@]}"; do pkill -TERM --session "$session" || true; done
    wait
    rm -rf "$logs"
}
trap end_all EXIT
trap 'exit 130' INT TERM

for ((number = 1; number <= $#; number++)); do
    read -ra targets <<< "${!number}"
    setsid "${MAKE:-make}" --no-print-directory "${targets[@]}" > "$logs/$number" 2>&1 < /dev/null &
    numbers[$!]=$number
done
while [ ${#numbers[@]} != 0 ]; do
    status=0
    wait -n -p ended "${!numbers[@]}" || status=$?
    number=${numbers[$ended]}
    unset "numbers[$ended]"
    echo "${!number}: $SECONDS s"
    cat "$logs/$number"
    [ $status = 0 ] || { echo "beside: ${!number}: failed ($status)" >&2; exit 1; }
done
