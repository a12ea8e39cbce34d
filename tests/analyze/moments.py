"""Traces with ranges, launches and GPU times at chosen moments, in ms."""

from __future__ import annotations

from gpt.stream import records
from gpt.trace.modules import LAYERS
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
    """Return GPU times for tuples of thread, time of the call in ms, api, function, and duration in ms."""
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


def graph(since: float, nodes: list[tuple[int, int, float]], told: bool = True, **more: object) -> list[dict]:
    """Return an executable graph whose nodes are (function, thread, ms) of captured calls; ms 0 if unknown."""
    counts = {function: [one[0] for one in nodes].count(function) for function, *_ in nodes}
    keys = {"nodes": len(nodes), "functions": list(counts), "launches": list(counts.values()), "operations": []}
    made = [records.make("graph", exec=EXEC, at=at(since), **{**keys, **more})]
    columns = list(zip(*nodes, strict=True))
    if told:
        calls = [at(ms) if ms else 0 for ms in columns[2]]
        made.append(records.make("graph_nodes", exec=EXEC, at=at(since), functions=list(columns[0]),
                                 threads=list(columns[1]), calls=calls))  # fmt: skip
    return made


LAYERED = [*ranges(("layers.0.attn", 1, 2), ("layers.0.mlp", 2, 3), ("layers.1.attn", 3, 4), domain=LAYERS)]
CAPTURED = [(1, 1, 1.5), (2, 1, 2.5), (1, 1, 3.5)]


def node_times(start: float, durations: list[int], pause: int = 0) -> dict:
    """Return the times of CAPTURED's nodes and of a copy captured in layers.0.mlp, in ms."""
    count = len(durations)
    return records.make("node_times", exec=EXEC, thread=2, start=at(start), begin=at(start), pause=pause,
                        types=[0, 0, 0, 1][:count], functions=[1, 2, 1, 0][:count], threads=[1] * count,
                        calls=[at(ms) for ms in (1.5, 2.5, 3.5, 2.6)][:count], early=[0] * count, begins=[0] * count,
                        durations=[ms * MS + pause for ms in durations])  # fmt: skip
