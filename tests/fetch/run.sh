#!/bin/sh
# run.sh FOLDER: scripts/fetch-caltech101.sh against a server on this machine with a tiny archive. PYTHON chooses the
# python. The server is ended whatever happens.
set -eu

python=${PYTHON:-python3}
command -v "$python" >/dev/null 2>&1 || {
    echo "SKIPPED: there is no python3"
    exit 0
}
command -v curl >/dev/null 2>&1 || command -v wget >/dev/null 2>&1 || {
    echo "SKIPPED: there is neither curl nor wget"
    exit 0
}
rm -rf "$1"
mkdir -p "$1/served" "$1/caltech-101/101_ObjectCategories/anchor" "$1/caltech-101/101_ObjectCategories/zebra"
work=$(cd "$1" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
fetch=$here/../../scripts/fetch-caltech101.sh
server=
trap 'stop_server' EXIT
trap 'exit 130' INT TERM
# a proxy must not stand between the script and this machine
unset http_proxy https_proxy all_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY

die()
{
    echo "fetch: $*"
    [ ! -f "$work/log" ] || sed 's/^/    /' "$work/log"
    exit 1
}

stop_server()
{
    [ -n "$server" ] || return 0
    kill "$server" 2>/dev/null || true
    wait "$server" 2>/dev/null || true
    server=
}

# start_server [CUT]: sets url
start_server()
{
    rm -f "$work/port" "$work/requests"
    "$python" "$here/server.py" "$work/served" "$work/port" "$@" >"$work/requests" 2>"$work/server.log" &
    server=$!
    i=0
    while [ ! -f "$work/port" ]; do
        i=$((i + 1))
        [ $i -lt 100 ] || die "the server did not start: $(cat "$work/server.log")"
        sleep 0.1
    done
    url=http://127.0.0.1:$(cat "$work/port")
}

# expect STATUS TEXT ARGUMENT...: runs the script; its status and a part of what it says
expect()
{
    want=$1
    text=$2
    shift 2
    rc=0
    "$fetch" --dir "$work/data" "$@" >"$work/log" 2>&1 || rc=$?
    [ $rc -eq "$want" ] || die "ended with $rc instead of $want"
    grep -q "$text" "$work/log" || die "did not say: $text"
}

# the archive: a zip with a tar.gz inside; noise makes it longer than one packet
cd "$work"
head -c 300000 /dev/urandom >caltech-101/101_ObjectCategories/anchor/image_0001.jpg
echo image >caltech-101/101_ObjectCategories/zebra/image_0001.jpg
tar -czf caltech-101/101_ObjectCategories.tar.gz -C caltech-101 101_ObjectCategories
"$python" -m zipfile -c served/caltech-101.zip caltech-101 || die "$python cannot make a zip archive"
md5=$(md5sum served/caltech-101.zip | cut -d ' ' -f 1)
image=data/101_ObjectCategories/anchor/image_0001.jpg
good=caltech-101/101_ObjectCategories/anchor/image_0001.jpg

# 1. all well; then nothing to do, even without a server
start_server
expect 0 '2 class folders' --url "$url" --md5 "$md5"
cmp -s "$image" "$good" || die "the image is not what was packed"
stop_server
expect 0 'complete already' --url "$url" --md5 "$md5"

# 2. the connection breaks in the middle: it goes on there
rm -rf data
start_server 100000
expect 0 '2 class folders' --url "$url" --md5 "$md5"
cmp -s "$image" "$good" || die "the image is not what was packed, after a broken connection"
[ "$(sed -n 1p requests)" = 0 ] && [ "$(sed -n 2p requests)" = 100000 ] && [ "$(wc -l <requests)" -eq 2 ] ||
    die "asked from byte $(tr '\n' ' ' <requests)instead of 0 and 100000"
stop_server

# 3. nobody answers: says so, keeps what there is, and a later run goes on with it
rm -rf data
mkdir data
head -c 50000 served/caltech-101.zip >data/caltech-101.zip.part
expect 1 'is there a connection' --url "$url" --md5 "$md5"
[ "$(wc -c <data/caltech-101.zip.part)" -eq 50000 ] || die "lost what was downloaded before"
start_server
expect 0 'at byte 50000' --url "$url" --md5 "$md5"
[ "$(cat requests)" = 50000 ] || die "asked from byte $(cat requests) instead of 50000"
stop_server

# 4. another file than the one we know: refused, removed, nothing unpacked
rm -rf data
start_server
expect 1 'damaged' --url "$url" --md5 00000000000000000000000000000000
[ ! -e data/101_ObjectCategories ] && [ ! -e data/caltech-101.zip.part ] || die "kept or unpacked a damaged archive"
stop_server

# 5. the server's file is cut short
rm -rf data
mkdir whole
mv served/caltech-101.zip whole
head -c 200000 whole/caltech-101.zip >served/caltech-101.zip
start_server
expect 1 'damaged' --url "$url" --md5 "$md5"

# 6. the file is not there; a wrong option
rm -f served/caltech-101.zip
expect 1 'could not download' --url "$url" --md5 "$md5"
stop_server
expect 1 'unknown option' --no-such-option
echo "fetch: ok"
