# shellcheck shell=bash
# What the scripts share: messages, timing, and bringing what is missing. Sourced, never run.
#
# A missing thing ends a script with exit 3 and names the one command that brings it. The scripts run that command
# themselves only where they may without asking: as root, or with sudo that needs no password.

set -euo pipefail
# No script ends without a word.
trap 'printf "==> %s:%s: exit %s: %s\n" "$0" "$LINENO" "$?" "$BASH_COMMAND" >&2' ERR

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

# rustup's default place, for shells that did not read its profile.
if ! command -v cargo >/dev/null 2>&1 && [ -x "${HOME:-/nonexistent}/.cargo/bin/cargo" ]; then
    PATH="$HOME/.cargo/bin:$PATH"
fi

say() { printf '==> %s\n' "$*" >&2; }

# missing WHAT COMMAND: says what is missing and how it comes, and ends.
missing() {
    printf '\nMissing: %s\nThis brings it:\n\n    %s\n\nThen run the same make command again.\n' "$1" "$2" >&2
    exit 3
}

# may_be_root: whether root is at hand without asking.
may_be_root() {
    [ "$(id -u)" -eq 0 ] || { command -v sudo >/dev/null 2>&1 && sudo -n true >/dev/null 2>&1; }
}

# bring WHAT DEBIAN_PACKAGES OTHER_COMMAND: installs the packages where apt-get exists and root is at hand;
# else names the command and ends.
bring() {
    local what=$1 packages=$2 other=$3
    local command="scripts/install-debian.sh $packages"
    [ "$(id -u)" -eq 0 ] || command="sudo $command"
    command -v apt-get >/dev/null 2>&1 || missing "$what" "$other"
    may_be_root || missing "$what" "$command"
    say "$what is missing; running: $command"
    # shellcheck disable=SC2086 # words of a command
    $command >&2 || missing "$what (the command above failed)" "$command"
}

need_compiler() {
    command -v cc >/dev/null 2>&1 || command -v gcc >/dev/null 2>&1 || command -v clang >/dev/null 2>&1 ||
        bring "a C compiler" build-essential "install gcc or clang with this system's package manager"
}

# The toolchain that rust-toolchain.toml names; rustup fetches it when it may.
need_rust() {
    local wanted
    wanted=$(sed -n 's/^channel = "\(.*\)"$/\1/p' rust-toolchain.toml)
    if ! command -v cargo >/dev/null 2>&1; then
        missing "a Rust toolchain ($wanted)" "curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh"
    fi
    if ! rustc --version >/dev/null 2>&1 || ! cargo --version >/dev/null 2>&1; then
        local install="rustup toolchain install $wanted --profile minimal --component rustfmt --component clippy"
        command -v rustup >/dev/null 2>&1 || missing "a working Rust toolchain ($wanted)" "$install"
        say "Rust $wanted is missing; running: $install"
        $install >&2 || missing "Rust $wanted" "$install"
    fi
    local minimum found
    minimum=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)
    found=$(rustc --version | cut -d' ' -f2)
    [ "$(printf '%s\n%s\n' "$minimum" "$found" | sort -V | head -n1)" = "$minimum" ] ||
        missing "Rust $minimum or later (found $found)" "rustup toolchain install $wanted"
}

# postgres_major DIR: the major version of the server binaries in DIR, nothing when they are not complete.
postgres_major() {
    local program
    for program in postgres initdb pg_controldata; do
        [ -x "$1/$program" ] || return 0
    done
    { "$1/postgres" --version 2>/dev/null || true; } | sed -n 's/^postgres (PostgreSQL) \([0-9]*\).*$/\1/p'
}

# find_postgres: prints the directory of usable server binaries (version 15 or later), in the order Annals looks.
find_postgres() {
    local dir major
    if [ -n "${ANNALS_PG_BIN:-}" ]; then
        major=$(postgres_major "$ANNALS_PG_BIN")
        [ -n "$major" ] || {
            say "ANNALS_PG_BIN=$ANNALS_PG_BIN does not hold postgres, initdb and pg_controldata: unset it, or set it to a directory that does"
            exit 2
        }
        [ "$major" -ge 15 ] || {
            say "ANNALS_PG_BIN=$ANNALS_PG_BIN is PostgreSQL $major; 15 or later is needed"
            exit 2
        }
        printf '%s\n' "$ANNALS_PG_BIN"
        return 0
    fi
    local candidates=() found=()
    for dir in /usr/lib/postgresql/*/bin; do
        [ ! -d "$dir" ] || candidates+=("$dir")
    done
    if [ ${#candidates[@]} -gt 0 ]; then
        mapfile -t candidates < <(printf '%s\n' "${candidates[@]}" | sort -rV)
    fi
    # a link's neighbours may be missing, so the real directory counts
    mapfile -t found < <(type -aP postgres)
    for dir in "${found[@]}"; do
        candidates+=("$(dirname "$(readlink -f "$dir")")")
    done
    for dir in "${candidates[@]}"; do
        major=$(postgres_major "$dir")
        if [ -n "$major" ] && [ "$major" -ge 15 ]; then
            printf '%s\n' "$dir"
            return 0
        fi
    done
}

need_postgres() {
    local found
    if [ -n "${DATABASE_URL:-}" ]; then
        say "PostgreSQL: the one of DATABASE_URL"
        return 0
    fi
    found=$(find_postgres)
    if [ -z "$found" ]; then
        bring "PostgreSQL 15 or later" postgresql \
            "install PostgreSQL 15 or later with this system's package manager, or set ANNALS_PG_BIN or DATABASE_URL"
        found=$(find_postgres)
        [ -n "$found" ] || missing "PostgreSQL 15 or later (this system's packages have an older one)" \
            "export ANNALS_PG_BIN=/path/to/postgresql/bin   (or DATABASE_URL=postgres://...)"
    fi
    say "PostgreSQL: $found"
}

# phase NAME COMMAND...: runs it and prints how long it took.
phase() {
    local name=$1 started=$SECONDS status=0
    shift
    say "$name"
    "$@" || status=$?
    if [ "$status" -ne 0 ]; then
        say "$name: FAILED after $((SECONDS - started)) s (exit $status)"
        exit "$status"
    fi
    say "$name: $((SECONDS - started)) s"
}
