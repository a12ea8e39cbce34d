"""gpt-analyze ioctl: the driver's requests to the Linux kernel, and the CUDA calls that cause them.

An ioctl to NVIDIA's devices has the name of its escape; ioctls that control or allocate objects also have a command or
a class. gpt-hook records which driver call each ioctl is part of. An ioctl without a call was made by one of the
driver's own threads, during a call that isn't recorded, or by another library that opens the devices.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

from gpt.analyze.lib.answer import Answers, Column, make_answer, plot
from gpt.analyze.lib.command import of_model
from gpt.analyze.lib.locations import WHO, tell_apart
from gpt.trace.kinds import CALLS, DETAILS

if TYPE_CHECKING:
    from gpt.trace.model import TraceModel

TIMES = (
    Column("calls", "u64", title="ioctls"),
    Column("failed", "u64", shown="any"),
    Column("total", "u64", "ns"),
    Column("share", "f64", "%"),
    *(Column(name, "u64", "ns") for name in ("mean", "p99", "slowest")),
)
IOCTLS = (
    Column("name", "text", title="ioctl"),
    Column("command", "text?", shown="under"),
    Column("device", "text?", shown="never"),
    Column("request", "u64?", "address", shown="never"),
    *TIMES,
)
CALLERS = (
    Column("function", "text", title="made by"),
    Column("name", "text?", shown="under"),
    Column("made_by", "u64?", title="calls"),
    *TIMES[:4],
    Column("of_call", "f64?", "%", "of the calls"),
)
FIRST = (
    Column("ioctl", "text", title="scheduling"),
    Column("function", "text", title="made by"),
    *WHO,
    Column("thread", "u64", "id", shown="never"),
    Column("time", "u64", "ns", "at"),
    Column("took", "u64", "ns"),
)
TOP, LISTED = 40, 1000
SCHEDULING = ("SCHEDULE", "TIMESLICE", "PREEMPT", "RUNLIST", "INTERLEAVE_LEVEL", "CHANNEL", "REALTIME", "CTXSW")
OUTSIDE = "(no call)"
NO_IOCTLS = (
    "no ioctl in the trace: 'gpt-hook run --ioctl' records those to /dev/nvidia*; the simulated device makes none"
)


class _Row(NamedTuple):
    """An ioctl. `call` is the index of the call that it's part of, or -1."""

    name: str
    command: str | None
    device: str
    request: int
    took: float
    failed: bool
    function: str
    call: int


def ioctl(trace: TraceModel) -> Answers:
    """Yield ioctls by name and command, the calls that make them, and the ioctls that affect scheduling."""
    rows: list[_Row] = []
    spent: dict[int, float] = {}  # ns of each call that makes ioctls
    scheduling: list[tuple[Any, ...]] = []
    who = tell_apart(process.header for process in trace.processes)
    for number, one in enumerate(who):
        found = list(_iter_rows(trace, number, spent))
        rows += [row for row, _, _ in found]
        for row, start, thread in found:
            if any(word in (row.command or "") for word in SCHEDULING):
                text = row.command or row.name
                scheduling.append((text, row.function, *one, thread, max(0, start), row.took))
    if not rows:
        return
    total = sum(row.took for row in rows)
    yield _make_ioctls(rows, total, spent)
    yield _make_callers(rows, total, spent)
    if scheduling:
        scheduling.sort(key=lambda row: row[6])
        verdict = [
            f"{len(scheduling):,} about channels, time slices and their scheduling: once they run, the GPU schedules"
        ]
        yield make_answer("scheduling", FIRST, scheduling[:LISTED], verdict, top=10)


def _iter_rows(trace: TraceModel, number: int, spent: dict[int, float]) -> Any:
    """Yield the ioctls of a process, with start and thread. The durations of the calls that make them are stored in
    `spent`.
    """
    import numpy as np

    from gpt.trace.escapes import name_command

    process = trace.processes[number]
    records = process.ioctls
    calls = _find_calls(trace, number, {(r["thread"], r["parent"]) for r in records if "parent" in r})
    starts = trace.times(process, np.array([r["start"] for r in records], np.uint64)).tolist()
    took = process.clock.durations(np.array([r["duration"] for r in records], np.uint64)).tolist()
    for record, start, time in zip(records, starts, took, strict=True):
        call, function, length = calls.get((record["thread"], record.get("parent", 0)), (-1, OUTSIDE, 0.0))
        if call >= 0:
            spent[call] = length
        name, command = record["name"], record.get("command")
        text = None if command is None else name_command(name, command)
        where = record["device"], record["request"]
        yield _Row(name, text, *where, time, "error" in record, function, call), start, record["thread"]


