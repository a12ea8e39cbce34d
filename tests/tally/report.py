"""Summarize the tally's lines: a summary to commit, and tables."""

from __future__ import annotations

import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from rich import box
from rich.table import Table

from tests.tally.check import BOUNDED
from tests.tally.sources import Module

QUOTED = re.compile(r"'[^']*'|\b[\w$.]+:\d+(?::\d+)?:? ?|\b\d{2,}\b")
MOST = 200  # failures that the summary lists

Line = dict[str, Any]


def summarise(modules: Iterable[Module], lines: Iterable[Line]) -> dict[str, Any]:
    """Return the counts per corpus, added registers and spills, and failures. If a kernel has several lines, the last
    one counts.
    """
    latest = {(line["module"], line["kernel"]): line for line in lines}
    everything = list(modules)
    corpora: dict[str, Line] = {}
    failures: list[str] = []
    for corpus in dict.fromkeys(module.corpus for module in everything):
        mine = [module for module in everything if module.corpus == corpus]
        corpora[corpus] = _corpus(mine, latest, failures)
    of_kernels = [line for line in latest.values() if line["kernel"]]
    return {
        "corpora": corpora,
        "added": {name: _added(name, of_kernels) for name in BOUNDED},
        "failures": sorted(failures)[:MOST],
        "failed": len(failures),
        "code": dict(Counter(line["code"] for line in latest.values())),
    }


def _corpus(modules: list[Module], latest: dict[tuple[str, str], Line], failures: list[str]) -> Line:
    whole = [latest[m.digest, ""] for m in modules if (m.digest, "") in latest]
    swept = [latest[m.digest, kernel] for m in modules for kernel in m.kernels if (m.digest, kernel) in latest]
    probes: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    original: Counter[str] = Counter()
    for line in [*whole, *swept]:
        where = f"{line['corpus']}: {line['name']}: {line['kernel']}".rstrip(": ")
        if line["kernel"] and not is_ours(line["same"]):
            original[_general(line["same"])] += 1
        elif line["same"] not in ("ok", None) and is_ours(line["same"]):
            failures.append(f"{where}: {line['same']}")
        if line.get("parsed", "ok") != "ok":
            failures.append(f"{where}: not parsed: {line['parsed']}")
        for name, result in line.get("probes", {}).items():
            probes[result["status"]] += 1
            if "why" in result:
                reasons[f"{result['status']}: {_general(result['why'])}"] += 1
            if result["status"] == "failed":
                failures.append(f"{where}: {name}: {result['why']}")
    judged = [line for line in swept if is_ours(line["same"])]
    return {
        "modules": len(modules),
        "kernels": sum(len(m.kernels) for m in modules),
        "bytes": sum(m.size for m in modules),
        "targets": sorted({m.target for m in modules}),
        "versions": sorted({m.version for m in modules}),
        "modules_swept": len(whole),
        "modules_parsed": sum(line["parsed"] == "ok" for line in whole),
        "kernels_swept": len(swept),
        "kernels_same": sum(line["same"] == "ok" for line in judged),
        "kernels_unjudged": dict(original.most_common()),
        "kernels_alone": sum(line["alone"] for line in swept),
        "probes": {status: probes[status] for status in ("woven", "nowhere", "left", "slow", "failed")},
        "reasons": dict(reasons.most_common()),
    }


def is_ours(same: str | None) -> bool:
    """Return whether ptxas accepted the original, which makes any failure ours."""
    return same is None or not same.startswith("ptxas:")


def _general(why: str) -> str:
    """Return a reason with the names removed."""
    return QUOTED.sub("..", why)[:160]


def _added(name: str, lines: list[Line]) -> Line:
    found = [(line, line["probes"][name]) for line in lines if "registers" in line["probes"].get(name, ())]
    by_corpus = defaultdict(list)
    for line, result in found:
        by_corpus[line["corpus"]].append(result["registers"])
    registers = sorted(result["registers"] for _, result in found)
    spilling = [
        f"{line['corpus']}: {line['name']}: {line['kernel']}: {line['registers']} registers, {result['spills']} bytes"
        for line, result in found
        if result.get("spills", 0) > 0
    ]
    return {
        "kernels": len(found),
        "median": statistics.median(registers) if registers else None,
        "p90": registers[len(registers) * 9 // 10] if registers else None,
        "max": registers[-1] if registers else None,
        "spilling": len(spilling),
        "spill": sorted(spilling)[:MOST],
        "medians": {corpus: statistics.median(values) for corpus, values in by_corpus.items()},
    }


def tables(summary: dict[str, Any]) -> list[Table]:
    """Return the summary for a terminal, and for docs/measured.md (Markdown)."""
    counts = Table(box=box.MARKDOWN)
    for title in ("corpus", "modules", "parsed", "kernels", "swept", "same code", "woven", "left alone", "failed"):
        counts.add_column(title, justify="left" if title == "corpus" else "right")
    totals: Counter[str] = Counter()
    for corpus, found in summary["corpora"].items():
        row = _row(found)
        totals.update(row)
        counts.add_row(corpus, *_cells(row))
    counts.add_row("all", *_cells(totals))
    added = Table(box=box.MARKDOWN)
    for title in ("probe", "kernels", "registers added: median", "nine of ten", "most", "kernels that spill more"):
        added.add_column(title, justify="left" if title == "probe" else "right")
    for name, found in summary["added"].items():
        keys = ("kernels", "median", "p90", "max", "spilling")
        added.add_row(name, *("" if found[key] is None else f"{found[key]:,g}" for key in keys))
    return [counts, added]


def markdown(table: Table) -> Iterator[str]:
    """Yield the lines of a Markdown table, without the blanks that only a terminal needs."""
    cells = zip(*(column.cells for column in table.columns), strict=True)
    yield _line(str(column.header) for column in table.columns)
    yield _line("---:" if column.justify == "right" else "---" for column in table.columns)
    yield from map(_line, cells)


def _line(cells: Iterable[Any]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _row(found: Line) -> dict[str, int]:
    return {
        **{key: found[key] for key in ("modules", "modules_swept", "modules_parsed", "kernels", "kernels_swept")},
        "unjudged": sum(found["kernels_unjudged"].values()),
        "same": found["kernels_same"],
        **found["probes"],
    }


def _cells(row: dict[str, int]) -> Iterable[str]:
    yield f"{row['modules']:,}"
    yield _share(row["modules_parsed"], row["modules_swept"])
    yield f"{row['kernels']:,}"
    # Rounded down, so that 100 % means all of them.
    share = f" ({100 * row['kernels_swept'] // row['kernels']}%)" if row["kernels"] else ""
    yield f"{row['kernels_swept']:,}{share}"
    yield _share(row["same"], row["kernels_swept"] - row["unjudged"])
    yield f"{row['woven']:,}"
    yield f"{row['left'] + row['slow']:,}"
    yield f"{row['failed']:,}"


def _share(part: int, whole: int) -> str:
    return f"{part:,} of {whole:,}"
