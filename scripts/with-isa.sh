#!/bin/sh
# with-isa.sh NAME COMMAND...: runs a test under QNN_ISA=NAME, or says that this processor cannot.
set -eu

isa=$1
shift
case $isa in
ref) need= ;;
avx2) need="avx2 fma f16c bmi2" ;;
avx512) need="avx2 fma f16c bmi2 avx512f avx512bw avx512dq avx512vl" ;;
avx512vnni) need="avx2 fma f16c bmi2 avx512f avx512bw avx512dq avx512vl avx512_vnni" ;;
*)
    echo "with-isa: unknown instruction set $isa" >&2
    exit 2
    ;;
esac
flags=" $(sed -n 's/^flags[^:]*: *//p;T;q' /proc/cpuinfo 2>/dev/null || true) "
for flag in $need; do
    case $flags in
    *" $flag "*) ;;
    *)
        echo "SKIPPED: this processor has no $flag"
        exit 0
        ;;
    esac
done
QNN_ISA=$isa exec "$@"
