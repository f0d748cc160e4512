#!/bin/sh
# bootstrap.sh run|check [VARIABLE=value...]: `make run` or `make check` on a machine that may have no make.
set -eu

case ${1:-} in
run | check) ;;
*)
    echo "usage: scripts/bootstrap.sh run|check [VARIABLE=value...]" >&2
    exit 2
    ;;
esac
cd "$(dirname "$0")/.."
if ! command -v make >/dev/null 2>&1; then
    if ! command -v apt-get >/dev/null 2>&1; then
        echo "bootstrap: please install GNU make" >&2
        exit 1
    fi
    if [ "$(id -u)" -ne 0 ]; then
        echo "bootstrap: make is missing; install it with" >&2
        echo "    sudo apt-get install --no-install-recommends make" >&2
        exit 1
    fi
    echo "bootstrap: installing make"
    apt-get -qq update >/dev/null
    DEBIAN_FRONTEND=noninteractive apt-get -qq -y install --no-install-recommends make >/dev/null
fi
exec make "$@"
