"""Sums of launches and GPU times for 'summary --by', and the lines below its table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gpt.base.printable import shorten
from gpt.screen.units import amount, human_share, human_time
from gpt.trace.modules import SET_UP, UNKNOWN

UNSPLIT = "(graphs, not split)"
NAMED, WIDEST = 3, 40  # kernels named in a line, and their width


class Sums(NamedTuple):
    """Sums of launches and GPU times.

    `in_graphs` launches were made by graphs. `timed` counts the kernels, copies and graphs that have a GPU time, `time`
    adds up these times in ns, and `split` is the estimated part of `time`.
    """

    launches: float = 0
    in_graphs: float = 0
    timed: float = 0
    time: float = 0
    split: float = 0

    def __add__(self, other: Any) -> Sums:
        return Sums(*(a + b for a, b in zip(self, other, strict=True)))


@dataclass
class Verdict:
    """Collects the lines below the table."""

    by: str
    timed: bool
    started: int = 0
    no_origin: float = 0  # launches in replays of nodes whose creation isn't recorded
    split: float = 0  # ns
    by_node: float = 0  # ns that were split by the times of nodes
    rough: float = 0  # the part of by_node whose cost of events is a guess
    copied: float = 0  # the part of `split` that stands for copies
    unsplit: float = 0
    contents: Counter[str] = field(default_factory=Counter)  # ns or launches of the row UNKNOWN, by kernel or copy

    def lines(self, rows: dict[str, Sums]) -> Iterator[str]:
        """Yield the lines."""
        launches, time = (sum(getattr(one, name) for one in rows.values()) for name in ("launches", "time"))
        if (unknown := rows.get(UNKNOWN)) and self.by != "kernel":
            share = 100 * unknown.time / time if time else 100 * unknown.launches / (launches or 1)
            what = "GPU time" if time else "launches"
            where = {"range": "an open range", "stack": "a recorded stack"}.get(self.by, "a module")
            whole = self.contents.total() or 1
            most = (f"{shorten(name, WIDEST, middle=False)} {human_share(100 * one / whole)}"
                    for name, one in self.contents.most_common(NAMED))  # fmt: skip
            yield f"{UNKNOWN}: {share:.1f} % of the {what}, without {where}; of that, {', '.join(most)}"
        ready = [one for name, one in rows.items() if name.startswith(SET_UP)]
        if ready and launches:
            share = 100 * (
                sum(one.time for one in ready) / time if time else sum(one.launches for one in ready) / launches
            )
            yield f"set-up: {share:.1f} % of the {'GPU time' if time else 'launches'}, in none of the modules' rows"
        if self.no_origin:
            fact = "as the trace doesn't say where these nodes were created"
            yield f"{amount(int(self.no_origin), 'launch')} in replays counted where the graph was launched: {fact}"
        if self.split:
            how = "in proportion to the mean times of these kernels outside of graphs"
            yield f"estimated: {human_time(self.split)} of replays, split {how}"
        if self.copied:
            fact = "small copies in these graphs, whose modules aren't recorded, each counted as the shortest kernel"
            yield f"{UNSPLIT}: {human_time(self.copied)} of that are {fact}"
        if self.by_node:
            how = "in proportion to the times of their nodes, which --node-times measured in some of them"
            yield f"{human_time(self.by_node)} of replays split {how}"
        if self.rough:
            why = "no replay without stamps has a GPU time, so the cost of stamps isn't known well"
            yield f"{human_time(self.rough)} of them are less exact: {why}"
        if self.unsplit:
            fact = (
                "the time of a replay is one for all nodes, and some have no time outside of graphs to split it by:"
                " 'gpt-hook run --node-times 1/10' measures nodes"
            )
            yield f"{UNSPLIT}: {human_time(self.unsplit)}; {fact}"
        if self.started:
            yield f"{amount(self.started, 'range')} that no thread pushed: see 'gpt-analyze nvtx'"
        if not self.timed:
            yield "no GPU times: 'gpt-hook run --gpu-time' records when kernels ran"
