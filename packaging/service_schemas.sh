#!/usr/bin/env bash
# Fetches 200 JSON schemas of real services: the wheels of service-schema-requirements.txt, of which it keeps all configurations of services and every
# tenth resource of AWS, by name.
#
# usage: packaging/service_schemas.sh PYTHON OUT
set -euo pipefail
export LC_ALL=C
python=$1 out=$2 most=200
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
kept=$(find "$work/kept" -name '*.json' | wc -l)
find "$work/cfnlint/data/schemas/resources" -name '*.json' | sort | awk -v most=$((most - kept)) 'NR % 10 == 1 && count++ < most' |
    while read -r file; do cp "$file" "$work/kept/aws-$(basename "$file")"; done
count=$(find "$work/kept" -name '*.json' | wc -l)
[ "$count" = "$most" ] || { echo "schemas: the packages hold $count schemas, not $most" >&2; exit 1; }
rm -rf "$out"
mv "$work/kept" "$out"
echo "schemas: $out, $count files"
