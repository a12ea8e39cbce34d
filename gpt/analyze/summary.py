"""gpt-analyze summary: what calls and how long, bytes each way, which kernels."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpt import cli, records

if TYPE_CHECKING:
    from gpt.analyze.base import Answer
    from gpt.analyze.totals import FunctionTotals, KernelTotals, ProcessTotals, Totals
    from gpt.trace.process import Process

MAX = (1 << 64) - 1


def summary(
    traces: Annotated[
        list[Path] | None, typer.Argument(metavar="[TRACE]...", help="Standard input without any.")
    ] = None,
    as_stream: cli.Stream = False,
    json: cli.Json = False,
    from_json: cli.FromJson = False,
    verbose: cli.Verbose = False,
    version: cli.Version = False,
) -> int:
    """Sum up calls, bytes and kernels of programs."""
    from gpt.analyze.base import run

    stage = cli.Stage("gpt-analyze", json=json, from_json=from_json, stream=as_stream, table=not (json or as_stream))
    return run(stage, Summary(), traces or ())


class Summary:
    """The sums of what was read so far."""

    streams = True

    def __init__(self) -> None:
        from gpt.analyze.totals import Totals
        from gpt.trace.process import RUNS

        self.kinds = RUNS
        self._done = Totals()  # of processes that are over
        self._current: ProcessTotals | None = None

    def take(self, process: Process) -> None:
        """Sums up the rows that a process has collected."""
        from gpt.analyze.totals import ProcessTotals

        current, self._current = self._current, None  # a process whose rows are nonsense does not count
        if current is None or current.process is not process:
            current = ProcessTotals(process)
        current.take()
        self._current = current

    def end(self, process: Process) -> Answer:
        """The process."""
        totals, self._current = self._current, None
        if totals is None:
            return
        self._done.merge(totals.named())
        header = process.header
        yield records.make(
            "process",
            pid=header["pid"],
            host=header["host"],
            argv=header["argv"],
            start=header["realtime"],
            duration=totals.last - process.clock.monotonic,
            threads=len(process.threads),
            calls=totals.calls,
            status=process.status,
        )

    def answer(self) -> Answer:
        """The sums."""
        from gpt.analyze.totals import Totals

        totals = Totals()
        totals.merge(self._done)
        if self._current:
            totals.merge(self._current.named())
        yield from _iter_timings(totals)
        yield from _iter_transfers(totals)
        for name, kernel in sorted(totals.kernels.items(), key=_order_of_kernel):
            known = kernel.gpu.count or None
            time = known and _whole(kernel.gpu.total)
            yield records.make("launched", name=name, launches=kernel.launches, gpu_launches=known, gpu_total=time)


def _whole(value: float) -> int:
    """A number for a record; what malformed rows add up to may not fit."""
    return min(MAX, round(value))


def _order_of_kernel(item: tuple[str, KernelTotals]) -> tuple[float, int, str]:
    name, kernel = item
    return -kernel.gpu.total, -kernel.launches, name


def _iter_timings(totals: Totals) -> Answer:
    """Each type, that with the longest time first, and its functions behind it."""
    types = totals.types()
    for type_ in sorted(types, key=lambda t: (-types[t].durations.total, t)):
        yield _timing(types[type_], type=type_)
        inside = [api for api in totals.functions if api.type == type_]
        for api in sorted(inside, key=lambda a: (-totals.functions[a].durations.total, a)):
            yield _timing(totals.functions[api], type=type_, op=api.op, name=api.name)


def _timing(function: FunctionTotals, **names: str) -> dict[str, Any]:
    took, slowest = function.durations, function.slowest
    return records.make(
        "timing",
        **names,
        calls=function.calls + function.counted,
        counted=function.counted,
        open=function.calls - took.count,
        failed=function.failed,
        total=_whole(took.total),
        mean=_whole(took.total / took.count) if took.count else 0,
        p50=_whole(took.percentile(0.5)),
        p99=_whole(took.percentile(0.99)),
        slowest=_whole(took.largest),
        slowest_start=slowest and min(MAX, slowest.start),
        slowest_pid=slowest and slowest.pid,
        slowest_thread=slowest and slowest.thread,
    )


def _iter_transfers(totals: Totals) -> Answer:
    """Bytes by direction, most first."""
    found: dict[str, Any] = {}  # a Counter for each
    for api, function in totals.functions.items():
        if api.type in ("memcpy", "memset") and function.moved["calls"]:
            sums = found.setdefault(api.op, Counter())
            sums.update(function.moved)
            if function.gpu.count:
                sums.update(gpu_calls=function.gpu.count, gpu_total=function.gpu.total)
    for op in sorted(found, key=lambda op: (-found[op]["bytes"], op)):
        yield records.make("transfer", op=op, **{key: _whole(value) for key, value in found[op].items()})
