#!/usr/bin/env bash
# Packs what a machine with a GPU needs to run the tests of the CUDA backend without a Rust toolchain: the test programs, the tools
# that they use, the small models, and run.sh. The folder may be moved; `run.sh LOGS` in it does everything.
#
# usage: tests/cuda/package.sh FOLDER
set -euo pipefail
folder=$1
root=$(cd "$(dirname "$0")/../.." && pwd)
data=${SEGNO_TEST_DATA:-$root/../shared/data}
cd "$root"
rm -rf "$folder"
mkdir -p "$folder/bin" "$folder/data/models" "$folder"/root/tests/golden/{hf,sample,embeddings,assistant,eagle} "$folder/root/examples/models"

targets=(--test cuda --test allocation)
for test in tests/alone/cuda_*.rs; do targets+=(--test "$(basename "$test" .rs)"); done
${CARGO:-cargo} test --locked --no-run --message-format=json-render-diagnostics "${targets[@]}" > "$folder/messages"
${CARGO:-cargo} build --locked --message-format=json-render-diagnostics --example diverge --example synth_gguf >> "$folder/messages"
${CARGO:-cargo} bench --locked --no-run --message-format=json-render-diagnostics --bench cuda --bench grammar --bench adapters --bench speculation \
    --bench embeddings --bench saved >> "$folder/messages"
sed -nE 's/.*"reason":"compiler-artifact".*"kind":\["(test|example|bench)"\].*"name":"([a-z0-9_]+)".*"executable":"([^"]+)".*/\1 \2 \3/p' \
    "$folder/messages" | while read -r kind name program; do
    if [ "$kind" = bench ]; then name=bench_$name; fi
    strip -o "$folder/bin/$name" "$program"
done
rm "$folder/messages"

for name in stories260K.gguf TinyStories-656K-Q8_0.gguf; do
    if [ -f "$data/models/$name" ]; then cp "$data/models/$name" "$folder/data/models/"; fi
done
# What `make models` has fetched, for the cost of grammars, which need a tokenizer.
if [ -f .models/smollm2-135m-instruct.gguf ]; then cp .models/smollm2-135m-instruct.gguf "$folder/data/models/"; fi
cp tests/golden/hf/*.gguf "$folder/root/tests/golden/hf/"
cp tests/golden/sample/* "$folder/root/tests/golden/sample/"
cp tests/golden/embeddings/*.* "$folder/root/tests/golden/embeddings/"
for drafts in assistant eagle; do cp tests/golden/"$drafts"/*.* "$folder/root/tests/golden/$drafts/"; done
cp examples/models/*.gguf "$folder/root/examples/models/"
cp tests/cuda/run.sh "$folder/"
git describe --always --dirty --abbrev=12 > "$folder/commit"
for program in diverge synth_gguf cuda cuda_steps bench_cuda; do
    [ -x "$folder/bin/$program" ] || { echo "package: $program is missing" >&2; exit 1; }
done
echo "package: $(find "$folder/bin" -type f | wc -l) programs, $(du -sm "$folder" | cut -f 1) MiB, commit $(cat "$folder/commit"), in $folder"
