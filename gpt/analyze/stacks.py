"""gpt-analyze stacks: show where the host's threads were, from the samples of `gpt-hook run --sample-host`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from gpt.analyze.lib.answer import Answers, Column, make_answer, plot
from gpt.analyze.lib.command import Analysis
from gpt.analyze.lib.locations import describe, tell_apart
from gpt.analyze.lib.parts import Parts
from gpt.base.options import Option
from gpt.base.outputs import replacing
from gpt.base.printable import printable
from gpt.screen.units import amount, human_share
from gpt.trace.kinds import CALLS, SAMPLES

if TYPE_CHECKING:
    from gpt.trace.model import TraceModel

SUMS = (Column("samples", "u64"), Column("share", "f64", "%"))
STATES = (Column("state", "text", title="the thread was"), *SUMS)
FUNCTIONS = (
    Column("function", "text", "function"),
    *SUMS,
    Column("own", "u64", title="own"),
    Column("own_share", "f64", "%", "own share"),
)
STACKS = (Column("stack", "text"), Column("samples", "u64"))
TOP = 20
NO_SAMPLES = "no host samples: 'gpt-hook run --sample-host 50' takes 50 a second; a short run needs more"
IN_CALL, IN_PYTHON, IN_NATIVE, WAITING = "in a CUDA call", "running Python", "running native code", "waiting in {}"
UNREAD = "no Python frames of {}, in {}: gpt-hook reads CPython 3.11 to 3.14, except free-threaded builds"
BETWEEN = ";"  # frames of a collapsed stack


@dataclass
class StacksPart:
    """Sums of the samples in some traces, by stack and by state."""

    headers: list[dict[str, Any]] = field(default_factory=list)
    stacks: dict[int, Counter[tuple[str, ...]]] = field(default_factory=dict)  # by the number of the process
    states: Counter[str] = field(default_factory=Counter)
    threads: int = 0
    changed: int = 0
    deepest: int = 0
    unread: Counter[str] = field(default_factory=Counter)  # number of processes, by interpreter


class Stacks(Parts[StacksPart]):
    """An analysis that adds up samples by stack."""

    kinds = CALLS | SAMPLES

    def __init__(self, collapsed: Path | None = None) -> None:
        super().__init__()
        self._collapsed = collapsed

    def __getstate__(self) -> dict[str, Any]:
        """Return the parts, and where stacks are to be written."""
        return {**super().__getstate__(), "_collapsed": self._collapsed}

    def find(self, trace: TraceModel) -> StacksPart:
        """Add up the samples of each process."""
        from gpt.analyze.lib.host_samples import NO_CALL, HostSamples
        from gpt.trace.samples import NONE, name_syscall

        part = StacksPart([process.header for process in trace.processes])
        for number, process in enumerate(trace.processes):
            samples = HostSamples(trace, number)
            if not len(samples.rows):
                continue
            rows, calls = samples.rows, samples.find_calls(trace, number).tolist()
            threads = len(set(rows["thread"].tolist()))
            part.threads += threads
            part.changed += int(rows["changed"].sum())
            part.deepest += samples.count_deepest()
            if interpreter := samples.find_unread():
                part.unread[interpreter] += 1
            stacks = part.stacks[number] = Counter()
            for at, frames, native in samples.iter_stacks():
                _, thread, _, _, syscall, _ = rows[at].tolist()
                outer = [f"thread {thread}"] if threads > 1 else []
                inner = [process.api(calls[at]).name] if calls[at] != NO_CALL else []
                stacks[*outer, *frames, *inner] += 1
                waits = WAITING.format(name_syscall(syscall)) if syscall != NONE else None
                runs = IN_NATIVE if native else IN_PYTHON
                part.states[IN_CALL if inner else waits or runs] += 1
        return part

    def find_need(self, parts: list[StacksPart]) -> str | None:
        """Return how to take samples if the traces have none, or None."""
        return None if any(part.stacks for part in parts) else NO_SAMPLES

    def answer_parts(self, parts: list[StacksPart]) -> Answers:
        """Yield what threads did, the functions that they were in, and the stacks for a flame graph."""
        from gpt.analyze.lib.host_samples import count_frames

        stacks, states = self._name_processes(parts), Counter[str]()
        for part in parts:
            states.update(part.states)
        whole = states.total()
        if not whole:
            return
        if self._collapsed:
            with replacing(self._collapsed) as file:
                file.writelines(
                    f"{printable(_collapse(stack))} {count}\n".encode() for stack, count in sorted(stacks.items())
                )
        verdict = [*_describe(parts, states, whole)]
        rows = [(state, count, 100 * count / whole) for state, count in states.most_common()]
        yield make_answer("states", STATES, rows, verdict, top=TOP)
        found = sorted(count_frames(stacks).items(), key=lambda one: (-one[1].samples, -one[1].waiting, one[0]))
        functions = [
            (name, hits.samples, 100 * hits.samples / whole, hits.waiting, 100 * hits.waiting / whole)
            for name, hits in found
        ]
        told = "own: samples in which it was the innermost frame"
        yield make_answer("functions", FUNCTIONS, functions, [told], top=TOP)
        drawn = plot("flame", "samples", "stack", title="stacks of the host's threads, by samples")
        lines = [(_collapse(stack), count) for stack, count in sorted(stacks.items())]
        yield make_answer("stacks", STACKS, lines, top=0, plots=[drawn])

    @staticmethod
    def _name_processes(parts: list[StacksPart]) -> Counter[tuple[str, ...]]:
        """Merge the stacks of all parts. If there are several processes, the outermost frame of a stack is its
        process.
        """
        who = tell_apart(header for part in parts for header in part.headers)
        several = sum(len(part.stacks) for part in parts) > 1
        found, first = Counter[tuple[str, ...]](), 0
        for part in parts:
            for number, stacks in part.stacks.items():
                outer = [describe(who[first + number])] if several else []
                for stack, count in stacks.items():
                    found[*outer, *stack] += count
            first += len(part.headers)
        return found


def _describe(parts: list[StacksPart], states: Counter[str], whole: int) -> list[str]:
    """Return sentences about what threads did most of the time, and about what's missing from samples."""
    from gpt.analyze.lib.host_samples import DEEPEST

    state, count = states.most_common(1)[0]
    threads = sum(part.threads for part in parts)
    lines = [f"{amount(whole, 'sample')} of {amount(threads, 'thread')}: {human_share(100 * count / whole)} {state}"]
    if changed := sum(part.changed for part in parts):
        lines.append(f"{amount(changed, 'sample')} without the innermost frames, which changed while they were read")
    if deepest := sum(part.deepest for part in parts):
        lines.append(f"{amount(deepest, 'sample')} with only the innermost {DEEPEST} Python frames")
    unread = sum((part.unread for part in parts), Counter[str]())
    lines += [UNREAD.format(name, amount(count, "process")) for name, count in unread.items()]
    return lines


def _collapse(stack: tuple[str, ...]) -> str:
    """Return a stack in the format of flame graph tools: frames from the outermost to the innermost."""
    return BETWEEN.join(" ".join(frame.replace(BETWEEN, ",").split()) for frame in stack)


OPTIONS: dict[str, Any] = {
    "collapsed": Annotated[
        Path | None,
        Option("--collapsed", metavar="FILE", help="Write stacks for speedscope or flamegraph.pl."),
    ],
}
ANALYSIS = Analysis("Show where the host's threads were, from samples.", Stacks, OPTIONS)
