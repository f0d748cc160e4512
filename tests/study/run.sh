#!/bin/sh
# run.sh CALTECH_BENCH FOLDER: the whole study on a few images, what it writes, and how it answers mistakes.
# QNN_ISA caps the instruction set.
set -eu

bench=$1
rm -rf "$2"
mkdir -p "$2"
work=$2
unset CALTECH101_DIR

die()
{
    echo "study: $*"
    [ ! -f "$work/out.txt" ] || tail -n 20 "$work/out.txt" | sed 's/^/    /'
    [ ! -f "$work/err.txt" ] || tail -n 20 "$work/err.txt" | sed 's/^/    /'
    exit 1
}

# run STATUS ARGUMENT...: output in out.txt and err.txt
run()
{
    want=$1
    shift
    rc=0
    "$bench" "$@" >"$work/out.txt" 2>"$work/err.txt" || rc=$?
    [ $rc -eq "$want" ] || die "caltech_bench $* ended with $rc instead of $want"
}

# 1. What it says about itself.
run 0 --help
grep -q -e --methods "$work/out.txt" || die "--help does not name --methods"
run 0 --version
[ -s "$work/out.txt" ] || die "--version prints nothing"
run 0 --list-methods
for method in fp32-gpu fp32-cpu fp16 bf16 ptq-dynamic ptq-static qat int4-sim; do
    grep -q -e "$method" "$work/out.txt" || die "--list-methods does not list $method"
done

# 2. Mistakes: a message on stderr, status 2, nothing written.
mistake()
{
    run 2 --out "$work/mistake" "$@"
    [ -s "$work/err.txt" ] || die "caltech_bench $* says nothing on stderr"
    [ ! -e "$work/mistake" ] || die "caltech_bench $* wrote files"
}
mistake --no-such-option
mistake --epochs
mistake --epochs many
mistake --epochs -1
mistake --batch 0
mistake --methods fp32-cpu,fp64
mistake --isa mmx
mistake --weights per-row
mistake --data "$work/no-such-folder"
mistake --config "$work/no-such-file.json"
mistake --checkpoint "$work/no-such-file.safetensors"
printf '{"epochs": 1, "no_such_setting": 2}' >"$work/wrong.json"
mistake --config "$work/wrong.json"

# 3. The study.
figures=
command -v gnuplot >/dev/null 2>&1 || figures=--no-figures
# shellcheck disable=SC2086 -- these are empty or options
run 0 --data builtin --quick --limit 240 --epochs 1 --out "$work/results" $figures ${QNN_ISA:+--isa $QNN_ISA}
for label in 'FP32' 'FP32 (CPU)' 'FP16' 'BF16' 'PTQ-Dynamic' 'PTQ-Static' 'QAT' '4-bit Sim'; do
    grep -qF "$label" "$work/out.txt" || die "the output has no row $label"
done
for file in results.json results.csv; do
    [ -s "$work/results/$file" ] || die "did not write $file"
done
rows=$(wc -l <"$work/results/results.csv")
[ "$rows" -eq 9 ] || die "results.csv has $rows lines instead of a header and eight rows"
if [ -z "$figures" ]; then
    n=$(find "$work/results" -name '*_comparison.png' -size +1k | wc -l)
    [ "$n" -eq 7 ] || die "there are $n bar charts instead of 7"
fi
grep -qi 'built-in\|builtin' "$work/out.txt" || die "the output does not name the data set"
echo "study: ok"
