"""gpt-analyze bank_conflict: count the passes that accesses to the banks of shared memory take.

Shared memory has 32 banks, each 4 bytes wide. Lanes of a warp whose accesses the probe saw at the same clock access it
together, in one *request*. A request is served in groups of lanes that together ask for 128 bytes: all 32 lanes for
accesses of 4 bytes, 16 for 8 bytes, 8 for 16 bytes. A group takes as many *passes* as there are distinct words in its
busiest bank; lanes that ask for the same word share a pass. All passes of a group except the first are *conflicts*.

On the simulated device, lanes run one after another, each at its own clocks. There, the nth accesses of all lanes of a
warp count as one request, which is right as long as the lanes follow the same path.

The passes are computed from this rule; the device doesn't count them. Two kinds of instructions don't follow it:
atomics on the same word take further passes, and ldmatrix and stmatrix smaller than .x4 get addresses from only some of
the lanes.
"""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from gpt.analyze.lib.answer import Answers, Column, make_answer, plot
from gpt.analyze.lib.command import Analysis
from gpt.analyze.lib.map_analysis import LAUNCH, MapAnalysis, launch_row
from gpt.base.printable import printable, shorten
from gpt.screen.brief import brief_name
from gpt.screen.units import human_count, human_share

if TYPE_CHECKING:
    from gpt.trace.buffers import Buffer, SavedBuffer
    from gpt.trace.process import Process
    from gpt.trace.sums import BufferSums

COUNTS = (
    Column("requests", "u64"),
    Column("passes", "u64"),
    Column("conflicts", "u64"),
    Column("accesses", "u64"),
    Column("dropped", "u64", title="lost", shown="any"),
)
KERNELS = (
    Column("name", "text", "kernel", "kernel"),
    Column("launches", "u64"),
    Column("share", "f64", "%"),
    Column("conflicting", "f64", "%", "conflicting passes"),
    Column("worst", "u64", title="most ways"),
    *COUNTS,
)
LAUNCHES = (*LAUNCH, Column("conflicting", "f64", "%", "conflicting passes"), *COUNTS)
STRIDES = (
    Column("name", "text", "kernel", "accesses by"),
    Column("bytes", "u64", "bytes", "per lane"),
    Column("stride", "i64?", title="lane stride"),
    Column("ways", "f64"),
    Column("requests", "u64"),
    Column("conflicts", "u64"),
)
WAYS = (
    Column("name", "text", "kernel", "groups of"),
    Column("low", "u64", title="passes"),
    Column("high", "u64", shown="never"),
    Column("groups", "u64"),
)
LANES, BANKS, WORD, ROW = 32, 32, 4, 128  # ROW: most bytes that a pass can serve
WIDEST = 16  # most bytes that a lane can access at once
TOP, TOP_LAUNCHES, TOP_STRIDES = 30, 10, 10  # rows that tables show
MOST_LAUNCHES = 100_000  # limit for the number of launches in the answer
KEPT, DRAWN = 1000, 5  # strides kept per kernel; kernels in the picture
NAMED = 60  # width of a name in a sentence


class Passes(NamedTuple):
    """The requests of a launch, with the number of `groups` in each and the passes that they take."""

    size: Any  # bytes per lane
    stride: Any  # distance in bytes from the first lane's address to the second's
    alone: Any  # True if only one lane accesses memory
    least: Any  # passes without conflicts: one per group
    passes: Any
    groups: Any


class _Kernel:
    def __init__(self) -> None:
        self.sums = Counter[str]()
        self.ways = Counter[int]()  # number of groups, by how many passes they take
        self.strides: dict[tuple[int, int | None], Counter[str]] = {}

    @property
    def share(self) -> float:
        """Return the percentage of passes that are conflicts."""
        return 100 * self.sums["conflicts"] / (self.sums["passes"] or 1)


