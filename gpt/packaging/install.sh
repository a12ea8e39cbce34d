#!/bin/sh
# make install, make uninstall: PREFIX/lib/gpt is a Python environment of its own, including the EXTRAS. PREFIX/bin has
# links to its executables, PREFIX/share has its man pages and completions. uninstall takes the list of files from the
# environment, so it can remove another version. For packages, DESTDIR is put before all paths while files are written;
# no installed file mentions it.
set -eu

say() { printf '%s\n' "$1" >&2; }
fail() {
    say "$what: error: $1"
    exit 1
}

what=$1
here=$(dirname "$(readlink -f "$0")")/../..
case ${PREFIX:=/usr/local} in
/*) ;;
*) PREFIX=$PWD/$PREFIX ;;
esac
PREFIX=${PREFIX%/}
destination=${DESTDIR:+$(mkdir -p "$DESTDIR" && cd "$DESTDIR" && pwd)}
prefix=$destination$PREFIX
final=$PREFIX/lib/gpt
folder=$prefix/lib/gpt
own=$folder/bin/python

# Anything else with this name isn't ours, so we don't remove it.
is_ours() { [ ! -e "$1" ] || [ -f "$1/pyvenv.cfg" ]; }

# The nearest existing folder decides whether we can create others in it.
check_writable() {
    at=$1
    while [ ! -e "$at" ]; do at=$(dirname "$at"); done
    [ -d "$at" ] || fail "$at: not a folder"
    [ -w "$at" ] || fail "$at: you can't write there: become $(stat -c %U "$at"), or choose another PREFIX=DIR"
}

list_installed() { # FOLDER: relative paths, the same as in PREFIX
    (cd "$1" && find bin share \( -name 'gpt-*' -o -name neutrino -o -name 'gpt.*' -o -name '_gpt-*' \) -type f 2>/dev/null)
}

is_link() { [ "$(readlink "$prefix/$1")" = "../lib/gpt/$1" ]; }

remove_installed() { # FOLDER
    [ -e "$1" ] || return 0
    list_installed "$1" | while IFS= read -r name; do
        case $name in
        bin/*) is_link "$name" || continue ;;
        esac
        rm -f "$prefix/$name"
    done
}

uninstall() {
    say "uninstall: $prefix"
    is_ours "$folder" || fail "$folder: no environment of Python, so not what 'make install' made"
    check_writable "$folder"
    remove_installed "$folder"
    rm -rf "$folder"
    # Remove empty folders, and stop at the first one that others use.
    (cd "$prefix" && rmdir -p share/man/man1 share/man/man5 share/man/man7 share/bash-completion/completions \
        share/zsh/site-functions share/fish/vendor_completions.d lib bin) 2>/dev/null || true
}

check_extras() {
    "${PYTHON:=python3}" - "$here/pyproject.toml" "${EXTRAS:=}" <<'END' || exit 1
import re, sys, tomllib
known = tomllib.load(open(sys.argv[1], "rb"))["project"]["optional-dependencies"]
unknown = [name for name in re.split("[, ]+", sys.argv[2]) if name and name not in known]
if unknown:
    sys.exit(f"install: error: EXTRAS: no '{unknown[0]}'; there are {', '.join(known)}")
END
}

# Build from a copy: the checkout may not be root's and should stay clean, and old build outputs must not get in.
make_environment() {
    for part in bin gpt man probes runtime Makefile pyproject.toml README.md CHANGELOG.md LICENSE; do
        cp -R "$here/$part" "$work/" || return
    done
    rm -rf "$work/gpt/_runtime" "$work/runtime/abi/records.h" "$work/runtime/sim/renamed.h"
    "$PYTHON" -m venv "$folder" &&
        "$own" -m pip install -qq --disable-pip-version-check "$work${EXTRAS:+[$(printf %s "$EXTRAS" | tr -s ", " ,, | sed "s/^,//; s/,\$//")]}"
}

# Programs contain the path of their interpreter, and compiled files the path of their source: remove DESTDIR from both.
forget_destination() {
    "$own" - "$destination" "$folder" <<'END'
import compileall, os, sys
before, folder = os.fsencode(sys.argv[1]), sys.argv[2]
for root, _, names in os.walk(folder):
    for path in (os.path.join(root, name) for name in names):
        if os.path.islink(path) or path.endswith(".pyc"):
            continue
        data = open(path, "rb").read()
        if before in data and b"\0" not in data:
            open(path, "wb").write(data.replace(before, b""))
compileall.compile_dir(folder, quiet=2, force=True, stripdir=sys.argv[1])
END
}

install_rest() {
    list_installed "$folder" | while IFS= read -r name; do
        mkdir -p "$prefix/${name%/*}"
        case $name in
        bin/*)
            if [ ! -e "$prefix/$name" ] || is_link "$name"; then
                ln -sfn "../lib/gpt/$name" "$prefix/$name"
            else
                say "install: warning: $prefix/$name: another program; ours is $final/$name"
            fi
            ;;
        *) install -m 644 "$folder/$name" "$prefix/$name" ;;
        esac
    done
}

put_back() {
    rm -rf "$folder"
    [ ! -e "$folder.old" ] || mv "$folder.old" "$folder"
}

install_all() {
    say "install: $folder"
    is_ours "$folder" || fail "$folder: something else is there: choose another PREFIX=DIR"
    for part in lib/gpt bin share; do check_writable "$prefix/$part"; done
    check_extras
    mkdir -p "$prefix/lib"
    # Keep the old version, and restore it if this one fails.
    if [ -e "$folder.old" ]; then rm -rf "$folder"; elif [ -e "$folder" ]; then mv "$folder" "$folder.old"; fi
    # Where other users can rename files, one of them could put a folder of their own in this one's place: we install from it.
    if [ "$(find -H "${TMPDIR:-/tmp}" -maxdepth 0 -perm /022 ! -perm -1000 ! -path /tmp 2>/dev/null)" ]; then
        say "$what: warning: ${TMPDIR:-/tmp}: other users can rename files in it, so temporary files are in /tmp"
        TMPDIR=/tmp
        export TMPDIR
    fi
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    trap 'put_back; exit 130' INT
    trap 'put_back; exit 143' TERM HUP
    make_environment || {
        put_back
        fail "$folder: not installed: see above"
    }
    # From here on the new version stays.
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
    [ ! "$destination" ] || forget_destination
    remove_installed "$folder.old"
    say "install: $prefix/bin, $prefix/share: man pages, completion of bash, zsh and fish"
    install_rest
    rm -rf "$folder.old"
    [ ! "$destination" ] || say "install: to be moved to $final before use"
}

case $what in
install) install_all ;;
uninstall) uninstall ;;
*) fail "install or uninstall" ;;
esac
