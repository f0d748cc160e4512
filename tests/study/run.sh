#!/bin/sh
# run.sh CALTECH_BENCH FOLDER: the whole study on a few images, what it writes, and how it answers mistakes.
# QNN_ISA caps the instruction set.
set -eu

bench=$1
rm -rf "$2"
mkdir -p "$2"
work=$2
isa=${QNN_ISA:+--isa $QNN_ISA}
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

# stop FILE ARGUMENT...: Ctrl-C as soon as FILE is there or, as "text:TEXT", TEXT is in the output
stop()
{
    sign=$1
    shift
    : >"$work/out.txt" # the text of the last run is no sign of this one
    "$bench" "$@" >"$work/out.txt" 2>"$work/err.txt" &
    pid=$!
    n=0
    until case $sign in
        text:*) grep -qF -e "${sign#text:}" "$work/out.txt" ;;
        *) [ -e "$sign" ] ;;
        esac; do
        kill -0 $pid 2>/dev/null || die "the run to be interrupted ended by itself"
        n=$((n + 1))
        [ $n -lt 1200 ] || die "no $sign within a minute"
        sleep 0.05
    done
    kill -INT $pid
    rc=0
    wait $pid || rc=$?
    [ $rc -eq 130 ] || die "an interrupted run ended with $rc instead of 130"
}

# 1. What it says about itself.
run 0 --help
for option in data out config methods epochs batch lr seed repeats limit threads isa weights calib skip-bad no-figures \
    quick list-methods help version checkpoint resume; do
    grep -q -e "--$option" "$work/out.txt" || die "--help does not name --$option"
done
run 0 --version
[ -s "$work/out.txt" ] || die "--version prints nothing"
run 0 --list-methods
for method in fp32-gpu fp32-cpu fp16 bf16 ptq-dynamic ptq-static qat int4-sim; do
    grep -q -e "$method" "$work/out.txt" || die "--list-methods does not list $method"
done

# 2. Mistakes: a message on stderr that has the words between bars, status 2, nothing written.
says()
{
    echo "$1" | tr '|' '\n' >"$work/words.txt"
    while read -r word; do
        grep -qF -e "$word" "$work/err.txt" || die "the message does not have $word"
    done <"$work/words.txt"
}
mistake()
{
    words=$1
    shift
    run 2 --out "$work/mistake" "$@"
    says "$words"
    [ ! -e "$work/mistake" ] || die "caltech_bench $* wrote files"
}
mistake '--no-such-option' --no-such-option
mistake 'stray' stray
mistake '--epochs' --epochs
mistake '--epochs|many' --epochs many
mistake '--epochs|-1' --epochs -1
mistake '--epochs|2.5' --epochs 2.5
mistake '--batch|0' --batch 0
mistake '--lr|nan' --lr nan
mistake '--seed|-7' --seed -7
mistake '--repeats|101' --repeats 101
mistake '--threads|999' --threads 999
mistake '--calib|0' --calib 0
mistake '--limit|12' --limit 12 --data builtin
mistake '--methods|fp64' --methods fp32-cpu,fp64
mistake '--methods|fp16|fp32-cpu|--checkpoint' --methods fp32-gpu,fp16
mistake '--methods|ptq-static' --methods ptq-static --data builtin
mistake '--isa|mmx' --isa mmx
mistake '--weights|per-row' --weights per-row
mistake '--data|no-such-folder' --data "$work/no-such-folder"
mistake '--config|no-such-file.json' --config "$work/no-such-file.json"
mistake '--resume|no-such-run' --resume "$work/no-such-run"
mistake '--checkpoint|no-such-file.safetensors' --data builtin --checkpoint "$work/no-such-file.safetensors"

config_mistake()
{
    printf '%s' "$2" >"$work/wrong.json"
    mistake "$1" --config "$work/wrong.json"
}
config_mistake 'no_such_setting' '{"no_such_setting": 2}'
config_mistake 'no_such_group' '{"no_such_group": {}}'
config_mistake 'train.epoch"' '{"train": {"epoch": 2}}'
config_mistake 'train.epochs|many' '{"train": {"epochs": "many"}}'
config_mistake 'train.lr|-3' '{"train": {"lr": -3}}'
config_mistake 'skip_bad|1' '{"skip_bad": 1}'
config_mistake 'model.kernel|4' '{"model": {"kernel": 4}}'
config_mistake 'figures.format|gif' '{"figures": {"format": "gif"}}'
config_mistake 'quant.dynamic_layers|fc3' '{"quant": {"dynamic_layers": "fc3"}}'
config_mistake 'quant.skip_layers|conv9' '{"quant": {"skip_layers": "conv9"}}'
config_mistake 'metrics.average|micro' '{"metrics": {"average": "micro"}}'
config_mistake 'line 2' '{"seed": 1,
"seed": 2}'
config_mistake 'object' '[1]'

