#!/usr/bin/env bash
# The gates of the ABI, the quick ones first: a host that was compiled against an earlier header of the same ABI number keeps running.
#
# usage: tests/abi/check.sh RELEASE_DIR WORK_DIR MODEL.gguf
set -euo pipefail
release=$1 work=$2 model=$3
here=$(dirname "$0")

"$here/golden.sh"
"$here/signatures.sh"
"$here/library.sh" "$release/libsegno.so"
rm -rf "$work/prefix"
"$here/../../packaging/install.sh" "$release" "$work/prefix" > /dev/null
"$here/native.sh" "$release" "$work/prefix"
"$here/header.sh"
"$here/programs.sh" "$work/prefix" "$work/programs" "$model"
