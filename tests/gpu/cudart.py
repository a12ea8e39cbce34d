"""Run a program compiled by nvcc with the simulated device's libcudart.so.13 and with NVIDIA's, on a real GPU.

    python tests/gpu/cudart.py

Run by tests/gpu/run.sh; needs nvcc and g++.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OURS = ROOT / "gpt" / "_runtime" / "sim" / "libcudart.so.13"
NVCC = Path(os.environ.get("GPT_CUDA_HOME", "/usr/local/cuda")) / "bin" / "nvcc"
SOURCE = ROOT / "tests" / "runtime" / "cudart.cu"


def main() -> int:
    """Print a line for each run; return 1 if one is wrong."""
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / OURS.name).symlink_to(OURS)
        for streams in ("legacy", "per-thread"):
            program = folder / streams
            line = [NVCC, "-cudart", "shared", "-arch=native", "-default-stream", streams, SOURCE, "-o", program]
            subprocess.run(line, check=True)
            ways = {
                "NVIDIA's library, GPU": NVCC.parents[1] / "lib64",
                "ours, GPU": folder,
                "ours, simulated device": OURS.parent,
            }
            for way, libraries in ways.items():
                if way == "ours, simulated device":  # the kernels are PTX
                    subprocess.run([*line[:3], "-arch=compute_80", *line[4:]], check=True)
                env = os.environ | {"LD_LIBRARY_PATH": str(libraries)}
                done = subprocess.run([program], env=env, capture_output=True, text=True)
                ok = (done.returncode, done.stdout) == (0, "OK\n")
                failed += not ok
                print(f"{streams:10}  {way:24}  {'ok' if ok else (done.stdout + done.stderr).strip()[:200]}")
    print(f"cudart: {failed} failed")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
