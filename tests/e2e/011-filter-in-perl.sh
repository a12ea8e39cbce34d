#!/bin/sh
# A stage of one's own between two of ours, on the binary stream: nothing but Perl and msgpack's specification.
set -eu
command -v perl >/dev/null || { echo "no perl"; exit 77; }
sign() { perl "$here/sign.pl"; }
here=$(dirname "$0")

python3 -m tests.demo.build .
echo _Z12matrixMulGPUPKfS0_Pfi >names.txt
gpt-extract libdemo.so --payload | gpt-locate --used names.txt --arch sm_90 >located.mp

gpt-patch -o direct <located.mp >/dev/null
sign <located.mp | gpt-patch -o signed --json >signed.jsonl
cmp direct/libdemo.so signed/libdemo.so
head -n 1 signed.jsonl | grep -F '"via": ["gpt-locate", "sign", "gpt-patch"]'

# All after the header is what it was, byte for byte.
sign <located.mp >signed.mp
test $(($(wc -c <signed.mp) - $(wc -c <located.mp))) -eq 5
tail -c 20000 located.mp >end
tail -c 20000 signed.mp | cmp - end

# What it leaves unfinished is not a complete library: gpt-patch does not touch it.
status=0
head -c 3000 located.mp | sign 2>message | gpt-patch -o torn >/dev/null || status=$?
grep -x "sign: error: truncated" message
test $status -eq 3
test ! -e torn/libdemo.so
