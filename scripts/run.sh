#!/usr/bin/env bash
# Builds Annals and starts it with sample data. Arguments are passed on to `annals serve`.
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

need_compiler
need_rust
need_postgres

say "building target/release/annals (the first time takes some minutes)"
cargo build --release --locked

say "starting: annals serve --sample $*"
exec "${CARGO_TARGET_DIR:-$root/target}/release/annals" serve --sample "$@"
