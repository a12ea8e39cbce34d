"""Add up the samples of host threads by stack, for 'summary --by stack' of a trace from --sample-host.

A row has the innermost functions of a stack, and the CUDA call that the thread was in. It also says how many of the
samples were taken while the GPU had nothing to do: this is the code that it waited for.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gpt.analyze.lib.answer import Answers, Column, make_answer, plot
from gpt.analyze.lib.attribution import CALLER, FRAMES, TOP, attribute
from gpt.analyze.lib.host_samples import NO_CALL, HostSamples
from gpt.analyze.lib.idle_times import find_idle
from gpt.screen.units import amount, human_share

if TYPE_CHECKING:
    from gpt.trace.model import TraceModel
    from gpt.trace.spill import Array, Sorted

COLUMNS = (
    Column("name", "text", title="thread was in"),
    Column("samples", "u64"),
    Column("share", "f64", "%"),
    Column("idle", "u64?", title="GPU idle", shown="any"),
    Column("idle_share", "f64?", "%", "share of idle", "any"),
    Column("path", "text?", shown="never"),
)


def attribute_stacks(trace: TraceModel) -> Answers:
    """Yield the samples of the host by stack, and then launches and GPU time, if their stacks were recorded."""
    if any(len(process.samples) for process in trace.processes):
        yield from _add_up_samples(trace)
    if any(len(process.sites) for process in trace.processes):
        yield from attribute(trace, "stack")


def _add_up_samples(trace: TraceModel) -> Answers:
    """Yield the stacks of all samples, those in which the GPU was idle most often first."""
    timed = bool(trace.gpus())
    idle = find_idle(trace)[1] if timed else []
    found: dict[tuple[str, ...], list[int]] = defaultdict(lambda: [0, 0])
    for number, process in enumerate(trace.processes):
        samples = HostSamples(trace, number)
        if not len(samples.rows):
            continue
        calls = samples.find_calls(trace, number).tolist()
        waits = _find_inside(samples.rows["at"], idle[number] if timed else ()).tolist()
        for at, frames, _ in samples.iter_stacks():
            inner = [process.api(calls[at]).name] if calls[at] != NO_CALL else []
            sums = found[*frames, *inner]
            sums[0] += 1
            sums[1] += waits[at]
    whole, unused = (sum(sums[at] for sums in found.values()) for at in (0, 1))
    rows = [
        (CALLER.join(stack[::-1][:FRAMES]), count, 100 * count / whole, *((idle_, 100 * idle_ / (unused or 1))
         if timed else (None, None)), ";".join(frame.replace(";", ",") for frame in stack))
        for stack, (count, idle_) in found.items()
    ]  # fmt: skip
    rows.sort(key=lambda row: (-(row[3] or 0), -row[1], row[0]))
    lines = [f"{amount(whole, 'sample')} of what the host's threads did; 'gpt-analyze stacks' sums them up by function"]
    if timed:
        lines.append(f"the GPU was idle in {human_share(100 * unused / (whole or 1))} of them")
    plots = [plot("flame", "samples", "path", title="stacks of the host's threads, by samples")]
    yield make_answer("samples_by_stack", COLUMNS, rows, lines, top=TOP, plots=plots)


def _find_inside(times: npt.NDArray[np.int64], idle: Sorted | tuple[Array, ...]) -> npt.NDArray[np.bool_]:
    """Return which times are in an idle period of one of the GPUs."""
    found = np.zeros(len(times), bool)
    for rows in idle:
        for gpu in np.unique(rows["gpu"]).tolist():
            own = rows[rows["gpu"] == gpu]
            at = np.searchsorted(own["begin"], times, "right") - 1
            found |= (at >= 0) & (times < own["end"][at])
    return found
