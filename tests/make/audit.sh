#!/usr/bin/env bash
# cargo-deny, by deny.toml: licences, origins, yanked crates, and advisories where its database can be fetched. Without the tool there is nothing to
# do: it takes minutes to compile, and tests/style/licences.rs has looked at licences and origins.
#
# usage: tests/make/audit.sh
set -euo pipefail
cd "$(dirname "$0")/../.."
command -v cargo-deny > /dev/null || exec tests/skip.sh machine "audit: cargo-deny not found"
cargo deny --locked check bans licenses sources
if cargo deny --locked fetch db; then
    cargo deny --locked check advisories
else
    tests/skip.sh machine "audit: the database of advisories cannot be fetched"
fi
