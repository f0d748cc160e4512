#!/bin/sh
# words.sh: nothing postponed without an issue's number, no code switched off.
cd "$(dirname "$0")/../.." || exit 1
rc=0
# The classes keep this file from finding itself; "(#12)" after the word is the number.
# shellcheck disable=SC2046
if grep -HnE '(TOD[O]|FIXM[E]|\bXX[X]\b)' $(tests/lint/files.sh '*.c' '*.h' '*.sh' '*.py' Makefile) | grep -vE '\(#[0-9]+\)'; then
    echo "words: the lines above postpone something without an issue's number, as in (#12)"
    rc=1
fi
# shellcheck disable=SC2046
if grep -HnE '^[[:space:]]*#[[:space:]]*if[[:space:]]+[01][[:space:]]*($|/)' $(tests/lint/files.sh '*.c' '*.h'); then
    echo "words: the lines above switch code off"
    rc=1
fi
exit $rc
