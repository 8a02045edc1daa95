#!/usr/bin/env bash
# Arms one planted bug after the other and requires that its test fails. A test that stays green with the bug in
# place proves nothing, so that is an error, and so is a filter that matches no test, a test that hangs, a bug that nobody
# planted and one that the table forgets. The table, tests/planted-bugs.txt: `name <TAB> test filter [<TAB> what breaks]`, one
# line for each test that must fail.
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

table=tests/planted-bugs.txt
log=$(mktemp)
trap 'rm -f "$log"' EXIT
armed=0
bad=0

# verdict STATUS: reads libtest's output in $log and prints why the bug was not caught, or nothing when it was.
verdict() {
    local passed failed
    failed=$(sed -n 's/^test result: .* \([0-9][0-9]*\) failed;.*$/\1/p' "$log" | awk '{n += $1} END {print n + 0}')
    passed=$(sed -n 's/^test result: [A-Za-z]*\. \([0-9][0-9]*\) passed;.*$/\1/p' "$log" | awk '{n += $1} END {print n + 0}')
    if [ "$1" -eq 124 ] || [ "$1" -eq 137 ]; then
        echo "the test did not end within 300 s"
    elif ! grep -q '^test result:' "$log"; then
        echo "no test result (exit $1)"
    elif [ $((passed + failed)) -eq 0 ]; then
        echo "no test matches"
    elif [ "$failed" -eq 0 ]; then
        echo "all $passed matching tests pass with the bug in place"
    fi
}

# A build that breaks is not a bug that was caught.
cargo test --quiet --locked --features planted-bugs --lib --bins --tests --no-run

while IFS=$'\t' read -r bug filter _; do
    case $bug in '' | '#'*) continue ;; esac
    [ -n "$filter" ] || {
        say "$table: no test filter for $bug"
        exit 2
    }
    armed=$((armed + 1))
    status=0
    ANNALS_TEST_LONG="" ANNALS_PLANTED_BUG=$bug timeout --kill-after=10 300 cargo test --quiet --locked --features planted-bugs \
        --lib --bins --tests --no-fail-fast -- --format pretty "$filter" >"$log" 2>&1 </dev/null || status=$?
    why=$(verdict "$status")
    if [ -z "$why" ]; then
        printf 'planted bug %-32s caught by %s\n' "$bug" "$filter"
    else
        bad=$((bad + 1))
        printf 'planted bug %-32s NOT CAUGHT by %s: %s\n' "$bug" "$filter" "$why"
        tail -n 30 "$log" | sed 's/^/    | /'
    fi
done <"$table"

mapfile -t planted < <(grep -rhoE 'armed\("[a-z0-9_]+"\)' src | sed 's/^armed("\(.*\)")$/\1/' | sort -u)
for bug in "${planted[@]}"; do
    grep -q "^$bug	" "$table" || {
        bad=$((bad + 1))
        printf 'planted bug %-32s is in the code but not in %s\n' "$bug" "$table"
    }
done

[ "$armed" -gt 0 ] || {
    say "$table names no bug"
    exit 1
}
[ "$bad" -eq 0 ] || {
    say "$bad problems among $armed planted bugs"
    exit 1
}
say "all $armed planted bugs caught"
