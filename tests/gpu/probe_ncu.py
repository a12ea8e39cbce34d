"""Compare a probe's counts in the kernels of probe_ncu.cu with closed forms and Nsight Compute's counters.

Our own probe file counts instructions, once per lane and once per warp (per group of lanes that execute it together);
gmem_bytes counts bytes. Each count must equal the closed form, and the hardware counter that COUNTERS names for it. On
the simulated device there are no counters, so counts are only compared with closed forms.
"""

from __future__ import annotations

import csv
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.gpu import accounts  # noqa: E402

BLOCKS, THREADS = 37, 256
ALL, WARPS, N = BLOCKS * THREADS, BLOCKS * THREADS // 32, BLOCKS * THREADS - 1000
LCM = 144403552893600  # least common multiple of 1 to 32, divisible by any number of lanes

POSITIONS = {
    "loads": "ld.global",
    "stores": "st.global",
    "atomics": "atom.global",
    "reductions": "red.global",
    "shared_loads": "ld.shared",
    "shared_stores": "st.shared",
    "barriers": "bar.sync",
    "products": "fma.f32",
}
BEGIN = """.reg .u64 %{name}_lanes = 0;
.reg .u64 %{name}_groups = 0;
"""
COUNT = '''
[probe.{name}]
position = "{position}"
level = "warp"
before = """.reg .u64 %{name}_part;
.reg .u64 %{name}_active;
cvt.u64.u32 %{name}_active, ACTIVE;
add.u64 %{name}_lanes, %{name}_lanes, 1;
mov.u64 %{name}_part, {lcm};
div.u64 %{name}_part, %{name}_part, %{name}_active;
add.u64 %{name}_groups, %{name}_groups, %{name}_part;"""
'''

# Hardware counters for each of a probe's counts. The script uses the first existing one.
COUNTERS = {
    "loads_groups": ("smsp__sass_inst_executed_op_global_ld", "smsp__inst_executed_op_global_ld"),
    "stores_groups": ("smsp__sass_inst_executed_op_global_st", "smsp__inst_executed_op_global_st"),
    "atomics_groups": ("smsp__inst_executed_op_global_atom", "smsp__sass_inst_executed_op_global_atom"),
    "reductions_groups": ("smsp__inst_executed_op_global_red", "smsp__sass_inst_executed_op_global_red"),
    "shared_loads_groups": ("smsp__sass_inst_executed_op_shared_ld", "smsp__inst_executed_op_shared_ld"),
    "shared_stores_groups": ("smsp__sass_inst_executed_op_shared_st", "smsp__inst_executed_op_shared_st"),
    "products_lanes": ("smsp__sass_thread_inst_executed_op_ffma_pred_on",),
    "read": ("smsp__sass_data_bytes_mem_global_op_ld",),
    "written": ("smsp__sass_data_bytes_mem_global_op_st",),
    "threads": ("smsp__threads_launched",),
    "warps": ("smsp__warps_launched",),
    "barriers_groups": ("smsp__inst_executed_op_barrier", "smsp__sass_inst_executed_op_barrier"),
}


class Wanted(NamedTuple):
    """The expected counts of a launch: lanes and groups that execute each instruction, and bytes."""

    lanes: dict[str, int]
    groups: dict[str, int]
    read: int
    written: int


def full(*names: str, **more: int) -> tuple[dict[str, int], dict[str, int]]:
    """Return the counts for a kernel in which each thread executes these instructions once, or `more` times."""
    times = dict.fromkeys(names, 1) | more
    return {name: count * ALL for name, count in times.items()}, {name: count * WARPS for name, count in times.items()}


