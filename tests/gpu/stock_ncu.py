"""Compare what probes count in a forward pass of stock PyTorch with Nsight Compute.

    python tests/gpu/stock_ncu.py

The program is a small transformer that embeds tokens, attends in two ways (flash attention and CUTLASS's kernels, both
open source), normalizes, samples and computes a loss. It runs with probes, and once under ncu. NVIDIA's closed
libraries have no probes, so their kernels are counted but not compared.

Nsight Compute counts an address that several lanes of a load share once, and doesn't count atomics as loads or stores,
as gmem_bytes does. So a probe of our own logs the addresses of all loads and counts the bytes of stores alone. By
kernel, the log's bytes, with each address of a load counted once, and the bytes of asynchronous copies to shared memory
must equal `op_ld` and `op_ldgsts`; stores `op_st`; floating-point operations of tensor cores `ops_path_tensor`.
"""

from __future__ import annotations

import csv
import io
import os
import re
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

PROBE = '''
[map.loads]
level = "thread"
cap = "dynamic"
budget = 268435456
data = {address = "u64", clock = "u64", bytes = "u32"}

[map.stores]
type = "total"
level = "block"
counts = false
data = {stored = "u64"}

[probe.begin]
position = "kernel"
level = "block"
before = """.reg .u32 %stored;
mov.u32 %stored, 0;"""

[probe.load]
position = "ld.global:ldu.global"
level = "thread"
before = "SAVE [loads] {ADDR, CLOCK, BYTES};"

[probe.generic_load]
position = "ld.generic"
level = "thread"
before = """.reg .pred %loads;
isspacep.global %loads, ADDR;
@%loads SAVE [loads] {ADDR, CLOCK, BYTES};"""

[probe.store]
position = "st.global"
level = "block"
before = "add.u32 %stored, %stored, BYTES;"

[probe.generic_store]
position = "st.generic"
level = "block"
before = """.reg .pred %stores;
isspacep.global %stores, ADDR;
@%stores add.u32 %stored, %stored, BYTES;"""

[probe.end]
position = "kernel"
level = "block"
after = "SAVE [stores] {%stored};"
'''
WANTED = r"smsp__sass_data_bytes_mem_global_op_(?:ld|st|ldgsts)|sm__ops_path_tensor_src_[a-z0-9]+_dst_[a-z0-9]+"


def work() -> None:
    """Be the program: one forward pass."""
    import torch
    from torch.nn import functional
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).cuda()

    batch, length, width, heads, words = 2, 128, 256, 4, 2048
    table, weights = draw(words, width).bfloat16(), draw(width, 3 * width).bfloat16() * 0.02
    tokens = torch.randint(words, (batch, length), generator=torch.Generator().manual_seed(1)).cuda()
    with torch.inference_mode():
        x = functional.embedding(tokens, table)
        for layer in range(4):
            y = functional.layer_norm(x, (width,))
            q, k, v = ((y @ weights).view(batch, length, 3, heads, -1).permute(2, 0, 3, 1, 4)).unbind(0)
            backend = SDPBackend.FLASH_ATTENTION if layer % 2 else SDPBackend.EFFICIENT_ATTENTION
            with sdpa_kernel(backend):
                attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + functional.gelu(attended.transpose(1, 2).reshape(batch, length, width))
            x = x + functional.silu(functional.rms_norm(x, (width,)))
        logits = (functional.layer_norm(x, (width,)) @ table.T).float()
        loss = functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        best, order = logits[:, -1].topk(16)
        spread = best.softmax(-1).cumsum(-1)
        print(f"{loss.item():.6f} {order.sum().item()} {spread.double().sum().item():.6f}")


