#!/bin/sh
# PTX from a library is assembled for another GPU and checked: NVIDIA's tool finds the same kernels in the image, and a
# second run finds everything in the cache.
set -eu
command -v jq >/dev/null || { echo "no jq"; exit 77; }

python3 -m tests.demo.build .
cuobjdump=$(python3 -m tests.cuda cuobjdump)
GPT_PTXAS=$(python3 -m tests.cuda ptxas)
XDG_CACHE_HOME=$PWD/cache
export GPT_PTXAS XDG_CACHE_HOME

gpt-extract --ptx libdemo.so | gpt-asm --arch sm_90,sm_100 --fatbin --save images >images.mp
test "$(find cache/gpt/asm -type f | wc -l)" -eq 4
"$cuobjdump" -lelf -lptx images/libdemo.2.fatbin >list
printf '%s\n' 'ELF file    1: libdemo.2.1.sm_90.cubin' 'ELF file    2: libdemo.2.2.sm_100.cubin' \
    'PTX file    1: libdemo.2.1.sm_90.ptx' | diff - list

# The stages that slim a library can read the image, too.
echo _Z12matrixMulGPUPKfS0_Pfi >names.txt
gpt-extract images/libdemo.2.fatbin | gpt-locate --used names.txt --arch sm_100 | gpt-patch -o slim >/dev/null
gpt-extract slim/libdemo.2.fatbin --json | jq -r 'select(.kind == "element") | .type + " " + .arch' >left
echo 'cubin sm_100' | diff - left

# From here on, no ptxas can assemble, and none is needed.
cat >ptxas <<END
#!/bin/sh
[ "\$1" = --version ] && exec "$GPT_PTXAS" --version
exit 1
END
chmod +x ptxas
gpt-extract --ptx libdemo.so | gpt-asm --arch sm_90,sm_100 --fatbin --ptxas ./ptxas --save again >again.mp
diff -r images again
status=0
gpt-extract --ptx libdemo.so | gpt-asm --arch sm_90 --ptxas ./ptxas --no-cache >none.mp 2>errors || status=$?
test $status -eq 1
test "$(wc -l <errors)" -eq 2
