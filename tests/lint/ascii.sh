#!/bin/sh
# ascii.sh: sources and scripts hold ASCII only.
cd "$(dirname "$0")/../.." || exit 1
# shellcheck disable=SC2046
if LC_ALL=C grep -Hn "[^ -~$(printf '\t')]" $(tests/lint/files.sh '*.c' '*.h' '*.sh' '*.py' Makefile run); then
    echo "ascii: the lines above hold other characters"
    exit 1
fi
