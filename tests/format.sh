#!/usr/bin/env bash
# Checks that kernels, C and C++ are written as .clang-format says, or writes them so; but for segno.h, which is generated, and tests/abi,
# which is frozen or generated. Versions of clang-format differ, so the one that
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
    tests/skip.sh tool "formatting of kernels, C and C++: clang-format cannot be installed from PyPI"
    exit 0
fi
how=(--dry-run -Werror)
[ "${2:-}" != --write ] || how=(-i)
find kernels examples bindings/cpp tests/capi tests/cpp tests/cuda tests/windows -name '*.cu' -o -name '*.cuh' -o -name '*.c' -o -name '*.h' \
    -o -name '*.cpp' -o -name '*.hpp' | sort | xargs "$tool" --style=file "${how[@]}"
