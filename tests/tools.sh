#!/usr/bin/env bash
# Makes sure that the tools of the host tests are there. What is missing is installed where that is possible (root, apt-get); otherwise the
# tests that need it say that they are skipped (skip.sh), which continuous integration (CI=true) does not accept.
#
# usage: tests/tools.sh
set -euo pipefail

here=$(dirname "$0")
go_wanted=$(sed -n 's/^go //p' "$here/../bindings/go/go.mod").0

has_go() { command -v go > /dev/null && printf 'go%s\n' "$go_wanted" "$(go env GOVERSION | cut -c 3-)" | sort -VC; }

# Debian's Go is older than the module needs; but any Go fetches another, as a module whose sum it knows.
install_go() {
    local to=/usr/local/lib/go-$go_wanted from
    from=$(cd / && go mod download -json "golang.org/toolchain@v0.0.1-go$go_wanted.linux-amd64" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
    rm -rf "$to"
    cp -r "$from" "$to"
    chmod -R u+w "$to"
    find "$to/bin" "$to/pkg/tool" -type f -exec chmod +x {} +
    ln -sf "$to/bin/go" "$to/bin/gofmt" /usr/local/bin/
}

absent=$("$here/need.sh" clang cmake valgrind abidiff pkg-config gcc g++ readelf)
if ! has_go && [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null; then
    echo "tools: installing go"
    "$here/need.sh" go > /dev/null
    has_go || install_go
    hash -r
fi
has_go || absent="$absent go"
[ -z "$absent" ] || { echo "tools: missing" $absent"; the tests that need them are skipped"; [ "${CI:-}" != true ]; }
