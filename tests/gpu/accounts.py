"""Check that a run of `gpt-hook run -p` accounts for all launches of a program, and for the buffers of probed ones.

Each launch must have probes or be counted with a reason. Each probed launch must have all of its buffers, or records
that say why not. Programs run plain, hooked, and with probes, on a GPU or (with `--device sim`) on the simulated
device.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from gpt.stream import wire  # noqa: E402
from gpt.stream.reasons import find_reason  # noqa: E402
from gpt.trace.buffers import Buffer, SavedBuffer  # noqa: E402
from gpt.trace.probes import Probes  # noqa: E402
from gpt.trace.rows import LAUNCHES, parse_layout  # noqa: E402

HOOK = ROOT / "gpt" / "_runtime" / "gpt-hook"
SIMULATED = ROOT / "gpt" / "_runtime" / "sim"
NVCC = Path(os.environ.get("GPT_CUDA_HOME", "/usr/local/cuda")) / "bin" / "nvcc"
OUT = Path(os.environ.get("GPT_GPU_OUT", ROOT / "build" / "gpu"))
Visit = Callable[[Buffer, SavedBuffer], None]


@dataclass
class Account:
    """The account of one run: launches by kernel and by reason, and all inconsistencies."""

    launched: int = 0
    probed: Counter[str] = field(default_factory=Counter)
    unprobed: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)
    sums: Counter[str] = field(default_factory=Counter)  # sums of map fields, by kernel.map.field
    wrong: list[str] = field(default_factory=list)

    def add(self, other: Account) -> None:
        """Add another process's counts."""
        self.launched += other.launched
        self.wrong += other.wrong
        for name in ("probed", "unprobed", "lost", "sums"):
            getattr(self, name).update(getattr(other, name))

    def total(self, kernel: str, field_: str) -> int:
        """Return the sum of a field over the launches of kernels with this part in their name."""
        return sum(
            count
            for key, count in self.sums.items()
            if kernel in key.partition(" ")[0] and key.partition(" ")[2] == field_
        )

    def row(self) -> dict[str, Any]:
        """Return a row for a table."""
        return {
            "launched": self.launched,
            "probed": self.probed.total(),
            "unprobed": dict(self.unprobed),
            "kernels": len(self.probed),
            "lost": dict(self.lost),
            "wrong": self.wrong,
        }


def segments(path: Path) -> Iterable[list[dict[str, Any]]]:
    """Yield the records of each segment of a file."""
    found: dict[int, list[dict[str, Any]]] = {}
    order = wire.Segments()
    with open(path, "rb") as file:
        for record in wire.read_records(file, str(path)):
            found.setdefault(order.add(record), []).append(record)
    return found.values()


def account(path: Path, visit: Visit | None = None, killed: bool = False, unasked: int = 0) -> Account:
    """Read a trace. If the process was `killed` or the disk was full, the last launches may be missing. `unasked` is
    the number of launches recorded while no probes were set.
    """
    found = Account()
    for records in segments(path):
        found.add(_account(records, path, visit, killed, unasked))
    return found


def _account(records: list[dict[str, Any]], path: Path, visit: Visit | None, killed: bool, unasked: int = 0) -> Account:
    found, probes = Account(), Probes(path.parent)
    kernels = {record["id"]: record["name"] for record in records if record["kind"] == "kernel"}
    for record in records:
        match record["kind"]:
            case "map" | "kernel" | "probed" | "buffer":
                probes.add(record)
                if record["kind"] == "probed":
                    found.probed[kernels[record["kernel"]]] += 1
            case "unprobed":
                found.unprobed[str(find_reason(record))] += record["launches"]
            case "launches":
                rows = np.frombuffer(record["rows"], parse_layout(record, LAUNCHES))
                found.launched += int(rows["count"].sum())
        if probes.full:
            _take(found, probes, visit)
    _take(found, probes, visit)
    ended = records[-1]["kind"] == "end"
    if ended and not killed:
        probes.check_taken()
        if probes.pending:
            found.wrong.append(f"{path.name}: {probes.pending} probed launches lack buffers")
        graphs = any(record["kind"] == "graph" for record in records)  # each of these launches kernels once more
        if not graphs and found.launched != found.probed.total() + found.unprobed.total() + unasked:
            counts = f"{found.probed.total()} with probes and {found.unprobed.total()} without"
            found.wrong.append(f"{path.name}: {found.launched} launches, but {counts}")
    elif not killed:
        found.wrong.append(f"{path.name}: has no end")
    return found


def _take(found: Account, probes: Probes, visit: Visit | None) -> None:
    for buffer in probes.take():
        if buffer.lost is not None:
            found.lost[str(buffer.lost)] += 1
            continue
        saved = buffer.read()
        for name in saved.slots.dtype.names or ():
            if saved.units is None and saved.slots.dtype[name].kind in "ui":  # a log has nothing to add up
                found.sums[f"{buffer.kernel} {name}"] += int(saved.slots[name].sum())
        if visit:
            visit(buffer, saved)


@dataclass
class Ran:
    """The way a program ended."""

    status: int
    output: str
    said: str
    seconds: float


def run(
    line: Sequence[str | Path], env: dict[str, str], patience: float = 400, cwd: Path | None = None, said: bool = False
) -> Ran:
    """Run a command to its end, or kill it at the timeout and return status 124. With `said`, pass standard error
    through.
    """
    start = time.monotonic()
    errors = None if said else subprocess.PIPE
    with subprocess.Popen(
        [str(word) for word in line], env=env, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=cwd
    ) as process:
        try:
            output, error = process.communicate(timeout=patience)
        except subprocess.TimeoutExpired:
            process.kill()
            output, error = process.communicate()
            return Ran(124, output, f"ran for {patience:.0f} s: {error}", time.monotonic() - start)
    return Ran(process.returncode, output, error or "", time.monotonic() - start)


def hooked(trace: Path, device: str, *options: str | Path) -> list[str | Path]:
    """Return the command line prefix that runs a command under gpt-hook."""
    return [HOOK, "run", "-q", "-f", "-o", trace, "--device", device, *options, "--"]


def environment(folder: Path, device: str, **more: str) -> dict[str, str]:
    """Return an environment with caches of its own, in which the simulated device runs kernels."""
    caches = {"XDG_CACHE_HOME": "cache", "TRITON_CACHE_DIR": "triton", "TORCHINDUCTOR_CACHE_DIR": "inductor",
              "CUPY_CACHE_DIR": "cupy", "NUMBA_CACHE_DIR": "numba"}  # fmt: skip
    found = os.environ | {name: str(folder / value) for name, value in caches.items()} | more
    return found | ({"GPT_SIM_RUN": "all"} if device == "sim" else {})


def account_all(folder: Path, visit: Visit | None = None, killed: bool = False) -> Account:
    """Add up the traces of all processes in a folder."""
    found = Account()
    for path in sorted(folder.glob("*.mp*")):
        if ".buffers" not in path.name:
            found.add(account(path, visit, killed))
    return found


def arguments(said: str | None) -> argparse.ArgumentParser:
    """Add the options that all these scripts share."""
    parser = argparse.ArgumentParser(description=said, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("real", "sim"), default="real", help="where kernels run")
    parser.add_argument("--quick", action="store_true", help="run a part of it, in a minute")
    parser.add_argument("--patience", type=float, default=540, help="seconds; after that, nothing more is started")
    return parser


def keep(name: str, rows: list[dict[str, Any]]) -> None:
    """Write the raw figures to the results folder."""
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / f"{name}.json").write_text(json.dumps(rows, indent=1, default=str) + "\n")
