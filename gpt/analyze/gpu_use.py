"""When GPUs were idle, and where they and threads went from one process or context to another."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from gpt.analyze.places import Gpus, Who
from gpt.trace.model import NO_DEVICE

if TYPE_CHECKING:
    from gpt.trace.model import TraceModel
    from gpt.trace.process import Process

PUSH, SET, POP = ("create", "push"), ("set",), ("pop",)  # what calls of contexts do
ALL = "all processes"


class Use(NamedTuple):
    """What ran on a GPU, oldest first, `end` being when all before had ended too, in ns."""

    name: str
    rows: npt.NDArray[np.void]  # as TraceModel.gpu_times has them
    end: npt.NDArray[np.int64]

    @property
    def gaps(self) -> npt.NDArray[np.int64]:
        """How long nothing ran before each but the first."""
        found: npt.NDArray[np.int64] = np.maximum(self.rows["begin"][1:] - self.end[:-1], 0)
        return found

    @property
    def whole(self) -> int:
        """From the first beginning to the last end."""
        return int(self.end[-1] - self.rows["begin"][0])

    def part(self, mask: npt.NDArray[np.bool_]) -> Use:
        """Some of it."""
        return make_use(self.name, self.rows[mask])


class Switch(NamedTuple):
    """From one context to another, or one process: on a `place`, at `at`; ns that it took, by the calls or the GPU."""

    place: str
    process: int | None  # of a thread
    source: str
    target: str
    at: int
    took: int


def make_use(name: str, rows: npt.NDArray[np.void]) -> Use:
    """That of some rows."""
    return Use(name, rows, np.maximum.accumulate(rows["begin"] + rows["duration"].astype(np.int64)))


def find_uses(trace: TraceModel) -> list[Use]:
    """Those of all GPUs that anything ran on."""
    times, gpus = trace.gpu_times(), Gpus()
    masks: dict[int, npt.NDArray[np.bool_]] = {}
    for number, process in enumerate(trace.processes):
        own = times["process"] == number
        for device in np.unique(times["device"][own]).tolist():
            gpu = gpus.number(process, None if device == NO_DEVICE else device)
            mask = own & (times["device"] == device)
            masks[gpu] = masks[gpu] | mask if gpu in masks else mask
    return [make_use(f"GPU {gpu}", times[mask]) for gpu, mask in sorted(masks.items())]


def iter_gpu_switches(use: Use, names: list[str]) -> Iterator[Switch]:
    """Where a GPU goes from a process to another, each by its name."""
    process, gaps = use.rows["process"], use.gaps
    for at in np.flatnonzero(process[1:] != process[:-1]).tolist():
        source, target = names[process[at]], names[process[at + 1]]
        yield Switch(use.name, None, source, target, int(use.rows["begin"][at + 1]), int(gaps[at]))


class Current(NamedTuple):
    """The context of a thread from `start` on, in ns, 0 if it has none; the call that made it so took so many ns."""

    process: int
    thread: int
    start: int
    took: float
    context: int


def iter_contexts(trace: TraceModel) -> Iterator[Current]:
    """The contexts of all threads, in order of time."""
    calls = trace.calls("object")
    masks = {op: trace.chosen(calls, type="context", op=op) for op in (*PUSH, *SET, *POP)}
    good = np.logical_or.reduce([*masks.values()]) & (calls["result"] == 0) & (calls["duration"] > 0)
    ops = np.select([masks[op] for op in masks], [*range(len(masks))], 0)[good]
    kinds, stacks = [*masks], defaultdict[tuple[int, int], list[int]](list)
    for call, kind in zip(calls[good].tolist(), ops.tolist(), strict=True):
        start, took, process, thread, _, _, context = call
        stack = stacks[process, thread]
        _change(stack, kinds[kind], context)
        yield Current(process, thread, start, took, stack[-1] if stack else 0)


def iter_thread_switches(trace: TraceModel) -> Iterator[Switch]:
    """Where the calls of a thread go from a context to another."""
    last: dict[tuple[int, int], int] = {}  # context of a thread: what has none between two others does not matter
    for process, thread, start, took, now in iter_contexts(trace):
        before = last.get((process, thread), 0)
        if now and before and now != before:
            yield Switch(f"thread {thread}", process, f"{before:#x}", f"{now:#x}", start, round(took))
        last[process, thread] = now or before


def _change(stack: list[int], op: str, context: int) -> None:
    """What a call does to the contexts of its thread, the current one last."""
    if op in PUSH:
        stack.append(context)
    elif stack:
        stack.pop()
    if op in SET and context:
        stack.append(context)


def name_processes(who: list[Who]) -> list[str]:
    """Names as short as they can be."""
    ranks = [rank for _, rank, _ in who]
    if None not in ranks and len(set(ranks)) == len(ranks):
        return [f"rank {rank}" for rank in ranks]
    return [f"pid {pid}" + (f" of {host}" if host else "") for host, _, pid in who]


def find_untimed(trace: TraceModel) -> list[Process]:
    """Processes of which nothing is known that ran on a GPU."""
    timed = set(np.unique(trace.gpu_times()["process"]).tolist())
    return [process for number, process in enumerate(trace.processes) if number not in timed]
