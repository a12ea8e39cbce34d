#!/bin/sh
# Negativa-ML's files can be read and written: its trace.json lists used kernels, its spans/LIB.json the spans to cut, and
# cutting by a file of spans gives the same library as cutting by the spans that were just found.
set -eu
command -v jq >/dev/null || { echo "no jq"; exit 77; }

python3 -m tests.demo.build .
echo '{"detected_kernels": ["_Z12matrixMulGPUPKfS0_Pfi"]}' >trace.json
gpt-extract libdemo.so >code.mp
gpt-locate --used trace.json --arch sm_90 --spans-json spans code.mp >found.mp

jq -e --arg path "$PWD/libdemo.so" '.so_path == $path and (.spans | length == 5)' spans/libdemo.so.json
jq -e '.spans | all(.start < .end) and . == sort_by(.start)' spans/libdemo.so.json

gpt-locate --spans-json spans code.mp >given.mp
gpt-patch -o found --mode fill found.mp >/dev/null
gpt-patch -o given --mode fill given.mp >/dev/null
cmp found/libdemo.so given/libdemo.so

# Negativa-ML overwrites the spans in such a file. So do we, except for the names of lost kernels.
jq -r '.spans[] | "\(.start) \(.end - .start)"' spans/libdemo.so.json | while read -r start size; do
    tail -c +$((start + 1)) found/libdemo.so | head -c "$size" | tr -d '\001' >left
    test "$(wc -c <left)" -le 512 && { test ! -s left || grep -q gpt-cut left; }
done

# Hand-written spans, spans of a missing library, and nonsense.
jq '.spans |= .[:1]' spans/libdemo.so.json >one && mv one spans/libdemo.so.json
gpt-locate --spans-json spans code.mp | gpt-patch -o one >/dev/null
test "$(gpt-extract one/libdemo.so --json | jq -s 'map(select(.kind == "element")) | length')" -eq 5
rm spans/libdemo.so.json
status=0
gpt-locate --spans-json spans code.mp >/dev/null 2>error || status=$?
test $status -eq 4 && grep -q "libdemo.so.json is absent" error