def _find_calls(
    trace: TraceModel, number: int, wanted: set[tuple[int, int]]
) -> dict[tuple[int, int], tuple[int, str, float]]:
    """Find calls by thread and start. Return, for each, its index among all calls, its function and its duration."""
    import numpy as np

    calls = trace.calls("stamp")
    parents = np.array(sorted({start for _, start in wanted}), np.uint64)
    places = np.flatnonzero((calls["process"] == number) & np.isin(calls["stamp"], parents))
    process = trace.processes[number]
    found = {}
    for at, row in zip(places.tolist(), calls[places], strict=True):
        key = int(row["thread"]), int(row["stamp"])
        if key in wanted and not process.is_ioctl(int(row["api"])):
            found[key] = at, process.api(int(row["api"])).name, float(row["duration"])
    return found


def _times(rows: list[_Row], whole: float) -> tuple[Any, ...]:
    """Return values for the columns TIMES."""
    import numpy as np

    took = np.array([row.took for row in rows])
    total = float(took.sum())
    p99 = float(np.percentile(took, 99, method="inverted_cdf"))
    failed = sum(row.failed for row in rows)
    return len(rows), failed, total, 100 * total / (whole or 1), total / len(rows), p99, float(took.max())


def _grouped(rows: list[_Row], *keys: str) -> list[tuple[Any, list[_Row]]]:
    """Group rows by some of their fields, longest total time first."""
    groups: dict[tuple[Any, ...], list[_Row]] = defaultdict(list)
    for row in rows:
        groups[tuple(getattr(row, key) for key in keys)].append(row)
    return sorted(groups.items(), key=lambda group: (-sum(row.took for row in group[1]), str(group[0])))


def _make_ioctls(rows: list[_Row], total: float, spent: dict[int, float]) -> Any:
    found: list[tuple[Any, ...]] = []
    for (name,), group in _grouped(rows, "name"):
        devices, requests = {row.device for row in group}, {row.request for row in group}
        one = min(devices) if len(devices) == 1 else None, min(requests) if len(requests) == 1 else None
        found.append((name, None, *one, *_times(group, total)))
        for (command, device, request), part in _grouped(
            [r for r in group if r.command], "command", "device", "request"
        ):
            found.append((name, command, device, request, *_times(part, total)))
    outside = sum(row.call < 0 for row in rows)
    inside = sum(row.took for row in rows if row.call >= 0)
    verdict = []
    if spent:
        share = 100 * inside / (sum(spent.values()) or 1)
        verdict.append(f"{share:.1f} % of the time of the CUDA calls that made them, {len(spent):,} in all")
    if outside:
        verdict.append(f"{outside:,} are part of no recorded CUDA call")
    return make_answer("ioctls", IOCTLS, found, verdict, top=TOP, plots=[plot("bars", "name", "total")])


def _make_callers(rows: list[_Row], total: float, spent: dict[int, float]) -> Any:
    """Return functions by their time in ioctls, longest first, each followed by its ioctls."""
    found: list[tuple[Any, ...]] = []
    for (function,), group in _grouped(rows, "function"):
        for name, part in [(None, group), *((n, p) for (n,), p in _grouped(group, "name"))]:
            made = {row.call for row in part if row.call >= 0}
            took = sum(spent[call] for call in made)
            share = 100 * sum(row.took for row in part) / (took or 1) if made else None
            found.append((function, name, len(made) or None, *_times(part, total)[:4], share))
    return make_answer("callers", CALLERS, found, top=TOP)


def _find_lack(kinds: set[str]) -> str | None:
    return None if kinds & {"ioctl", "child"} else NO_IOCTLS


def _find_need(trace: TraceModel) -> str | None:
    return None if any(process.ioctls for process in trace.processes) else NO_IOCTLS


ABOUT = "Show the driver's ioctls by CUDA call."
ANALYSIS = of_model(ioctl, ABOUT, CALLS | DETAILS, _find_lack, need=_find_need)