def strided() -> Wanted:
    """Return the counts of a grid-stride loop over 3 * ALL - 1024 items."""
    items = 3 * ALL - 1024
    groups = -(-items // 32)
    return Wanted({"loads": items, "stores": ALL}, {"loads": groups, "stores": WARPS}, 4 * items, 4 * ALL)


def bounded() -> Wanted:
    both = ("loads", "stores")
    return Wanted(dict.fromkeys(both, N), dict.fromkeys(both, -(-N // 32)), 4 * N, 4 * N)


def halves() -> Wanted:
    both = ("loads", "stores")
    return Wanted(dict.fromkeys(both, ALL // 2), dict.fromkeys(both, WARPS), 2 * ALL, 2 * ALL)


LANES = sum(range(1, 33))
KERNELS: dict[str, Callable[[], Wanted]] = {
    "straight": lambda: Wanted(*full("loads", "stores"), 4 * ALL, 4 * ALL),
    "bounded": bounded,
    "diverging": lambda: Wanted(
        {"loads": LANES * WARPS, "stores": ALL}, {"loads": 32 * WARPS, "stores": WARPS}, 4 * LANES * WARPS, 4 * ALL
    ),
    "halves": halves,
    "vectors": lambda: Wanted(*full("loads", "stores"), 16 * ALL, 8 * ALL),
    "bytes": lambda: Wanted(*full("loads", "stores"), ALL, ALL),
    "atomics": lambda: Wanted(*full("atomics", "reductions"), 4 * ALL, 8 * ALL),
    "tiled": lambda: Wanted(*full("loads", "stores", "shared_loads", "shared_stores", "barriers"), 4 * ALL, 4 * ALL),
    "strided": strided,
    "products": lambda: Wanted(*full("loads", "stores", products=10), 4 * ALL, 4 * ALL),
}


def write_probe(file: Path) -> None:
    """Write the probe file."""
    fields = [f"{name}_{kind}" for name in POSITIONS for kind in ("lanes", "groups")]
    data = ", ".join(f'{name} = "u64"' for name in fields)
    begin = "".join(BEGIN.format(name=name) for name in POSITIONS)
    text = f'[map.counted]\ntype = "total"\nlevel = "warp"\ndata = {{{data}}}\n'
    text += f'[probe.begin]\nposition = "kernel"\nlevel = "warp"\nbefore = """{begin}"""\n'
    text += "".join(COUNT.format(name=name, position=at, lcm=LCM) for name, at in POSITIONS.items())
    saved = ", ".join(f"%{name}" for name in fields)
    text += f'[probe.end]\nposition = "kernel"\nlevel = "warp"\nafter = "SAVE [counted] {{{saved}}};"\n'
    file.write_text(text)


def build(folder: Path, device: str) -> Path:
    """Build the program for the GPU, or with our own CUDA runtime for the simulated device."""
    program = folder / "program"
    if device == "sim":
        from tests.runtime.simulated import compile_cuda

        return compile_cuda(folder, ROOT / "tests/gpu/probe_ncu.cu")
    gencode = ["-gencode", "arch=compute_90,code=[sm_90,compute_90]", "-rdc=false"]
    subprocess.run([accounts.NVCC, *gencode, ROOT / "tests/gpu/probe_ncu.cu", "-o", program], check=True)
    return program


def probe(program: Path, device: str, folder: Path) -> tuple[accounts.Account, list[str]]:
    """Return the probes' counts, and the run's errors."""
    env = accounts.environment(folder, device)
    write_probe(folder / "counted.toml")
    into = folder / "traces"
    into.mkdir()
    bare = {"LD_LIBRARY_PATH": str(accounts.SIMULATED)} if device == "sim" else {}
    plain = accounts.run([program], env | bare)
    options = ("-p", folder / "counted.toml", "-p", "gmem_bytes")
    probed = accounts.run([*accounts.hooked(into / "t.mp", device, *options), program], env)
    found = accounts.account_all(into)
    wrong = [*found.wrong]
    if (plain.status, plain.output) != (probed.status, probed.output) or plain.status:
        wrong.append(f"{plain} without probes, {probed} with")
    if found.unprobed:
        wrong.append(f"without probes: {dict(found.unprobed)}")
    return found, wrong


def choose_counters(ncu: str) -> dict[str, str]:
    """Return the counters that this GPU has."""
    done = subprocess.run([ncu, "--query-metrics"], capture_output=True, text=True, check=False)
    known = set(re.findall(r"^(\w+__\w+)", done.stdout, re.M))
    return {what: name for what, names in COUNTERS.items() for name in reversed(names) if name in known}


def count(program: Path, folder: Path) -> tuple[dict[tuple[str, str], float], dict[str, str]]:
    """Return the hardware's counts by kernel and quantity, and which counters were used."""
    ncu = shutil.which("ncu") or str(accounts.NVCC.with_name("ncu"))
    chosen = choose_counters(ncu)
    if not chosen:
        return {}, {}
    metrics = ",".join(f"{name}.sum" for name in chosen.values())
    line = [ncu, "--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none", "--metrics", metrics]
    done = accounts.run([*line, program], os.environ | {"TMPDIR": str(folder)}, 300)
    found = {}
    rows = list(csv.DictReader(io.StringIO(done.output[done.output.index('"ID"') :]))) if '"ID"' in done.output else []
    for row in rows:
        for what, name in chosen.items():
            with_comma = row.get(f"{name}.sum") or ""
            if row.get("Kernel Name") and re.fullmatch(r"[\d.,]+", with_comma):
                found[row["Kernel Name"].partition("(")[0], what] = float(with_comma.replace(",", ""))
    if not found:
        print(f"ncu: {done.status}: {done.output[-500:]} {done.said[-500:]}", flush=True)
    return found, chosen


def closed_forms(kernel: str) -> dict[str, int]:
    """Return a kernel's right counts by quantity."""
    wanted = KERNELS[kernel]()
    found = {f"{name}_lanes": count_ for name, count_ in wanted.lanes.items()}
    found |= {f"{name}_groups": count_ for name, count_ in wanted.groups.items()}
    return found | {"read": wanted.read, "written": wanted.written}


def compare(account: accounts.Account, counted: dict[tuple[str, str], float], probes: bool) -> list[dict[str, Any]]:
    """Return a row for each kernel and quantity."""
    rows = []
    for kernel in KERNELS:
        forms = closed_forms(kernel)
        known = {"threads": ALL, "warps": WARPS}
        for what in [*(f"{name}_{kind}" for name in POSITIONS for kind in ("lanes", "groups")), "read", "written"]:
            value = account.total(kernel, what) / (LCM if what.endswith("_groups") else 1)
            row = {"kernel": kernel, "what": what, "form": forms.get(what, 0), "probe": value}
            rows.append(row | {"counter": counted.get((kernel, what))})
        for what, form in known.items():
            if (kernel, what) in counted:
                rows.append(
                    {"kernel": kernel, "what": what, "form": form, "probe": form, "counter": counted[kernel, what]}
                )
    # atomics move bytes that the counters of loads and stores do not count
    return [row for row in rows if probes and (row["form"] or row["probe"] or row["counter"])]


def main() -> int:
    """Count, compare, and print a table; return 1 if anything differs."""
    parser = accounts.arguments(__doc__)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = build(folder, given.device)
        account, wrong = probe(program, given.device, folder)
        counted, chosen = count(program, folder) if given.device == "real" else ({}, {})
    rows = compare(account, counted, True)
    atomic = {("atomics", "read"), ("atomics", "written")}  # the counters for loads and stores don't include them
    print(f"{'kernel':11}{'counted':22}{'closed form':>12}{'probe':>12}{'counter':>12}")
    for row in rows:
        says = [row["probe"]] + ([row["counter"]] if row["counter"] is not None else [])
        row["equal"] = all(value == row["form"] for value in says) or (
            (row["kernel"], row["what"]) in atomic and row["probe"] == row["form"]
        )
        counter = "-" if row["counter"] is None else f"{row['counter']:.0f}"
        line = f"{row['kernel']:11}{row['what']:22}{row['form']:12}{row['probe']:12.0f}{counter:>12}"
        print(f"{line}{'' if row['equal'] else '  DIFFERS'}")
    accounts.keep("probe_ncu", [*rows, {"counters": chosen, "wrong": wrong}])
    for what, name in chosen.items():
        print(f"{what}: {name}.sum")
    for said in wrong:
        print(said)
    if given.device == "real" and not counted:
        wrong.append("ncu counted nothing")
    print(
        f"{sum(row['equal'] for row in rows)} of {len(rows)} equal, {len(chosen)} counters; {'; '.join(wrong) or 'ok'}"
    )
    return int(bool(wrong) or not all(row["equal"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
