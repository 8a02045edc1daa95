#!/usr/bin/env bash
# Brings shellcheck and cargo-deny, prebuilt and pinned by hash, into target/lint-tools.
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

tools="$root/target/lint-tools"
pins=.ci/requirements.txt
if cmp -s "$pins" "$tools/stamp"; then
    exit 0
fi
python3 -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1 ||
    bring "Python 3.10 or later with venv" "python3 python3-venv" \
        "install Python 3.10 or later with this system's package manager"
rm -rf "$tools"
python3 -m venv "$tools"
"$tools/bin/python" -m pip --quiet --disable-pip-version-check --no-input install \
    --require-hashes --only-binary :all: -r "$pins" >&2
cp "$pins" "$tools/stamp"
