#!/bin/sh
# Negativa-ML's own example, run by gpt-negativa with the commands and files in its README: a library of two kernels,
# one of which is used. The simulated device runs nothing here, so the program reports an error and exits with 1.
set -eu
command -v jq >/dev/null || { echo "no jq"; exit 77; }
PATH=$PYTHONPATH/bin:$PATH
gpt-hook check >/dev/null 2>&1 || test $? -ne 4 || { echo "no gpt-hook: make runtime"; exit 77; }
python3 -m tests.demo.build .
used=_Z12matrixMulGPUPKfS0_Pfi

gpt-negativa debloat --arch sm_90 --device sim -- "$PWD/main" matmul 2>err
grep -q "the command ended with status 1" err
jq -e --arg used $used '.detected_kernels == [$used]' nml_workspace/trace.json
jq -e --arg path "$PWD/libdemo.so" '.loaded_sos | index($path)' nml_workspace/trace.json
test "$(ls nml_workspace/spans)" = libdemo.so.json
jq -e --arg path "$PWD/libdemo.so" '.so_path == $path and (.spans | length == 5)' nml_workspace/spans/libdemo.so.json

gpt-negativa reconstruct \
  --span-path nml_workspace/spans/libdemo.so.json \
  --output-dir ./reconstructed
cuobjdump=$(python3 -m tests.cuda cuobjdump)
"$cuobjdump" -lelf -lptx reconstructed/libdemo.so 2>/dev/null >list
echo 'ELF file    1: libdemo.1.sm_90.cubin' | diff - list
test "$(wc -c <reconstructed/libdemo.so)" -eq "$(wc -c <libdemo.so)"
jq -r '.spans[] | "\(.start) \(.end - .start)"' nml_workspace/spans/libdemo.so.json | while read -r start size; do
    tail -c +$((start + 1)) reconstructed/libdemo.so | head -c "$size" | tr -d '\001' >left # but the names of lost kernels
    test "$(wc -c <left)" -le 512 && { test ! -s left || grep -q gpt-cut left; }
done

# The same in separate steps, with short options, a relative path of the executable, and an environment of its own.
gpt-negativa trace -o w/report.json --device sim -l /lib/ld.so -e LD_LIBRARY_PATH=. A=1 -- ./main matmul 2>err || cat err
gpt-negativa locate --report-path w/report.json -c /no/cuobjdump --output-dir w/s --arch=sm_90
cmp w/s/libdemo.so.json nml_workspace/spans/libdemo.so.json
gpt-negativa reconstruct -s w/s/libdemo.so.json -o w/r
cmp w/r/libdemo.so reconstructed/libdemo.so

# A report from another machine, and a report that names no devices.
jq -n --arg used $used --arg path "$PWD/libdemo.so" '{loaded_sos: [$path], detected_kernels: [$used]}' >theirs.json
gpt-negativa locate -r theirs.json -o theirs --arch sm_90
cmp theirs/libdemo.so.json nml_workspace/spans/libdemo.so.json

# The README's command, word for word: without an argument, the demo's program only prints its usage and uses no kernel.
# Nothing is cut.
rm -r nml_workspace
status=0
gpt-negativa debloat --arch sm_90 -- "$PWD/main" 2>err || status=$?
test $status -eq 1
grep -q "error: the command never used the CUDA driver" err
test ! -e nml_workspace/spans
gpt-negativa trace -o w/none.json -- "$PWD/main" 2>err
grep -q "warning: the command never used the CUDA driver" err
jq -e '.detected_kernels == []' w/none.json

expect() { # STATUS WORDS COMMAND...
    status=0
    wanted=$1 words=$2
    shift 2
    "$@" >out 2>err || status=$?
    test $status -eq "$wanted" || { echo "$*: $status"; cat err; exit 1; }
    grep -q -e "$words" err || { cat err; exit 1; }
    test "$(grep -c error: err)" -eq 1
}
expect 2 "no command" gpt-negativa
expect 2 "is not one of" gpt-negativa frobnicate
expect 2 "not a compute capability" gpt-negativa debloat --arch foo -- touch ran
test ! -e ran
expect 2 "locate requires" gpt-negativa locate
expect 2 "no option" gpt-negativa locate --loader-path x
expect 2 "requires a value" gpt-negativa locate -r
expect 2 "no COMMAND" gpt-negativa debloat --
expect 4 "No such file" gpt-negativa reconstruct -s nothing.json -o out
expect 4 "No such file" gpt-negativa locate -r nothing.json
expect 127 "" gpt-negativa debloat -- ./nothing
