#!/bin/sh
# A user's own stage between two of ours, on the binary stream, written in Perl from msgpack's specification alone.
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

# Everything after the header is unchanged, byte for byte.
sign <located.mp >signed.mp
test $(($(wc -c <signed.mp) - $(wc -c <located.mp))) -eq 5
tail -c 20000 located.mp >end
tail -c 20000 signed.mp | cmp - end

# If the filter stops early, the library is incomplete, and gpt-patch doesn't touch it.
status=0
head -c 3000 located.mp | sign 2>message | gpt-patch -o torn >/dev/null || status=$?
grep -x "sign: error: truncated" message
test $status -eq 3
test ! -e torn/libdemo.so
