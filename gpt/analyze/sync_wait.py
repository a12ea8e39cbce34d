"""gpt-analyze sync_wait: how long warps wait at barriers, and for which other warps.

The warp that's the last of its block to reach a barrier waits least. *Imbalance* compares the warps of a block that
wait most and least: it's the difference between their waits, as a share of the longer wait. At 0 %, all warps wait for
the same time, which the barrier itself takes. At 100 %, one warp never waits, and the others wait for it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Self

from gpt.analyze.lib.answer import Answers, Column, make_answer, plot
from gpt.analyze.lib.command import Analysis
from gpt.analyze.lib.ratios import DRAWN, NAME, Kernel, Ratios
from gpt.screen.units import human_count, human_share

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from gpt.trace.buffers import Buffer, SavedBuffer
    from gpt.trace.process import Process

    Sums = npt.NDArray[np.float64]

PLACES = (
    NAME._replace(title="barriers of"),
    Column("warp", "u64", "id", "warp of its block"),
    Column("wait", "f64", "cycles", "clocks a barrier"),
    Column("waits", "u64", title="barriers"),
    Column("clocks", "u64", "cycles"),
)
TOP_PLACES = 16  # rows that a table shows
MOST_WARPS = 64  # warps per block for which sums are kept individually
LATE = 0.5  # a warp is late if its wait is less than this share of the others' mean wait


class SyncWait(Ratios):
    """An analysis of the clocks that warps spend at barriers."""

    name = "sync_wait"
    fields = ("waits", "clocks")
    nothing = "no warp reached a barrier"
    number, cost = "waits", "clocks"
    ratio = Column("wait", "f64", "cycles", "clocks a barrier")
    sums = (Column("waits", "u64", title="barriers"), Column("clocks", "u64", "cycles"))

    def __init__(self) -> None:
        import numpy as np

        super().__init__()
        self._places: dict[str, Sums] = defaultdict(partial(np.zeros, (2, MOST_WARPS)))  # waits and clocks, by warp
        self._spread: dict[str, Sums] = defaultdict(partial(np.zeros, 2))  # longest minus shortest wait, longest

    def add(self, process: Process, buffer: Buffer, saved: SavedBuffer) -> None:
        """Add a launch."""
        import numpy as np

        super().add(process, buffer, saved)
        clocks = saved.slots["clocks"].sum(axis=2, dtype=float)
        waits = saved.slots["waits"].sum(axis=2, dtype=float)
        warps = min(clocks.shape[1], MOST_WARPS)
        self._places[buffer.kernel][:, :warps] += waits[:, :warps].sum(axis=0), clocks[:, :warps].sum(axis=0)
        here = waits > 0
        most = np.where(here, clocks, 0).max(axis=1)
        least = np.where(here, clocks, np.inf).min(axis=1)
        several = here.sum(axis=1) > 1
        self._spread[buffer.kernel] += (most - least)[several].sum(), most[several].sum()

    def merge(self, other: Self) -> None:
        """Merge an analysis of later traces."""
        super().merge(other)
        for mine, theirs in ((self._places, other._places), (self._spread, other._spread)):
            for name, sums in theirs.items():
                mine[name] += sums

    def say(self, kernel: Kernel, total: Counter[str], where: str) -> Iterator[str]:
        """Yield the mean, the kernel that waits longest, and the warp for which others wait."""
        more, most = self._spread[kernel.name]
        uneven = f", imbalance {human_share(100 * more / most)}" if most else ""
        yield f"a warp waits {self.show(total)} a barrier on average ({human_count(total['waits'])} waits)"
        yield f"{where}: {self.show(kernel.sums)}{uneven}"
        yield from self._iter_late(kernel.name)

    def _iter_late(self, name: str) -> Iterator[str]:
        import numpy as np

        waits, clocks = self._places[name]
        here = np.flatnonzero(waits)
        if len(here) < 2:
            return
        each = clocks[here] / waits[here]
        last = int(each.argmin())
        others = (clocks[here].sum() - clocks[here][last]) / (waits[here].sum() - waits[here][last])
        if each[last] < LATE * others:
            clocks_of, own = human_count(float(others)), human_count(float(each[last]))
            yield f"others wait for warp {here[last]} of their block: {clocks_of} clocks, itself {own}"

    def iter_more(self, ordered: list[tuple[str, Kernel]]) -> Answers:
        """Yield how long the warps of a block wait, by the number of the warp."""
        import numpy as np

        rows = [
            (name, warp, clocks[warp] / waits[warp], int(waits[warp]), int(clocks[warp]))
            for name, (waits, clocks) in ((name, self._places[name]) for name, _ in ordered[:DRAWN])
            for warp in np.flatnonzero(waits).tolist()
        ]
        drawn = plot("lines", "warp", "wait", color="name", title="clocks in a barrier, by warp of the block")
        yield make_answer("places", PLACES, rows, top=TOP_PLACES, plots=[drawn])


ANALYSIS = Analysis("Show how long warps wait at barriers.", SyncWait)
