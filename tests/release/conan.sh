#!/usr/bin/env bash
# Prints where Conan is: the one at hand, or else that of packaging/conan-requirements.txt, installed below BUILD from PyPI. Without either the test of its
# recipe is skipped (skip.sh), and nothing is printed.
#
# usage: tests/release/conan.sh BUILD
#   PYTHON   a Python that has pip and venv
set -euo pipefail
cd "$(dirname "$0")/../.."
if command -v conan; then exit 0; fi
sums=packaging/conan-requirements.txt
to=$1/conan-$(sha256sum $sums | cut -c 1-16)
if [ ! -e "$to/done" ]; then
    rm -rf "$to"
    { "${PYTHON:-python3}" -m venv "$to" && "$to/bin/pip" install --quiet --disable-pip-version-check --require-hashes --requirement $sums && touch "$to/done"; } >&2 || true
fi
if [ ! -e "$to/done" ]; then
    tests/skip.sh tool "release: Conan cannot be installed from PyPI" >&2
    exit 0
fi
echo "$to/bin/conan"
