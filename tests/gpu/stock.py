"""Probe stock PyTorch as pip installs it: `python tests/gpu/stock.py [--programs NAME,...] [--once] [PROBE ...]`.

Wheels have no PTX, so this runs `gpt-hook run -p`, whose default pipeline includes gpt-sass-probe. The programs of
stock_programs.py and stock_more.py run in one process: twice plain, then once for each probe with an empty cache and,
without --once, a second time with cached kernels. Results on which both plain runs agree must be the same with probes.

The first table shows the time of a step for each program, plain and with probes, and whether its results are the same.
The second shows for each probe the share of probed launches, not counting NVIDIA's closed libraries, and the other
launches by reason. Exits with 1 if a result differs, a run fails, or the share is below LEAST.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from gpt.stream import wire
from gpt.stream.reasons import Reason, find_reason

HERE = Path(__file__).parent
PROGRAMS = HERE / "stock_programs.py"
# The share of launches that must have probes, not counting closed libraries.
LEAST = {"block_sched": 0.99, "gmem_bytes": 0.95}
CLOSED = str(Reason("closed_library"))


class Run(NamedTuple):
    """The digests and seconds that a run of all programs prints, its exit status, and its duration."""

    digests: dict[str, str]
    seconds: dict[str, float]
    status: int
    whole: float
    errors: str


def start(names: list[str], before: list[str], cache: str = "") -> tuple[subprocess.Popen[str], float]:
    """Start a run."""
    env = os.environ | ({"XDG_CACHE_HOME": cache} if cache else {})
    command = [*before, sys.executable, str(PROGRAMS), *names]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=env), time.monotonic()


def finish(process: subprocess.Popen[str], began: float) -> Run:
    """Wait for a run."""
    out, errors = process.communicate(timeout=400)
    lines = [line.split() for line in out.splitlines() if len(line.split()) == 3]
    digests, seconds = {line[0]: line[1] for line in lines}, {line[0]: float(line[2]) for line in lines}
    return Run(digests, seconds, process.returncode, time.monotonic() - began, errors)


def count(trace: Path, errors: str) -> tuple[int, Counter[str]]:
    """Return the number of probed launches, as the hook reports it, and the other launches by reason,
    from the trace.
    """
    reasons: Counter[str] = Counter()
    if trace.exists():
        with trace.open("rb") as file:
            for record in wire.read_records(file, str(trace)):
                if record["kind"] == "unprobed":
                    reasons[str(find_reason(record))] += record["launches"]
    said = re.search(r"(\d+) launch(?:es)? with probes", errors)
    return int(said[1]) if said else 0, reasons


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--programs", default="", help="some of them, separated by commas")
    parser.add_argument("--once", action="store_true", help="not again with what the cache has")
    parser.add_argument("probes", nargs="*", default=list(LEAST))
    options = parser.parse_args()
    names = [name for name in options.programs.split(",") if name]
    folder = Path(os.environ.get("GPT_GPU_OUT", "build/gpu"))
    folder.mkdir(parents=True, exist_ok=True)
    plain = [finish(*one) for one in [start(names, []), start(names, [])]]
    steady = {name for name, digest in plain[0].digests.items() if plain[1].digests.get(name) == digest}
    fails = any(run.status for run in plain)
    rows: dict[str, object] = {"plain": [run._asdict() for run in plain]}
    print(f"plain: {len(steady)} of {len(plain[0].digests)} programs leave the same twice; {plain[0].whole:.1f} s")
    fails |= not plain[0].digests
    for probe in options.probes:
        with tempfile.TemporaryDirectory() as cache:
            for state in ("cold",) if options.once else ("cold", "warm"):
                trace = folder / f"stock-{probe}-{state}.mp"
                before = ["gpt-hook", "run", "-f", "-p", probe, "-o", str(trace), "--"]
                run = finish(*start(names, before, cache))
                probed, reasons = count(trace, run.errors)
                rows[f"{probe} {state}"] = run._asdict() | {"probed": probed, "reasons": reasons}
                fails |= report(f"{probe}, {state} cache", plain[0], run, steady)
        closed = reasons[CLOSED]
        whole = probed + sum(reasons.values()) - closed
        share = probed / max(1, whole)
        print(f"{probe}: {share:.2%} of {whole} launches outside closed libraries; {closed} launches of those")
        for reason, number in reasons.most_common(8):
            print(f"    {number:6}  {reason}")
        fails |= share < LEAST.get(probe, 0)
    (folder / "stock.json").write_text(json.dumps(rows, indent=1) + "\n")
    return int(fails)


def report(title: str, plain: Run, run: Run, steady: set[str]) -> bool:
    """Print how a run with probes compares with a plain one; return whether anything is wrong."""
    print(f"{title}: status {run.status}, {run.whole:.1f} s")
    wrong = False
    for name, digest in plain.digests.items():
        same = run.digests.get(name) == digest
        differs = name in steady and not same
        wrong |= differs
        word = "DIFFERS" if differs else "same" if same else "varies by itself"
        seconds = run.seconds.get(name)
        slower = f"{1e3 * seconds:9.2f} {seconds / plain.seconds[name]:6.2f}" if seconds else "     none"
        print(f"    {name:12} {1e3 * plain.seconds[name]:9.2f} ms {slower}  {word}")
    if run.status:
        print("\n".join(run.errors.splitlines()[-5:]))
    return wrong or bool(run.status)


if __name__ == "__main__":
    sys.exit(main())
