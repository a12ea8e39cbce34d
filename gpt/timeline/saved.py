"""Summarize the data that probes saved for the spans of their launches, as a few facts about each map.

The facts belong to the span of the kernel. If the trace doesn't say when the kernel ran, or which of the kernels of a
call it was, they belong to the span of the call.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from gpt.base.errors import MissingError, TruncatedError
from gpt.screen.demangle import readable

if TYPE_CHECKING:
    from gpt.trace.buffers import Buffer, MapLayout, ProbedLaunch
    from gpt.trace.model import Launch, TraceModel
    from gpt.trace.sums import BufferSums

Facts = dict[str, int | str]
Places = npt.NDArray[np.uint32]
Mask = npt.NDArray[np.bool_]
Key = tuple[int, int, int]  # process, thread, and start of the call

STAMP = 1 << 32  # if all integers are at least this large, they're clocks or addresses
AT_ONCE = 16  # launches of a call that are listed individually
HALF, LOW = np.uint64(32), np.uint64(0xFFFFFFFF)
LOST = "lost: the trace ends before it was written"


class Ran(NamedTuple):
    """A launch, the number of its process, and when it began. Unless `exact` is set, `begin` is the time of its graph
    or its call.
    """

    launch: Launch
    process: int
    begin: int
    exact: bool = True


class SavedSpans(NamedTuple):
    """The `facts` about spans. The tables map calls and GPU times to numbers of facts: `calls` and `work` do so for
    single rows, `calls_of` and `work_of` for all other rows of a process and function.

    `ran` are launches for which the time of the kernel or its graph is known, and `called` those for which only the
    time of the call is. `lost` is the number of launches without a call in the trace.
    """

    facts: list[Facts]
    calls: npt.NDArray[np.int64]  # pairs of a row and the number of its facts, sorted
    work: npt.NDArray[np.int64]
    calls_of: dict[tuple[int, int], int]
    work_of: dict[tuple[int, int], int]
    ran: list[Ran]
    called: list[Ran]
    lost: int

    def of_calls(self, rows: npt.NDArray[np.void], first: int = 0) -> Places:
        """Return the numbers of the facts about calls, or 0 for calls without any. `first` is the number of the first
        of these calls.
        """
        return _find_facts(rows, first, self.calls, self.calls_of, np.ones(len(rows), bool))

    def of_work(self, rows: npt.NDArray[np.void], first: int = 0) -> Places:
        """Return the numbers of the facts about GPU times, in the same way."""
        return _find_facts(rows, first, self.work, self.work_of, rows["probed"] == 0)


def _find_facts(
    rows: npt.NDArray[np.void], first: int, own: npt.NDArray[np.int64], of: dict[tuple[int, int], int], plain: Mask
) -> Places:
    found = np.zeros(len(rows), np.uint32)
    for (process, function), fact in of.items():
        found[plain & (rows["process"] == process) & (rows["function"] == function)] = fact
    low, high = np.searchsorted(own[:, 0], (first, first + len(rows)))
    found[own[low:high, 0] - first] = own[low:high, 1]
    return found


class SavedFinder:
    """Collects the facts about all launches that had probes or should have, from all calls and GPU times, which come in
    chunks.
    """

    def __init__(self, model: TraceModel) -> None:
        self._facts: list[Facts] = [{}]
        self._of: dict[tuple[int, int], int] = {}  # facts about kernels without probes, by process and function
        self._seen: set[tuple[int, int]] = set()  # the kernels among them that have GPU times
        for number, process in enumerate(model.processes):
            reasons = defaultdict[int, list[str]](list)
            for function, reason in process.probes.unprobed:
                reasons[function].append(str(reason))
            for function, known in reasons.items():
                self._of[number, function] = len(self._facts)
                self._facts.append({"unprobed": " or ".join(sorted(known))})
        self._launches = list(_iter_launches(model))
        self._starts = np.unique(np.array([key[2] for _, _, key in self._launches], np.int64))
        self._called = defaultdict[Key, list[int]](list)  # numbers of calls
        self._ran = defaultdict[Key, list[tuple[int, int, int]]](list)  # numbers of GPU times, with function and begin
        self._counts = [0, 0]

    def add_calls(self, rows: npt.NDArray[np.void]) -> None:
        """Look at some calls."""
        for place, key in _iter_keys(rows, "start", self._starts):
            self._called[key].append(self._counts[0] + place)
        self._counts[0] += len(rows)

    def add_work(self, rows: npt.NDArray[np.void]) -> None:
        """Look at some GPU times."""
        for process, function in self._of.keys() - self._seen:
            if ((rows["process"] == process) & (rows["function"] == function) & (rows["probed"] == 0)).any():
                self._seen.add((process, function))
        for place, key in _iter_keys(rows, "call", self._starts):
            row = self._counts[1] + place, int(rows["function"][place]), int(rows["begin"][place])
            self._ran[key].append(row)
        self._counts[1] += len(rows)

    def find(self) -> SavedSpans:
        """Return all facts."""
        facts, titles = self._facts, _name_kernels(self._launches)
        of_calls, of_work = dict[int, int](), dict[int, int]()
        placed, called, lost = [], [], 0
        unseen = {key: fact for key, fact in self._of.items() if key not in self._seen}
        for launch, saved, key in self._launches:
            found = [one for one in self._ran[key] if one[1] == launch.function]
            found = found or [one for one in self._ran[key] if one[1] == 0]  # a whole graph
            places, here = (of_work, [found[0][0]]) if len(found) == 1 else (of_calls, self._called[key])
            if not here:
                lost += 1
                continue
            if saved and places is of_work:
                placed.append(Ran(saved, key[0], found[0][2], found[0][1] != 0))
            elif saved:
                called.append(Ran(saved, key[0], key[2], False))
            if here[0] not in places:
                places[here[0]] = len(facts)
                facts.append({"launches": 0})
            _add(facts[places[here[0]]], launch, saved, titles)
        for each in facts:
            if each.get("launches") == 1:
                del each["launches"]
        calls, work = (np.array(sorted(of.items()), np.int64).reshape(-1, 2) for of in (of_calls, of_work))
        return SavedSpans(facts, calls, work, unseen, self._of, placed, called, lost)


def _name_kernels(launches: list[tuple[ProbedLaunch, Launch | None, Key]]) -> dict[str, str]:
    names = sorted({saved.kernel for _, saved, _ in launches if saved})
    return dict(zip(names, readable(names), strict=True))


def _iter_launches(model: TraceModel) -> Iterator[tuple[ProbedLaunch, Launch | None, Key]]:
    """Yield each launch with probes, the data that it saved, if any, and its call."""
    known = {(launch.process, launch.launch.id): launch for launch in model.launches}
    for number, process in enumerate(model.processes):
        launches: list[ProbedLaunch] = process.probes.take_told("probed")
        starts = model.times(process, np.array([launch.start for launch in launches], np.uint64)).tolist()
        for launch, start in zip(launches, starts, strict=True):
            yield launch, known.get((process, launch.id)), (number, launch.thread, start)


def _iter_keys(rows: npt.NDArray[np.void], stamp: str, starts: npt.NDArray[np.int64]) -> Iterator[tuple[int, Key]]:
    """Yield the indexes of rows that belong to calls with these starts, and these calls."""
    for place in np.flatnonzero(np.isin(rows[stamp], starts)).tolist() if len(starts) else ():
        row = rows[place]
        yield place, (int(row["process"]), int(row["thread"]), int(row[stamp]))


def _add(facts: Facts, launch: ProbedLaunch, saved: Launch | None, titles: dict[str, str]) -> None:
    """Add the facts about a launch. If it isn't the first launch of its call, the name of the kernel and the number of
    the launch are added to their names.
    """
    number = facts["launches"] = int(facts["launches"]) + 1
    if number > AT_ONCE:
        return
    before = f"{titles[saved.kernel]}, launch {launch.id}: " if saved and number > 1 else ""
    for buffer in saved.buffers.values() if saved else ():
        facts.update((f"{before}{name}", value) for name, value in describe(buffer).items())
    if not saved:
        facts[f"launch {launch.id}"] = LOST


def describe(buffer: Buffer) -> Facts:
    """Describe the data of a launch for one map in a few words."""
    layout, name = buffer.map, buffer.map.name
    if buffer.unsaved:
        return {name: str(buffer.lost or "")}
    try:
        if buffer.reduced:
            return _describe_sums(layout, buffer.read_sums())
        saved = buffer.read()
    except (MissingError, TruncatedError) as error:
        return {name: f"lost: {error.fact}"}
    if layout.copies:
        facts: Facts = {f"{name}.values": int(saved.counts.sum())}
        facts |= {f"{name}.keys": len(saved.slots)} if layout.table and layout.capacity else {}
        return facts | ({f"{name}.dropped": saved.dropped} if saved.dropped else {})
    if layout.type == "total" and not layout.ops:
        sums = {field: _sum(saved.slots[field]) for field in layout.types if layout.capacity}
        return {f"{name}.{field}": value for field, value in sums.items() if value or not any(sums.values())}
    used = saved.slots
    block = np.zeros(len(used), np.int64)
    if layout.type != "log":
        there = np.arange(layout.capacity) < saved.counts[:, :, None]
        block, used = np.nonzero(there)[0], used[there]
    facts = {f"{name}.records": len(used) if layout.capacity else int(saved.counts.sum())}
    if saved.dropped and layout.capacity:
        facts[f"{name}.dropped"] = saved.dropped
    if saved.overwritten:
        facts[f"{name}.overwritten"] = saved.overwritten
    if layout.ranges:
        return facts
    if "sm" in layout.unsigned and layout.type != "log" and len(used):
        pairs = np.unique(np.stack([used["sm"].astype(np.uint64), block.astype(np.uint64)], axis=1), axis=0)
        blocks = np.unique(pairs[:, 0], return_counts=True)[1]
        facts |= {f"{name}.SMs": len(blocks), f"{name}.blocks an SM": _range(blocks)}
    fields = [field for field in layout.types if field != "sm"]
    return facts | ({f"{name}.{field}": _describe(used[field], layout, field) for field in fields} if len(used) else {})


def _describe_sums(layout: MapLayout, sums: BufferSums) -> Facts:
    """Describe the data for a map if only the sums were kept."""
    if layout.type == "total" and not layout.ops:
        found = {field: one.total for field, one in sums.fields.items()}
        return {f"{layout.name}.{field}": int(sum_) for field, sum_ in found.items() if sum_ or not any(found.values())}
    facts: Facts = {f"{layout.name}.records": sums.records if layout.capacity else sums.saves}
    return facts | ({f"{layout.name}.dropped": sums.dropped} if sums.dropped and layout.capacity else {})


def _describe(values: npt.NDArray[np.generic], layout: MapLayout, field: str) -> int | str:
    if values.dtype.kind == "f":
        known = values[np.isfinite(values.astype(np.float64))]
        odd = f"{len(values) - len(known):,} not finite" if len(known) < len(values) else ""
        return ", ".join(filter(None, [str(_range(known)) if len(known) else "", odd]))
    if field in layout.unsigned and int(values.min()) >= STAMP:
        return f"{int(values.max()) - int(values.min()):,} from first to last"
    return _range(values)


def _range(values: npt.NDArray[np.generic]) -> int | str:
    least, most = values.min().item(), values.max().item()
    if isinstance(least, int):
        return least if least == most else f"{least:,} to {most:,}"
    return f"{least:.6g}" if least == most else f"{least:.6g} to {most:.6g}"


def _sum(values: npt.NDArray[np.generic]) -> int | str:
    if values.dtype.kind == "f":
        return f"{float(values.astype(np.float64).sum()):.6g}"
    if values.dtype.kind == "i":
        return int(values.astype(np.int64).sum())
    whole = values.astype(np.uint64)
    return (int((whole >> HALF).sum()) << 32) + int((whole & LOW).sum())
