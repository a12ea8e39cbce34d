"""`python -m tests.fuzz` fuzzes every reader, or the named ones, for some minutes on all cores.

    python -m tests.fuzz [--minutes N | --runs N] [--seed S] [--jobs N] [--failures DIR] [TARGET...]
    python -m tests.fuzz --repeat TARGET FILE

Prints a table and, for each failing input, where it was saved and how to run it again. The exit status is 1 if there
are any.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path

from tests.formats.samples import SAMPLES
from tests.fuzz import engine, native
from tests.fuzz.native import Harness
from tests.fuzz.targets import ALL

JOBS = len(os.sched_getaffinity(0))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Fuzzes what reads hostile input.")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(ALL))
    parser.add_argument("--minutes", type=float, default=10, help="of wall-clock time, for all together")
    parser.add_argument("--runs", type=int, help="inputs of each instead, not guided by coverage")
    parser.add_argument("--seed", default=str(time.time_ns()))
    parser.add_argument("--jobs", type=int, default=JOBS)
    parser.add_argument("--failures", type=Path, default=Path("build/fuzz"))
    parser.add_argument("--repeat", action="store_true", help="run one TARGET on a FILE again")
    args = parser.parse_args()
    named = args.targets[:1] if args.repeat else args.targets
    if unknown := set(named) - ALL.keys():
        parser.error(f"no target '{min(unknown)}': {', '.join(ALL)}")
    if args.repeat:
        return repeat(*args.targets) if len(args.targets) == 2 else parser.error("--repeat takes a target and a file")
    return fuzz(args)


def fuzz(args: argparse.Namespace) -> int:
    """Run targets side by side, and report the results."""
    chosen = [target for name, target in ALL.items() if name in args.targets or not args.targets]
    failures = args.failures.resolve()
    print(f"fuzz: seed {args.seed}, {len(chosen)} targets, {args.jobs} at a time")
    bounds = {"count": args.runs} if args.runs else {"seconds": args.minutes * 60 * args.jobs / len(chosen)}
    bad = []
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(min(args.jobs, len(chosen))) as pool:
        top = Path(folder)
        guided = not args.runs
        if reason := guided and any(isinstance(t, Harness) for t in chosen) and native.why_not(top, guided=True):
            print(f"fuzz: {reason}: C code is fuzzed without coverage")
        sample = cache(partial(build, top))
        for name in NEEDED:
            sample(name)

        def run(target: engine.Target | Harness) -> engine.Result:
            work = top / "work" / target.name
            if isinstance(target, Harness):
                how = guided and not reason
                return native.run(target, sample, work, failures, seed=args.seed, guided=how, **bounds)
            return engine.run(target, sample, work, failures, seed=args.seed, guided=guided, **bounds)

        print(f"{'target':16}{'inputs':>10}{'covered':>9}{'parents':>9}{'failures':>10}")
        for result in pool.map(run, chosen):
            row = f"{result.name:16}{result.executions:10,}{result.lines:9,}{result.corpus:9,}"
            print(f"{row}{len(result.failures):10}", flush=True)
            bad += [(result.name, path) for path in result.failures]
    for name, path in bad:
        lines = path.with_suffix(".txt").read_text().strip().splitlines()
        said = next((line for line in lines if "ERROR: " in line or "runtime error: " in line), lines[-1])[:150]
        print(f"{path}: {said}\n    python -m tests.fuzz --repeat {name} {shlex.quote(str(path))}")
    return 1 if bad else 0


NEEDED = ["zstd", "small", "relocatable", "relr", "scattered", "fatbin", "cubin", "archive", "object_", "ptx"]


def build(folder: Path, name: str) -> Path:
    (folder / name).mkdir()
    return SAMPLES[name](folder / name)


def repeat(name: str, file: str) -> int:
    """Run one input again."""
    data = Path(file).read_bytes()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder, "work")
        work.mkdir()
        target = ALL[name]
        if isinstance(target, Harness):
            failure = native.repeat(target, work, data)
        else:
            failure = engine.repeat(target, cache(partial(build, Path(folder))), work, data)
    print(failure or "no failure")
    return 1 if failure else 0


if __name__ == "__main__":
    sys.exit(main())
