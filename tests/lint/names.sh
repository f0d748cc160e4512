#!/bin/sh
# names.sh: no two sources or headers in the whole tree have the same name.
cd "$(dirname "$0")/../.." || exit 1
tests/lint/files.sh '*.c' '*.h' | awk -F/ '
    $NF in seen { printf "names: %s and %s\n", seen[$NF], $0; n_bad++ }
    { seen[$NF] = $0 }
    END { exit n_bad > 0 }'
