#!/bin/sh
# make install: for a package (DESTDIR), over what was there, into a path with blanks and with extras. What fails leaves
# what was there; make uninstall leaves nothing of ours, and all that is somebody else's.
set -eu

top=$PYTHONPATH
unset GPT_RUNTIME
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_RETRIES=1 PIP_TIMEOUT=15 CFLAGS=-O0 HOME="$PWD/home"

python -m tests.demo.build demo >/dev/null
unset PYTHONPATH
mkdir tree home
for part in bin gpt man probes runtime Makefile MANIFEST.in pyproject.toml setup.py gpt_start.py install.sh README.md CHANGELOG.md LICENSE; do
    cp -R "$top/$part" tree/
done
find tree | sort >before.txt

# Files for a package are as if they had been installed where they go later.
if ! PIP_NO_DEPS=1 make -s -C tree install PREFIX="$PWD/prefix" DESTDIR="$PWD/stage" 2>err.txt; then
    grep -q 'No matching distribution' err.txt || { cat err.txt && exit 1; }
    echo "no setuptools" && exit 77
fi
find tree | sort | cmp - before.txt # nothing is left where it was built
test ! -e prefix
mv "stage$PWD/prefix" prefix
if grep -rq "$PWD/stage" prefix; then exit 1; fi
prefix/bin/gpt-hook check >check.txt || test $? = 1
grep -q "^runtime  *$PWD/prefix/lib/gpt/lib/python3.*/gpt/_runtime/libgpthook.so$" check.txt
head -n 3 prefix/bin/gpt-extract | grep -q "$PWD/prefix/lib/gpt/bin/python"

# What fails leaves it.
if PIP_NO_INDEX=1 PIP_FIND_LINKS="$PWD/none" make -s -C tree install PREFIX="$PWD/prefix" >err.txt 2>&1; then exit 1; fi
grep -q "^install: error: $PWD/prefix/lib/gpt: not installed: see above" err.txt
if make -s -C tree install PREFIX="$PWD/prefix" EXTRAS=plot,nonsense 2>err.txt; then exit 1; fi
grep -q "^install: error: EXTRAS: no 'nonsense'; there are plot, " err.txt
prefix/bin/gpt-hook check | grep -q "^runtime  *$PWD/prefix/lib/gpt/"
mkdir -p other/lib/gpt
if make -s -C tree install PREFIX="$PWD/other" 2>err.txt; then exit 1; fi
grep -q "^install: error: $PWD/other/lib/gpt: something else is there" err.txt
if make -s -C tree uninstall PREFIX="$PWD/other" 2>err.txt; then exit 1; fi
test -e other/lib/gpt

# A later version over an earlier one, which had a tool that is gone; another program has a name of ours.
touch prefix/lib/gpt/bin/gpt-gone prefix/lib/gpt/share/man/man1/gpt-gone.1 prefix/share/man/man1/gpt-gone.1
ln -s ../lib/gpt/bin/gpt-gone prefix/bin/gpt-gone
rm prefix/bin/neutrino
echo theirs | tee prefix/bin/neutrino >prefix/share/man/man1/theirs.1
PIP_NO_DEPS=1 make -s -C tree install PREFIX="$PWD/prefix" 2>err.txt
grep -q "^install: warning: $PWD/prefix/bin/neutrino: another program" err.txt
test ! -L prefix/bin/gpt-gone -a ! -e prefix/share/man/man1/gpt-gone.1 -a -x prefix/bin/gpt-hook
make -s -C tree uninstall PREFIX="$PWD/prefix"
test "$(find prefix ! -type d)" = "$(printf 'prefix/bin/neutrino\nprefix/share/man/man1/theirs.1')"
make -s -C tree uninstall PREFIX="$PWD/prefix"

# Somebody else's PREFIX.
if [ "$(id -u)" = 0 ]; then
    shared=$(mktemp -d)
    chmod 755 "$shared"
    cp -R tree/. "$shared"
    chmod -R a+rX "$shared"
    if setpriv --reuid 2001 --regid 2001 --clear-groups make -s -C "$shared" install PREFIX="$shared" 2>err.txt; then exit 1; fi
    grep -q "^install: error: $shared: you can't write there: become root, or choose another PREFIX=DIR" err.txt
    rm -rf "$shared"
fi

# Extras, and a path with a blank, at which LD_PRELOAD is split.
make -s -C tree install PREFIX="$PWD/a prefix" EXTRAS=perfetto 2>err.txt
"a prefix/lib/gpt/bin/python" -c 'import perfetto'
"a prefix/bin/gpt-hook" run -q -o t.mp --device sim -p block_sched -- demo/main matmul >out.txt
test "$(cat out.txt)" = SUCCESS
"a prefix/bin/gpt-analyze" timeline --format perfetto -o t.pftrace t.mp
test -s t.pftrace
make -s -C tree uninstall PREFIX="$PWD/a prefix"
test ! -e "a prefix" || test "$(find "a prefix" ! -type d)" = ""