# 3. The study.
figures=
command -v gnuplot >/dev/null 2>&1 || figures=--no-figures
echo '{"model": {"image_size": 64}}' >"$work/64.json"
# shellcheck disable=SC2086
run 0 --data builtin --quick --config "$work/64.json" --limit 240 --epochs 1 --out "$work/results" $figures $isa
for label in '[1/8] FP32' '[2/8] FP32 (CPU)' '[3/8] FP16' '[4/8] BF16' '[5/8] PTQ-Dynamic' '[6/8] PTQ-Static' '[7/8] QAT' \
    '[8/8] 4-bit Sim'; do
    grep -qF -e "$label" "$work/out.txt" || die "the output has no line $label"
    [ "$(grep -cF -e "${label#* } " -e "${label#* }" "$work/out.txt")" -ge 2 ] || die "the table has no row ${label#* }"
done
for file in settings.json results.json results.csv curves.csv; do
    [ -s "$work/results/$file" ] || die "did not write $file"
    grep -q built-in "$work/results/$file" || [ $file = settings.json ] || die "$file does not name the data set"
done
grep -q 'built-in' "$work/out.txt" || die "the output does not name the data set"
rows=$(wc -l <"$work/results/results.csv")
[ "$rows" -eq 9 ] || die "results.csv has $rows lines instead of a header and eight rows"
rows=$(wc -l <"$work/results/curves.csv")
[ "$rows" -eq 3 ] || die "curves.csv has $rows lines instead of a header and one epoch of FP32 and of QAT"
if command -v python3 >/dev/null 2>&1; then
    python3 - "$work/results" <<'PY' >"$work/err.txt" 2>&1 || die "the files of the study are not as they should be"
import csv, json, os, sys
out = sys.argv[1]
results = json.load(open(out + "/results.json"))
settings = json.load(open(out + "/settings.json"))
assert results["settings"] == settings and settings["train"]["epochs"] == 1 and settings["limit"] == 240
for name in ("results.csv", "curves.csv"):
    rows = list(csv.reader(open(out + "/" + name)))
    assert len({len(r) for r in rows}) == 1, name
rows = {r["method"]: r for r in csv.DictReader(open(out + "/results.csv"))}
methods = {m["method"]: m for m in results["repeats"][0]}
assert list(methods) == list(rows) == settings["methods"].split(","), list(methods)
assert methods["fp32-gpu"]["status"] == "skipped" and methods["fp32-gpu"]["reason"] and rows["fp32-gpu"]["accuracy"] == ""
size = {}
for key, m in methods.items():
    if m["status"] == "skipped":
        continue
    v = m["validation"]
    assert m["status"] == "done" and v["n"] == 48, key
    assert v["accuracy_lo"] <= v["accuracy"] <= v["accuracy_hi"] and v["accuracy_lo"] < v["accuracy_hi"], key
    assert m["single_ms"] > 0 and m["batch_ms"] > 0 and m["train_seconds"] >= 0, key
    size[key] = os.path.getsize(m["file"])
    assert size[key] == m["bytes"], key
    assert len(m["epochs"]) == (1 if key in ("fp32-cpu", "qat") else 0), key
assert len(size) == 7, size
for key, share in (("fp16", 2), ("bf16", 2), ("ptq-static", 4), ("qat", 4), ("int4-sim", 8)):
    assert 0.98 < size[key] * share / size["fp32-cpu"] < 1.02, (key, size)
PY
fi
if [ -z "$figures" ]; then
    n=$(find "$work/results/figures" -name '*_comparison.png' -size +1k | wc -l)
    [ "$n" -eq 7 ] || die "there are $n bar charts instead of 7"
    n=$(find "$work/results/figures" -name '*_curves.png' -size +1k | wc -l)
    [ "$n" -eq 2 ] || die "there are $n curves instead of 2"
    grep -q 'FP32. 0' "$work/results/figures/size_comparison.gp" || die "a skipped method has no place in the figure"
    ! grep -q '^0 ' "$work/results/figures/size_comparison.dat" || die "a skipped method has a bar"
fi

# 4. Settings from a file, and a resumed run that ends as an uninterrupted one does.
cat >"$work/small.json" <<'END_OF_CONFIG'
{"data": "builtin", "train": {"epochs": 3, "batch": 32}, "limit": 400, "model": {"image_size": 32, "hidden": 32},
 "builtin": {"images": 400}, "methods": "fp32-cpu,ptq-static,qat", "no_figures": true,
 "timing": {"single_runs": 3, "batch_runs": 2}, "quant": {"calib_images": 40}}
END_OF_CONFIG
# scores DIR: all of results.csv but times, which differ from run to run
scores()
{
    cut -d, -f1-12 "$work/$1/results.csv" >"$work/$1.scores"
    cut -d, -f1-11 "$work/$1/curves.csv" >>"$work/$1.scores"
}
same()
{
    scores "$1"
    scores "$2"
    cmp -s "$work/$1.scores" "$work/$2.scores" || die "$2 has other scores than $1: $(diff "$work/$1.scores" "$work/$2.scores")"
}
# shellcheck disable=SC2086
run 0 --config "$work/small.json" --out "$work/whole" $isa
# shellcheck disable=SC2086
stop 'text:epoch  1/3' --config "$work/small.json" --out "$work/cut" $isa
for file in settings.json state.json results.csv checkpoints/fp32-cpu.ckpt; do
    [ -s "$work/cut/$file" ] || die "an interrupted run kept no $file"
done
run 2 --resume "$work/cut" --lr 0.5
says '--resume|train.lr|0.001|0.5'
run 2 --resume "$work/cut" --out "$work/elsewhere"
says '--out|elsewhere'
# shellcheck disable=SC2086
run 0 --resume "$work/cut" $isa
same whole cut
# What an interrupted run left in a folder is not taken for the epochs of the next one there.
# shellcheck disable=SC2086
stop 'text:epoch  1/3' --config "$work/small.json" --lr 0.01 --out "$work/again" $isa
# shellcheck disable=SC2086
stop 'text:FP32 (CPU)' --config "$work/small.json" --out "$work/again" $isa
# shellcheck disable=SC2086
run 0 --resume "$work/again" $isa
same whole again
# A stop after the last epoch, while the model is scored and timed, costs no training.
sed 's/"single_runs": 3/"single_runs": 100000/; s/fp32-cpu,ptq-static,qat/fp32-cpu/' "$work/small.json" >"$work/slow.json"
# shellcheck disable=SC2086
stop "$work/late/models/fp32-cpu.safetensors" --config "$work/slow.json" --out "$work/late" $isa
sed -i 's/100000/3/' "$work/late/settings.json" "$work/late/state.json"
# shellcheck disable=SC2086
run 0 --resume "$work/late" $isa
! grep -q 'epoch  *[123]/3' "$work/out.txt" || die "a run that was stopped after its last epoch trains again"
grep -q '3 epochs' "$work/out.txt" || die "a resumed run does not say what it resumes"
[ ! -e "$work/late/checkpoints/fp32-cpu.ckpt" ] || die "a finished method leaves its checkpoint"
# Post-training methods from a file, which has to be FP32.
# shellcheck disable=SC2086
run 0 --config "$work/small.json" --methods ptq-static,int4-sim --checkpoint "$work/whole/models/fp32-cpu.safetensors" \
    --out "$work/from" $isa
grep -q 'start from the model file' "$work/out.txt" || die "the table does not say where post-training methods start"
[ "$(grep ^ptq-static "$work/from/results.csv" | cut -d, -f5-9)" = "$(grep ^ptq-static "$work/whole/results.csv" | cut -d, -f5-9)" ] ||
    die "PTQ-Static from the file has another score"
for method in ptq-static qat; do
    mistake "--checkpoint|$method.safetensors" --config "$work/small.json" --methods fp16 \
        --checkpoint "$work/whole/models/$method.safetensors"
done
# Nothing to draw is no failure; several repeats give means.
run 0 --config "$work/small.json" --methods fp32-gpu --out "$work/skips"
# shellcheck disable=SC2086
run 0 --config "$work/small.json" --methods fp32-cpu,ptq-dynamic --epochs 1 --repeats 2 --out "$work/twice" $isa
grep -q '^FP32 (CPU).*+-' "$work/out.txt" || die "the table of two repeats has no deviation"
[ "$(grep -c '^fp32-cpu,FP32 (CPU),[12],done' "$work/twice/results.csv")" -eq 2 ] || die "results.csv lacks a repeat"

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
set -- --config "$work/small.json" --methods fp32-cpu --batch 4 --epochs 1
# shellcheck disable=SC2086
run 0 --data "$work/images" "$@" --out "$work/folder" $isa
# shellcheck disable=SC2086
CALTECH101_DIR=$work/images run 0 --out "$work/environment" $isa --quick --no-figures --methods fp32-gpu --batch 4
grep -qF -e "$work/images" "$work/out.txt" || die "CALTECH101_DIR is not the default of --data"
echo 'not an image' >"$work/images/light/broken.jpg"
mistake 'light/broken.jpg|--skip-bad' --data "$work/images" "$@"
# shellcheck disable=SC2086
run 0 --data "$work/images" "$@" --skip-bad --out "$work/skipped" $isa
grep -q 'Left out 1 file' "$work/out.txt" || die "--skip-bad does not count what it left out"
grep -q 'light/broken.jpg' "$work/out.txt" || die "--skip-bad does not list what it left out"
echo "study: ok"
