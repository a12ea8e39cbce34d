#!/bin/sh
# The pipeline as README shows it, in each mode: NVIDIA's own tool lists exactly the code that must be left, its bytes
# are unchanged, and the program still loads the library.
set -eu

python3 -m tests.demo.build lib
cuobjdump=$(python3 -m tests.cuda cuobjdump)
echo _Z12matrixMulGPUPKfS0_Pfi >names.txt
mkdir before
(cd before && "$cuobjdump" -xelf libdemo.2.sm_90.cubin ../lib/libdemo.so >/dev/null)

for mode in fill hole compact; do
    gpt-extract lib/libdemo.so | gpt-locate --used names.txt --arch sm_90 | gpt-patch -o $mode --mode $mode >$mode.mp
    "$cuobjdump" -lelf -lptx $mode/libdemo.so >$mode.list 2>/dev/null
    echo 'ELF file    1: libdemo.1.sm_90.cubin' | diff - $mode.list
    mkdir $mode.code
    (cd $mode.code && "$cuobjdump" -xelf all ../$mode/libdemo.so >/dev/null)
    cmp before/libdemo.2.sm_90.cubin $mode.code/libdemo.1.sm_90.cubin

    # Without a GPU the program exits with 4 and says so. With a broken library, it wouldn't get that far.
    status=0
    LD_LIBRARY_PATH=$mode lib/main matmul >$mode.out 2>&1 || status=$?
    test $status -eq 0 || { test $status -eq 4 && grep -q "no CUDA driver" $mode.out; }
done
test "$(wc -c <compact/libdemo.so)" -lt "$(wc -c <lib/libdemo.so)"

# For a fleet of different GPUs, only unused kernels are removed.
gpt-extract lib/libdemo.so | gpt-locate --used names.txt --arch sm_75,sm_90 --keep-ptx | gpt-patch -o fleet >fleet.mp
printf '%s\n' libdemo.1.sm_75.cubin libdemo.1.sm_90.ptx libdemo.2.sm_90.cubin >wanted
gpt-extract --save fleet.code fleet/libdemo.so >/dev/null
(cd fleet.code && printf '%s\n' *) | diff wanted -
