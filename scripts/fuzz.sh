#!/usr/bin/env bash
# Fuzzes each target in fuzz/ from the corpus in the repository: 10 seconds each, with ANNALS_TEST_LONG=1 ten minutes, or
# ANNALS_FUZZ_SECONDS. With arguments, only those targets. An input that breaks something is kept and its path printed.
#
# It runs on the toolchain of rust-toolchain.toml and not on a nightly one: coverage works there, and the sanitizers that
# need nightly look for faults of memory, which a crate without `unsafe` does not have. Overflows panic in this build.
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

version=0.13.1
tools="$root/target/fuzz-tools"
out="$root/target/fuzz"
long=${ANNALS_TEST_LONG:+600}
seconds=${ANNALS_FUZZ_SECONDS:-${long:-10}}

need_compiler
need_rust
# libFuzzer itself is C++.
command -v c++ >/dev/null 2>&1 || bring "a C++ compiler" build-essential "install g++ with this system's package manager"

if [ "$("$tools/bin/cargo-fuzz" --version 2>/dev/null)" != "cargo-fuzz $version" ]; then
    phase "cargo-fuzz $version" cargo install --quiet cargo-fuzz --version "$version" --locked --root "$tools"
fi
PATH="$tools/bin:$PATH"

if [ $# -gt 0 ]; then
    targets=("$@")
else
    mapfile -t targets < <(find fuzz/fuzz_targets -name '*.rs' -printf '%f\n' | sed 's/\.rs$//' | sort)
fi
[ ${#targets[@]} -gt 0 ]

# cargo-fuzz has no --locked.
lock=$(sha256sum fuzz/Cargo.lock)
phase "build of the fuzz targets" cargo fuzz build --sanitizer none --dev --target-dir "$out"
printf '%s\n' "$lock" | sha256sum --check --quiet || {
    say "fuzz/Cargo.lock is not up to date: commit the one that this build made"
    exit 1
}
# One target writes logs. In memory where there is such a place, for it syncs them.
memory=/dev/shm
[ -w "$memory" ] || memory=${TMPDIR:-/tmp}
TMPDIR=$(mktemp -d -p "$memory" annals-fuzz.XXXXXX)
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT
triple=$(rustc -vV | sed -n 's/^host: //p')
for target in "${targets[@]}"; do
    mkdir -p "$out/found/$target" "$out/broken/$target"
    phase "fuzzing $target for $seconds s" "$out/$triple/debug/$target" "$out/found/$target" "fuzz/corpus/$target" \
        -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 -verbosity=0 \
        -artifact_prefix="$out/broken/$target/"
done
