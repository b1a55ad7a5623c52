#!/usr/bin/env bash
# The Go module and examples against a prefix in the build folder: vet, tests under the race detector, with a collection at every
# allocation, with every pointer that crosses to C checked, and linked statically.
#
# usage: tests/go/check.sh BUILD_DIR
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$0")/../.."
command -v go > /dev/null || exec tests/skip.sh tool "go: not found"
build=$(cd "$1" && pwd)
export PKG_CONFIG_PATH=$build/prefix/lib/pkgconfig
# A library of the same name and a new content is a new input, which the cache of test results does not see.
tests=(go test -count=1 -timeout 120s)

echo "go: vet, formatting"
unformatted=$(gofmt -l bindings/go examples/go)
[ -z "$unformatted" ] || { echo "go: not formatted: $unformatted" >&2; exit 1; }
(cd bindings/go && go vet ./... && go vet -tags segno_static ./...)
(cd examples/go && go vet ./...)
echo "go: race detector"
(cd bindings/go && "${tests[@]}" -race ./...)
(cd examples/go && "${tests[@]}" -race ./...)
echo "go: GOGC=1"
(cd bindings/go && GOGC=1 "${tests[@]}" ./...)
echo "go: cgocheck2"
(cd bindings/go && GOEXPERIMENT=cgocheck2 "${tests[@]}" ./...)
echo "go: static library"
# Go does not see that an archive of the same name has changed, unless its sum is among the linker's flags.
sum=$(sha256sum < "$build/prefix/lib/libsegno.a" | cut -c 1-16)
(cd bindings/go && "${tests[@]}" -tags segno_static -ldflags=-X=segno.archive="$sum" ./...)
