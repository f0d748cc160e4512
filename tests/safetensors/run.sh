#!/bin/sh
# run.sh QUICKSTART FOLDER VENV: the model that examples/quickstart writes is opened by Python's safetensors package,
# which is installed in the virtual environment VENV; skipped where that cannot be done. PYTHON chooses the python.
set -eu

case $1 in
/*) quickstart=$1 ;;
*) quickstart=$PWD/$1 ;;
esac
work=$2
venv=$3
src=$(dirname "$0")
mkdir -p "$work"

skip()
{
    echo "SKIPPED: $*"
    exit 0
}

if ! "$venv/bin/python" -c 'import numpy, safetensors' 2>/dev/null; then
    command -v "${PYTHON:-python3}" >/dev/null 2>&1 || skip "there is no python3"
    rm -rf "$venv"
    "${PYTHON:-python3}" -m venv "$venv" >"$work/venv.log" 2>&1 || skip "python3 -m venv does not work (Debian: python3-venv)"
    "$venv/bin/pip" install --quiet --disable-pip-version-check --timeout 10 --retries 1 numpy safetensors \
        >"$work/pip.log" 2>&1 || skip "pip could not install safetensors, see $work/pip.log"
fi
rm -f "$work/quickstart.safetensors"
(cd "$work" && "$quickstart" 1 >quickstart.log 2>&1) || {
    cat "$work/quickstart.log"
    exit 1
}
"$venv/bin/python" "$src/open_model.py" "$work"/*.safetensors
