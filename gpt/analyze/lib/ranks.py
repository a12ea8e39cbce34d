"""Find the collective kernels of each rank, match them between ranks, and align the clocks of the ranks."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from gpt.analyze.lib.hidden import find_hidden
from gpt.analyze.lib.locations import tell_apart
from gpt.trace.calls_store import GPU, NO_DEVICE
from gpt.trace.machines import machine_of

if TYPE_CHECKING:
    from gpt.trace.model import TraceModel
    from gpt.trace.process import Process

Whole = npt.NDArray[np.int64]

# Names of kernels of NCCL, RCCL, torch's symmetric memory and vLLM. In a kernel that matches TOGETHER, each rank waits
# for all others.
TOGETHER = re.compile(
    r"nccl\w*(AllReduce|AllGather|ReduceScatter|All[Tt]oAll)|(multimem|one_shot|two_shot)_all_(reduce|gather)"
    r"|cross_device_reduce"
)
OTHERS = re.compile(r"nccl(Dev|Sym)*Kernel")
OVERLAP = 0.95  # minimum share of matched kernels that overlap
STEADY = 50_000, 0.2  # limit for the change of the distance between ends from one to the next: ns, share of their time
FEW = 9  # with fewer kernels than this, clocks are assumed to differ by a constant

Offset = tuple[Whole, Whole]  # ns to add to a clock, at these times


class Rank(NamedTuple):
    """A rank: its process, the ordinal of its device, and its name in tables. `said` is True if its header gave its
    rank.
    """

    process: Process
    device: int
    name: str
    host: str | None
    said: bool


@dataclass
class Lane:
    """The collective kernels in one stream of a rank, oldest first: names, begins and ends. If it was recorded, also
    when their launch calls began, and how many ns other kernels ran meanwhile.
    """

    rank: int
    clock: Hashable
    names: npt.NDArray[np.object_]
    begin: Whole
    end: Whole
    call: Whole | None = None
    hidden: Whole | None = None


class Communicator(NamedTuple):
    """A communicator. Arrays of times have the shape (ranks, collectives); all times are on one clock. `call` and
    `hidden` are None if they aren't known for all ranks.
    """

    ranks: list[int]
    names: npt.NDArray[np.object_]
    begin: Whole
    end: Whole
    call: Whole | None
    hidden: Whole | None


class Collectives(NamedTuple):
    """The collectives in a trace.

    `alone` are lanes that match no other lane. `others` are the times of all other kernels, in ns, by rank and name.
    `clocks` lists the clocks that were corrected: the name of the machine or GPU, and the ns added at the start and at
    the end. `offsets` has the correction of each clock.
    """

    ranks: list[Rank]
    groups: list[Communicator]
    alone: list[Lane]
    others: dict[tuple[int, str], Whole]
    clocks: list[tuple[str, int, int]]
    offsets: dict[Hashable, Offset]


class Split:
    """The time that each rank spent in each collective of a communicator, divided into waiting for the last rank, and
    transfer.
    """

    def __init__(self, group: Communicator) -> None:
        self.group = group
        self.last = group.begin.argmax(axis=0)
        self.arrived = group.begin.max(axis=0)
        self.waiting = np.minimum(self.arrived, group.end) - group.begin
        self.transfer = group.end - group.begin - self.waiting
        self.early = int((group.end < self.arrived).any(axis=0).sum())

    def name(self, found: Collectives, place: int) -> str:
        """Return the name of one of its ranks."""
        return found.ranks[self.group.ranks[place]].name


def find_collectives(trace: TraceModel) -> Collectives:
    """Return the collectives of all ranks."""
    runs = find_runs(trace)
    ranks = _name_ranks(trace, sorted({run[:2] for run in runs}))
    numbers = {(trace.processes.index(rank.process), rank.device): at for at, rank in enumerate(ranks)}
    lanes: list[Lane] = []
    others: dict[tuple[int, str], list[Whole]] = defaultdict(list)
    for (process, device, _), run in runs.items():
        good = [name for name in set(run.names.tolist()) if TOGETHER.search(name)]
        rank, together = numbers[process, device], np.isin(run.names, good)
        for name in set(run.names[~together].tolist()):
            here = run.names == name
            others[rank, name].append(run.end[here] - run.begin[here])
        if together.any():
            more = [values if values is None else values[together] for values in (run.call, run.hidden)]
            lanes.append(Lane(rank, run.clock, run.names[together], run.begin[together], run.end[together], *more))
    groups = _group(sorted(lanes, key=lambda lane: lane.rank))
    clocks = _set_clocks([group for group in groups if len(group) > 1])
    joined = [_join(group, clocks) for group in groups if len(group) > 1]
    names = {lane.clock: ranks[lane.rank].host or f"GPU of {ranks[lane.rank].name}" for lane in lanes}
    told = [(names[clock], int(by[0]), int(by[-1])) for clock, (_, by) in clocks.items() if by.any()]
    return Collectives(ranks, joined, [group[0][0] for group in groups if len(group) == 1],
                 {key: np.concatenate(parts) for key, parts in others.items()}, told, clocks)  # fmt: skip


def is_collective(name: str) -> bool:
    """Return True if a kernel exchanges data with other ranks."""
    return bool(TOGETHER.search(name) or OTHERS.search(name))


def find_runs(trace: TraceModel) -> dict[tuple[int, int, int], Lane]:
    """Return the collective kernels by process, device and stream.

    The collectives are taken from GPU times or, if a process has none, from the map of block_sched.
    """
    from gpt.analyze.lib.block_times import find_blocks

    found = {}
    wanted = [[id_ for id_, name in process.kernels().items() if is_collective(name)] for process in trace.processes]
    parts = [rows[_choose(rows, wanted)] for rows in trace.iter_gpu_times(trace.gpus())] if any(wanted) else []
    for number, process in enumerate(trace.processes):
        known = process.kernels()
        mine = [rows[rows["process"] == number] for rows in parts]
        own = np.concatenate([np.zeros(0, GPU), *mine])
        for device, stream in np.unique(own[["device", "stream"]]).tolist():
            rows = own[(own["device"] == device) & (own["stream"] == stream)]
            ids, places = np.unique(rows["function"], return_inverse=True)
            names = np.array([known[id_] for id_ in ids.tolist()], object)[places]
            end = rows["begin"] + rows["duration"].astype(np.int64)
            device = NO_DEVICE if device == NO_DEVICE else device
            lane = Lane(0, machine_of(process.header), names, rows["begin"].copy(), end)
            lane.call = rows["call"].copy() if rows["thread"].all() else None
            found[number, device, stream] = lane
        for device in np.unique(own["device"]).tolist():
            lanes = {stream: lane for (process_, device_, stream), lane in found.items()
                     if (process_, device_) == (number, device)}  # fmt: skip
            spans = {stream: (lane.begin, lane.end) for stream, lane in lanes.items()}
            for stream, hidden in find_hidden(trace, (number, device), wanted[number], spans).items():
                lanes[stream].hidden = hidden
        if not len(own):
            for (device, stream), (names, begin, end) in find_blocks(trace, process, is_collective).items():
                found[number, device, stream] = Lane(0, process.gpu(device), names, begin, end)
    return found


def _choose(rows: npt.NDArray[np.void], wanted: list[list[int]]) -> npt.NDArray[np.bool_]:
    """Return which rows ran a wanted function of their process."""
    chosen = np.zeros(len(rows), bool)
    for number in np.unique(rows["process"]).tolist():
        if wanted[number]:
            chosen |= (rows["process"] == number) & np.isin(rows["function"], wanted[number])
    return chosen


def _name_ranks(trace: TraceModel, places: list[tuple[int, int]]) -> list[Rank]:
    """Name ranks by the number in their headers, or else number them in the order of machine, process and device."""
    who = tell_apart(process.header for process in trace.processes)
    said = [who[process][1] for process, _ in places]
    good = None not in said and len(set(said)) == len(said)
    machines = [machine_of(process.header) for process in trace.processes]
    order = sorted(places, key=lambda at: (who[at[0]][1] or 0 if good else machines.index(machines[at[0]]), at))
    return [
        Rank(trace.processes[process], device, f"rank {who[process][1] if good else at}", who[process][0], good)
        for at, (process, device) in enumerate(order)
    ]


# Communicators

Member = tuple[Lane, int]  # a lane, and the index in it of the group's first kernel


def _group(lanes: list[Lane]) -> list[list[Member]]:
    """Group the lanes by communicator. A lane joins the group for which the distance between the ends of its
    collectives and the group's varies least.
    """
    groups: list[list[Member]] = []
    for lane in lanes:
        fits = [(*fit, at) for at, group in enumerate(groups) if (fit := _fit(group, lane))]
        if fits:
            _, shift, at = min(fits)
            groups[at].append((lane, shift))
        else:
            groups.append([(lane, 0)])
    return groups


def _fit(group: list[Member], lane: Lane) -> tuple[float, int] | None:
    """Compare the ends of collectives in a lane and in a group. Return by how many ns their distance varies, and the
    lane's shift, or None if they don't match.

    A lane may lack kernels at its start or end.
    """
    first = group[0][0]
    if any(member.rank == lane.rank for member, _ in group):
        return None
    best = None
    for shift in {0, len(first.names) - len(lane.names)}:
        a, b = slice(max(0, shift), None), slice(max(0, -shift), None)
        count = min(len(first.names[a]), len(lane.names[b]))
        if not count or (first.names[a][:count] != lane.names[b][:count]).any():
            continue
        begin, end = (values[a][:count] for values in (first.begin, first.end))
        apart = lane.end[b][:count] - end
        moved = float(np.median(np.abs(np.diff(apart)))) if count > 1 else 0.0
        clock = 0 if lane.clock == first.clock else np.interp(end, *_line(end, apart))
        together = (begin <= lane.end[b][:count] - clock) & (lane.begin[b][:count] - clock <= end)
        steady = max(STEADY[0], STEADY[1] * float(np.median(end - begin)))
        if together.mean() >= OVERLAP and moved <= steady and (best is None or moved < best[0]):
            best = moved, shift
    return best


def _line(at: Whole, values: Whole) -> Offset:
    """Fit a line to values with outliers: through the medians of the first and last third."""
    if len(at) < FEW:
        return np.array([at[0]]), np.array([int(np.median(values))])
    third = len(at) // 3
    x = [float(np.median(part)) for part in (at[:third], at[-third:])]
    y = [float(np.median(part)) for part in (values[:third], values[-third:])]
    slope = (y[1] - y[0]) / (x[1] - x[0]) if x[1] > x[0] else 0.0
    ends = at[[0, -1]]
    return ends, np.rint(y[0] + slope * (ends - x[0])).astype(np.int64)


def _cut(group: list[Member]) -> list[tuple[Lane, slice]]:
    """Return the range of kernels in each lane that all lanes of the group have."""
    low = max(shift for _, shift in group)
    high = min(shift + len(lane.names) for lane, shift in group)
    return [(lane, slice(low - shift, high - shift)) for lane, shift in group]


def _set_clocks(groups: list[list[Member]]) -> dict[Hashable, Offset]:
    """Return the offset of each clock from the clock of the first rank, if there are communicators that connect
    them.
    """
    none = np.array([0]), np.array([0])
    found: dict[Hashable, Offset] = {groups[0][0][0].clock: none} if groups else {}
    pending = [_cut(group) for group in groups]
    while pending:
        group = next((one for one in pending if any(lane.clock in found for lane, _ in one)), pending[0])
        pending.remove(group)
        if not any(lane.clock in found for lane, _ in group):
            found[group[0][0].clock] = none
        lane, places = next((lane, places) for lane, places in group if lane.clock in found)
        right = align(lane.end[places], found[lane.clock])
        for other in dict.fromkeys(one.clock for one, _ in group if one.clock not in found):
            ends = [one.end[places] for one, places in group if one.clock == other]
            mean = np.mean(ends, axis=0).astype(np.int64)
            found[other] = _line(mean, right - mean)
    return found


def align(times: Whole, offset: Offset) -> Whole:
    """Correct times of a clock."""
    found: Whole = times + np.rint(np.interp(times, *offset)).astype(np.int64)
    return found


def _join(group: list[Member], clocks: dict[Hashable, Offset]) -> Communicator:
    """Return the kernels of a group, with all times on one clock."""
    cut = _cut(group)
    begin, end = (
        np.array(
            [align(values[places], clocks[lane.clock]) for lane, places in cut for values in [getattr(lane, name)]]
        )
        for name in ("begin", "end")
    )
    call = [align(lane.call[places], clocks[lane.clock]) for lane, places in cut if lane.call is not None]
    hidden = [lane.hidden[places] for lane, places in cut if lane.hidden is not None]
    first, places = cut[0]
    known = (np.array(values) if len(values) == len(cut) else None for values in (call, hidden))
    return Communicator([lane.rank for lane, _ in group], first.names[places], begin, end, *known)
