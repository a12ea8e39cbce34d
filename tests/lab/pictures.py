"""Make the pictures in docs/analyses.md: record traces on a GPU, and draw them with gpt-analyze.

    python tests/lab/pictures.py record FOLDER     on the GPU; all runs at once, so the machine is busy
    python tests/lab/pictures.py draw FOLDER [docs/figures/analyses]

The programs are a transformer of GPT-2's size, trained (`train`) or generating tokens (`generate`), and attention in a
Triton kernel. `record` needs PyTorch and Triton; `draw` needs the plot extra. Run once: docs/figures/analyses.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GPU = ROOT / "tests" / "gpu"
BIN = ROOT / ".venv" / "bin"
TRAIN = ("-c", "import probe_workload; probe_workload.run_train(2, 1)")
GENERATE = ("generate.py", "--mode", "compile", "--tokens", "20")
GRAPHED = ("-c", "import probe_workload; probe_workload.run_graphed(5, 2)")
ATTENTION = (str(Path(__file__).with_name("attention.py").resolve()), "4")
RANKS = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "ranks.py")


def probes(*names: str) -> tuple[str, ...]:
    return tuple(word for name in names for word in ("-p", name))


RUNS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {  # name -> options of gpt-hook run, program
    "plain": (("--gpu-time", "--stacks", "memory"), ("generate.py", "--tokens", "20")),
    "compiled": (("--gpu-time",), GENERATE),
    "graphs": (("--gpu-time",), ("generate.py", "--mode", "graph", "--tokens", "20")),
    "graphed": ((*probes("block_sched"), "--gpu-time"), GRAPHED),
    "ioctl": (("--ioctl", "--calls", "all"), ATTENTION),
    "ranks": (("--gpu-time",), RANKS),
    "train": ((*probes("block_sched"), "--gpu-time", "--launch-skip", "1", "--launch-count", "1"), TRAIN),
    "bytes": ((*probes("gmem_bytes", "tensorop_count"), "--gpu-time", "--launch-count", "2"), TRAIN),
    "times": ((*probes("gmem_bytes"), "--benchmark", "--launch-count", "4"), TRAIN),
    "attention_times": (
        (*probes("gmem_bytes", "tensorop_count", "block_sched"), "-k", "attention", "--gpu-time"),
        ATTENTION,
    ),
    "need": ((*probes("dmat"), "-k", "triton", "--memusage"), GENERATE),
    "dmat": ((*probes("dmat"), "-k", "attention", "--launch-count", "1"), ATTENTION),
    "warps": (
        (
            *probes("warp_sched", "warp_progress", "program_progress", "sync_wait", "bank_conflict"),
            *("-k", "attention", "--launch-count", "1"),
        ),
        ATTENTION,
    ),
    "values": (
        (*probes("branch_divergence", "inst_latency", "value_range"), "--launch-count", "1"),
        ("-c", "import probe_workload; probe_workload.run_triton()"),
    ),
}  # fmt: skip

PICTURES: dict[str, tuple[str, ...]] = {  # file -> arguments of gpt-analyze, in which a run's name stands for its trace
    "ioctl.png": ("ioctl", "ioctl"),  # traces of tests/analyze/causes show summary, stages, gaps and memory
    "graphs.png": ("graphs", "graphed"),
    "nvtx.png": ("nvtx", "ranks"),
    "collectives.png": ("collectives", "ranks"),
    "diff.png": ("diff", "plain", "compiled"),
    "block_sched.png": ("block_sched", "attention_times"),
    "gmem_bytes.png": ("gmem_bytes", "bytes"),
    "tensorop_count.png": ("tensorop_count", "attention_times"),
    "roofline.png": ("roofline", "bytes", "attention_times"),
    "overhead.png": ("overhead", "times"),
    "exposed_latency.png": ("exposed_latency", "times"),
    "memusage.png": ("memusage", "need"),
    "dmat.png": ("dmat", "dmat"),
    "warp_sched.png": ("warp_sched", "warps"),
    "warp_progress.png": ("warp_progress", "warps"),
    "program_progress.png": ("program_progress", "warps"),
    "sync_wait.png": ("sync_wait", "warps"),
    "bank_conflict.png": ("bank_conflict", "warps"),
    "branch_divergence.png": ("branch_divergence", "values"),
    "inst_latency.png": ("inst_latency", "values"),
    "value_range.png": ("value_range", "values"),
    "maps.png": ("maps", "attention_times"),
}
COLORS = 64  # colors per picture, which reduces it to a fifth of the bytes


def record_one(folder: Path, name: str) -> str:
    """Run a program; return the error, if there's one."""
    options, program = RUNS[name]
    place = folder / name
    place.mkdir(parents=True, exist_ok=True)
    env = os.environ | {
        "PYTHONPATH": f"{ROOT}:{GPU}:{os.environ.get('PYTHONPATH', '')}",
        "TRITON_CACHE_DIR": str(folder / "cache" / name),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache" / f"{name}.inductor"),
        "TORCHINDUCTOR_COMPILE_THREADS": "4",
    }
    line: list[str | Path] = [
        "gpt-hook",
        "run",
        "-q",
        "-f",
        "-o",
        place / "t.mp",
        *options,
        "--",
        sys.executable,
        *program,
    ]
    try:
        done = subprocess.run(line, cwd=GPU, env=env, capture_output=True, text=True, timeout=150, check=False)
    except subprocess.TimeoutExpired:
        return f"{name}: it took longer than 150 s"
    (place / "said.txt").write_text(done.stdout + done.stderr)
    return "" if done.returncode == 0 else f"{name}: {done.returncode}: {done.stderr[-300:]}"


def record(folder: Path) -> int:
    """Run all programs, at most three at a time per four cores."""
    with ThreadPoolExecutor(max(1, (os.cpu_count() or 4) * 3 // 4)) as pool:
        wrong = [fault for fault in pool.map(lambda name: record_one(folder, name), RUNS) if fault]
    for name in RUNS:
        bytes_ = sum(file.stat().st_size for file in (folder / name).iterdir())
        print(f"{name:18}{bytes_ / 1e6:10.1f} MB")
    print(*wrong, "pictures: " + ("recorded" if not wrong else "some runs failed"), sep="\n")
    return bool(wrong)


def draw(folder: Path, out: Path) -> int:
    """Draw all pictures of the traces in a folder."""
    from PIL import Image  # installed with matplotlib

    out.mkdir(parents=True, exist_ok=True)
    wrong = []
    for name, (analysis, *runs) in PICTURES.items():
        traces = [folder / run / "t.mp" for run in runs]
        line: list[str | Path] = [BIN / "gpt-analyze", analysis, "--plot", out / name, *traces]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        (folder / f"{name}.txt").write_text(done.stdout + done.stderr)
        if (out / name).exists():
            image = Image.open(out / name).convert("RGB").quantize(COLORS, dither=Image.Dither.NONE)
            image.save(out / name, optimize=True)
        if done.returncode or not (out / name).exists():
            wrong.append(f"{name}: {done.returncode}: {done.stderr[-300:]}")
    print(json.dumps(wrong, indent=1))
    return bool(wrong)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["record", folder]:
            sys.exit(record(Path(folder).absolute()))
        case ["draw", folder, *rest]:
            sys.exit(draw(Path(folder), Path(rest[0]) if rest else ROOT / "docs" / "figures" / "analyses"))
        case _:
            sys.exit(__doc__)
