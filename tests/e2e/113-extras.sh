#!/bin/sh
# make install EXTRAS=...: each extra installs what its option needs. Two extras share an environment, but no package.
set -eu

top=$PYTHONPATH
unset GPT_RUNTIME GPT_SIM_RUN # a user has neither
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_RETRIES=1 PIP_TIMEOUT=15 PIP_NO_COMPILE=0 CFLAGS=-O0 HOME="$PWD/home"

python -m tests.demo.build demo >/dev/null
unset PYTHONPATH
mkdir home
gpt-hook run -q -o t.mp --device sim -p block_sched -- demo/main matmul >/dev/null

install() { # EXTRAS
    if ! make -s -C "$top" install PREFIX="$PWD/it" EXTRAS="$1" 2>err.txt; then
        grep -Eq 'No matching distribution|Failed to establish a new connection' err.txt || { cat err.txt && exit 1; }
        echo "no packages for $1: $(grep -m 1 ERROR err.txt)" && exit 77
    fi
    it/lib/gpt/bin/python -m pip check >/dev/null
}

uninstall() {
    make -s -C "$top" uninstall PREFIX="$PWD/it" 2>err.txt
    test ! -e it || test -z "$(find it ! -type d)"
}

install parquet,dask
it/bin/gpt-analyze export --format parquet -o out t.mp
it/lib/gpt/bin/python -c 'import glob, pyarrow.parquet as p; assert any(p.read_table(f).num_rows for f in glob.glob("out/*"))'
it/bin/gpt-analyze summary --engine dask t.mp | grep -q cuLaunchKernel
uninstall

install "plot perfetto"
it/bin/gpt-analyze block_sched --plot out.png t.mp >/dev/null
head -c 4 out.png | grep -q PNG
it/bin/gpt-analyze timeline --format perfetto -o out.pftrace t.mp
grep -aq cuLaunchKernel out.pftrace
uninstall
