"""`make tally`: weave every probe into every kernel of the corpora (tests/tally/sources.py), and parse all of their
PTX.

    python -m tests.tally [-j N] [--minutes M] [--corpus NAME]... [--stale] [--fresh] [--report]

Results go to XDG_CACHE_HOME/gpt-tests/tally/lines.jsonl, one line per module or kernel, written at once. So the next
run continues a run that was interrupted or whose --minutes were over. It also retries failures and, with --stale,
repeats work that was done with another version of this project. Without --minutes, it runs until everything is done,
which takes hours. The summary goes to docs/figures/tally/tally.json, with the lines next to it, so that another machine
can continue.

Exit status: 0; 1 if something failed; 4 if a corpus isn't available.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import lzma
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from rich.console import Console

from gpt.base.errors import GptError
from gpt.ptx.scan import scan_module
from tests.tally import check, report, sources
from tests.tally.plan import Piece, plan

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs/figures/tally/tally.json"
LINES = sources.CACHE / "lines.jsonl"
JUDGED = ("gpt/ptx", "gpt/probe", "gpt/asm", "probes")  # the code under test; every line has its digest

Line = dict[str, Any]


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.tally", description="Every probe in every kernel.")
    parser.add_argument("-j", dest="jobs", type=int, default=len(os.sched_getaffinity(0)), metavar="N")
    parser.add_argument("--minutes", type=float, default=0, metavar="M", help="begin nothing more after them")
    parser.add_argument("--corpus", action="append", choices=sources.CORPORA, help="only this; repeatable")
    parser.add_argument("--stale", action="store_true", help="repeat results of other code")
    parser.add_argument("--fresh", action="store_true", help="forget all results")
    parser.add_argument("--report", action="store_true", help="only add up the results")
    given = parser.parse_args(argv)
    begin(given.fresh)
    end = time.monotonic() + given.minutes * 60 if given.minutes else None
    modules, status = [], 0
    for corpus in sources.CORPORA:
        try:
            wanted = not given.report and corpus in (given.corpus or sources.CORPORA)
            if wanted or (sources.CACHE / corpus / "index.json").exists():
                modules += sources.load(corpus, given.jobs)
        except (OSError, RuntimeError, subprocess.CalledProcessError, GptError) as error:
            print(f"tally: error: {corpus}: {error}", file=sys.stderr)
            status = 4
    if not given.report:
        os.environ["CUDA_HOME"] = str(sources.newest_cuda())
        pieces = plan(module for module in modules if module.corpus in (given.corpus or sources.CORPORA))
        sweep(list(remaining(pieces, given.stale)), given.jobs, end)
    summary = {"made with": sources.provenance(), **report.summarise(modules, read_lines())}
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(summary, indent=1) + "\n")
    kept().write_bytes(lzma.compress(LINES.read_bytes()))
    console = Console(width=160)
    for table in report.tables(summary):
        console.print(table)
    for failure in summary["failures"]:
        print(f"tally: failed: {failure}", file=sys.stderr)
    return status or int(summary["failed"] > 0)


def kept() -> Path:
    """Return the lines next to the summary, from which another machine can continue."""
    return RESULTS.with_name(f"{LINES.name}.xz")


def begin(fresh: bool) -> None:
    """Create the file of lines: empty, with the existing lines, or with the committed ones."""
    LINES.parent.mkdir(parents=True, exist_ok=True)
    if fresh or not LINES.exists():
        LINES.write_bytes(lzma.decompress(kept().read_bytes()) if kept().exists() and not fresh else b"")


def read_lines() -> Iterator[Line]:
    """Read the results. A line that a crash cut short is skipped."""
    for text in LINES.read_text().splitlines():
        try:
            yield json.loads(text)
        except ValueError:
            continue


def remaining(pieces: list[Piece], stale: bool) -> Iterator[Piece]:
    """Return the remaining work: pieces not done, failed, or, with `stale`, done with another version of the code."""
    good: dict[tuple[str, str], bool] = {}
    for line in read_lines():
        good[line["module"], line["kernel"]] = not is_failure(line) and (not stale or line["code"] == code())
    for piece in pieces:
        digest = piece.module.digest
        kernels = [(kernel, alone) for kernel, alone in piece.kernels if not good.get((digest, kernel))]
        whole = piece.whole and not good.get((digest, ""))
        if whole or kernels:
            yield Piece(piece.module, whole, kernels)


def is_failure(line: Line) -> bool:
    return (
        line.get("parsed", "ok") != "ok"
        or (line["same"] not in ("ok", None) and report.is_ours(line["same"]))
        or any(result["status"] == "failed" for result in line.get("probes", {}).values())
    )


def sweep(pieces: list[Piece], jobs: int, end: float | None) -> None:
    """Do the pieces in order until time is up, and then finish the pieces that have started."""
    console = Console(stderr=True)
    waiting = iter(pieces)
    done = 0
    if LINES.stat().st_size and not LINES.read_bytes().endswith(b"\n"):  # a crash has truncated the last line
        with open(LINES, "ab") as file:
            file.write(b"\n")
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("fork")) as pool:
        running = {pool.submit(do, piece) for piece in islice(waiting, jobs)}
        while running:
            finished, running = wait(running, return_when=FIRST_COMPLETED)
            for future in finished:
                future.result()
                done += 1
                if end is None or time.monotonic() < end:
                    running |= {pool.submit(do, piece) for piece in islice(waiting, 1)}
            if done % 100 < len(finished):
                console.print(f"tally: {done:,} of {len(pieces):,} pieces")


def do(piece: Piece) -> None:
    """Do one piece in its own process; write its lines as they arrive."""
    module = piece.module
    data = module.data()
    if piece.whole:
        write(piece, "", check.check_module(data, module.name))
    if piece.kernels:
        scanned = scan_module(data, module.name)
        for kernel, alone in piece.kernels:
            write(piece, kernel, {"alone": alone, **check.check_kernel(scanned, kernel, alone)})


def write(piece: Piece, kernel: str, found: Line) -> None:
    """Append a line with a single write, because several processes append."""
    module = piece.module
    line = {"corpus": module.corpus, "module": module.digest, "name": module.name, "kernel": kernel, "code": code()}
    with open(LINES, "ab", buffering=0) as file:
        file.write(json.dumps(line | found).encode() + b"\n")


@cache
def code() -> str:
    """Return a digest of the code under test."""
    files = sorted(path for folder in JUDGED for path in (ROOT / folder).rglob("*") if path.suffix != ".pyc")
    return hashlib.sha256(b"".join(path.read_bytes() for path in files if path.is_file())).hexdigest()[:12]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
