"""Traces with ranges, launches and GPU times at chosen moments, in ms."""

from __future__ import annotations

from gpt.stream import records
from tests.trace import forge

MS, ZERO = 10**6, 10**9
APIS = [forge.api(1, "cuLaunchKernel"), forge.api(2, "cuGraphLaunch"), forge.api(3, "cuMemcpyHtoD")]
KERNELS = [records.make("function", id=1, name="k1"), records.make("function", id=2, name="k2")]
EXEC = 0x7F00


def at(ms: float) -> int:
    return ZERO + int(ms * MS)


def launches(*found: tuple[int, float, int], thread: int | None = None) -> list[dict]:
    """Return launches of (thread, ms, function)."""
    return [forge.calls([forge.launch(at(ms), 9, 1, function)], forge.LAUNCH, one) for one, ms, function in found]


def replays(*found: tuple[int, float]) -> list[dict]:
    return [forge.calls([(at(ms), 9, 2, 0, EXEC, 0)], forge.OBJECT, thread) for thread, ms in found]


def times(*found: tuple[int, float, int, int, float]) -> dict:
    """Return GPU times of (thread, ms of the call, api, function, ms)."""
    rows = [(at(1000), int(took * MS), at(call), 0, api, function, thread, 0)
            for thread, call, api, function, took in found]  # fmt: skip
    return records.make("gpu_times", **forge.rows(rows, forge.GPU_TIMES))


def ranges(*found: tuple, domain: str | None = None, first: int = 1) -> list[dict]:
    """Return ranges of (name, begin, end or None, thread, type)."""
    made = []
    for number, (name, begin, end, *more) in enumerate(found, first):
        thread, type_ = (*more, *(1, "push")[len(more) :])
        made.append(
            records.make("range", id=number, type=type_, thread=thread, domain=domain, name=name, start=at(begin))
        )
        if end is not None:
            made.append(records.make("range_end", id=number, thread=thread, end=at(end)))
    return made
