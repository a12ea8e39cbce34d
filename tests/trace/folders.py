"""Trace folders like Neutrino's, of both generations, and like gpt-neutrino's; and the answers that analyses give for
them.
"""

import struct
import sys
from pathlib import Path

from gpt.compat.neutrino.command import TOOLS
from gpt.compat.neutrino.writer import Writer
from gpt.stream import packed
from gpt.trace.inputs import read_input, side_folder
from gpt.trace.process import iter_processes

NAME = "_Z6matmulPf"
START = 1_700_000_000_000_000_000  # ns since the epoch
# As in the first generation's README and its tool: one 64-bit word and two 32-bit ones, or only 32-bit words.
BLOCK_SCHED = '''analyze_hook = "block_sched_local.py"
[block_sched]
position = "kernel"
datamodel = "warp:16" # every warp save 16 bytes
before = """.reg .b64 %lstart; // local start time (unit: cycle)
.reg .b64 %lend;
.reg .b64 %elapsed;
.reg .b32 %elapse;
mov.u64 %lstart, %clock64;"""
after = """mov.u64 %lend, %clock64;
sub.u64 %elapsed, %lend, %lstart;
cvt.u32.u64 %elapse, %elapsed;
SAVE.u64 {%lstart};
SAVE.u32 {%elapse, %smid};"""
'''
GMEM_BYTES = '''analyze_hook = "gmem_bytes.py"
[saving]
position = "kernel"
datamodel = "thread:8"
before = """.reg .u32 %in_sync;
.reg .u32 %in_async;
mov.u32 %in_sync, 0;
mov.u32 %in_async, 0;"""
after = "SAVE.u32 {%in_sync, %in_async};"
[loads]
position = "ld.global:st.global"
before = "add.u32 %in_sync, %in_sync, BYTES;"
'''
DMAT = """dynamic = true
[dmat]
position = "ld.global:st.global"
datamodel = "thread:16:count"
before = "SAVE.u64 {CLOCK, ADDR};"
"""
# As written by the second generation's Python compiler: SAVE has no semicolon, and types have an initial value.
COMPILED = """regs = 5
CALLBACK = "block_sched_callback.py"
dynamic = true

[probe.thread_start_thread_end]
level = "warp"
pos = "kernel"
before = "mov.u64 %NR0, %clock64;"
after = "mov.u64 %NR2, %clock64;\\n{\\n .reg .b32 %tmp;\\n }\\nSAVE [ block_sched ] { %NR0, %NR1, %NR3 }mul.u64 %NR4;"

[map.block_sched]
level = "warp"
type = "array"
size = 16
cap = 1

[map.block_sched.regs]
start = [ "u64", "None",]
elapsed = [ "u32", "None",]
cuid = [ "u32", "None",]

"""
SECOND = '''platform = "cuda"
[map.block_sched]
type = "array"
level = "warp"
size = 16
cap = 1
data = {start = "u64", elapsed = "u32", cuid = "u32"}
[probe.begin]
position = "kernel"
level = "warp"
before = """.reg .u64 %start;
mov.u64 %start, CLOCK;"""
[probe.end]
position = "kernel"
level = "warp"
after = """.reg .u32 %cycles;
cvt.u32.u64 %cycles, CLOCK;
SAVE [block_sched] {%start, %cycles, SMID};"""
'''


def result(grid, block, *sections, total=False, second=None):
    """Return a `.bin` of sections (bytes per unit, all records). With `total`, the size field has the size of all
    records, as in early versions; `second` is the number of threads per unit.
    """
    head = struct.pack("<8I", *grid, *block, 0, len(sections))
    at, table = 32 + 16 * len(sections), b""
    for unit, data in sections:
        size = len(data) if total else unit
        table += struct.pack("<IIQ", unit, second, at) if second else struct.pack("<QQ", size, at)
        at += len(data)
    return head + table + b"".join(data for _, data in sections)


def neutrino(folder, probe, *results, log=True, name=NAME):
    """Return a folder with these results and Neutrino's log."""
    lines = ["[pid] 77", "[cmd] 12 python app.py ", "[info] dl 0x26aa350", "[info] init success",
             "[mem] cuMemAlloc_v2 0 dptr 0x7fdf78000000 bytesize 4096", "[exec] funcmap-not-find 0x55",
             f"[jit] find 0x55 name {name} bin 0x5 size 4096", f"[jit] rename {name} 0_ab"]  # fmt: skip
    (folder / "result").mkdir(parents=True)
    (folder / "kernel" / "0_ab").mkdir(parents=True)
    (folder / "kernel" / "0_ab" / "kernel.info").write_text(f"{name}\n3\n1\n1,16\n\n")
    (folder / "kernel" / "0_ab" / "process.log").write_text("info: Used 10 registers\ninfo: Used 14 registers\n")
    if probe:
        (folder / "probe.toml").write_text(probe)
    for number, data in enumerate(results, 1):
        (folder / "result" / f"0.{number:06d}.bin").write_bytes(data)
        lines += ["[exec] funcmap-find 0x55 success", f"[exec] {START + 1000 * number} param 7fdf78000000 10 ",
                  "[exec] grid 2 1 1 block 64 1 1 shared 0", "[exec] probe-mem 64 (bytes)", "[exec] succeed 0",
                  f"[exec] save /home/x/trace/result/0.{number:06d}.bin size {len(data)}",
                  "[exec] prologue 1.500000 kernel 4.000000 epilogue 0.500000 ratio 1.500000"]  # fmt: skip
    if log:
        (folder / "event.log").write_text("\n".join(lines) + "\n")
    return folder


def write(folder, segment, probe=TOOLS / "block_sched.toml", second=False, **sizes):
    """Return the folder that gpt-neutrino makes from a stream."""
    asked = {"kernels": "", "filter": "", "hook": "", "hook_path": "", "python": sys.executable, "benchmark": False}
    asked["second"] = second
    (folder / "trace").mkdir()
    places = {"parent": str(folder / "trace"), "kept": str(folder / "kept"), "probe": str(probe), "sizes": sizes}
    Writer(asked | places).run(segment)
    (found,) = (folder / "trace").iterdir()
    return found


def answer(analysis, *paths, **options):
    """Run a map analysis in this process. Return the rows of its answers, by name, and the verdicts."""
    fold, rows, verdicts = analysis(**options), {}, {}
    for path in map(Path, paths):
        for process in iter_processes(read_input(path, lambda one: iter(())), fold.kinds, side_folder(path)):
            fold.take(process)
            fold.end(process)
    for record in fold.answer([]):
        names = [column["name"] for column in record["columns"]]
        rows[record["name"]] = [dict(zip(names, row, strict=True)) for row in packed.unpack_rows(record)[1]]
        verdicts[record["name"]] = record["verdict"]
    return rows, verdicts
