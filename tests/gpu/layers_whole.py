"""Attribute the GPU time of whole programs to modules: 'gpt-hook run --layers' records everything from their start.

    python tests/gpu/layers_whole.py [MODE ...]

Needs torch and a GPU. Each mode of a small Llama runs with its set-up: weights are made and copied, code is compiled
and tuned, graphs are captured. The table shows how much of the GPU time is in a module, in other work with a name (an
optimizer, a loss), in set-up, and in none of them, for the whole run and for its steady part. The lines above it name
the kernels without a row. Raw tables go to $GPT_GPU_OUT, and with KEEP_TRACES=1 the traces.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
OUT = Path(os.environ.get("GPT_GPU_OUT", ROOT / "build" / "gpu"))
TRAINING = {"train": None, "default": "default", "reduce-overhead": "reduce-overhead", "max-autotune": "max-autotune"}
MODES = (*TRAINING, "step", "generate", "graph")
STEPS, STEADY = 40, 20


# -- The programs


def note_steady() -> None:
    """Print the time of day from which the steps are alike."""
    import torch

    torch.cuda.synchronize()
    print(json.dumps({"steady": time.time_ns()}), flush=True)


def train(mode: str | None, whole: bool = False) -> float:
    """Train a model. `mode` is torch.compile's for the model or, if `whole`, for the entire step."""
    import torch
    from toggle_llama import Llama, make_inputs
    from torch.nn import functional

    torch.manual_seed(0)
    model = Llama().cuda().bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    run = torch.compile(model, mode=mode, dynamic=False) if mode and not whole else model
    words, cos, sin = make_inputs(4, 256)
    host = words.cpu().pin_memory()

    def step() -> Any:
        given = host.cuda(non_blocking=True)
        out = run(given, cos, sin)
        loss = functional.cross_entropy(out.flatten(0, 1).float(), given.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    def loss_of(given: Any) -> Any:
        out = model(given, cos, sin)
        return functional.cross_entropy(out.flatten(0, 1).float(), given.flatten())

    if whole:
        compute, update = torch.compile(loss_of, mode=mode), torch.compile(optimizer.step)

        def step() -> Any:
            loss = compute(host.cuda(non_blocking=True))
            loss.backward()
            update()
            optimizer.zero_grad()
            return loss.detach()

    for number in range(STEPS):
        if number == STEADY:
            note_steady()
        loss = step()
    return float(loss)


def generate(graph: bool) -> float:
    """Generate tokens with a model of GPT-2's size, eagerly or by replays of a step."""
    import generate as program
    import torch

    torch.manual_seed(1)
    model = program.Transformer().to("cuda", torch.float16).eval()
    prompt = torch.randint(program.WORDS, (1, 32), device="cuda")
    places = torch.arange(program.CONTEXT, device="cuda")
    token, at = torch.zeros(1, 1, dtype=torch.long, device="cuda"), places[:1].clone()
    made = torch.cuda.CUDAGraph()
    with torch.inference_mode():
        for _ in range(3):
            result = model(token, at)
        if graph:
            with torch.cuda.graph(made):
                result = model(token, at)
        for number in range(4):
            if number == 2:
                note_steady()
            found = model(prompt, places[:32])
            for place in range(32, 132):
                token.copy_(found)
                at.copy_(places[place : place + 1])
                if graph:
                    made.replay()
                    found = result.clone()
                else:
                    found = model(token, at)
    return float(found)


def run_program(mode: str) -> float:
    if mode in TRAINING:
        return train(TRAINING[mode])
    return train("default", whole=True) if mode == "step" else generate(mode == "graph")


# -- The comparison


def ask(trace: Path, *options: str) -> list[dict[str, Any]]:
    command = [ROOT / "bin" / "gpt-analyze", "summary", "--json", *options, trace]
    done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def classify(name: str) -> str:
    if name in ("(unknown)", "(graphs, not split)"):
        return name
    if name.startswith("(set-up"):
        return "set-up"
    # optimizers, losses and other functions outside of modules
    return "other" if name.removesuffix(" (backward)").endswith((" (range)", ".step", ".zero_grad", "()")) else "module"


def measure(trace: Path, name: str, *options: str) -> tuple[dict[str, float], list[str]]:
    """Return the share of each class of rows, and the lines below the table."""
    records = ask(trace, "--by", "module", *options)
    (OUT / f"layers-whole-{name}.json").write_text(json.dumps(records, indent=1))
    shares: dict[str, float] = defaultdict(float)
    for row in records:
        if row.get("answer") == "by_module" and "name" in row:
            shares[classify(row["name"])] += row["share"]
    return shares, [str(line) for record in records for line in record.get("verdict", ())]


def compare(mode: str, trace: Path, printed: str) -> tuple[list[str], list[str]]:
    """Return the lines of the table for a mode, and the lines below its tables."""
    told = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    starts = [row["start"] for row in ask(trace) if row.get("answer") == "processes" and "start" in row]
    began = min(int(start["$int"]) if isinstance(start, dict) else start for start in starts)
    since = (next(one["steady"] for one in told if "steady" in one) - began) / 1e9
    lines, notes = [], []
    for part, options in (("whole", ()), ("steady", ("--time", f"{since:.6f},"))):
        shares, verdict = measure(trace, f"{mode}-{part}", *options)
        kinds = ("module", "other", "set-up", "(graphs, not split)", "(unknown)")
        lines.append(f"{mode:16}{part:8}" + "".join(f"{shares[kind]:11.2f}" for kind in kinds))
        notes += [f"{mode}, {part}: {line}" for line in verdict]
    return lines, notes


def main() -> int:
    modes = sys.argv[1:] or MODES
    OUT.mkdir(parents=True, exist_ok=True)
    lines, more = [], []
    with tempfile.TemporaryDirectory() as folder:
        for mode in modes:
            trace, cache = Path(folder) / f"{mode}.mp", Path(folder) / f"cache-{mode}"
            env = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(cache)}
            command = [ROOT / "bin" / "gpt-hook", "run", "-qf", "-o", trace, "--gpu-time", "--layers", "--"]
            command += [sys.executable, __file__, "--program", mode]
            begin = time.monotonic()
            done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, text=True, check=False, env=env)
            took = time.monotonic() - begin
            if done.returncode:
                lines.append(f"{mode:16}FAILED with status {done.returncode}")
                continue
            if os.environ.get("KEEP_TRACES"):
                shutil.copy(trace, OUT)
            try:
                found, notes = compare(mode, trace, done.stdout)
            except Exception as error:  # the other modes take minutes
                found, notes = [f"{mode:16}FAILED: {error!r}"], []
            lines += [*found[:-1], f"{found[-1]}{took:9.1f} s"]
            more += notes
    print(*more, sep="\n")
    print(f"\n{'% of GPU time':24}" + "".join(f"{kind:>11}" for kind in ("module", "other", "set-up", "not split",
                                                                            "unknown")))  # fmt: skip
    print(*lines, sep="\n")
    return any("FAILED" in line for line in lines)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--program"]:
        print(json.dumps({"result": run_program(sys.argv[2])}))
    else:
        sys.exit(main())