class BankConflict(MapAnalysis):
    """An analysis of the passes of each kernel and each launch, and the accesses that cause conflicts."""

    name = "bank_conflict"
    fields = ("clock", "address", "bytes")
    log = True
    summed = "launches and accesses"

    def __init__(self) -> None:
        super().__init__()
        self.kinds |= {"device"}
        self._kernels: dict[str, _Kernel] = {}
        self._rows: list[tuple[Any, ...]] = []
        self._simulated = False

    def add(self, process: Process, buffer: Buffer, saved: SavedBuffer) -> None:
        """Count the passes of a launch."""
        self._number += 1
        kernel = self._kernels.setdefault(buffer.kernel, _Kernel())
        simulated = any(runs == "ptx" for _, runs in process.devices)
        self._simulated |= simulated
        found = find_passes(saved, buffer.launch.threads, in_turn=simulated)
        passes = int(found.passes.sum())
        counts = {
            "requests": len(found.passes),
            "passes": passes,
            "conflicts": passes - int(found.least.sum()),
            "accesses": len(saved.slots),
            "dropped": saved.dropped,
        }
        kernel.sums.update(counts, launches=1)
        _add_groups(kernel, found)
        if len(self._rows) < MOST_LAUNCHES:
            share = 100 * counts["conflicts"] / (passes or 1)
            self._rows.append((*launch_row(self._number, process, buffer), share, *counts.values()))

    def add_sums(self, process: Process, buffer: Buffer, sums: BufferSums) -> None:
        """Add a launch for which only sums were kept. They don't tell which lanes accessed memory together."""
        self._number += 1
        kernel = self._kernels.setdefault(buffer.kernel, _Kernel())
        kernel.sums.update(launches=1, accesses=sums.records, dropped=sums.dropped)

    def merge(self, other: BankConflict) -> None:
        """Merge an analysis of later traces."""
        for name, kernel in other._kernels.items():
            mine = self._kernels.setdefault(name, _Kernel())
            mine.sums.update(kernel.sums)
            mine.ways.update(kernel.ways)
            for key, sums in kernel.strides.items():
                mine.strides.setdefault(key, Counter()).update(sums)
        self._simulated |= other._simulated
        self._rows += islice(self.renumbered(other._rows), MOST_LAUNCHES - len(self._rows))
        self.merge_launches(other)

    def iter_answers(self, verdict: list[str]) -> Answers:
        """Yield a table of kernels, most conflicts first, then launches, strides, and passes per group."""
        ordered = sorted(self._kernels.items(), key=lambda one: (-one[1].sums["conflicts"], one[0]))
        total = sum((kernel.sums for _, kernel in ordered), Counter[str]())
        names = [column.name for column in COUNTS]
        told = [f"{self.name}:requests {total['requests']} passes {total['passes']} conflicts {total['conflicts']}"]
        told += [self._say(*ordered[0], total), "of the blocks that are sampled"]
        told += ["simulated: the nth accesses of the lanes of a warp count as one request"] if self._simulated else []
        rows = [
            (
                name,
                kernel.sums["launches"],
                100 * kernel.sums["conflicts"] / (total["conflicts"] or 1),
                kernel.share,
                max(kernel.ways, default=0),
                *(kernel.sums[name] for name in names),
            )
            for name, kernel in ordered
        ]
        yield make_answer("kernels", KERNELS, rows, [*told, *verdict], top=TOP)
        more = self._number - len(self._rows)
        lines = [f"{more:,} more launches are only in the sums"] if more else []
        yield make_answer("launches", LAUNCHES, self._rows, lines, top=TOP_LAUNCHES)
        strides = [
            (name, size, stride, sums["passes"] / sums["least"], sums["requests"], sums["passes"] - sums["least"])
            for name, kernel in ordered
            for (size, stride), sums in kernel.strides.items()
        ]
        strides.sort(key=lambda row: (-row[5], -row[4], row[0], row[1]))
        yield make_answer("strides", STRIDES, strides, top=TOP_STRIDES)
        groups = [
            (name, ways, ways + 1, kernel.ways[ways])
            for name, kernel in ordered[:DRAWN]
            for ways in sorted(kernel.ways)
        ]
        drawn = plot(
            "histogram", "low", "groups", end="high", color="name", title=self.titled("passes of a group of lanes")
        )
        yield make_answer("ways", WAYS, groups, top=BANKS, plots=[drawn])

    def _say(self, name: str, kernel: _Kernel, total: Counter[str]) -> str:
        if not total["requests"]:
            return "no access to shared memory in these blocks"
        if not total["conflicts"]:
            return f"no conflicts: {human_count(total['passes'])} passes for {human_count(total['requests'])} requests"
        name = shorten(printable(brief_name(name)), NAMED, middle=False)
        share = human_share(100 * kernel.sums["conflicts"] / total["conflicts"])
        (size, stride), sums = max(kernel.strides.items(), key=lambda one: one[1]["passes"] - one[1]["least"])
        where = f"{share} of them in {name}, most in accesses of {size} bytes per lane, {stride} bytes apart"
        all_ = human_share(100 * total["conflicts"] / total["passes"])
        return f"{all_} of the passes are conflicts; {where}: {sums['passes'] / sums['least']:.3g} passes instead of 1"


