#!/bin/sh
# lines.sh: no file over 1,000 lines, no space at the end of a line, tabs in makefiles only.
cd "$(dirname "$0")/../.." || exit 1
# shellcheck disable=SC2046
awk '
    FNR == 1001 { printf "%s: over 1,000 lines\n", FILENAME; n_bad++ }
    /[ \t]$/ { printf "%s:%d: space at the end\n", FILENAME, FNR; n_bad++ }
    /\t/ && FILENAME != "Makefile" { printf "%s:%d: tab\n", FILENAME, FNR; n_bad++ }
    /\r/ { printf "%s:%d: carriage return\n", FILENAME, FNR; n_bad++ }
    END { exit n_bad > 0 }' $(tests/lint/files.sh '*.c' '*.h' '*.sh' '*.py' '*.md' '*.txt' Makefile LICENSE run '.clang-format' \
    '.editorconfig')
