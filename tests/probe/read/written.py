"""Probe files in each of the three forms."""

# The example from the first generation's guide, in its own style.
SCHEDULING = '''analyze_hook = "block_sched_local.py"

[block_sched]
position = "kernel"
datamodel = "warp:16" # 16 bytes per warp
before = """.reg .b64 %lstart; // local start
.reg .b64 %lend;    // local end
.reg .b64 %elapsed;
.reg .b32 %elapse;
mov.u64 %lstart, %clock64;"""
# by the leader only
after = """mov.u64 %lend, %clock64;
sub.u64 %elapsed, %lend, %lstart;
cvt.u32.u64 %elapse, %elapsed;
SAVE.u64 {%lstart}; // first for alignment
SAVE.u32 {%elapse, %smid};"""
'''
COOPERATING = '''
author = "somebody"
description = "bytes of each thread"
analyze_hook = "gmem.py"

[total]
position = "kernel"
datamodel = "thread:8"
before = """
.reg .b64 %sum;
.reg .b64 %wide;
.reg .b32 %bytes;
mov.u64 %sum, 0;
"""
after = "SAVE.u64 {%sum};"

[access]
position = "ld.global:st.global:cp.async.cg:cp.async.ca"
after = """
mov.u32 %bytes, BYTES;
cvt.u64.u32 %wide, %bytes;
add.u64 %sum, %sum, %wide;
"""

[divergent]
position = "bra"
no_pred = true
before = "add.u64 %sum, %sum, 0;"
'''
DYNAMIC = '''
dynamic = true
[dmat]
position = "ld.global:st.global"
datamodel = "thread:16:count"
before = """.reg .b64 %now;
mov.u64 %now, %clock64;
SAVE.u64 {%now, ADDR};"""
'''
SECOND = '''
platform = "cuda"
callback = "sched.py"

[map.sched]
type = "array"
level = "warp"
size = 16
cap = 1
data = {start = "u64", elapsed = "u32", cuid = "u32"}

[map.log]
level = "thread"
size = "16"
cap = "dynamic"
regs = [["clock", "u64"], ["address", "u64"]]

[probe.begin]
position = "kernel"
level = "warp"
register = {u64 = 2, u32 = 1}
before = "mov.u64 %NR0, %clock64;"

[probe.end]
pos = "kernel"
level = "warp"
after = """
sub.u64 %NR1, CLOCK, %NR0;
cvt.u32.u64 %PD0, %NR1;
SAVE [ sched ] {%NR0, %PD0, SMID};
"""

[probe.access]
pos = "ld.global"
before = "SAVE [log] {CLOCK, ADDR};"
'''
PYTHON = """
from neutrino import probe, Map
import neutrino.language as nl

CALLBACK = "sched.py"  # for the analysis

@Map(level="warp", type="array", size=16, cap=1)
class sched:
    start: nl.u64
    elapsed: nl.u32
    cuid: nl.u32

start: nl.u64 = 0
elapsed: nl.u64 = 0

@probe(pos="kernel", level="warp", before=True)
def begin():
    start = nl.clock()

@probe(pos="kernel", level="warp")
def end():
    elapsed = nl.clock() - start
    sched.save(start, elapsed, nl.cuid())
"""
