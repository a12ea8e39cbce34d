"""Run gpt-trace on a GPU with the programs of tests/inference, one of them also in PyTorch. All must generate the same
tokens.

.venv/bin/python tests/gpu/inference.py [--device sim]      # on the simulated device, only the programs without PyTorch
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

import gpt.trace  # noqa: E402

PROGRAMS = ROOT / "tests" / "inference"
TOKENS = ["--tokens", "40"]
STAGES = ("Weight Loading", "Inference", "Per round", "Output Transfer", "Total")


def trace(folder: Path, device: list[str], *command: object) -> tuple[list[str], list[str]]:
    """Return a program's output and the lines of its table of stages."""
    words = [ROOT / "bin/gpt-trace", "-o", folder, "--gpu-time", *device, "--", *command]
    done = subprocess.run([*map(str, words)], stdout=subprocess.PIPE, text=True, check=True)
    said, _, rest = done.stdout.partition("\n+ gpt-analyze summary ")
    table = rest.partition("\n+ gpt-analyze stages ")[2].partition("\n\n")[0].splitlines()[1:]
    (lines,) = folder.glob("*.jsonl")
    before, after = gpt.trace.open(lines.with_suffix(".mp")), gpt.trace.open(lines)
    assert not before.incomplete + after.incomplete, before.incomplete + after.incomplete
    assert len(before.calls()) == len(after.calls()) and len(before.gpu_times()) == len(after.gpu_times())
    assert before.gpu_times()["duration"].sum() > 0
    return said.splitlines(), table


def main() -> int:
    """Print the stages of each program; return the number of programs that are wrong."""
    device = sys.argv[1:]
    wrong, tokens = 0, set()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        compiler = [os.environ.get("CC", "cc"), "-o", folder / "vectors", PROGRAMS / "vectors.c", "-ldl"]
        subprocess.run(compiler, check=True)
        programs: dict[str, list[object]] = {
            "vectors": [folder / "vectors", 100],
            "generate": [sys.executable, PROGRAMS / "generate.py", *TOKENS],
        }
        if not device and find_spec("torch"):
            programs["generate --torch"] = [sys.executable, PROGRAMS / "generate.py", "--torch", *TOKENS]
        for title, command in programs.items():
            said, table = trace(folder / f"traces of {title}", device, *command)
            tokens |= {line for line in said if line.startswith("tokens:")}
            missing = [stage for stage in STAGES if not any(line.strip().startswith(stage) for line in table)]
            wrong += bool(missing)
            print(f"{title}: {'no ' + ', '.join(missing) if missing else 'all stages'}", *said, *table, "", sep="\n")
    if len(tokens) != 1:
        wrong += 1
        print("the model says other tokens in PyTorch")
    print(f"inference: {wrong} wrong")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
