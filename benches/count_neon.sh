#!/usr/bin/env bash
# Counts the instructions that a product takes for a weight, with the kernels for AArch64: qemu executes a program one instruction at a time and logs each; of
# two runs that differ by one product the difference is its count, whatever runs before it. What an instruction costs depends on the processor: these are
# no figures of speed.
#
# usage: benches/count_neon.sh > benches/results/neon.md
set -euo pipefail
cd "$(dirname "$0")/.."
triple=aarch64-unknown-linux-gnu
missing=$(tests/need.sh aarch64-linux-gnu-gcc qemu-aarch64-static std:$triple)
[ -z "$missing" ] || { echo "count_neon: missing $(paste -sd, <<< "$missing")" >&2; exit 1; }
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc RUSTFLAGS="--cfg without_tools"
program=$(cargo bench --locked --no-run --no-default-features --bench instructions --target $triple --message-format=json |
    sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | tail -n 1)
run() { QEMU_CPU=max qemu-aarch64-static -L /usr/aarch64-linux-gnu "$@"; }
weights=$(run "$program" | grep -oE '[0-9]+ weights' | cut -d' ' -f 1)

# TYPE KERNELS TOKENS REPEATS; a line of the log an instruction.
executed() { run -singlestep -d exec,nochain "$program" "$@" 2>&1 | wc -l; }

# With two decimals; a weight counts once for each activation row that it is multiplied with.
per_weight() {
    local once twice
    once=$(executed "$1" "$2" "$3" 1)
    twice=$(executed "$1" "$2" "$3" 2)
    awk -v "count=$((twice - once))" -v "products=$((weights * $3))" 'BEGIN {printf "%.2f", count / products}'
}

types=(Q4_0 Q8_0 Q4_K Q5_K Q6_K Q2_K Q3_K IQ4_XS MXFP4 F16 BF16 F32)
cat << END
# Instructions of the kernels for AArch64

Executed instructions for a weight and an activation row, loads, stores and loops included, in a product of 16 rows of 1,024 weights: \`neoni8mm\` with
FEAT_I8MM, \`neondot\` with FEAT_DotProd, \`neon\` with neither. \`benches/count_neon.sh\` counts them under qemu. No ARM machine was at hand, so there is
no figure of speed; these show where work remains, and a change that makes a kernel longer.

$(rustc --version), $(run --version | head -n 1)

| | neoni8mm, 1 row | 2 | 8 | neondot, 1 row | 8 | neon, 1 row | 8 |
|---|---|---|---|---|---|---|---|
END
for dtype in "${types[@]}"; do
    line="| $dtype |"
    for case in "neoni8mm 1" "neoni8mm 2" "neoni8mm 8" "neondot 1" "neondot 8" "neon 1" "neon 8"; do
        read -r kernels tokens <<< "$case"
        line+=" $(per_weight "$dtype" "$kernels" "$tokens") |"
    done
    echo "$line"
done
