#!/usr/bin/env bash
# Makes sure that the tools of the host tests are there. What is missing is installed where that is possible (root, apt-get); otherwise the
# tests that need it say that they are skipped, which continuous integration (CI=true) does not accept.
#
# usage: tests/tools.sh
set -euo pipefail

declare -A package=([clang]=clang [cmake]=cmake [valgrind]=valgrind [abidiff]=abigail-tools
                    [pkg-config]=pkg-config [g++]=g++ [readelf]=binutils)
missing=()
for tool in "${!package[@]}"; do
    command -v "$tool" > /dev/null || missing+=("$tool")
done
if [ ${#missing[@]} -gt 0 ] && [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null; then
    echo "tools: installing ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    for tool in "${missing[@]}"; do apt-get install -y -qq "${package[$tool]}" > /dev/null; done
fi
absent=()
for tool in "${missing[@]}"; do
    command -v "$tool" > /dev/null || absent+=("$tool")
done
[ ${#absent[@]} -eq 0 ] || { echo "tools: missing ${absent[*]}; the tests that need them are skipped"; [ "${CI:-}" != true ]; }
