#!/bin/sh
# The main use in one go. A program runs on the simulated device under gpt-hook, which records what it uses, and again
# with probes in its kernel. Then its CUDA library, which has two kernels, each compiled for two GPUs and as PTX, is
# slimmed to the recorded code. The program runs again with the slimmed library, and NVIDIA's own tool lists what's left
# in it.
set -eu
cd "$(dirname "$0")/../.."

problem="a command failed"
trap 'test $? -eq 0 || echo "demo: FAILED: $problem"' EXIT
off() {
    problem=$1
    exit 1
}

# Print a command line and run it. The tools print tables on a terminal and bytes into anything else. If the demo's own
# output isn't a terminal, script(1) provides one.
run() {
    printf '\n$ %s\n' "$1"
    if [ -t 1 ]; then
        eval "$1"
    else
        status=0
        SHELL=/bin/sh TERM=dumb script -qec "$1" /dev/null </dev/null >run.log || status=$?
        tr -d '\r' <run.log
        return $status
    fi
}

# libdemo.so is laid out as nvcc does it: one fatbin region for matmul.cu and one for fill.cu, with three elements each.
# `main matmul` uses one of its kernels, and checks the result.
kernel=_Z12matrixMulGPUPKfS0_Pfi
echo "demo: building build/demo/libdemo.so and its program, main"
rm -rf build/demo
.venv/bin/python -m tests.demo.build build/demo
cuobjdump=$(.venv/bin/python -m tests.cuda cuobjdump)
PATH=$PWD/bin:$PWD/.venv/bin:$(dirname "$cuobjdump"):$PATH
cd build/demo

# What is in it?
run "gpt-extract libdemo.so"

# Find out what the program uses. Its kernel is compiled for this machine's processor and runs on it.
run "gpt-hook run --device sim -o trace.mp -- ./main matmul" || off "the program fails"
run "gpt-analyze summary trace.mp"

# See how its kernel runs. Probes are woven into it while the program runs.
run "gpt-hook run --device sim -p block_sched -o probed.mp -- ./main matmul" || off "the program fails with probes"
run "gpt-analyze block_sched probed.mp"

# Read the library, find the code that isn't needed, write a library without it: three programs and one stream.
run "gpt-extract libdemo.so | gpt-locate --used trace.mp | gpt-patch -o slim --mode compact"

# What is left?
run "gpt-extract slim/libdemo.so"
run "cuobjdump -lelf -lptx slim/libdemo.so"

# One element must be left, byte for byte as it was: the PTX that the simulated device runs.
mkdir before after
(cd before && cuobjdump -xptx all ../libdemo.so >/dev/null)
(cd after && cuobjdump -xptx all ../slim/libdemo.so >/dev/null)
original=$(grep -l "$kernel" before/*.ptx)
set -- after/*
test $# -eq 1 || off "$# PTX texts are left, not one"
cmp "$original" "$1" || off "the PTX was changed"
cuobjdump -lelf slim/libdemo.so 2>/dev/null | grep . && off "a cubin is left that the simulated device cannot run"

before=$(wc -c <libdemo.so)
after=$(wc -c <slim/libdemo.so)
test "$after" -lt "$before" || off "it did not shrink"

# The slimmed library still works, on the simulated device, and on a GPU if there is one.
run "LD_LIBRARY_PATH=slim gpt-hook run --device sim -o again.mp -- ./main matmul" || off "the program fails with it"
result="the program runs with it"
if nvidia-smi >/dev/null 2>&1; then
    run "LD_LIBRARY_PATH=slim ./main matmul" || off "the program fails with it on the GPU"
    result="$result, on the GPU too"
fi

printf '\ndemo: OK: %s to %s bytes, 1 of 6 elements left, intact; %s\n' "$before" "$after" "$result"
