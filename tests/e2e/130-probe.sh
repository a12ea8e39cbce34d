#!/bin/sh
# A built-in probe and one of the user's own, in the kernels of a library: ptxas assembles them, and grep can remove
# them.
set -eu
command -v jq >/dev/null || { echo "no jq"; exit 77; }

python3 -m tests.demo.build .
GPT_PTXAS=$(python3 -m tests.cuda ptxas)
XDG_CACHE_HOME=$PWD/cache
export GPT_PTXAS XDG_CACHE_HOME

cat >stores.toml <<'END'
[stores]
position = "st.global"
datamodel = "thread:16:4"
after = "SAVE.u64 {ADDR}; SAVE.f32 {IN1};"
END

gpt-extract --ptx libdemo.so | gpt-ptx-probe -p block_sched -p stores.toml -k matrixMul >probed.mp
gpt-asm --arch sm_90,sm_100 --compare --json <probed.mp >assembled.json
test "$(jq -s 'map(select(.kind == "cubin")) | length' assembled.json)" -eq 2
jq -es 'map(select(.registers_before)) | length == 2 and all(.registers >= .registers_before)' assembled.json >/dev/null

# Every map has its parameter, after the kernel's own parameters.
jq -es 'map(select(.maps))[0] | [.params[].offset, .added[].offset] == [0, 8, 16, 24, 32, 40]' assembled.json >/dev/null

# Each inserted line ends with its origin, and is a line of its own.
python3 - <<'END'
import sys
from gpt import stream
from gpt.probe.ptx.weave import unweave

(ptx,) = (record for record in stream.read_records(open("probed.mp", "rb"), "probed.mp") if record["kind"] == "ptx")
lines = [line for line in ptx["data"].split(b"\n") if b"//@" in line]
assert any(line.endswith(b"stores.toml:4") for line in lines)
assert unweave(ptx["data"]) == ptx["original"]
assert all(line.rpartition(b"//@")[0].strip() not in ptx["original"] for line in lines if b"gpt_" in line)
END
