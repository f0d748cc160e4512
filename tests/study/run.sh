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
# 4. Settings from a file, and a resumed run that ends as an uninterrupted one does.
cat >"$work/small.json" <<'END'
{"data": "builtin", "train": {"epochs": 3, "batch": 32}, "limit": 400, "model": {"image_size": 32, "hidden": 32},
 "methods": "fp32-cpu,ptq-static,qat", "no_figures": true, "timing": {"single_runs": 3, "batch_runs": 2}, "quant": {"calib_images": 40}}
END
isa=${QNN_ISA:+--isa $QNN_ISA}
# shellcheck disable=SC2086
run 0 --config "$work/small.json" --out "$work/whole" $isa
# shellcheck disable=SC2086
"$bench" --config "$work/small.json" --out "$work/cut" $isa >"$work/out.txt" 2>"$work/err.txt" &
pid=$!
n=0
until grep -q 'epoch  1/3' "$work/out.txt"; do
    kill -0 $pid 2>/dev/null || die "the run to be interrupted ended by itself"
    n=$((n + 1))
    [ $n -lt 600 ] || die "no epoch within a minute"
    sleep 0.1
done
kill -INT $pid
rc=0
wait $pid || rc=$?
[ $rc -eq 130 ] || die "an interrupted run ended with $rc instead of 130"
for file in settings.json state.json results.csv; do
    [ -s "$work/cut/$file" ] || die "an interrupted run kept no $file"
done
# shellcheck disable=SC2086
run 0 --resume "$work/cut" $isa
for dir in whole cut; do # times differ from run to run, scores must not
    cut -d, -f1-12 "$work/$dir/results.csv" >"$work/$dir.scores"
done
cmp -s "$work/whole.scores" "$work/cut.scores" || die "a resumed run has other scores: $(diff "$work/whole.scores" "$work/cut.scores")"
run 2 --resume "$work/cut" --lr 0.5
grep -q 'train.lr' "$work/err.txt" || die "--resume with another setting does not name it"
printf '{"train": {"epochs": "many"}}' >"$work/wrong.json"
mistake --config "$work/wrong.json"
grep -q 'train.epochs' "$work/err.txt" || die "a wrong type in the file is not named"
mistake --methods ptq-static --data builtin
run 0 --config "$work/small.json" --methods ptq-static,int4-sim --checkpoint "$work/whole/models/fp32-cpu.safetensors" --out "$work/from" $isa

# 5. Image folders: 8x8 BMPs of two colours, and a file that is no image.
bmp()
{
    printf 'BM\366\0\0\0\0\0\0\0\066\0\0\0\050\0\0\0\010\0\0\0\010\0\0\0\001\0\030\0\0\0\0\0\300\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0'
    head -c 192 /dev/zero | tr '\0' "$1"
}
for class in dark light; do
    mkdir -p "$work/images/$class"
    i=0
    while [ $i -lt 12 ]; do
        if [ $class = dark ]; then bmp '\020'; else bmp '\340'; fi >"$work/images/$class/$i.bmp"
        i=$((i + 1))
    done
done
set -- --data "$work/images" --config "$work/small.json" --methods fp32-cpu --batch 4 --epochs 1
# shellcheck disable=SC2086
run 0 "$@" --out "$work/folder" $isa
echo 'not an image' >"$work/images/light/broken.jpg"
mistake "$@"
grep -q 'light/broken.jpg' "$work/err.txt" || die "the broken image's path is not named"
# shellcheck disable=SC2086
run 0 "$@" --skip-bad --out "$work/skipped" $isa
grep -q 'Left out 1 file' "$work/out.txt" || die "--skip-bad does not count what it left out"
grep -q 'light/broken.jpg' "$work/out.txt" || die "--skip-bad does not list what it left out"
echo "study: ok"
