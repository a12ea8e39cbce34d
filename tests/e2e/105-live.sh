#!/bin/sh
# A program is watched and its library slimmed in one pipeline: gpt-locate reads the stream that gpt-hook writes while
# the program runs.
set -eu
PATH=$PYTHONPATH/bin:$PATH # gpt-hook of this checkout

python3 -m tests.demo.build lib
cat >app.py <<'END'
import ctypes, os
driver = ctypes.CDLL("libcuda.so.1")
demo = ctypes.CDLL("./lib/libdemo.so")
context, library, kernel = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
assert driver.cuInit(0) == 0
assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert driver.cuCtxSetCurrent(context) == 0
print("the program's own output")
END
status=0
gpt-extract lib/libdemo.so >all.mp
{ gpt-hook run -o - --device sim -- python3 app.py 2>said || status=$?; } >live.mp
test $status -eq 0
grep -q "own output" said

gpt-hook run -o - --device sim -- python3 app.py 2>/dev/null |
    gpt-locate --used /dev/stdin --keep Items all.mp | gpt-patch -o slim >slim.mp
test -s slim/libdemo.so

# The same with a FIFO, and with a command as output.
mkfifo fifo
cat fifo >from-fifo.mp &
gpt-hook run -o fifo --device sim -- python3 app.py >/dev/null
wait
gpt-hook run -o '|cat >from-command.mp; : >told' --device sim -- python3 app.py >/dev/null
while ! test -e told; do sleep 0.05; done
for stream in live from-fifo from-command; do
    gpt-locate --used $stream.mp --keep Items all.mp | gpt-patch -o $stream >/dev/null
    cmp $stream/libdemo.so slim/libdemo.so
done
