#!/bin/sh
# fetch-caltech101.sh: downloads Caltech-101 from CaltechDATA (record mzrjq-6wc02), checks and unpacks it.
#
#   --dir DIR   where 101_ObjectCategories/ goes (data/caltech101)
#   --url URL   folder of the archive, for mirrors and tests
#   --md5 SUM   of the archive, for tests
#
# The archive has 137 MB. Goes on where an interrupted download stopped. Does nothing when the images are there.
# Needs curl or wget, and unzip or python3.
#
# Source   F.-F. Li, M. Andreeto, M. A. Ranzato, P. Perona: Caltech 101. CaltechDATA, doi:10.22002/D1.20086
set -eu

dir=data/caltech101
url=https://data.caltech.edu/records/mzrjq-6wc02/files
md5=3138e1922a9193bfa496528edbbc45d0
archive=caltech-101.zip
inner=caltech-101/101_ObjectCategories.tar.gz

die()
{
    echo "fetch-caltech101: $*" >&2
    exit 1
}

while [ $# -gt 0 ]; do
    case $1 in
    --dir | --url | --md5)
        [ $# -ge 2 ] || die "$1 needs a value"
        case $1 in
        --dir) dir=$2 ;;
        --url) url=$2 ;;
        --md5) md5=$2 ;;
        esac
        shift 2
        ;;
    *) die "unknown option $1; there are --dir DIR, --url URL and --md5 SUM" ;;
    esac
done

if [ -f "$dir/.complete" ]; then
    echo "$dir is complete already"
    exit 0
fi
mkdir -p "$dir" || die "cannot make the folder $dir"
zip=$dir/$archive
part=$zip.part

md5_of()
{
    if command -v md5sum >/dev/null 2>&1; then
        md5sum "$1" | cut -d ' ' -f 1
    else
        md5 -q "$1"
    fi
}

# Goes on at the end of $part. The exit status is the program's.
download()
{
    if command -v curl >/dev/null 2>&1; then
        curl --fail --location --silent --show-error --connect-timeout 20 --speed-limit 1 --speed-time 60 \
            --continue-at - --output "$part" "$url/$archive"
    elif command -v wget >/dev/null 2>&1; then
        wget --quiet --tries 1 --timeout 60 --continue --output-document "$part" "$url/$archive"
    else
        die "needs curl or wget"
    fi
}

if [ ! -f "$zip" ]; then
    # a whole file that was not yet renamed must not be asked for again: servers answer 416 past its end
    if [ ! -f "$part" ] || [ "$(md5_of "$part")" != "$md5" ]; then
        if [ -s "$part" ]; then
            echo "going on with $url/$archive at byte $(wc -c <"$part" | tr -d ' ')"
        else
            echo "downloading $url/$archive"
        fi
        tries=3
        until download; do
            # 33 is curl's "the server cannot go on in the middle"
            [ $? -ne 33 ] || rm -f "$part"
            tries=$((tries - 1))
            [ $tries -gt 0 ] ||
                die "could not download $url/$archive: is there a connection? Run it again to go on where it stopped"
            sleep 1
        done
    fi
    sum=$(md5_of "$part")
    if [ "$sum" != "$md5" ]; then
        rm -f "$part"
        die "$archive is damaged: its md5 is $sum, not $md5. It was removed; run this again"
    fi
    mv "$part" "$zip"
fi

echo "unpacking into $dir"
tarball=$dir/images.tar.gz
rm -f "$tarball"
if command -v unzip >/dev/null 2>&1; then
    unzip -p "$zip" "$inner" >"$tarball" || die "$zip holds no $inner"
elif command -v python3 >/dev/null 2>&1; then
    python3 - "$zip" "$inner" "$tarball" <<'PYTHON' || die "$zip holds no $inner"
import shutil, sys, zipfile
with zipfile.ZipFile(sys.argv[1]).open(sys.argv[2]) as src, open(sys.argv[3], "wb") as dst:
    shutil.copyfileobj(src, dst)
PYTHON
else
    die "needs unzip or python3"
fi
# --no-same-owner: root must not recreate the archive's users
tar -xzf "$tarball" -C "$dir" --no-same-owner || die "cannot unpack $tarball"
rm -f "$tarball" "$zip"
n=$(find "$dir" -mindepth 2 -maxdepth 2 -type d | wc -l | tr -d ' ')
[ "$n" -gt 0 ] || die "$inner held no class folders"
touch "$dir/.complete"
echo "$dir holds $n class folders"
