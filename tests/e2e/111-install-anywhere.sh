#!/bin/sh
# One wheel for every machine and Python, installed into a folder, for a user, for another Python, and into an
# environment without pip. Each time all tools work with nothing on PYTHONPATH, and the command in the message about a
# missing package installs it.
set -eu

top=$PYTHONPATH
unset GPT_RUNTIME GPT_SIM_RUN # a user has neither
# NO_...=0 means --no-...: pip assigns the value to what the option switches off. Compiling takes long.
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_QUIET=1 PIP_RETRIES=1 PIP_TIMEOUT=15 PIP_NO_COMPILE=0 PIP_NO_WARN_SCRIPT_LOCATION=0
python=$(readlink -f "$(command -v python)")
python -m tests.demo.build demo >/dev/null
unset PYTHONPATH

mkdir tree
for part in bin gpt man probes runtime Makefile pyproject.toml README.md CHANGELOG.md LICENSE; do
    cp -R "$top/$part" tree/
done
rm -rf tree/gpt/_runtime tree/runtime/abi/records.h
"$python" -m venv builder
if ! builder/bin/pip install auditwheel 2>pip.err; then
    echo "no auditwheel: $(tail -n 1 pip.err)"
    exit 77
fi
CFLAGS=-O0 builder/bin/pip wheel --no-deps -w dist ./tree
wheel=$PWD/$(echo dist/gpu_probe-*-py3-none-manylinux_2_28_x86_64.whl)
builder/bin/auditwheel show "$wheel" | tr '\n' ' ' | grep -Eq 'consistent with the following platform tag: +"manylinux_2_(1[0-9]|2[0-8])_'
if unzip -l "$wheel" 2>/dev/null | grep -q cpython; then exit 1; fi

# A missing package, for the commands in messages.
mkdir missing
python - <<'END'
import zipfile
with zipfile.ZipFile("missing/pyarrow-999-py3-none-any.whl", "w") as made:
    made.writestr("pyarrow/__init__.py", "")
    made.writestr("pyarrow/parquet.py", "raise SystemExit\n")
    made.writestr("pyarrow-999.dist-info/METADATA", "Metadata-Version: 2.1\nName: pyarrow\nVersion: 999\n")
    made.writestr("pyarrow-999.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    made.writestr("pyarrow-999.dist-info/RECORD", "")
END

works() { # FOLDER of the executables
    rm -rf t.mp t
    "$1/gpt-hook" run -q -o t.mp --device sim -p block_sched -- demo/main matmul >out.txt
    test "$(cat out.txt)" = SUCCESS
    "$1/gpt-analyze" block_sched t.mp | grep -q '^matrixMulGPU  *1  *49 '
    "$1/gpt-debloat" --device sim -o "slim" -- demo/main matmul | grep -q libdemo.so
    "$1/gpt-neutrino" -p block_sched --device sim demo/main matmul 2>&1 | grep -q '^No.block:49 '
    rm -rf slim trace
}

tells() { # FOLDER: what it says is missing can be installed as it says
    if "$1/gpt-analyze" export --format parquet -o t t.mp 2>err.txt; then exit 1; fi
    grep -q '^gpt-analyze: error: pyarrow: not installed; to install it: ' err.txt
    command=$(sed 's/.*to install it: //' err.txt)
    PIP_NO_INDEX=1 PIP_FIND_LINKS="$PWD/missing" sh -c "$command" >install.txt 2>&1
    "$1/gpt-analyze" export --format parquet -o t t.mp 2>err.txt || true # it is an empty package
    if grep -q 'not installed' err.txt; then exit 1; fi
}

PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
"$python" -m pip install --target "folder of mine" "$wheel" 2>pip.err
works "$PWD/folder of mine/bin"
tells "$PWD/folder of mine/bin"

export HOME="$PWD/home"
mkdir home
"$python" -m pip install --user "$wheel" 2>pip.err
works "$HOME/.local/bin"
tells "$HOME/.local/bin"
"$python" -m pip uninstall -y gpu-probe 2>pip.err
test ! -e "$HOME/.local/bin/gpt-hook" -a ! -e "$HOME/.local/bin/gpt_start.py"

"$python" -m venv --without-pip bare
"$python" -m pip --python bare/bin/python install "$wheel" 2>pip.err
chmod -R a-w bare/lib
works "$PWD/bare/bin"
chmod -R u+w bare/lib
tells "$PWD/bare/bin"

for other in "${PYENV_ROOT:-$(dirname "$(dirname "$(dirname "$python")")")/..}"/versions/3.1[2-9]*/bin/python3; do
    [ -x "$other" ] || continue
    "$other" -m venv other
    other/bin/python -m pip install "$wheel" 2>pip.err
    works "$PWD/other/bin"
    break
done