def probe(program: list[str], folder: Path) -> tuple[dict[str, Counter[str]], Any, list[str]]:
    """Return the probes' sums by kernel, the account, and errors."""
    from tests.gpu import accounts

    file = folder / "accesses.toml"
    file.write_text(PROBE)
    env = accounts.environment(folder, "real")
    plain = accounts.run(program, env)
    sums: dict[str, Counter[str]] = {}
    wrong: list[str] = []

    def add_loads(buffer: Any, saved: Any) -> None:
        """Add up the bytes of each load, counting each of its addresses once. All lanes of a load share its clock."""
        if "address" in (saved.slots.dtype.names or ()):
            slots, kernel = saved.slots, sums.setdefault(str(buffer.kernel), Counter())
            rows = np.stack([saved.units // 32, slots["clock"], slots["address"], slots["bytes"]])
            kernel["distinct"] += int(np.unique(rows, axis=1)[3].sum())
            kernel["loaded"] += int(slots["bytes"].sum())
            if saved.dropped:
                wrong.append(f"{buffer.kernel}: {saved.dropped} loads dropped")

    for name, options in {"sums": ("-p", "gmem_bytes", "-p", "tensorop_count"), "accesses": ("-p", file)}.items():
        (folder / name).mkdir()
        run = accounts.run([*accounts.hooked(folder / name / "t.mp", "real", *options), *program], env)
        found = accounts.account_all(folder / name, add_loads)
        wrong += found.wrong
        if (plain.status, plain.output) != (run.status, run.output) or plain.status:
            wrong.append(f"{plain} without probes, {run} with {name}")
        for key, value in found.sums.items():
            kernel, _, field = key.rpartition(" ")
            sums.setdefault(kernel, Counter())[field] += value
        if name == "sums":
            account = found
    return sums, account, wrong


def count(program: list[str], folder: Path) -> tuple[dict[str, Counter[str]], Counter[str], str]:
    """Return the hardware's counts by kernel, each kernel's launches, and what ncu said."""
    from tests.gpu import accounts

    ncu = shutil.which("ncu") or str(accounts.NVCC.with_name("ncu"))
    known = accounts.run([ncu, "--query-metrics"], dict(os.environ), 60).output
    metrics = sorted(set(re.findall(rf"^({WANTED})\s", known, re.M)))
    line = [ncu, "--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none",
            "--print-kernel-base", "mangled", "--metrics", ",".join(f"{name}.sum" for name in metrics)]  # fmt: skip
    done = accounts.run([*line, *program], os.environ | {"TMPDIR": str(folder)}, 300)
    found: dict[str, Counter[str]] = {}
    launches: Counter[str] = Counter()
    text = done.output[done.output.index('"ID"') :] if '"ID"' in done.output else ""
    for row in csv.DictReader(io.StringIO(text)):
        if kernel := row.get("Kernel Name"):
            launches[kernel] += 1
            counts = found.setdefault(kernel, Counter())
            for name in metrics:
                value = (row.get(f"{name}.sum") or "").replace(",", "")
                counts[name] += int(float(value)) if re.fullmatch(r"[\d.]+", value) else 0
    return found, launches, "" if found else f"ncu: {done.status}: {done.output[-500:]} {done.said[-500:]}"


def compare(kernel: str, probed: Counter[str], counted: Counter[str]) -> dict[str, Any]:
    """Return a kernel's row: each quantity as the probes and as the hardware count it."""
    tensor = sum(value for name, value in counted.items() if "ops_path_tensor" in name)
    loads = sum(value for name, value in counted.items() if "_op_ld" in name)  # and op_ldgsts
    return {
        "kernel": kernel,
        "loaded": (probed["distinct"] + probed["async"], loads),
        "stored": (probed["stored"], counted["smsp__sass_data_bytes_mem_global_op_st"]),
        "tensor": (probed["flops"], tensor),
        "counters": {name: value for name, value in counted.items() if value},
        "probes": dict(probed),
    }


def main() -> int:
    """Run the command."""
    from tests.gpu import accounts

    accounts.arguments(__doc__).parse_args()
    program = [sys.executable, __file__, "work"]
    with tempfile.TemporaryDirectory() as name:
        sums, account, wrong = probe(program, Path(name))
        counted, launches, said = count(program, Path(name))
    wrong += ["no kernel had probes"] * (not sums)
    rows = [compare(kernel, sums[kernel], counted.get(kernel, Counter())) for kernel in sums]
    wrong += [said] * bool(said)
    print(f"{'kernel':60}{'launches':>9}{'loaded':>12}{'ncu':>12}{'stored':>12}{'ncu':>12}{'tensor':>14}{'ncu':>14}")
    differing = 0
    for row in rows:
        pairs = [row[what] for what in ("loaded", "stored", "tensor")]
        times = account.probed[row["kernel"]], launches[row["kernel"]]
        row["equal"] = all(mine == theirs for mine, theirs in (times, *pairs))
        differing += not row["equal"]
        sizes = zip(pairs, (12, 12, 14), strict=True)
        figures = "".join(f"{mine:{size}}{theirs:{size}}" for (mine, theirs), size in sizes)
        print(f"{row['kernel'][:59]:60}{times[0]:>4}/{times[1]:<4}{figures}{'' if row['equal'] else '  DIFFERS'}")
    totals = {what: [sum(row[what][i] for row in rows) for i in (0, 1)] for what in ("loaded", "stored", "tensor")}
    others = [kernel for kernel in counted if kernel not in sums]
    accounts.keep("stock_ncu", [*rows, {"totals": totals, "others": others, "wrong": wrong,
                  "unprobed": account.unprobed, "launches": launches}])  # fmt: skip
    for what, (mine, theirs) in totals.items():
        print(f"{what}: {mine:,} by probes, {theirs:,} by ncu")
    print(f"without probes: {dict(account.unprobed)}; ncu saw {len(others)} more kernels")
    print(f"stock_ncu: {len(rows)} kernels, {differing} differ; {'; '.join(wrong) or 'ok'}")
    return bool(wrong or differing)


if __name__ == "__main__":
    if sys.argv[1:2] == ["work"]:
        sys.exit(work())
    sys.exit(main())
