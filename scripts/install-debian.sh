#!/usr/bin/env bash
# Installs the named packages on Debian, Ubuntu and their kin; run as root. PostgreSQL comes without a running
# cluster: Annals starts a private one in its own data directory, and a second one would only wait on port 5432.
set -euo pipefail

[ $# -gt 0 ] || {
    echo "usage: $0 PACKAGE..." >&2
    exit 2
}
[ "$(id -u)" -eq 0 ] || {
    echo "$0 needs root" >&2
    exit 2
}

export DEBIAN_FRONTEND=noninteractive
# keeps a cluster setting that is already there
for package in "$@"; do
    if [ "$package" = postgresql ] && [ ! -e /etc/postgresql-common/createcluster.conf ]; then
        mkdir -p /etc/postgresql-common
        printf 'create_main_cluster = false\n' >/etc/postgresql-common/createcluster.conf
    fi
done
apt-get -qq update
apt-get -qq -y --no-install-recommends install "$@"
