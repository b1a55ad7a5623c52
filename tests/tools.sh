#!/usr/bin/env bash
# Makes sure that the tools of the host tests are there. What is missing is installed where that is possible (root, apt-get); otherwise the
# tests that need it say that they are skipped (skip.sh), which continuous integration (CI=true) does not accept.
#
# usage: tests/tools.sh
set -euo pipefail

declare -A package=([clang]=clang [cmake]=cmake [valgrind]=valgrind [abidiff]=abigail-tools
                    [pkg-config]=pkg-config [gcc]=gcc [g++]=g++ [readelf]=binutils)
go_wanted=$(sed -n 's/^go //p' "$(dirname "$0")/../bindings/go/go.mod").0

has() {
    command -v "$1" > /dev/null || return
    [ "$1" != go ] || printf 'go%s\n' "$go_wanted" "$(go env GOVERSION | cut -c 3-)" | sort -VC
}

# Debian's Go may be older than the module needs; but any Go fetches another, as a module whose sum it knows.
install_go() {
    local to=/usr/local/lib/go-$go_wanted from
    apt-get install -y -qq golang-go > /dev/null
    from=$(cd / && go mod download -json "golang.org/toolchain@v0.0.1-go$go_wanted.linux-amd64" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
    rm -rf "$to"
    cp -r "$from" "$to"
    chmod -R u+w "$to"
    find "$to/bin" "$to/pkg/tool" -type f -exec chmod +x {} +
    ln -sf "$to/bin/go" "$to/bin/gofmt" /usr/local/bin/
}

missing=()
for tool in "${!package[@]}" go; do
    has "$tool" || missing+=("$tool")
done
if [ ${#missing[@]} -gt 0 ] && [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null; then
    echo "tools: installing ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    for tool in "${missing[@]}"; do
        if [ "$tool" = go ]; then install_go; else apt-get install -y -qq "${package[$tool]}" > /dev/null; fi
    done
    hash -r
fi
absent=()
for tool in "${missing[@]}"; do
    has "$tool" || absent+=("$tool")
done
[ ${#absent[@]} -eq 0 ] || { echo "tools: missing ${absent[*]}; the tests that need them are skipped"; [ "${CI:-}" != true ]; }
