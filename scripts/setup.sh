#!/bin/sh
# setup.sh run|check|full|fetch: sees to it that what a make target needs is installed.
#
# Debian and its children: installs the missing packages when root, else says which and ends with 1.
# Elsewhere: looks for the programs and headers themselves and says what is missing.
# Says nothing when everything is there.
set -eu

what=${1:-check}
packages="gcc libc6-dev make libjansson-dev libstb-dev"
for_check="g++ binutils pkg-config check libsubunit-dev gnuplot-nox python3 curl"
case $what in
run) packages="$packages gnuplot-nox" ;;
check) packages="$packages $for_check" ;;
full) packages="$packages $for_check python3-venv valgrind" ;;
fetch) packages="curl ca-certificates unzip" ;;
*)
    echo "usage: setup.sh run|check|full|fetch" >&2
    exit 2
    ;;
esac

missing_packages()
{
    # one line "name status" for each package dpkg has heard of
    known=$(dpkg-query -W -f '${Package} ${db:Status-Status}\n' $packages 2>/dev/null || true)
    for p in $packages; do
        # another compiler than Debian's gcc is as good
        case $p in
        gcc) command -v "${CC:-cc}" >/dev/null 2>&1 && continue ;;
        g++) command -v "${CXX:-c++}" >/dev/null 2>&1 && continue ;;
        pkg-config | python3 | make | curl | unzip) command -v $p >/dev/null 2>&1 && continue ;;
        esac
        case "
$known" in
        *"
$p installed"*) ;;
        *) printf ' %s' "$p" ;;
        esac
    done
}

if command -v dpkg-query >/dev/null 2>&1; then
    missing=$(missing_packages)
    [ -n "$missing" ] || exit 0
    if [ "$(id -u)" -ne 0 ]; then
        echo "setup: these packages are missing; install them with" >&2
        echo "    sudo apt-get install --no-install-recommends$missing" >&2
        exit 1
    fi
    echo "setup: installing$missing"
    export DEBIAN_FRONTEND=noninteractive
    log=$(mktemp)
    trap 'rm -f "$log"' EXIT
    # a machine may have the packages at hand though an update fails: told only when the installation fails too
    if ! { apt-get -q update || true; apt-get -q -y install --no-install-recommends $missing; } >"$log" 2>&1; then
        tail -n 20 "$log" >&2
        echo "setup: could not install$missing" >&2
        exit 1
    fi
    exit 0
fi

missing=
need_program()
{
    command -v "$1" >/dev/null 2>&1 || missing="$missing
    program $1"
}
need_header()
{
    echo "#include <$1>" | ${CC:-cc} -E -x c - >/dev/null 2>&1 || missing="$missing
    header <$1>"
}
if [ "$what" = fetch ]; then
    need_program tar
    command -v wget >/dev/null 2>&1 || need_program curl
    command -v python3 >/dev/null 2>&1 || need_program unzip
else
    need_program "${CC:-cc}"
    need_header jansson.h
    need_header stb/stb_image.h
    need_program gnuplot
fi
if [ "$what" = check ] || [ "$what" = full ]; then
    need_program "${CXX:-c++}"
    need_program pkg-config
    need_program nm
    need_program objdump
    need_program python3
    need_header check.h
fi
[ "$what" != full ] || need_program valgrind
if [ -n "$missing" ]; then
    echo "setup: please install what provides these:$missing" >&2
    exit 1
fi
