#!/bin/sh
# readme.sh FOLDER: the programs printed in README.md (```c blocks with a main) are compiled against an installed
# copy of the library and run, in their order, in one empty folder. MAKE and CC come from the makefile.
set -eu

mkdir -p "$1"
work=$(cd "$1" && pwd)
cd "$(dirname "$0")/../.."
rm -rf "$work/prefix" "$work/run" "$work/src"
mkdir -p "$work/run" "$work/src"
${MAKE:-make} install PREFIX="$work/prefix" DESTDIR= >"$work/install.log" 2>&1 || {
    cat "$work/install.log"
    exit 1
}

awk -v folder="$work/src" '
    /^```/ && inside {
        inside = 0
        if (text ~ /int main/) {
            file = sprintf("%s/readme%d.c", folder, ++n)
            printf "%s", text > file
            close(file)
        }
        next
    }
    /^```c[ \t]*$/ { inside = 1; text = ""; next }
    inside { text = text $0 "\n" }' README.md

flags=$(PKG_CONFIG_PATH="$work/prefix/lib/pkgconfig" pkg-config --static --cflags --libs qnn)
n=0
for program in "$work"/src/readme*.c; do
    [ -f "$program" ] || break
    name=$(basename "$program" .c)
    # shellcheck disable=SC2086 -- CC and flags are words
    ${CC:-cc} -O2 -Wall -Wextra -Werror "$program" $flags -o "$work/$name"
    (cd "$work/run" && LD_LIBRARY_PATH="$work/prefix/lib" "$work/$name") || {
        echo "readme: program $name failed; its source is $program"
        exit 1
    }
    n=$((n + 1))
done
echo "readme: $n programs"
[ $n -gt 0 ]
