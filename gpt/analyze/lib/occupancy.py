"""Measure how full the device was during a launch: resident blocks and warps, the tail, and the imbalance of SMs.

A block is resident, with all of its warps, from the first clock of its warps to the last: its registers and slots only
become free when its last warp ends.

The *tail* is the time from when the first SM runs out of blocks to the end of the launch. An SM is *busy* while at
least one block is resident. The *imbalance* is the busy time of the busiest SM, divided by the mean over SMs. Both
consider only the SMs that the launch used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gpt.analyze.lib.schedule import Real, Schedule, Whole

if TYPE_CHECKING:
    from gpt.trace.buffers import ProbedLaunch

WARP = 32  # threads
BINS = 500  # time steps in the picture of resident blocks


class Resident(NamedTuple):
    """The number of resident `blocks`. It changes at `times` (ns): each number is valid until the next time."""

    times: Real
    blocks: Whole

    def mean_between(self, edges: Real) -> Real:
        """Return the mean number of blocks between consecutive edges."""
        area = np.concatenate(([0.0], np.cumsum(self.blocks[:-1] * np.diff(self.times))))
        found: Real = np.diff(np.interp(edges, self.times, area)) / np.maximum(np.diff(edges), 1e-9)
        return found


def find_resident(schedule: Schedule) -> Resident:
    """Return the resident blocks of all SMs together. If one block ends as another begins, the end comes first."""
    count = len(schedule.block)
    times = np.concatenate((schedule.ended, schedule.began))
    order = np.argsort(times, kind="stable")
    change = np.repeat(np.array([-1, 1]), count)[order]
    return Resident(times[order], np.maximum(np.cumsum(change), 0))


def find_busy(schedule: Schedule) -> Real:
    """Return how many clocks each SM had at least one block resident."""
    times = np.concatenate((schedule.end, schedule.begin))
    which = np.concatenate((schedule.which, schedule.which))
    change = np.repeat(np.array([-1, 1]), len(schedule.block))
    order = np.lexsort((change, times, which))
    spans = np.diff(times[order]) * (np.cumsum(change[order])[:-1] > 0)  # 0 from the last end on one SM to the next SM
    return np.bincount(which[order][:-1], spans, len(schedule.sms)).astype(np.float64)


class Occupancy:
    """Sums over one launch, or over all launches of a kernel whose times are known. Times are in ns."""

    _added = "launches", "time", "warps", "blocks", "tail", "busiest", "mean_busy", "known", "room"
    _most = "most_warps", "most_blocks", "holds"

    def __init__(self) -> None:
        self.launches = 0  # launches whose times are known
        self.time = self.warps = self.blocks = self.tail = 0.0  # ns; warps and blocks are multiplied by ns
        self.most_warps = self.most_blocks = 0
        self.busiest = self.mean_busy = 0.0  # clocks
        self.holds = 0  # warps
        self.known = self.room = 0.0  # resident warps, and the device's capacity, both times ns, where it's known

    def add(self, other: Occupancy) -> None:
        """Add the occupancy of other launches."""
        for name in self._added:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in self._most:
            setattr(self, name, max(getattr(self, name), getattr(other, name)))

    def row(self) -> tuple[Any, ...]:
        """Return the values of the columns OCCUPANCY of block_sched."""
        time, known = self.time or 1.0, self.time > 0
        values = (
            (self.warps / time, known),
            (self.most_warps, known),
            (100 * self.known / (self.room or 1.0), self.room > 0),
            (self.tail, known),
            (100 * self.tail / time, known),
            (self.busiest / (self.mean_busy or 1.0), self.mean_busy > 0),
            (self.blocks / time, known),
            (self.most_blocks, known),
            (self.holds, self.holds > 0),
        )
        return tuple(value if here else None for value, here in values)


def make_occupancy(schedule: Schedule | None, launch: ProbedLaunch, card: Mapping[str, Any]) -> Occupancy:
    """Return the occupancy of a launch. `card` is the record of its device, or empty."""
    found = Occupancy()
    found.holds = card.get("sms", 0) * card.get("warps", 0)
    if schedule is None:
        return found
    busy = find_busy(schedule)
    found.busiest, found.mean_busy = float(busy.max()), float(busy.mean())
    if schedule.ns_per_clock is None:
        return found
    warps = -(-launch.threads // WARP)
    found.launches = 1
    found.time = float(schedule.ended.max())
    found.blocks = float((schedule.ended - schedule.began).sum())
    found.warps = warps * found.blocks
    last = np.zeros(len(schedule.sms))
    np.maximum.at(last, schedule.which, schedule.ended)
    found.tail = found.time - float(last.min())
    found.most_blocks = int(find_resident(schedule).blocks.max())
    found.most_warps = warps * found.most_blocks
    if found.holds:
        found.known, found.room = found.warps, found.holds * found.time
    return found
