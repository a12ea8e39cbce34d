#!/bin/sh
# A user's Makefile slims libraries with pattern rules: a second make does nothing, a new list of names triggers the
# work again, and equal inputs give equal outputs.
set -eu

python -m tests.demo.build lib >/dev/null
cp lib/libdemo.so lib/libother.so
echo _Z12matrixMulGPUPKfS0_Pfi >names.txt

cat >Makefile <<'EOF'
.DELETE_ON_ERROR:
SHELL = bash -o pipefail
all: slim/libdemo.so slim/libother.so
%.elements: lib/%.so
	gpt-extract $< > $@
%.spans: %.elements names.txt
	gpt-locate --used names.txt --arch sm_90 $< > $@
slim/%.so: %.spans
	gpt-patch -o $(@D) --mode compact $< > /dev/null
.SECONDARY:
EOF

make -s all
test "$(wc -c <slim/libdemo.so)" -lt "$(wc -c <lib/libdemo.so)"
cmp slim/libdemo.so slim/libother.so
cp -p slim/libdemo.so first.so
make -q all

sleep 0.01
touch names.txt
if make -q all; then exit 1; fi
make -s all
cmp slim/libdemo.so first.so

echo nonsense | cat - names.txt >new.txt
mv new.txt names.txt
if make -s all 2>errors; then exit 1; fi # a name that no library has: nothing is cut for it
grep -q "used, but in no library: 'nonsense'" errors
cmp slim/libdemo.so first.so
sed -i 's/gpt-locate/gpt-locate --allow-missing/' Makefile
make -s all 2>warnings
grep -q "warning: names.txt: used, but in no library: 'nonsense'" warnings
cmp slim/libdemo.so first.so
