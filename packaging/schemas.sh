#!/usr/bin/env bash
# Fetches the JSON Schema Test Suite: the sources of the package in schema-requirements.txt, of which it keeps the tests.
#
# usage: packaging/schemas.sh PYTHON OUT
set -euo pipefail
export LC_ALL=C
python=$1 out=$2
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d "$(dirname "$out")/fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT
"$python" -m pip download --quiet --disable-pip-version-check --no-deps --no-binary :all: --require-hashes --dest "$work" \
    --requirement "$here/schema-requirements.txt"
tar -xzf "$work"/jsonschema-*.tar.gz -C "$work"
[ -d "$work"/jsonschema-*/json/tests ] || { echo "schemas: the package holds no tests" >&2; exit 1; }
rm -rf "$out"
mv "$work"/jsonschema-*/json "$out"
echo "schemas: $out, $(find "$out/tests" -name '*.json' | wc -l) files"
