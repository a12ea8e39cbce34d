"""Write the records of a trace that aren't calls, as lines that begin with `# `. `events --json --notes` adds them to
its calls.

They hold what summaries, stages, gaps, memory and timelines need, as text for jq and grep; gpt/compat/tracers/lines.py
reads them back. Each line is a record in its JSON form, with all times in ns. Headers and the names of numbered things
come before the calls; everything else, and the ends of processes, come after them. Launches with probes and the buffers
that these saved, tensors and stacks are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from gpt.stream import jsonl, records
from gpt.trace.kinds import COVERED, DETAILS, RANGES, RUNS
from gpt.trace.machines import Machines

if TYPE_CHECKING:
    from gpt.trace.process import Process
    from gpt.trace.rows import Rows

KINDS = RUNS | DETAILS | RANGES | COVERED | {"device"}
TIMES = ("begin", "call")  # fields of GPU times that are time stamps
TICKS = ("tsc", "tsc_hz")  # keys of headers


class _Noted(NamedTuple):
    """A process, and the rows that have been taken from it so far."""

    process: Process
    gpu_times: list[Rows]
    launches: dict[int, int]
    counts: dict[int, int]


class Notes:
    """The processes that have been read."""

    def __init__(self) -> None:
        self._noted: dict[int, _Noted] = {}

    def take(self, process: Process) -> None:
        """Keep the rows that a process has collected, except its calls."""
        noted = self._noted.setdefault(id(process), _Noted(process, [], {}, {}))
        noted.gpu_times.extend(rows for _, rows in process.gpu_times.take())
        for function, count in process.take_launches().items():
            noted.launches[function] = noted.launches.get(function, 0) + count
        for _, rows in process.counts.take():
            for api, count in rows[["api", "count"]].tolist():
                noted.counts[api] = noted.counts.get(api, 0) + count

    def machines(self) -> Machines:
        """Return the machines of all processes. Readers count times from the first one."""
        return Machines(noted.process.header for noted in self._noted.values())

    def iter_before(self) -> Iterator[str]:
        """Yield the lines before the calls."""
        for process, *_ in self._noted.values():
            yield _line({key: value for key, value in process.header.items() if key not in TICKS})
            for id_, api in process.apis.items():
                if not process.is_ioctl(id_):
                    yield _line(records.make("api", id=id_, **api._asdict() | {"symbol": api.symbol or api.name}))
            for id_, name in process.kernels().items():
                yield _line(records.make("function", id=id_, name=name))

    def iter_after(self) -> Iterator[str]:
        """Yield the lines after the calls."""
        for place, noted in enumerate(self._noted.values(), 1):
            yield _line(records.make("resume", back=len(self._noted) - place))
            yield from _iter_records(noted)
            for rows in noted.gpu_times:
                yield from _iter_gpu_times(noted.process, rows)
            if noted.process.status is not None:
                yield _line(records.make("end", records=0, status=noted.process.status))


def _line(record: dict[str, Any]) -> str:
    (line,) = jsonl.lines(record)
    return f"# {line}\n"


def _stamp(process: Process, *stamps: int) -> list[int]:
    """Convert time stamps to ns."""
    import numpy as np

    found: list[int] = np.maximum(process.clock.times(np.array(stamps, np.uint64)), 0).tolist()
    return found


def _took(process: Process, ticks: int) -> int:
    import numpy as np

    return int(process.clock.durations(np.array([ticks], np.uint64))[0])


def _iter_records(noted: _Noted) -> Iterator[str]:
    process = noted.process
    for record in process.cards.values():
        yield _line(dict(record))
    for at, on in process.changes:
        yield _line(records.make("recording", on=on, at=_stamp(process, at)[0]))
    for handle, graph in process.graphs.iter_all():
        functions, launches = list(graph.kernels), list(graph.kernels.values())
        at = _stamp(process, graph.since)[0]
        more: dict[str, Any] = {"unknown": graph.unknown or None, "device": int(graph.for_device) or None}
        if graph.operations is not None:
            more["operations"] = [
                {key: value for key, value in one._asdict().items() if value is not None} for one in graph.operations
            ]
        yield _line(
            records.make("graph", exec=handle, at=at, nodes=graph.nodes, functions=functions, launches=launches, **more)
        )
    for record in process.ranges:
        key = "start" if record["kind"] == "range" else "end"
        yield _line({**record, key: _stamp(process, record[key])[0]})
    for record in process.ioctls:
        times: dict[str, Any] = {key: _stamp(process, record[key])[0] for key in ("start", "parent") if key in record}
        yield _line({**record, **times, "duration": _took(process, record["duration"])})
    unprobed = process.probes.unprobed if not process.probes.probed else {}  # these aren't all launches
    for (function, reason), count in unprobed.items():
        yield _line(records.make("unprobed", function=function, launches=count, **reason.keys()))
    for function, count in noted.launches.items():
        yield _line({"kind": "launch", "count": count, "function": function})
    for api, count in noted.counts.items():
        yield _line({"kind": "count", "count": count, "api": api})


def _iter_gpu_times(process: Process, rows: Rows) -> Iterator[str]:
    import numpy as np

    from gpt.trace.rows import GPU_CALLS, GPU_TIMES

    names = [name for name in GPU_TIMES | GPU_CALLS if name in (rows.dtype.names or ())]
    columns = []
    for name in names:
        values = rows[name]
        if name in TIMES:
            values = np.where(values != 0, process.clock.times(values), 0)
        elif name == "duration":
            values = process.clock.durations(values).astype(np.int64)
        columns.append(values.tolist())
    form = '# {"kind":"gpu_time",' + ",".join(f'"{name}":%d' for name in names) + "}\n"
    for row in zip(*columns, strict=True):
        yield form % row
