"""Check gpt.tensors and --stacks with PyTorch on the GPU: names of tensors, compiled code, owners of memory.

    python tests/gpu/tensors.py

Run by tests/gpu/run.sh. Needs torch and triton. The program runs with and without names, and results must be the same
bits.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

OUT = Path(os.environ.get("GPT_GPU_OUT", ROOT / "build" / "gpu"))
STEPS = 30


def program() -> None:
    """Run a Triton kernel, an eager step, and a compiled step without graph breaks. gpt-hook runs this."""
    import torch
    import triton
    from compiled import scaled
    from torch import nn

    import gpt.tensors

    torch.manual_seed(1)
    facts: dict[str, Any] = {}

    def add(first: Any, second: Any) -> Any:
        result = torch.empty_like(first)
        scaled[(triton.cdiv(first.numel(), 256),)](first, second, result, first.numel(), 3.0, BLOCK=256)
        return result

    x, y = (torch.randn(100_000, device="cuda") for _ in range(2))
    with gpt.tensors.trace():
        out = add(x, y)
    facts["addresses"] = [tensor.data_ptr() for tensor in (x, y, out)]
    where = out.data_ptr()
    del out
    with gpt.tensors.trace():
        again = add(y, x)  # its result gets the memory of the first one
    facts["reused"] = again.data_ptr() == where

    model = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 256)).cuda()
    batch = torch.randn(64, 256, device="cuda")
    gpt.tensors.record(dict(model.named_parameters()), batch=batch)
    step = torch.compile(lambda value: model(value).softmax(-1), fullgraph=True)
    with torch.no_grad(), gpt.tensors.trace():
        results = [model(batch), step(batch)]
    times = {}
    for name, block in (("plain", None), ("named", gpt.tensors.trace)):
        for run in (model, step):
            torch.cuda.synchronize()
            start = time.perf_counter()
            with torch.no_grad():
                for _ in range(STEPS):
                    if block:
                        with block():
                            run(batch)
                    else:
                        run(batch)
            torch.cuda.synchronize()
            times[f"{name} {'eager' if run is model else 'compiled'}"] = (time.perf_counter() - start) / STEPS
    values = torch.cat([again, *(value.flatten() for value in results)]).cpu().numpy()
    print(json.dumps(facts | {"times": times, "digest": hashlib.sha256(values.tobytes()).hexdigest()}))


def run(folder: Path, *options: str) -> dict[str, Any]:
    """Run under gpt-hook or plain, and return the program's last line of output."""
    hook = [str(ROOT / "bin" / "gpt-hook"), "run", "-q", "-o", str(folder / "t.mp"), *options, "--"] if options else []
    env = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests' / 'gpu'}:{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run([*hook, sys.executable, __file__, "program"], capture_output=True, text=True, env=env)
    if done.returncode:
        sys.exit(f"tensors: error: {' '.join(options)}: {done.stderr[-2000:]}")
    facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return facts


def main() -> int:
    import numpy as np

    from gpt.stream import wire
    from gpt.trace.kinds import CALLS, SAVES, SITES, TENSORS
    from gpt.trace.process import iter_processes

    OUT.mkdir(parents=True, exist_ok=True)
    bare = run(OUT)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        facts = run(folder, "-p", "block_sched", "--stacks", "memory")
        with (folder / "t.mp").open("rb") as file:
            kinds = CALLS | SAVES | SITES | TENSORS | {"times"}
            process = next(iter_processes(wire.read_records(file, "t.mp"), kinds, folder))
    checks = {"same bits": bare["digest"] == facts["digest"], "memory used again": facts["reused"]}
    launches = [launch for launch in process.probes.take_told("probed") if len(launch.params) >= 24]
    first = [launch for launch in launches if np.frombuffer(launch.params[:24], "<u8").tolist() == facts["addresses"]]
    tensors, named = process.tensors, []
    for launch in first[:1]:
        found = tensors.find(np.frombuffer(launch.params[:24], "<u8"), launch.start)
        named = [tensors.tensors[i].names if i >= 0 else [] for i in found.tensors.tolist()]
    checks["names of a Triton kernel"] = [one[:1] for one in named] == [["x"], ["y"], ["result"]]
    checks["ends are known"] = any(t.end is not None and "result" in t.names for t in tensors.tensors)
    checks["parameters"] = any("0.weight" in tensor.names for tensor in tensors.tensors)
    askers: dict[str, int] = {}
    for threads, rows in process.calls.take():
        for stack in process.sites.find(threads, rows["start"]).tolist():
            asker = process.sites.asker(stack) if stack else None
            if asker:
                library = os.path.basename(asker.path or "none")
                askers[library] = askers.get(library, 0) + 1
    checks["memory of PyTorch's allocator"] = any("c10_cuda" in library for library in askers)
    (OUT / "tensors.json").write_text(
        json.dumps({"bare": bare, "hooked": facts, "checks": checks, "askers": askers, "names": named}, indent=1)
    )
    for check, good in checks.items():
        print(f"{check:34}{'yes' if good else 'NO'}")
    for way, seconds in facts["times"].items():
        print(f"{way:34}{seconds * 1e6:8.1f} us a step, bare {bare['times'][way] * 1e6:8.1f}")
    for library, count in sorted(askers.items(), key=lambda item: -item[1]):
        print(f"memory: {library:26}{count:8} calls")
    return not all(checks.values())


if __name__ == "__main__":
    sys.exit(program() if sys.argv[1:] == ["program"] else main())
