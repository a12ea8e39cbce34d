#!/bin/sh
# The main job in one go. A CUDA library of two kernels, each compiled for two GPUs and as PTX, is slimmed to the
# one kernel that a program uses on the one GPU that it uses. NVIDIA's own tool then says what is left.
set -eu
cd "$(dirname "$0")/../.."

problem="a command failed"
trap 'test $? -eq 0 || echo "demo: FAILED: $problem"' EXIT
off() {
    problem=$1
    exit 1
}

# Prints a command line and runs it. The tools print tables on a terminal and bytes into anything else; where
# the demo's own output is not a terminal, script(1) lends them one.
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

# libdemo.so is laid out as nvcc does it: a fatbin region for matmul.cu and one for fill.cu, each of three
# elements. matmul.cu holds `matrixMulGPU`, and this is its mangled name.
kernel=_Z12matrixMulGPUPKfS0_Pfi
echo "demo: building build/demo/libdemo.so and its program, main"
rm -rf build/demo
.venv/bin/python -m tests.demo.build build/demo
cuobjdump=$(.venv/bin/python -m tests.cuda cuobjdump)
PATH=$PWD/bin:$(dirname "$cuobjdump"):$PATH
cd build/demo

# What is in it?
run "gpt-extract libdemo.so"
run "cuobjdump -lelf -lptx libdemo.so"

# `main matmul` uses one kernel. Which ones a program uses is what gpt-hook will record; a list does as well.
run "echo $kernel > names.txt"

# Read the library, find what is not needed, write a library without it: three programs and one stream.
run "gpt-extract libdemo.so | gpt-locate --used names.txt --arch sm_90 | gpt-patch -o slim --mode compact"

# What is left?
run "gpt-extract slim/libdemo.so"
run "cuobjdump -lelf -lptx slim/libdemo.so"

# One element must be left, and be what it was, byte for byte.
mkdir before after
(cd before && cuobjdump -xelf all ../libdemo.so >/dev/null)
(cd after && cuobjdump -xelf all ../slim/libdemo.so >/dev/null)
original=$(grep -l "$kernel" before/*.sm_90.cubin)
set -- after/*
test $# -eq 1 || off "$# cubins are left, not one"
cmp "$original" "$1" || off "what is left is not what it was"
cuobjdump -lptx slim/libdemo.so 2>/dev/null | grep . && off "PTX is left that sm_90 does not need"

before=$(wc -c <libdemo.so)
after=$(wc -c <slim/libdemo.so)
test "$after" -lt "$before" || off "it did not shrink"

# And it still works, if there is a GPU to show it.
result="not run: no sm_90 GPU here"
if nvidia-smi --query-gpu=compute_cap --format=csv,noheader -i 0 2>/dev/null | grep -qx 9.0; then
    run "LD_LIBRARY_PATH=slim ./main matmul" || off "the program fails with it"
    result="the program runs with it"
fi

printf '\ndemo: OK: %s to %s bytes, 1 of 6 elements left, intact; %s\n' "$before" "$after" "$result"
