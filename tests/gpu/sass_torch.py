"""Run stock eager PyTorch with probes in its kernels' machine code: `python tests/gpu/sass_torch.py`.

Wheels have no PTX, so only gpt-sass-probe can probe these kernels. The program prints a digest of the result of each of
about thirty operations. It runs twice plain, and once for each of PROBES with gpt-sass-probe in gpt-hook's pipeline.
Results on which both plain runs agree must be the same with probes. Exits with 1 if one differs, or if no launch had
probes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

PROBES = ("block_sched", "gmem_bytes", "tensorop_count", "sync_wait")
LINE = "gpt-extract --ptx --payload | gpt-sass-probe -p {0} | gpt-ptx-probe -p {0} | gpt-asm --arch $GPT_ARCH"
PROGRAM = """
import hashlib, torch
from torch.nn.attention import SDPBackend, sdpa_kernel
F = torch.nn.functional
g = torch.Generator().manual_seed(1)
x, y = (torch.randn(1024, 1024, generator=g).cuda() for _ in range(2))
i = torch.randint(0, 1024, (4096,), generator=g).cuda()
torch.manual_seed(0)
q, k, v = (torch.randn(4, 8, 512, 64, generator=g).half().cuda() for _ in range(3))
def attend(backend):
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(q, k, v)
ops = {
    "add": lambda: x + y, "mul": lambda: x * 2.5, "gelu": lambda: F.gelu(x), "relu": lambda: x.relu(),
    "exp": lambda: x.exp(), "softmax": lambda: torch.softmax(x, 1), "sum": lambda: x.sum(1), "mean": lambda: x.mean(0),
    "max": lambda: x.max(1).values, "layer_norm": lambda: F.layer_norm(x, (1024,)), "cumsum": lambda: x.cumsum(1),
    "index": lambda: x[i], "gather": lambda: x.gather(1, i[:1024, None]), "cat": lambda: torch.cat([x, y], 1),
    "transpose": lambda: x.t().contiguous(), "where": lambda: torch.where(x > 0, x, y),
    "sort": lambda: x.sort(1).values, "topk": lambda: x.topk(8, 1).values, "half": lambda: x.half() + y.half(),
    "embedding": lambda: F.embedding(i, x),
    "tril": lambda: x.tril(), "sigmoid": lambda: torch.sigmoid(x), "pow": lambda: x.abs().pow(0.3),
    "norm": lambda: x.norm(dim=1), "argmax": lambda: x.argmax(1), "clamp": lambda: x.clamp(-0.5, 0.5),
    "batch_norm": lambda: F.batch_norm(x, None, None, training=True), "flip": lambda: x.flip(0),
    "unique": lambda: i.unique(), "masked": lambda: x[x > 1], "dropout": lambda: F.dropout(x, 0.5),
    "rand": lambda: torch.rand(1000, device="cuda"),
    "flash": lambda: attend(SDPBackend.FLASH_ATTENTION), "cutlass": lambda: attend(SDPBackend.EFFICIENT_ATTENTION),
}
for name, op in ops.items():
    for _ in range(3):
        result = op()
    torch.cuda.synchronize()
    print(name, hashlib.sha256(result.double().contiguous().cpu().numpy().tobytes()).hexdigest(), flush=True)
"""


def run(program: Path, *before: str) -> dict[str, str]:
    """Return the digests that a run prints; its exit status and the hook's messages are under `status` and `hook`."""
    done = subprocess.run([*before, sys.executable, str(program)], capture_output=True, text=True, timeout=300)
    lines = [line.split() for line in done.stdout.splitlines()]
    said = [line for line in done.stderr.splitlines() if "launches with probes" in line]
    return dict(line for line in lines if len(line) == 2) | {"status": str(done.returncode), "hook": "".join(said)}


def main() -> int:
    """Run the command."""
    folder = Path(os.environ.get("GPT_GPU_OUT", "build/gpu"))
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "sass_torch_program.py"
    program.write_text(PROGRAM)
    plain = [run(program) for _ in range(2)]
    steady = [name for name, digest in plain[0].items() if name != "hook" and plain[1].get(name) == digest]
    rows, fails = {"plain": plain[0]}, False
    print(f"{len(steady) - 1} of {len(plain[0]) - 2} operations leave the same in both plain runs")
    for probe in PROBES:
        trace = folder / f"sass_torch-{probe}.mp"
        found = rows[probe] = run(program, "gpt-hook", "run", "--jit", LINE.format(probe), "-o", str(trace), "--")
        wrong = [name for name in steady if found.get(name) != plain[0][name]]
        fails |= bool(wrong) or found["hook"].split(":")[-1].strip().startswith("0 ") or not found["hook"]
        print(f"{probe:12} differ: {', '.join(wrong) or 'none'}; {found['hook']}")
    (folder / "sass_torch.json").write_text(json.dumps(rows, indent=1) + "\n")
    return int(fails)


if __name__ == "__main__":
    sys.exit(main())
