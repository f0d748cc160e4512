#!/bin/sh
# files.sh NAME...: the project's files whose names match one of the patterns, one a line, sorted.
cd "$(dirname "$0")/../.." || exit 1
match=
for pattern in "$@"; do
    match="${match:+$match -o} -name $pattern"
done
set -f
# shellcheck disable=SC2086 -- match is a list of words
find . \( -path ./.git -o -path ./build -o -path ./data -o -path ./results -o -path ./shared -o -name corpus \) -prune \
    -o -type f \( $match \) -print | sed 's|^\./||' | LC_ALL=C sort
