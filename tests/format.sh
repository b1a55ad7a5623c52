#!/usr/bin/env bash
# Checks that the kernels are written as .clang-format says, or writes them so. Versions of clang-format differ, so the one that
# packaging/format-requirements.txt names is installed below BUILD from PyPI; where that fails, the check is skipped (skip.sh).
#
# usage: tests/format.sh BUILD [--write]
#   PYTHON   a Python that has pip
set -euo pipefail
cd "$(dirname "$0")/.."

sums=packaging/format-requirements.txt
to=$1/clang-format-$(sha256sum $sums | cut -c 1-16)
tool=$to/clang_format/data/bin/clang-format
if [ ! -x "$tool" ]; then
    "${PYTHON:-python3}" -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --upgrade --target "$to" \
        --requirement $sums >&2 || true
fi
if [ ! -x "$tool" ]; then
    tests/skip.sh tool "formatting of kernels: clang-format cannot be installed from PyPI"
    exit 0
fi
how=(--dry-run -Werror)
[ "${2:-}" != --write ] || how=(-i)
find kernels -name '*.cu' -o -name '*.cuh' | sort | xargs "$tool" --style=file "${how[@]}"
