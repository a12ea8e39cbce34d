"""Summarize the data that probes saved for the spans of their launches: a few facts for each map.

Facts belong to the kernel's span. If the trace doesn't say when the kernel ran, or which of a call's kernels it was,
they belong to the call's span.
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
Key = tuple[int, int, int]  # process, thread, and the start of the call

STAMP = 1 << 32  # integers that are all this large are clocks or addresses
AT_ONCE = 16  # launches per call to list individually
HALF, LOW = np.uint64(32), np.uint64(0xFFFFFFFF)
LOST = "lost: the trace ends before it was written"


class SavedSpans(NamedTuple):
    """`facts` of spans, and the index of each call's and each GPU time's own facts; 0 for none.

    `ran` are launches whose GPU time is known, with its index; `lost` counts launches without a call in the trace.
    """

    facts: list[Facts]
    calls: Places
    work: Places
    ran: list[tuple[Launch, int]]
    lost: int


def find_saved(model: TraceModel, calls: npt.NDArray[np.void], gpu: npt.NDArray[np.void]) -> SavedSpans:
    """Collect the facts of all launches, probed or meant to be."""
    facts: list[Facts] = [{}]
    of_calls, of_work = np.zeros(len(calls), np.uint32), np.zeros(len(gpu), np.uint32)
    for number, process in enumerate(model.processes):
        reasons = defaultdict[int, list[str]](list)
        for function, reason in process.probes.unprobed:
            reasons[function].append(str(reason))
        for function, known in reasons.items():
            own = (gpu["process"] == number) & (gpu["function"] == function) & (gpu["probed"] == 0)
            of_work[own] = len(facts)
            if not own.any():
                of_calls[(calls["process"] == number) & (calls["function"] == function)] = len(facts)
            facts.append({"unprobed": " or ".join(sorted(known))})
    launches = list(_iter_launches(model))
    starts = np.unique(np.array([key[2] for _, _, key in launches], np.int64))
    ran, called = _by_key(gpu, "call", starts), _by_key(calls, "start", starts)
    names = sorted({saved.kernel for _, saved, _ in launches if saved})
    titles = dict(zip(names, readable(names), strict=True))
    placed, lost = [], 0
    for launch, saved, key in launches:
        rows = [row for row in ran[key] if gpu["function"][row] == launch.function]
        rows = rows or [row for row in ran[key] if gpu["function"][row] == 0]  # a whole graph
        places, here = (of_work, rows) if len(rows) == 1 else (of_calls, called[key])
        if not here:
            lost += 1
            continue
        if places is of_work and saved:
            placed.append((saved, here[0]))
        if "launches" not in facts[places[here[0]]]:
            places[here[0]] = len(facts)
            facts.append({"launches": 0})
        _add(facts[places[here[0]]], launch, saved, titles)
    for each in facts:
        if each.get("launches") == 1:
            del each["launches"]
    return SavedSpans(facts, of_calls, of_work, placed, lost)


def _iter_launches(model: TraceModel) -> Iterator[tuple[ProbedLaunch, Launch | None, Key]]:
    """Yield each probed launch, the data that it saved if there is any, and its call."""
    known = {(launch.process, launch.launch.id): launch for launch in model.launches}
    for number, process in enumerate(model.processes):
        launches: list[ProbedLaunch] = process.probes.take_told("probed")
        starts = model.times(process, np.array([launch.start for launch in launches], np.uint64)).tolist()
        for launch, start in zip(launches, starts, strict=True):
            yield launch, known.get((process, launch.id)), (number, launch.thread, start)


def _by_key(rows: npt.NDArray[np.void], stamp: str, starts: npt.NDArray[np.int64]) -> defaultdict[Key, list[int]]:
    """Return the indices of rows that belong to calls with these starts."""
    found = defaultdict[Key, list[int]](list)
    for place in np.flatnonzero(np.isin(rows[stamp], starts)).tolist():
        row = rows[place]
        found[int(row["process"]), int(row["thread"]), int(row[stamp])].append(place)
    return found


def _add(facts: Facts, launch: ProbedLaunch, saved: Launch | None, titles: dict[str, str]) -> None:
    """Add the facts of a launch. If it isn't the first of its call, their names get the kernel and the launch."""
    number = facts["launches"] = int(facts["launches"]) + 1
    if number > AT_ONCE:
        return
    before = f"{titles[saved.kernel]}, launch {launch.id}: " if saved and number > 1 else ""
    for buffer in saved.buffers.values() if saved else ():
        facts.update((f"{before}{name}", value) for name, value in describe(buffer).items())
    if not saved:
        facts[f"launch {launch.id}"] = LOST


def describe(buffer: Buffer) -> Facts:
    """Describe a map of a launch in a few words."""
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
    if "sm" in layout.unsigned and layout.type != "log" and len(used):
        pairs = np.unique(np.stack([used["sm"].astype(np.uint64), block.astype(np.uint64)], axis=1), axis=0)
        blocks = np.unique(pairs[:, 0], return_counts=True)[1]
        facts |= {f"{name}.SMs": len(blocks), f"{name}.blocks an SM": _range(blocks)}
    fields = [field for field in layout.types if field != "sm"]
    return facts | ({f"{name}.{field}": _describe(used[field], layout, field) for field in fields} if len(used) else {})


def _describe_sums(layout: MapLayout, sums: BufferSums) -> Facts:
    """Describe a map of which only sums were kept."""
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
