#!/usr/bin/env bash
# C tests and examples under valgrind: no invalid access, no use of what nobody has written, nothing lost. Valgrind has no 512-bit
# instructions, so the library chooses its AVX2 kernels here. The test `hostile` takes minutes here; tests/sanitize.sh runs it.
#
# usage: tests/memcheck.sh FOLDER_OF_LIBRARY FOLDER_OF_PROGRAMS MODEL
set -euo pipefail

target=$1 build=$2 model=$3
if ! command -v valgrind > /dev/null; then
    exec "$(dirname "$0")/skip.sh" tool "memcheck: valgrind not found"
fi

check() {
    local name=$1
    shift
    echo "memcheck: $name"
    LD_LIBRARY_PATH=$target "$(dirname "$0")/watchdog.sh" valgrind --quiet --error-exitcode=99 --leak-check=full --show-leak-kinds=definite,indirect \
        --errors-for-leak-kinds=definite,indirect --fair-sched=yes "$@" > "$build/memcheck.out" ||
        { echo "memcheck: $name failed"; cat "$build/memcheck.out"; exit 1; }
}

# A leak and a read behind an array must be found, or the rest of this proves nothing.
cat > "$build/faulty.c" << 'END'
#include <stdlib.h>
int main(int argc, char **argv)
{
    volatile char *lost = malloc(8);
    (void)argv;
    return argc > 1 ? lost[8] : 0;
}
END
cc -g -O0 "$build/faulty.c" -o "$build/faulty"
for fault in "" read; do
    ! (check "a program at fault" "$build/faulty" $fault) > /dev/null 2>&1 || { echo "memcheck finds no fault"; exit 1; }
done

check boundary "$build/test_boundary" "$model"
check errors "$build/test_errors" "$model"
check host "$build/test_host" "$model"
check generate "$build/generate" "$model" -p "ROMEO:" -n 8 -s 1
check crowd "$build/crowd" "$model" -c 3 -n 8
check form "$build/form" "$model"
check adapt "$build/adapt" "$model" "ROMEO:" "${model%.gguf}-lora.gguf" "${model%.gguf}-lora.gguf=-0.5"
check embed "$build/embed" "$model" "the king" "my lord" "come"
check chat "$build/chat" "$model" -s 7 -n 16 "The duke speaks." < <(printf 'Who art thou?\n')
check readme "$build/readme" "$model" < <(printf 'Who art thou?\n')
echo "memcheck: passed"
