#!/bin/sh
# In place: if the path is a symbolic link, the library itself is replaced, and it's restored byte for byte.
set -eu

python -m tests.demo.build lib >/dev/null
cp -p lib/libdemo.so original.so
chmod 640 lib/libdemo.so
ln -s lib/libdemo.so link.so
echo _Z12matrixMulGPUPKfS0_Pfi >names.txt

slim() { gpt-extract link.so | gpt-locate --used names.txt --arch sm_90 | gpt-patch --in-place --mode "$1" >/dev/null; }
slim hole
slim compact
test -L link.so
test "$(stat -c %a lib/libdemo.so)" = 640
test "$(wc -c <lib/libdemo.so)" -lt "$(wc -c <original.so)"
cmp lib/libdemo.so.gpt-orig original.so

gpt-patch --restore link.so
cmp lib/libdemo.so original.so
test ! -e lib/libdemo.so.gpt-orig
if gpt-patch --restore lib/libdemo.so 2>error; then exit 1; fi
grep -q "no backup" error
