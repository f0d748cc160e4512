#!/bin/sh
# headers.sh: every public header compiles alone, in C99 and in C++, without a warning. CC and CXX choose compilers.
cd "$(dirname "$0")/../.." || exit 1
rc=0
n=0
for header in include/qnn.h include/qnn/*.h; do
    name=${header#include/}
    for compiler in "${CC:-cc} -x c -std=c99 -Wstrict-prototypes" "${CXX:-c++} -x c++ -std=c++11"; do
        n=$((n + 1))
        # shellcheck disable=SC2086 -- compiler and options are words
        if ! echo "#include <$name>" | $compiler -pedantic-errors -Wall -Wextra -Werror -fsyntax-only -Iinclude -; then
            echo "headers: $name does not stand alone with $compiler"
            rc=1
        fi
    done
done
echo "headers: $n compilations"
[ $n -gt 2 ] || rc=1
exit $rc
