"""Check whether memory instructions read their operands in order: repeat some pairs of `covered` in sass_hazards.py
many times.

    python tests/gpu/sass_order.py

An operand is overwritten once a later instruction has completed; if the result has the new value, the order was wrong.
The pairs run first on an idle GPU, then next to three programs that multiply matrices (they need PyTorch). Prints a
line for each pair, and writes the counts to sass_order.json in GPT_GPU_OUT. Takes 50 seconds.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

import numpy
import sass_hazards
from sass_risks import OUT, Device, compile_kernels, weave_sequence
from sass_words import Kernel

BLOCKS, THREADS, SECONDS, OTHERS = 4224, 64, 1.5, 3
PAIRS = [
    (kind, later)
    for kind in ("STG", "STG address", "LDG address")
    for later in ("LDG", "ATOMG", "STG, its reads", "LDS", "SHFL")
]
OTHER = """
import torch, time
a, end = torch.randn(4096, 4096, device="cuda"), time.time() + 60
while time.time() < end:
    for _ in range(20): a = torch.tanh(a @ a * 1e-3)
    torch.cuda.synchronize()
"""


def measure(device: Device, image: bytes, lab: Kernel, kind: str, later: str, beside: int) -> dict[str, Any]:
    """Launch one pair again and again, and count wrong words."""
    right = sass_hazards.SLOW[kind]
    case = {"kernel": "lab", "what": "covered", "args": [kind, later], "right": right}
    module, function = device.load(weave_sequence(image, lab, case), "lab")
    end, launches, wrong = time.monotonic() + SECONDS, 0, 0
    while time.monotonic() < end:
        got = device.run(function, lanes=0xFFFFFFFF, blocks=BLOCKS, threads=THREADS, each=4, shared=2048)
        launches += 1
        wrong += int((numpy.frombuffer(got, "<u4") != right).sum())
    device.call("cuModuleUnload", module)
    words = launches * BLOCKS * THREADS
    print(f"{kind:12} {later:15} beside {beside}: {launches:6} launches, {wrong} of {words} words wrong", flush=True)
    return {"kind": kind, "later": later, "beside": beside, "launches": launches, "words": words, "wrong": wrong}


def main() -> int:
    """Run all pairs alone, and next to other programs."""
    OUT.mkdir(parents=True, exist_ok=True)
    lab = compile_kernels(OUT)["lab"]
    image, device = (OUT / "risks.cubin").read_bytes(), Device()
    rows = [measure(device, image, lab, *pair, 0) for pair in PAIRS]
    others = [subprocess.Popen([sys.executable, "-c", OTHER]) for _ in range(OTHERS)]
    time.sleep(8)  # until they run
    rows += [measure(device, image, lab, *pair, OTHERS) for pair in PAIRS]
    for other in others:
        other.kill()
        other.wait()
    (OUT / "sass_order.json").write_text(json.dumps(rows, indent=1) + "\n")
    return int(any(row["wrong"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
