"""gpt-analyze idle: why a GPU is idle, judging by what the host does meanwhile, and what would help.

gpt/analyze/lib/idle_causes.py has the rules that assign a cause to each idle time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpt.analyze.lib.answer import Answers, Column, make_answer, plot
from gpt.analyze.lib.command import Analysis
from gpt.analyze.lib.idle_advice import ACTIONS, AHEAD, ASIDE, ELSE, HINT, ONCE, UNLOCK
from gpt.analyze.lib.locations import SINCE, WHO, Who, describe, tell_apart
from gpt.analyze.lib.parts import Parts
from gpt.screen.units import amount, human_share, human_time
from gpt.trace.kinds import CALLS, COUNTED, GPU_TIMES, RANGES, SAMPLES

if TYPE_CHECKING:
    from gpt.analyze.lib.busy_causes import Trend
    from gpt.analyze.lib.host_calls import Copied
    from gpt.analyze.lib.idle_causes import Reasons, Times
    from gpt.analyze.lib.idle_times import Use
    from gpt.analyze.lib.turns import Turns
    from gpt.trace.machines import Header
    from gpt.trace.model import TraceModel

TIMES = (Column("count", "u64", title="times"), *(Column(name, "u64", "ns") for name in ("mean", "longest")))
IDLE = (Column("total", "u64", "ns", "idle"), Column("share", "f64", "%"))
VERDICT = (
    Column("cause", "text", title="why"),
    Column("function", "text?", "function", shown="any"),
    Column("time", "u64", "ns"),
    Column("share", "f64", "%"),
    Column("told", "text", shown="line"),
)
GPUS = (
    Column("gpu", "text", title="GPU"),
    *WHO,
    Column("begin", "u64", "ns", "at"),
    Column("whole", "u64", "ns", "time"),
    *(Column(name, "u64", "ns", title) for name, title in (("kernels", ""), ("copies", "only copies"), ("idle", ""))),
    Column("share", "f64", "%"),
    Column("count", "u64", title="times"),
)
CAUSES = (
    Column("cause", "text", title="idle because"),
    Column("function", "text?", "function"),
    *IDLE,
    *TIMES,
    Column("waited", "u64?", "ns", "waited before", "any"),
    Column("label", "text", shown="never"),  # for the picture
)
DOING = (
    Column("doing", "text", "function", "the host was in"),
    Column("after", "text?", "function", "after waiting in"),
    *IDLE,
    *TIMES,
)
RANGES_IDLE = (
    Column("range", "text"),
    *IDLE,
    *TIMES,
    Column("cause", "text", title="mostly"),
    Column("function", "text?", "function", shown="any"),
)
LONGEST = (
    Column("after", "text", "kernel", "longest, after"),
    Column("before", "text", "kernel"),
    Column("cause", "text", title="because"),
    Column("function", "text?", "function", shown="any"),
    Column("part", "f64", "%", shown="never"),
    Column("range", "text?", shown="any"),
    Column("gpu", "text", title="GPU", shown="never"),
    *WHO[:2],
    Column("pid", "u64", "id", shown="never"),
    Column("thread", "u64", "id", shown="never"),
    Column("start", "u64", "ns", "at"),
    Column("took", "u64", "ns", "idle"),
)
TOP, TOP_VERDICTS, LISTED = 10, 3, 1000
NO_RANGE = "(no range)"
LEAST = 1  # minimum % of the time for a cause to be in the verdict
UNUSED = 50  # % of the SMs, averaged over the time of the kernels
COPIES, SMALL = "only copies", "few blocks"
KEPT = 20  # kernels kept per process
NO_TIMES = "no GPU times: 'gpt-hook run --gpu-time' records when kernels ran; 'gpt-analyze gaps' shows the host's gaps"
BUSY = "no cause takes 1 % of the time: 'gpt-analyze summary' lists the kernels"
SHARED = "{} is in several traces that were read separately: what other processes ran at the same time counts as idle"
PARTIAL = "only the chosen threads, streams or kernels count: the GPU may run others while it counts as idle"
UNTIMED = "{} counted but not timed: {} time counts as host code"


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
    partial: bool  # True if other work ran that the selection excludes


class Idle(Parts[IdlePart]):
    """An analysis of why GPUs had nothing to do."""

    drains = True
    kinds = CALLS | COUNTED | GPU_TIMES | RANGES | SAMPLES | {"device"}

    def find(self, trace: TraceModel) -> IdlePart:
        """Find the idle times of all GPUs and their causes."""
        from gpt.analyze.lib.busy_causes import find_most_used, sum_unused
        from gpt.analyze.lib.host_calls import RUNNING, WAITING, HostCalls
        from gpt.analyze.lib.idle_causes import find_reasons
        from gpt.analyze.lib.idle_times import find_idle
        from gpt.analyze.lib.turns import find_turns

        uses, idle, times = find_idle(trace)
        headers = [process.header for process in trace.processes]
        part = IdlePart(headers, uses, [], [], [], [], [], [], [], [], (0, 0), False)
        ran = {number for use in uses for number in use.processes}
        for number in range(len(trace.processes)):
            host = HostCalls(trace, number)
            part.reasons.append(find_reasons(trace, number, idle[number], host) if number in ran else None)
            part.copied.append(host.copied)
            part.noted.append(host.noted)
            part.kernels.append(sum_unused(times[number], host.blocks))
            names = trace.processes[number].kernels()
            longest = [(function, time) for function, time in times[number].most_common(KEPT + 1) if function]
            part.names.append({names.get(function, f"#{function}"): time for function, time in longest})
            part.trends.append(find_most_used(trace, number, times[number]))
            waits = sum(host.noted[name][0] for name in (*WAITING, *RUNNING) if name in host.noted)
            part.turns.append(find_turns(trace, number, host.blocks, waits))
            part.counted.append(trace.counted(number) if number in ran else 0)
        part.uses = [
            use._replace(first=use.first - began, last=use.last - began)
            for use in uses
            for began in [min(trace.began(trace.processes[number]) for number in use.processes)]
        ]
        part.partial = any(process.is_partial for process in trace.processes)
        part.loaded = trace.loading(list(trace.gpus()))
        return part

    def find_need(self, parts: list[IdlePart]) -> str | None:
        """Return how to record GPU times if the traces have none, or None."""
        return None if any(part.uses for part in parts) else NO_TIMES

    def answer_parts(self, parts: list[IdlePart]) -> Answers:
        """Yield the verdicts, the use of each GPU, the causes, what the host did, NVTX ranges, and the longest idle
        times.
        """
        if any(part.uses for part in parts):
            yield from _Answer(parts).iter()


def _waited(cause: str, times: Times) -> int | None:
    """Return how long the host had waited, or None if work was queued, because several idle times can then follow the
    same wait.
    """
    from gpt.analyze.lib.idle_causes import BETWEEN, LATE

    return times.waited or None if cause not in (BETWEEN, LATE) else None


class _Answer:
    """Combines the facts of all parts to an answer."""

    def __init__(self, parts: list[IdlePart]) -> None:
        from gpt.analyze.lib.idle_causes import Reasons
        from gpt.trace.machines import Machines

        headers = [header for part in parts for header in part.headers]
        self._who = tell_apart(headers)
        machines = Machines(headers)
        self._began = [header["monotonic"] + machines.offset(header) for header in headers]
        self._numbers: dict[Hashable, int] = {}
        self._uses: list[list[Use]] = []  # by GPU number
        self._longest: list[tuple[Any, ...]] = []
        self._sums, self._copied, self._noted = Reasons(), dict[str, Any](), dict[str, tuple[int, int]]()
        self._kernels = self._unused = 0.0
        self._names = Counter[str]()
        first = 0  # number of the part's first process
        for part in parts:
            for use in part.uses:
                if self._numbers.setdefault(use.key, len(self._numbers)) == len(self._uses):
                    self._uses.append([])
                self._add_use(use, first)
            for at, reasons in enumerate(part.reasons):
                if reasons:
                    self._sums.merge(reasons)
                    self._longest += [
                        (first + at, self._numbers[part.uses[one.gpu].key], one) for one in reasons.longest
                    ]
            for copied in part.copied:
                for op, sums in copied.items():
                    self._copied[op] = self._copied[op].plus(sums) if op in self._copied else sums
            for noted in part.noted:
                for name, (count, ns) in noted.items():
                    before = self._noted.get(name, (0, 0))
                    self._noted[name] = before[0] + count, before[1] + ns
            for names in part.names:
                self._names.update(names)
            self._kernels += sum(one for one, _ in part.kernels)
            self._unused += sum(unused for _, unused in part.kernels)
            first += len(part.headers)
        self._trends = [trend for part in parts for trend in part.trends if trend]
        self._turns = [turns for part in parts for turns in part.turns if turns]
        self._counted = sum(count for part in parts for count in part.counted)
        self._loaded = [sum(part.loaded[at] for part in parts) for at in (0, 1)]
        self._untimed = [
            describe(one) for at, one in enumerate(self._who) if all(at not in use.processes for use in self._all())
        ]
        self._whole = sum(use.whole for use in self._all())
        self._partial = any(part.partial for part in parts)

    def _all(self) -> Iterator[Use]:
        """Return the uses of all GPUs."""
        for uses in self._uses:
            yield from uses

    def _add_use(self, use: Use, offset: int) -> None:
        """Add a use of a GPU. `offset` is the number of the first process in its part. If it continues an earlier use
        of the same GPU, they're merged.
        """
        processes = [offset + one for one in use.processes]
        began = min(self._began[number] for number in processes)
        work = {offset + number: time for number, time in use.work.items()}
        use = use._replace(processes=processes, first=began + use.first, last=began + use.last, work=work)
        uses = self._uses[self._numbers[use.key]]
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

    def iter(self) -> Answers:
        found = sorted(self._iter_verdicts(), key=lambda row: -row[0])
        shown = [row for _, *row in found if row[3] >= LEAST]
        yield make_answer("verdict", VERDICT, shown, [] if shown else [BUSY], top=TOP_VERDICTS)
        yield make_answer("gpus", GPUS, self._iter_uses(), [*self._iter_lines()])
        sums = self._sums
        rows = [
            (cause, name, *self._times(times), _waited(cause, times), f"{cause}: {name}" if name else cause)
            for (cause, name), times in sums.causes.items()
        ]
        if not rows:
            return
        rows.sort(key=lambda row: (-row[2], row[-1]))
        drawn = plot("bars", "label", "total", title="idle time of the GPU by cause")
        yield make_answer("causes", CAUSES, rows, top=TOP, plots=[drawn])
        doing = [(what, after, *self._times(times)) for (what, after), times in sums.doing.items()]
        yield make_answer("doing", DOING, sorted(doing, key=lambda row: (-row[2], row[0], row[1] or "")), top=TOP)
        if sums.places:
            from gpt.analyze.lib.host_samples import PLACES, iter_places

            told = "waiting: of these samples, in a system call"
            yield make_answer("places", PLACES, iter_places(sums.places), [told], top=TOP)
        if set(sums.ranges) - {None}:
            yield make_answer("ranges", RANGES_IDLE, self._iter_ranges(), top=TOP)
        self._longest.sort(key=lambda one: (-one[2].took, one[0], one[2].at))
        longest = [self._describe_longest(*one) for one in self._longest[:LISTED]]
        yield make_answer("longest", LONGEST, longest, [f"'at' {SINCE}"], top=TOP)

    def _times(self, times: Times) -> tuple[Any, ...]:
        """Return values for the columns IDLE and TIMES."""
        mean = times.total / (times.count or 1)
        return times.total, 100 * times.total / (self._whole or 1), times.count, mean, times.longest

    def _iter_verdicts(self) -> Iterator[tuple[Any, ...]]:
        """Yield how much a row of VERDICT matters, and the row: one for each cause, then advice for a GPU that's always
        busy.
        """
        from gpt.analyze.lib.busy_causes import describe_copies, find_kernels, find_polling, find_shared, find_slower
        from gpt.analyze.lib.idle_causes import weigh
        from gpt.analyze.lib.turns import describe_turns

        for cause, names, times in self._iter_groups():
            share = 100 * times.total / (self._whole or 1)
            yield weigh(times), cause, names[0], times.total, share, self._advise(cause, names, times)
        copies = sum(use.copies for use in self._all())
        if copies:
            share = 100 * copies / (self._whole or 1)
            yield copies, COPIES, None, copies, share, describe_copies(self._copied, [*self._all()], human_share(share))
        if self._unused and 100 * self._unused >= UNUSED * self._kernels:
            told = (
                "launches have fewer blocks than the GPU has SMs: while kernels run, "
                f"{human_share(100 * self._unused / self._kernels)} of the SMs have none; a larger batch would take "
                "little longer"
            )
            unused = min(round(self._unused), sum(use.kernels for use in self._all()))
            rows = iter([(SMALL, unused, told)])
        else:
            rows = find_kernels(self._names, sum(use.kernels for use in self._all()), self._whole)
        waited = describe_turns(self._turns, self._whole)
        others = *find_slower(self._trends, self._whole), *find_shared(self._uses), *([waited] if waited else ())
        for cause, time, told in (*rows, *others, *find_polling(self._noted, self._whole)):
            yield time, cause, None, time, 100 * time / (self._whole or 1), told

    def _iter_groups(self) -> Iterator[tuple[str, list[str | None], Times]]:
        """Yield causes with their functions, most time first. Functions of one type are merged if the advice for them
        is the same.
        """
        from gpt.analyze.lib.idle_causes import CALL, Times

        types, groups = self._sums.types, dict[Any, Any]()
        for (cause, name), times in sorted(self._sums.causes.items(), key=lambda one: -one[1].total):
            group = cause, types.get(name or "") if cause == CALL else name
            names, sums = groups.setdefault(group, ([], Times()))
            names.append(name)
            sums.add(times)
        yield from ((cause, *group) for (cause, _), group in groups.items())

    def _advise(self, cause: str, names: list[str | None], times: Times) -> str:
        """Return a sentence that says what happens and what would help."""
        from gpt.analyze.lib import idle_causes as causes
        from gpt.analyze.lib.host_samples import describe_places, find_locked, is_expecting

        name = names[0]
        count, mean = amount(times.count, "time"), human_time(times.total / times.count)
        each = "" if times.count == 1 else " each"
        often = causes.describe_times(times)
        where = self._find_range(cause, names)
        share = human_share(100 * times.total / (self._whole or 1))
        waited = human_time(times.waited / times.count)
        match cause:
            case causes.WAIT if 2 * times.items >= times.count:
                then = f"the GPU is then idle for {mean}{each}{self._find_doing(name)}"
                return (
                    f"the host waits for a value {count}, {waited}{each}, as '.item()' does{where}; {then}: read "
                    "values less often, or later, when they are there"
                )
            case causes.WAIT:
                does = self._sums.types.get(self._find_most(name) or "", "")
                action = f"{ACTIONS[does]}, or " if does in ONCE else ""
                return (
                    f"the host waits for the GPU {count} in {name}, {waited}{each}{where}; the GPU is then idle for "
                    f"{mean}{each}{self._find_doing(name)}: {action}launch the next work before "
                    "waiting, or wait less often"
                )
            case causes.PACE:
                took, period = (human_time(ns / times.count) for ns in (times.took, times.took + times.total))
                return (
                    f"launch-bound: kernels take {took}, but are launched every {period}{where}; a CUDA graph would "
                    f"save at most {share}; 'gpt-analyze launches' lists them"
                )
            case causes.CALL:
                others = f" and {names[1]}" if len(names) == 2 else ""
                others = f", {names[1]} and {len(names) - 2} more" if len(names) > 2 else others
                return (
                    f"the GPU waits {often}, while the host is mostly in {name}{others}{where}: "
                    f"{ACTIONS.get(self._sums.types.get(name or '', ''), ELSE)}"
                )
            case causes.HOST_CODE:
                action = (
                    UNLOCK if find_locked(self._sums.places) else AHEAD if is_expecting(self._sums.places) else ASIDE
                )
                hint = "" if set(self._sums.ranges) - {None} or self._sums.places else HINT
                return (
                    f"the GPU waits {often}, while the host mostly runs its own code between calls"
                    f"{self._find_waited()}{where}{describe_places(self._sums.places)}{hint}: {action}"
                )
            case causes.BETWEEN:
                return (
                    f"work that was launched in time begins {mean} after other work, {count}, part of which is the cost"
                    " of --gpu-time: fewer and larger kernels would help"
                )
            case causes.LATE:
                several = any(len(use.work) > 1 for use in self._all())
                why = causes.describe_late(self._noted, times.count, several)
                return (
                    f"work begins late, {count}, although it was launched before{where}: {why}; 'gpt-analyze timeline'"
                    " shows the streams"
                )
            case causes.OFF:
                return (
                    f"recording was off for a part of {amount(times.count, 'idle period')}, so the cause is unknown: "
                    "record without a pause to see it"
                )
        return f"{count}: the trace doesn't say which call launched what ran next"

    def _find_most(self, waited: str | None) -> str | None:
        """Return what the host did in at least half of the idle time after waits in this function, or None."""
        from gpt.analyze.lib.idle_causes import QUEUED, UNKNOWN

        found = {what: times.total for (what, after), times in self._sums.doing.items() if after == waited}
        most = max(found, key=lambda what: found[what], default=None)
        if most is None or most in (waited, QUEUED, UNKNOWN) or 2 * found[most] < sum(found.values()):
            return None
        return most

    def _find_waited(self) -> str:
        """Say after which wait the host ran its own code, if that's one function for at least half of the time, apart
        from the longest.
        """
        from gpt.analyze.lib.idle_causes import HOST_CODE, WAIT, Times

        causes = self._sums.causes
        own = causes[HOST_CODE, None]
        for (what, after), times in self._sums.doing.items():
            if what == HOST_CODE and after:
                elsewhere = causes.get((WAIT, after), Times()).total
                if 2 * (times.total - elsewhere) >= own.total - own.longest * (own.count > 1):
                    return f", after it waited in {after}"
        return ""

    def _find_doing(self, waited: str | None) -> str:
        """Describe what _find_most returns in a sentence, or return "" if it returns None."""
        from gpt.analyze.lib.host_samples import describe_places
        from gpt.analyze.lib.idle_causes import HOST_CODE

        most = self._find_most(waited)
        own = f"mostly runs its own code{describe_places(self._sums.places)}"
        return f", while the host {own if most == HOST_CODE else f'is mostly in {most}'}" if most else ""

    def _find_range(self, cause: str, names: list[str | None]) -> str:
        """Name the NVTX range with at least half of the idle time of a cause."""
        found = {
            where: sum(causes[cause, name].total for name in names if (cause, name) in causes)
            for where, causes in self._sums.ranges.items()
        }
        where = max(found, key=lambda one: found[one], default=None)
        if where is None or not found[where] or 2 * found[where] < sum(found.values()):
            return ""
        return f", mostly in the range '{where}'"

    def _iter_lines(self) -> Iterator[str]:
        from gpt.analyze.lib.gap_lengths import describe_cut, describe_loading

        yield "share: of the time from the GPU's first work to its last; copies are not idle"
        if self._partial:
            yield PARTIAL
        if self._untimed:
            more = f" and {len(self._untimed) - 1:,} more" if len(self._untimed) > 1 else ""
            yield f"no GPU times in {self._untimed[0]}{more}: that work counts as idle"
        yield from (SHARED.format(f"GPU {number}") for number, uses in enumerate(self._uses) if len(uses) > 1)
        if off := sum(use.off for use in self._all()):
            yield f"recording was off for {human_time(off)} between work, which are neither busy nor idle"
        if cut := sum(use.cut for use in self._all()):
            told = describe_cut(cut, amount(cut, "idle period"), "'idle'")
            yield f"{told}, as 'recording off'"
        if self._counted:
            yield UNTIMED.format(amount(self._counted, "call"), "its" if self._counted == 1 else "their")
        if self._loaded[0]:
            yield describe_loading(*self._loaded)

    def _iter_uses(self) -> Iterator[tuple[Any, ...]]:
        for number, uses in enumerate(self._uses):
            for use in uses:
                who: tuple[Any, ...] = self._who[use.processes[0]] if len(use.processes) == 1 else (None, None, None)
                share = 100 * use.idle / (use.whole or 1)
                times = max(0, use.first), use.whole, use.kernels, use.copies, use.idle
                yield f"GPU {number}", *who, *times, share, use.times

    def _iter_ranges(self) -> list[tuple[Any, ...]]:
        rows = []
        for name, causes in self._sums.ranges.items():
            total = sum(times.total for times in causes.values())
            count = sum(times.count for times in causes.values())
            most = max(causes, key=lambda key: (causes[key].total, key[0], key[1] or ""))
            longest = max(times.longest for times in causes.values())
            share = 100 * total / (self._whole or 1)
            rows.append((name or NO_RANGE, total, share, count, total / (count or 1), longest, *most))
        return sorted(rows, key=lambda row: (-row[1], row[0]))

    def _describe_longest(self, process: int, gpu: int, one: Any) -> tuple[Any, ...]:
        who: Who = self._who[process]
        at = max(0, one.at + self._began[process])
        return (
            one.after, one.before, one.cause, one.name, one.share, one.range, f"GPU {gpu}", *who, one.thread, at,
            one.took,
        )  # fmt: skip


ANALYSIS = Analysis("Say why the GPU is idle, and what would help.", Idle)
