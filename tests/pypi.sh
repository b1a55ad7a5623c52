#!/usr/bin/env bash
# Prints where a tool is: the one at hand, or else the one of packaging/NAME-requirements.txt, installed below BUILD from PyPI. Without either what needs it is
# skipped (skip.sh), and nothing is printed.
#
# usage: tests/pypi.sh COMMAND NAME BUILD
#   PYTHON   a Python that has pip and venv
set -euo pipefail
cd "$(dirname "$0")/.."
command=$1 sums=packaging/$2-requirements.txt
if command -v "$command"; then exit 0; fi
to=$3/$2-$(sha256sum "$sums" | cut -c 1-16)
if [ ! -e "$to/done" ]; then
    rm -rf "$to"
    { "${PYTHON:-python3}" -m venv "$to" && "$to/bin/pip" install --quiet --disable-pip-version-check --require-hashes --requirement "$sums" && touch "$to/done"; } >&2 || true
fi
if [ ! -e "$to/done" ]; then
    tests/skip.sh tool "$2: $command cannot be installed from PyPI" >&2
    exit 0
fi
echo "$to/bin/$command"
