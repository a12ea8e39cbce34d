#!/bin/sh
# make install: for a package (DESTDIR), over an older version, into a path with a blank, and with extras. If it fails,
# the old version still works. make uninstall removes all of our files, and nobody else's.
set -eu

top=$PYTHONPATH
unset GPT_RUNTIME GPT_SIM_RUN # a user has neither
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_RETRIES=1 PIP_TIMEOUT=15 PIP_NO_COMPILE=0 CFLAGS=-O0 HOME="$PWD/home"

python -m tests.demo.build demo >/dev/null
unset PYTHONPATH
mkdir tree home
for part in bin gpt man probes runtime Makefile pyproject.toml README.md CHANGELOG.md LICENSE; do
    cp -R "$top/$part" tree/
done
find tree | sort >before.txt

# Files for a package look as if they had been installed at their final place, whose path may have a blank.
prefix="$PWD/a prefix"
if ! PIP_NO_DEPS=1 make -s -C tree install PREFIX="$prefix" DESTDIR="$PWD/stage" 2>err.txt; then
    grep -q 'No matching distribution' err.txt || { cat err.txt && exit 1; }
    echo "no setuptools" && exit 77
fi
find tree | sort | cmp - before.txt # nothing is left where it was built
test ! -e "$prefix"
mv "stage$prefix" "$prefix"
if grep -rq "$PWD/stage" "$prefix"; then exit 1; fi
"$prefix/bin/gpt-hook" check >check.txt || test $? = 1
grep -q "^runtime  *$prefix/lib/gpt/lib/python3.*/gpt/_runtime/libgpthook.so$" check.txt
head -n 3 "$prefix/bin/gpt-extract" | grep -q "$prefix/lib/gpt/bin/python"

# A failed installation leaves the old version, and other people's files.
if PIP_NO_INDEX=1 PIP_FIND_LINKS="$PWD/none" make -s -C tree install PREFIX="$prefix" >err.txt 2>&1; then exit 1; fi
grep -q "^install: error: $prefix/lib/gpt: not installed: see above" err.txt
if make -s -C tree install PREFIX="$prefix" EXTRAS=plot,nonsense 2>err.txt; then exit 1; fi
grep -q "^install: error: EXTRAS: no 'nonsense'; there are plot, " err.txt
"$prefix/bin/gpt-hook" --version
mkdir -p other/lib/gpt
if make -s -C tree install PREFIX="$PWD/other" 2>err.txt; then exit 1; fi
grep -q "^install: error: $PWD/other/lib/gpt: something else is there" err.txt
if make -s -C tree uninstall PREFIX="$PWD/other" 2>err.txt; then exit 1; fi
test -e other/lib/gpt
if [ "$(id -u)" = 0 ]; then
    shared=$(mktemp -d)
    chmod 755 "$shared"
    cp -R tree/. "$shared"
    chmod -R a+rX "$shared"
    if setpriv --reuid 2001 --regid 2001 --clear-groups make -s -C "$shared" install PREFIX="$shared" 2>err.txt; then exit 1; fi
    rm -rf "$shared"
    grep -q "^install: error: $shared: you can't write there: become root, or choose another PREFIX=DIR" err.txt
fi

# A newer version, with extras, over an older one with a tool that no longer exists; another program uses one of our
# names.
touch "$prefix/lib/gpt/bin/gpt-gone" "$prefix/lib/gpt/share/man/man1/gpt-gone.1" "$prefix/share/man/man1/gpt-gone.1"
ln -s ../lib/gpt/bin/gpt-gone "$prefix/bin/gpt-gone"
rm "$prefix/bin/neutrino"
echo theirs | tee "$prefix/bin/neutrino" >"$prefix/share/man/man1/theirs.1"
make -s -C tree install PREFIX="$prefix" EXTRAS=perfetto 2>err.txt
grep -q "^install: warning: $prefix/bin/neutrino: another program" err.txt
test ! -L "$prefix/bin/gpt-gone" -a ! -e "$prefix/share/man/man1/gpt-gone.1"
"$prefix/bin/gpt-hook" run -q -o t.mp --device sim -p block_sched -- demo/main matmul >out.txt
test "$(cat out.txt)" = SUCCESS
"$prefix/bin/gpt-analyze" timeline --format perfetto -o t.pftrace t.mp
test -s t.pftrace

make -s -C tree uninstall PREFIX="$prefix"
test "$(cd "$prefix" && find . ! -type d | sort)" = "$(printf './bin/neutrino\n./share/man/man1/theirs.1')"
make -s -C tree uninstall PREFIX="$prefix" # nothing is there
