#!/bin/sh
# includes.sh: who may include what (CONTRIBUTING.md has the picture). Project headers are in quotes with their
# path from the root, public ones in angle brackets.
cd "$(dirname "$0")/../.." || exit 1

# shellcheck disable=SC2046 -- no file name holds a space
grep -HnE '^[[:space:]]*#[[:space:]]*include' $(tests/lint/files.sh '*.c' '*.h') | awk -F: '
function bad(why) {
    printf "%s:%s: %s: %s\n", $1, $2, what, why
    n_bad++
}
function in_folder(folder) { return index($1, folder "/") == 1 }
{
    what = $3
    sub(/^[ \t]*#[ \t]*include[ \t]*/, "", what)
    name = what
    gsub(/["<>]/, "", name)
    sub(/[ \t].*$/, "", name)
    quoted = what ~ /^"/
    is_public = name ~ /^qnn(\/|\.h$)/
    n_seen++

    if (is_public && quoted)
        bad("public headers are in angle brackets")
    if (in_folder("include") && (quoted || (!is_public && name !~ /^std[a-z]+\.h$/)))
        bad("include/ uses public headers and std*.h only")
    if (in_folder("kernels")) {
        if (quoted ? name !~ /^kernels\// : name !~ /^(std(int|def|bool)|string|math|float|limits|assert|immintrin|cpuid)\.h$/)
            bad("kernels/ uses kernels/ and headers that need no library only")
    }
    if (in_folder("lib")) {
        if (quoted && name !~ /^lib\// && name != "kernels/kernels.h")
            bad("lib/ uses include/, lib/ and kernels/kernels.h only")
        if (name ~ /intrin\.h$/)
            bad("intrinsics live in kernels/")
        if (in_folder("lib/op") && name ~ /^lib\/op\//)
            bad("ops do not include each other")
        if ($1 ~ /^lib\/(graph|builder|model|program|plan|exec)\.[ch]$/ && name ~ /^lib\/quant\//)
            bad("quantisation uses the graph, not the other way round")
    }
    if (in_folder("cuda") && quoted && name !~ /^cuda\// && name != "lib/backend.h")
        bad("cuda/ uses include/, cuda/ and lib/backend.h only")
    if (in_folder("examples") && quoted && name !~ /^examples\// && name ~ /\//)
        bad("examples use the public headers only")
    if (in_folder("bench") && quoted && name !~ /^bench\// && name ~ /\// && name != "kernels/kernels.h")
        bad("bench/ uses include/ and kernels/kernels.h only")
    if (name ~ /^tests\// && !in_folder("tests"))
        bad("only tests use tests/")
}
END {
    if (n_seen == 0)
        print "includes: found no include at all"
    exit n_bad > 0 || n_seen == 0
}'
