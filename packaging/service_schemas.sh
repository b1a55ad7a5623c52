#!/usr/bin/env bash
# Fetches JSON schemas of real services: the wheels of service-schema-requirements.txt, of which it keeps the configurations of services and the
# resources of AWS. Four of five have keywords or formats that grammars refuse, so there are more than are measured.
#
# usage: packaging/service_schemas.sh PYTHON OUT
set -euo pipefail
export LC_ALL=C
python=$1 out=$2
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$(dirname "$out")"
work=$(mktemp -d "$(dirname "$out")/fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT
"$python" -m pip install --quiet --disable-pip-version-check --no-deps --no-compile --require-hashes --target "$work" \
    --requirement "$here/service-schema-requirements.txt"
mkdir "$work/kept"
for file in "$work"/check_jsonschema/builtin_schemas/vendor/*.json; do
    cp "$file" "$work/kept/service-$(basename "$file")"
done
for file in "$work"/cfnlint/data/schemas/resources/*.json; do
    cp "$file" "$work/kept/aws-$(basename "$file")"
done
count=$(find "$work/kept" -name '*.json' | wc -l)
[ "$count" -gt 1000 ] || { echo "schemas: the packages hold $count schemas" >&2; exit 1; }
rm -rf "$out"
mv "$work/kept" "$out"
echo "schemas: $out, $count files"
