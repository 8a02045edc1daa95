#!/usr/bin/env bash
# Sets up what the tests need, runs all of them, fuzzes the parsers, and then proves with planted bugs that the tests can fail.
# With ANNALS_TEST_LONG=1 the fault tests run their full counts. Nothing is skipped: what is missing fails.
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

need_compiler
need_rust
need_postgres
phase "test tools" scripts/test-tools.sh

# One build for both: planted bugs are compiled in but asleep, so this is the correct program.
phase "build of the tests" cargo test --locked --features planted-bugs --no-run
phase "tests" cargo test --locked --features planted-bugs --no-fail-fast -- --skip clients::
# Holds a bound of one second, which says nothing while other tests load the machine.
phase "official clients" cargo test --locked --features planted-bugs --test it clients::
phase "fuzzing" scripts/fuzz.sh
phase "planted bugs" scripts/planted-bugs.sh
say "all tests passed"
