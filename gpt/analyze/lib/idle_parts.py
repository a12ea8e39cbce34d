"""Facts about the idle times of GPUs in some traces, which are small enough to be sent by a worker, and their sums."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpt.analyze.lib.locations import describe, tell_apart

if TYPE_CHECKING:
    from gpt.analyze.lib.busy_causes import Trend
    from gpt.analyze.lib.host_calls import Copied
    from gpt.analyze.lib.idle_causes import Reasons
    from gpt.analyze.lib.idle_times import Use
    from gpt.analyze.lib.turns import Turns
    from gpt.trace.machines import Header
    from gpt.trace.model import TraceModel

KEPT = 20  # kernels kept per process


@dataclass
class IdlePart:
    """The facts about some traces. Lists have one entry per process."""

    headers: list[Header]
    uses: list[Use]
    reasons: list[Reasons | None]  # None for a process that ran nothing
    copied: list[dict[str, Copied]]
    noted: list[dict[str, tuple[int, int]]]  # the number of calls and their ns, by function
    kernels: list[tuple[float, float]]  # ns of kernels, and the same weighted by the share of SMs without a block
    names: list[dict[str, float]]  # ns of the kernels that took most of the time
    trends: list[Trend | None]  # how the time changes that the kernel with the most time takes
    turns: list[Turns | None]  # kernels that waited because of the default stream
    counted: list[int]
    loaded: tuple[int, int]  # how many kernels were loaded in their first launch, and the ns spent on that
    compiled: list[tuple[str, int] | None]  # the kernel that was compiled most often while the program ran
    partial: bool  # True if other work ran that the selection excludes


def find_part(trace: TraceModel, since: Mapping[int, int] | None = None) -> IdlePart:
    """Find the idle times of all GPUs and their causes: with `since`, only of these processes, and for each, only from
    this time on.
    """
    from gpt.analyze.lib.busy_causes import find_most_used, sum_unused
    from gpt.analyze.lib.compiled import find_compiled
    from gpt.analyze.lib.host_calls import RUNNING, WAITING, HostCalls
    from gpt.analyze.lib.idle_causes import find_reasons
    from gpt.analyze.lib.idle_times import find_idle
    from gpt.analyze.lib.turns import find_turns

    uses, idle, times = find_idle(trace, since)
    headers = [process.header for process in trace.processes]
    part = IdlePart(headers, uses, [], [], [], [], [], [], [], [], (0, 0), [], False)
    ran = {number for use in uses for number in use.processes}
    for number in range(len(trace.processes)):
        host = HostCalls(trace, number, since.get(number) if since else None)
        part.reasons.append(find_reasons(trace, number, idle[number], host) if number in ran else None)
        part.copied.append(host.copied)
        part.noted.append(host.noted)
        part.kernels.append(sum_unused(times[number], host.blocks))
        names = trace.processes[number].kernels()
        longest = [(function, time) for function, time in times[number].most_common(KEPT + 1) if function]
        part.names.append({names.get(function, f"#{function}"): time for function, time in longest})
        part.trends.append(find_most_used(trace, number, times[number]) if number in ran else None)
        waits = sum(host.noted[name][0] for name in (*WAITING, *RUNNING) if name in host.noted)
        part.turns.append(find_turns(trace, number, host.blocks, waits) if number in ran else None)
        part.compiled.append(find_compiled(trace.processes[number], times[number].keys()))
        part.counted.append(trace.counted(number) if number in ran else 0)
    part.uses = [
        use._replace(first=use.first - began, last=use.last - began)
        for use in uses
        for began in [min(trace.began(trace.processes[number]) for number in use.processes)]
    ]
    part.partial = any(process.is_partial for process in trace.processes)
    part.loaded = trace.loading(list(trace.gpus()))
    return part


class IdleSums:
    """The sums of all parts."""

    def __init__(self, parts: list[IdlePart]) -> None:
        from gpt.analyze.lib.idle_causes import Reasons
        from gpt.trace.machines import Machines

        headers = [header for part in parts for header in part.headers]
        self.who = tell_apart(headers)
        machines = Machines(headers)
        self.began = [header["monotonic"] + machines.offset(header) for header in headers]
        self.numbers: dict[Hashable, int] = {}
        self.uses: list[list[Use]] = []  # by GPU number
        self.longest: list[tuple[Any, ...]] = []
        self.sums, self.copied, self.noted = Reasons(), dict[str, Any](), dict[str, tuple[int, int]]()
        self.kernels = self.unused = 0.0
        self.names = Counter[str]()
        first = 0  # number of the part's first process
        for part in parts:
            for use in part.uses:
                if self.numbers.setdefault(use.key, len(self.numbers)) == len(self.uses):
                    self.uses.append([])
                self._add_use(use, first)
            for at, reasons in enumerate(part.reasons):
                if reasons:
                    self.sums.merge(reasons)
                    self.longest += [(first + at, self.numbers[part.uses[one.gpu].key], one) for one in reasons.longest]
            for copied in part.copied:
                for op, sums in copied.items():
                    self.copied[op] = self.copied[op].plus(sums) if op in self.copied else sums
            for noted in part.noted:
                for name, (count, ns) in noted.items():
                    before = self.noted.get(name, (0, 0))
                    self.noted[name] = before[0] + count, before[1] + ns
            for names in part.names:
                self.names.update(names)
            self.kernels += sum(one for one, _ in part.kernels)
            self.unused += sum(unused for _, unused in part.kernels)
            first += len(part.headers)
        self.trends = [trend for part in parts for trend in part.trends if trend]
        self.turns = [turns for part in parts for turns in part.turns if turns]
        compiled = [one for part in parts for one in part.compiled if one]
        self.compiled = max(compiled, key=lambda one: (one[1], one[0]), default=None)
        self.counted = sum(count for part in parts for count in part.counted)
        self.loaded = [sum(part.loaded[at] for part in parts) for at in (0, 1)]
        self.untimed = [
            describe(one) for at, one in enumerate(self.who) if all(at not in use.processes for use in self.iter_uses())
        ]
        self.whole = sum(use.whole for use in self.iter_uses())
        self.partial = any(part.partial for part in parts)

    def iter_uses(self) -> Iterator[Use]:
        """Return the uses of all GPUs."""
        for uses in self.uses:
            yield from uses

    def _add_use(self, use: Use, offset: int) -> None:
        """Add a use of a GPU. `offset` is the number of the first process in its part. If it continues an earlier use
        of the same GPU, they're merged.
        """
        processes = [offset + one for one in use.processes]
        began = min(self.began[number] for number in processes)
        work = {offset + number: time for number, time in use.work.items()}
        use = use._replace(processes=processes, first=began + use.first, last=began + use.last, work=work)
        uses = self.uses[self.numbers[use.key]]
        if uses and (use.first >= uses[-1].last or use.last <= uses[-1].first):
            other = uses.pop()
            gap = max(use.first, other.first) - min(use.last, other.last)
            use = use._replace(
                processes=[*other.processes, *processes],
                whole=use.whole + other.whole,
                kernels=use.kernels + other.kernels,
                copies=use.copies + other.copies,
                idle=use.idle + other.idle,
                host_copies=min(use.host_copies, other.host_copies),
                memsets=min(use.memsets, other.memsets),
                times=use.times + other.times,
                cut=use.cut + other.cut,
                first=min(use.first, other.first),
                last=max(use.last, other.last),
                off=use.off + other.off + gap,
                work=use.work | other.work,
                turns=use.turns + other.turns,
            )
        uses.append(use)
