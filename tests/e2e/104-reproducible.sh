#!/bin/sh
# Equal inputs give equal outputs, whatever the folder, the number of threads, and the form of the stream.
set -eu

echo _Z14setScalarItemsPffi >names.txt
for folder in one another; do
    mkdir $folder
    python3 -m tests.demo.build build
    mv build/libdemo.so $folder/
    cat >$folder/Makefile <<'EOF'
slim/%.so: %.so ../names.txt
	gpt-extract -j $(JOBS) $< > $*.code
	gpt-locate --used ../names.txt --arch sm_75 $*.code > $*.cut
	gpt-patch -o slim $*.cut > $*.patched
EOF
done
make -s -C one JOBS=1 slim/libdemo.so
make -s -C another JOBS=8 slim/libdemo.so
cmp one/libdemo.so another/libdemo.so
cmp one/slim/libdemo.so another/slim/libdemo.so

# As JSON, and with the stream split in two.
gpt-extract --json one/libdemo.so | gpt-locate --from-json --json --used names.txt --arch sm_75 >cut.jsonl
gpt-patch --from-json -o json cut.jsonl >/dev/null
cmp one/slim/libdemo.so json/libdemo.so

# The streams differ only in their headers.
for folder in one another; do
    (cd $folder && gpt-extract libdemo.so --json | sed 1d) >$folder.records
done
cmp one.records another.records
