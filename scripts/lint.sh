#!/usr/bin/env bash
# What CI checks before it runs the tests: formatting, clippy, docs, dependencies' licences and sources, shell scripts.
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

need_compiler
need_rust
phase "lint tools" scripts/lint-tools.sh
tools="$root/target/lint-tools/bin"

clippy() {
    cargo clippy --all-targets --locked -- -D warnings
    cargo clippy --all-targets --locked --features planted-bugs -- -D warnings
}

shell_scripts() {
    "$tools/shellcheck" --external-sources .ci/run scripts/*.sh
}

dependencies() {
    "$tools/cargo-deny" --locked check bans licenses sources
}

phase "shellcheck" shell_scripts
formatting() {
    cargo fmt --check
    cargo fmt --check --manifest-path fuzz/Cargo.toml
}

phase "rustfmt" formatting
phase "clippy" clippy
phase "docs" env RUSTDOCFLAGS="-D warnings" cargo doc --no-deps --locked
phase "dependencies" dependencies
