#!/bin/sh
# symbols.sh LIBQNN.A LIBQNN.SO: names of the library, what it takes from elsewhere, its writable data, its
# instructions; and that the shared library exports what the public headers declare, no less and no more.
set -u

lib=$1
shared=$2
cd "$(dirname "$0")/../.." || exit 1
rc=0
fail()
{
    echo "symbols: $*"
    rc=1
}

# 1. Everything global begins with qnn_. A sanitizer or debug build has symbols of its own: use the release one.
others=$(nm -A -g --defined-only "$lib" | awk '$NF !~ /^qnn_/ && NF >= 3 { print "    " $0 }')
[ -z "$others" ] || fail "global names without our prefix:
$others"
[ "$(nm -g --defined-only "$lib" | grep -c ' T qnn_')" -gt 0 ] || fail "$lib defines no function"

# 2. The library neither prints nor ends the program, reads no environment, installs no handler.
imports=$(nm -A -u "$lib" | awk '
    BEGIN {
        n = split("printf vprintf fprintf vfprintf dprintf puts putchar putc fputs fputc perror stdout stderr stdin " \
                  "__printf_chk __fprintf_chk __vfprintf_chk __vprintf_chk " \
                  "abort exit _exit _Exit quick_exit atexit __assert_fail __assert " \
                  "getenv secure_getenv setenv putenv environ signal sigaction raise kill setlocale " \
                  "rand srand random srandom drand48 rand_r time clock system popen fork", words, " ")
        for (i = 1; i <= n; i++)
            banned[words[i]] = 1
    }
    { name = $NF; sub(/@.*/, "", name) }
    name in banned { print "    " $0 }')
[ -z "$imports" ] || fail "imports that a library must not have:
$imports"

# 3. No writable data: contexts are independent, nothing needs an order of initialisation. (.data.rel.ro is
# constant after loading.)
data=$(size -A "$lib" | awk '
    / *:$/ || /\(ex / { object = $1 }
    $1 ~ /^\.(data|bss|tdata|tbss)(\.|$)/ && $1 !~ /^\.data\.rel\.ro/ && $2 > 0 { print "    " object " " $1 " " $2 " bytes" }')
[ -z "$data" ] || fail "writable data:
$data"

# 4. Objects built for the baseline hold no ymm or zmm register. Objects of the ISA folders end in _<isa>.o.
if objdump -f "$lib" | grep -q 'elf64-x86-64'; then
    wide=$(objdump -d --no-show-raw-insn "$lib" | awk '
        /file format/ { object = $1; is_isa = object ~ /_avx[0-9a-z]*\.o:$/; next }
        !is_isa && /%[yz]mm[0-9]/ && !(object in seen) { seen[object] = 1; print "    " object $0 }')
    [ -z "$wide" ] || fail "vector instructions above the baseline:
$wide"
fi

# 5. QNN_API functions of the headers against the dynamic symbols.
exported=$(nm -D --defined-only "$shared" | awk '{ print $NF }' | LC_ALL=C sort)
declared=$(cat include/qnn/*.h | awk '
    /^QNN_API/ && match($0, /qnn_[a-z0-9_]+\(/) { print substr($0, RSTART, RLENGTH - 1) }' | LC_ALL=C sort)
for name in $declared; do
    echo "$exported" | grep -qx "$name" || fail "$name is declared in include/ and not exported"
done
for name in $exported; do
    echo "$declared" | grep -qx "$name" || fail "$name is exported and not declared in include/"
done
[ -n "$declared" ] || fail "found no declaration in include/"
exit $rc
