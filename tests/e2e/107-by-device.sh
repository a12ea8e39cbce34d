#!/bin/sh
# Without a run: only the code of given devices is kept, recompressed, in an environment, in place, and in a wheel for
# each of two devices.
set -eu
PATH=$PYTHONPATH/bin:$PATH
python3 -m tests.demo.build lib
mkdir tmp
export XDG_STATE_HOME="$PWD/state" TMPDIR="$PWD/tmp"
sum() { sha256sum <"$1"; }
archs() { gpt-extract --json "$@" | jq -r 'select(.kind == "element") | "\(.type) \(.arch)"' | sort | uniq -c | xargs; }
original=$(sum lib/libdemo.so)

# An environment: a copy below -o, and then in place with backups.
gpt-debloat --arch sm_90 -r lib -o out >table
grep -q "^other architecture  *2 " table
test "$(archs "out$PWD/lib/libdemo.so")" = "2 cubin sm_90"
gpt-debloat --arch sm_90 --recompress --apply -r lib >table
grep -q "^sm_90  cubin  none  *2 " table
test "$(archs lib/libdemo.so)" = "2 cubin sm_90"
test "$(stat -c %s lib/libdemo.so)" -lt "$(stat -c %s "out$PWD/lib/libdemo.so")"
gpt-debloat --restore >table
test "$(sum lib/libdemo.so)" = "$original"
gpt-debloat --arch sm_75 --arch sm_90 -r lib -o union --zstd-sizes >table # what any of them runs
grep -q "zstd 19 before" table
test "$(archs "union$PWD/lib/libdemo.so")" = "2 cubin sm_75 2 cubin sm_90"

# A wheel: one for each --arch.
cat >pack.py <<'EOF'
import base64, hashlib, zipfile
info = "demo-1.2.dist-info"
members = {
    "demo/libdemo.so": open("lib/libdemo.so", "rb").read(),
    f"{info}/METADATA": b"Metadata-Version: 2.1\nName: demo\nVersion: 1.2\n",
    f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: false\nTag: py3-none-any\n",
}
digest = lambda data: base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
lines = [f"{name},sha256={digest(data)},{len(data)}\n" for name, data in members.items()]
with zipfile.ZipFile("demo-1.2-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
    for name, data in members.items():
        wheel.writestr(name, data)
    wheel.writestr(f"{info}/RECORD", "".join(lines) + f"{info}/RECORD,,\n")
EOF
python3 pack.py
gpt-debloat --arch sm_75,9.0 --arch 90a --recompress -r demo-1.2-py3-none-any.whl -o wheels >table
ls wheels >names
grep -qxF "demo-1.2+sm75.sm90-py3-none-any.whl" names
grep -qxF "demo-1.2+sm90-py3-none-any.whl" names
test "$(wc -l <names)" -eq 2
test "$(archs -r wheels/demo-1.2+sm75.sm90-py3-none-any.whl)" = "2 cubin sm_75 2 cubin sm_90"
test "$(archs -r wheels/demo-1.2+sm90-py3-none-any.whl)" = "2 cubin sm_90"
test "$(grep -c "^wheel written: " table)" -eq 2
python3 -m zipfile -e wheels/demo-1.2+sm90-py3-none-any.whl unpacked
grep -qx "Version: 1.2+sm90" unpacked/demo-1.2+sm90.dist-info/METADATA

# Options that make no sense are reported before anything is written.
fails() { # STATUS TEXT OPTION...
    want=$1 text=$2 status=0
    shift 2
    gpt-debloat "$@" >table 2>err || status=$?
    test $status -eq "$want"
    grep -q -e "$text" err
}
fails 2 "name a COMMAND, or --traces FILE, or --arch SM with -r DIR" --arch sm_90
fails 2 "name a COMMAND" -r lib
fails 2 "keep requires --used" --arch sm_90 -r lib --keep x -o no
fails 2 "apply cannot replace a wheel: use -o DIR" --arch sm_90 --apply -r demo-1.2-py3-none-any.whl
fails 2 "not a compute capability" --arch sm90 -r lib -o no
fails 2 "recompress requires --mode compact" --arch sm_90 --recompress --mode hole -r lib -o no
fails 1 "no code for sm_60: there is .*: nothing is cut for that" --arch sm_60 --arch sm_90 -r demo-1.2-py3-none-any.whl -o some
test "$(ls some)" = demo-1.2+sm90-py3-none-any.whl # the others are
mkdir sealed # a member that can't be read is an error, which a message reports; the wheel is written anyway
cp demo-1.2-py3-none-any.whl sealed
cat >seal.py <<'EOF'
import zipfile
path = "sealed/demo-1.2-py3-none-any.whl"
with zipfile.ZipFile(path, "a") as wheel:
    wheel.writestr("demo/secret", b"x")
    start = wheel.getinfo("demo/secret").header_offset
data = bytearray(open(path, "rb").read())
data[start + 6] |= 1  # encrypted, in the member's header and in the directory
data[data.rindex(b"PK\1\2") + 8] |= 1
open(path, "wb").write(data)
EOF
python3 seal.py
fails 3 "demo-1.2-py3-none-any.whl: written, but something failed before" --arch sm_90 \
    -r sealed/demo-1.2-py3-none-any.whl -o opened
test "$(ls opened)" = demo-1.2+sm90-py3-none-any.whl
mkdir again
cp demo-1.2-py3-none-any.whl again
fails 2 "two wheels have the name 'demo-1.2-py3-none-any.whl'" --arch sm_90 -r demo-1.2-py3-none-any.whl \
    -r again/demo-1.2-py3-none-any.whl -o some

# No code is for this architecture: no library is written, and none is replaced by a recompressed copy.
fails 1 "no code for sm_60: there is cubin for sm_75, sm_90; ptx for sm_90: nothing is cut" --arch sm_60 -r lib -o no
fails 1 "gpt-locate failed to decide about these libraries (its errors say why), so they aren't written" --arch sm_60 --recompress --apply -r lib
fails 1 "no code for sm_60" --arch sm_60 --recompress -r demo-1.2-py3-none-any.whl -o no
test -z "$(find no -type f)"
test ! -e lib/libdemo.so.gpt-orig
test "$(sum lib/libdemo.so)" = "$original"
