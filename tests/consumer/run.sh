#!/bin/sh
# run.sh FOLDER: installs the library into FOLDER, then builds and runs programs as a user would: in C and in C++,
# against the shared library and the archive, from the prefix and from a packager's staging folder. Uninstalls
# again and expects nothing to be left. MAKE, CC, CXX and VERSION come from the makefile.
set -eu

mkdir -p "$1"
rm -rf "$1/prefix" "$1/stage"
work=$(cd "$1" && pwd)
src=$(cd "$(dirname "$0")" && pwd)
cd "$src/../.."
warn="-Wall -Wextra -Werror"
n=0

die()
{
    echo "consumer: $*" >&2
    exit 1
}

# build_and_run LABEL PREFIX COMPILER...: what pkg-config says must be all that a program needs
build_and_run()
{
    label=$1
    prefix=$2
    shift 2
    flags=$(PKG_CONFIG_PATH="$prefix/lib/pkgconfig" pkg-config $sysroot --static --cflags --libs qnn)
    # shellcheck disable=SC2086 -- flags are words
    "$@" $warn "$src/app.c" $language $flags -o "$work/app" || die "$label: does not build with: $* app.c $flags"
    if ! found=$(LD_LIBRARY_PATH="$prefix/lib" "$work/app"); then
        die "$label: the program failed"
    fi
    [ "$found" = "$VERSION" ] || die "$label: prints version $found instead of $VERSION"
    needs=$(LD_LIBRARY_PATH="$prefix/lib" ldd "$work/app")
    case $needs in
    *"not found"* | *libgomp* | *libomp*) die "$label: needs
$needs" ;;
    esac
    # a C++ compiler links its own runtime into its programs; ours must not bring it into C
    case "$1 $needs" in
    "$CXX "*) ;;
    *libstdc++* | *libc++*) die "$label: a C program needs
$needs" ;;
    esac
    case "$kind $needs" in
    shared*libqnn.so.0* | archive*) ;;
    *) die "$label: was not linked with the shared library" ;;
    esac
    case "$kind $needs" in
    archive*libqnn*) die "$label: was not linked with the archive" ;;
    esac
    n=$((n + 1))
}

# both_languages LABEL PREFIX
both_languages()
{
    language=
    # shellcheck disable=SC2086 -- CC may hold options
    build_and_run "$1, C" "$2" $CC -std=c99
    language="-x none"
    # shellcheck disable=SC2086
    build_and_run "$1, C++" "$2" $CXX -std=c++11 -x c++
}

install_to()
{
    ${MAKE:-make} install "$@" >"$work/install.log" 2>&1 || {
        cat "$work/install.log"
        die "make install $* failed"
    }
}

sysroot=
install_to PREFIX="$work/prefix" DESTDIR=
[ "$(PKG_CONFIG_PATH="$work/prefix/lib/pkgconfig" pkg-config --modversion qnn)" = "$VERSION" ] || die "qnn.pc has another version"
kind=shared
both_languages "prefix, shared" "$work/prefix"
# the same link line takes the archive where there is no shared library
rm -f "$work/prefix"/lib/libqnn.so*
kind=archive
both_languages "prefix, archive" "$work/prefix"

# a packager's staging folder: files under DESTDIR, paths inside without it
install_to PREFIX=/opt/qnn DESTDIR="$work/stage"
grep -q '^prefix=/opt/qnn$' "$work/stage/opt/qnn/lib/pkgconfig/qnn.pc" || die "qnn.pc holds the staging folder"
sysroot="--define-variable=prefix=$work/stage/opt/qnn"
kind=shared
both_languages "staged, shared" "$work/stage/opt/qnn"

# what is not ours must survive, what is ours must go
touch "$work/stage/opt/qnn/lib/other"
${MAKE:-make} uninstall PREFIX=/opt/qnn DESTDIR="$work/stage" >"$work/install.log" 2>&1 || die "make uninstall failed"
left=$(cd "$work/stage" && find . ! -type d)
[ "$left" = ./opt/qnn/lib/other ] || die "make uninstall left or took too much: $left"
echo "consumer: $n programs"
