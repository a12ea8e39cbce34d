#!/bin/sh
# A probed kernel defines no variable in global memory: its record says where to write the addresses of the program's
# variables.
set -eu
command -v jq >/dev/null || { echo "no jq"; exit 77; }

GPT_PTXAS=$(python3 -m tests.cuda ptxas)
XDG_CACHE_HOME=$PWD/cache
export GPT_PTXAS XDG_CACHE_HOME

cat >count.ptx <<'END'
.version 8.0
.target sm_90
.address_size 64
.visible .global .u32 counter = 5;
.visible .const .u32 step = 2;
.visible .entry count(.param .u64 out)
{
	.reg .b32 %r<3>;
	ld.const.u32 %r1, [step];
	atom.global.add.u32 %r2, [counter], %r1;
	ret;
}
END

gpt-extract --ptx count.ptx | gpt-ptx-probe -p block_sched >probed.mp
gpt-asm --arch sm_90 --json <probed.mp >assembled.json
jq -es 'map(select(.table))[0] | .table == "gpt_variables" and .variables ==
    [{name: "counter", space: "global", size: 4, offset: 0}, {name: "step", space: "const", size: 4, copy: "taken"}]
' assembled.json >/dev/null

jq -rs 'map(select(.kind == "cubin"))[0].data["$b64"]' assembled.json | base64 -d >probed.cubin
readelf -sW probed.cubin >symbols
grep -q ' 8 OBJECT  GLOBAL .* gpt_variables$' symbols
grep -q ' 4 OBJECT  GLOBAL .* step$' symbols
grep -q counter symbols && exit 1

# The mark contains the text that was replaced.
python3 - <<'PY'
from gpt import stream

(ptx,) = (record for record in stream.read_records(open("probed.mp", "rb"), "probed.mp") if record["kind"] == "ptx")
kept = [line.partition(b"//@=")[2] for line in ptx["data"].splitlines() if b"//@=" in line]
assert kept == [b".visible .global .u32 counter = 5;", b"counter"], kept
PY
