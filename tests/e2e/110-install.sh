#!/bin/sh
# The package is installed as a wheel, from its source distribution, and as an editable package. Each time, gpt-hook is
# on PATH, finds its libraries next to the package, and runs a program on the simulated device.
set -eu

top=$PYTHONPATH
unset PYTHONPATH GPT_RUNTIME
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_DEPS=1 PIP_QUIET=1 PIP_RETRIES=1 PIP_TIMEOUT=15 CFLAGS=-O0

mkdir tree
for part in bin gpt man probes runtime Makefile pyproject.toml README.md CHANGELOG.md LICENSE; do
    cp -R "$top/$part" tree/
done
rm -rf tree/gpt/_runtime tree/runtime/abi/records.h

python -m venv builder
if ! builder/bin/pip install 'setuptools>=77' 2>pip.err; then
    echo "no setuptools: $(tail -n 1 pip.err)"
    exit 77
fi

cat >client.c <<'EOF'
#include <dlfcn.h>
#include <stdio.h>
int main(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    int (*init)(unsigned) = driver ? (int (*)(unsigned))dlsym(driver, "cuInit") : 0;
    return init ? printf("cuInit %d\n", init(0)) < 0 : 1;
}
EOF
cc client.c -o client -ldl

works() { # PROGRAM: gpt-hook as it was installed, by itself and through symbolic links
    mkdir -p "links/a b"
    ln -sf "$1" links/gpt-hook
    ln -sf ../gpt-hook "links/a b/gpt-hook"
    for program in "$1" links/gpt-hook "links/a b/gpt-hook"; do
        "$program" check >check.txt || test $? = 1 # there may be no driver
        grep -q '^replace  *works' check.txt
        grep -q "^runtime  *$2.*/libgpthook.so$" check.txt
        grep -q "^simulated  *$2.*/sim/libcuda.so.1$" check.txt
        rm -f t.mp
        "$program" run -o t.mp --device sim --replace . -- ./client >out.txt
        test "$(cat out.txt)" = "cuInit 0"
        grep -aq cuInit t.mp
        test "$("$program" run -f -o t.mp -- env | sed -n 's/^LD_PRELOAD=//p')" = "$(sed -n 's/^runtime  *//p' check.txt)"
    done
    test "$("$1" --version)" = "$(sed -n 's/^__version__ = "\(.*\)"/gpt-hook \1/p' "$top/gpt/__init__.py")"
    for script in gpt-debloat gpt-negativa gpt-trace; do
        "${1%/*}/$script" --help | grep -q "^Usage: $script "
    done
}

# A source distribution, and the wheel built from it. Neither contains earlier build outputs.
(cd tree && ../builder/bin/python -c 'import setuptools.build_meta as b; b.build_sdist("../dist")' >/dev/null 2>&1)
mkdir sdist
tar -xzf dist/*.tar.gz -C sdist --strip-components 1
test -f sdist/runtime/launcher/main.c -a -f sdist/runtime/replace/replace.c -a -f sdist/man/man1/gpt-hook.1
test ! -e sdist/gpt/_runtime -a ! -e sdist/runtime/abi/records.h
builder/bin/pip wheel --no-build-isolation -w dist dist/*.tar.gz
ls dist/gpu_probe-*-py3-none-manylinux_2_28_x86_64.whl >/dev/null

python -m venv --without-pip plain
builder/bin/pip --python plain/bin/python install --no-index dist/*.whl
works "$PWD/plain/bin/gpt-hook" "$PWD/plain/lib/python3.*/site-packages/gpt/_runtime"
head -c 4 plain/bin/gpt-hook | grep -q ELF # no interpreter is started
test -f plain/share/man/man1/gpt-hook.1
for name in bash-completion/completions/gpt-hook zsh/site-functions/_gpt-hook fish/vendor_completions.d/gpt-hook.fish; do
    grep -q save-modules "plain/share/$name"
done
test -f "$(echo plain/lib/python3.*/site-packages/gpt/_probes/block_sched.toml)"
builder/bin/pip --python plain/bin/python uninstall -y gpu-probe
test ! -e plain/bin/gpt-hook
test ! -e "$(echo plain/lib/python3.*/site-packages/gpt)"

# With two Pythons in one prefix, the package of the launcher's own version is used.
python -m zipfile -e dist/*.whl unpacked
for version in 2 3; do
    mkdir -p "many/lib/python3.$version/site-packages/gpt"
    cp -R unpacked/gpt/_runtime "many/lib/python3.$version/site-packages/gpt/"
done
cp -R unpacked/*.dist-info many/lib/python3.3/site-packages/
mkdir many/bin
install unpacked/*.data/scripts/gpt-hook many/bin/
many/bin/gpt-hook check >check.txt || test $? = 1
grep -q "^runtime  *$PWD/many/lib/python3.3/site-packages/gpt/_runtime/libgpthook.so$" check.txt

# An editable package runs the files of the checkout.
builder/bin/pip install --no-build-isolation -e tree
works "$PWD/builder/bin/gpt-hook" "$PWD/tree/gpt/_runtime"
printf '#!/bin/sh\necho "the one next to it"\n' >builder/bin/gpt-asm # and not the one of tree/bin, which has no .venv
builder/bin/gpt-hook check >check.txt || test $? = 1
grep -q '^ptxas  *the one next to it' check.txt
sed -i 's/^  Cut the GPU code/  Cut out the GPU code/' tree/bin/gpt-debloat
builder/bin/gpt-debloat --help | grep -q '^  Cut out the GPU code'
rm tree/gpt/_runtime/gpt-hook
status=0
builder/bin/gpt-hook check 2>err.txt || status=$?
test "$status" = 4
grep -q "^gpt-hook: error: not built: run 'make runtime' in .*/tree$" err.txt

if make -s -C tree install PREFIX="$PWD/none" CC=no-such-cc 2>err.txt; then exit 1; fi
grep -q "^install: error: 'no-such-cc' does not compile C (Debian: apt-get install gcc libc6-dev)" err.txt
test ! -e none

# Without a compiler, there's a one-line message.
if CC=no-such-cc PIP_QUIET=0 builder/bin/pip wheel --no-build-isolation -w none dist/*.tar.gz >err.txt 2>&1; then exit 1; fi
grep -q "setup: error: no 'no-such-cc', which builds gpt-hook (Debian: apt-get install gcc libc6-dev)" err.txt
! grep -q Collecting.numpy err.txt