def find_passes(saved: SavedBuffer, threads: int, in_turn: bool = False) -> Passes:
    """Return the requests of a launch, and the passes that each takes. Its blocks have `threads` threads.

    `in_turn` is True if the lanes of a warp run one after another, as on the simulated device.
    """
    import numpy as np

    assert saved.units is not None
    size = np.clip(saved.slots["bytes"].astype(np.int64), 1, WIDEST)
    address = saved.slots["address"].astype(np.int64)
    thread = (saved.units % np.uint64(threads)).astype(np.int64)
    warp = (saved.units // np.uint64(threads)).astype(np.int64) * (-(-threads // LANES)) + thread // LANES
    lane = thread % LANES
    clock = saved.slots["clock"]
    if in_turn:
        clock = _number_accesses(saved.units, clock)
    order = np.lexsort((size * LANES + lane, clock, warp))
    warp, clock, size, lane, address = (array[order] for array in (warp, clock, size, lane, address))
    opens = np.ones(len(order), bool)
    opens[1:] = (warp[1:] != warp[:-1]) | (clock[1:] != clock[:-1]) | (size[1:] != size[:-1])
    first = np.flatnonzero(opens)
    request = np.cumsum(opens) - 1
    lengths = np.diff(np.append(first, len(order)))
    second = np.minimum(first + 1, len(order) - 1)
    group = request * WIDEST + lane // np.maximum(ROW // size.clip(WORD), 1)
    groups, passes = _count_passes(group, address, size)
    owner = groups // WIDEST
    return Passes(
        size[first],
        address[second] - address[first],
        lengths == 1,
        np.bincount(owner, minlength=len(first)),
        np.bincount(owner, passes, len(first)).astype(np.int64),
        passes,
    )


def _number_accesses(units: Any, clock: Any) -> Any:
    """Number the accesses of each thread from 0 in the order of their clocks, and return these numbers."""
    import numpy as np

    order = np.lexsort((clock, units))
    opens = np.ones(len(order), bool)
    opens[1:] = units[order][1:] != units[order][:-1]
    first = np.flatnonzero(opens)
    number = np.empty(len(order), np.int64)
    number[order] = np.arange(len(order)) - np.repeat(first, np.diff(np.append(first, len(order))))
    return number


def _count_passes(group: Any, address: Any, size: Any) -> tuple[Any, Any]:
    """Return the numbers of all groups, sorted, and how many distinct words each accesses in its busiest bank."""
    import numpy as np

    words = (address + size - 1) // WORD - address // WORD + 1
    group, first = np.repeat(group, words), np.repeat(address // WORD, words)
    word = first + np.arange(len(first)) - np.repeat(np.cumsum(words) - words, words)
    opens = np.ones(len(group), bool)
    opens[1:] = group[1:] != group[:-1]
    places, which = group[opens], np.cumsum(opens) - 1
    ordered = np.sort((which << 32) | word)  # a word number has only slightly more than 30 bits
    fresh = np.ones(len(ordered), bool)  # np.unique would hash them, which takes ten times as long
    fresh[1:] = ordered[1:] != ordered[:-1]
    distinct = ordered[fresh]
    bank = (distinct >> 32) * BANKS + (distinct & (BANKS - 1))
    each = np.bincount(bank, minlength=len(places) * BANKS).reshape(-1, BANKS)
    return places, each.max(axis=1) if len(places) else np.zeros(0, np.int64)


def _add_groups(kernel: _Kernel, found: Passes) -> None:
    import numpy as np

    for ways, number in enumerate(np.bincount(found.groups).tolist()):
        if number:
            kernel.ways[ways] += number
    key = np.where(found.alone, 1 << 40, found.stride) * (WIDEST + 1) + found.size
    keys, which = np.unique(key, return_inverse=True)
    sums = [np.bincount(which, weights, len(keys)) for weights in (None, found.passes, found.least)]
    for one, requests, passes, least in zip(keys.tolist(), *(each.astype(int).tolist() for each in sums), strict=True):
        stride, size = divmod(one, WIDEST + 1)
        place = size, None if stride == 1 << 40 else stride
        if place in kernel.strides or len(kernel.strides) < KEPT:
            kernel.strides.setdefault(place, Counter()).update(requests=requests, passes=passes, least=least)


ANALYSIS = Analysis("Show which accesses to shared memory conflict.", BankConflict)
