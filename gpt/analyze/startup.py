"""gpt-analyze startup: where the time goes from the start of a program until it works steadily."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpt.analyze.lib.answer import Answers, Column, make_answer, plot
from gpt.analyze.lib.command import Analysis
from gpt.analyze.lib.idle_parts import IdlePart, IdleSums, find_part
from gpt.analyze.lib.locations import PROGRAM, WHO, describe, name_program, tell_apart
from gpt.analyze.lib.parts import Parts
from gpt.screen.units import amount, human, human_share, human_time
from gpt.trace.kinds import CALLS, COUNTED, GPU_TIMES, LOADS, RANGES, SAMPLES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpt.analyze.lib.startup_times import Startup
    from gpt.trace.model import TraceModel

STARTUP = (
    Column("what", "text", title="until it's steady"),
    Column("time", "u64", "ns"),
    Column("share", "f64", "%"),
    Column("calls", "u64?"),
    Column("bytes", "u64?", "bytes", shown="any"),
    Column("rate", "f64?", "bytes", "a second", "any"),
    Column("pageable", "u64?", "bytes", shown="never"),
    Column("begin", "u64?", "ns", "from"),
    Column("told", "text?", shown="line"),
)
LIBRARIES = (
    Column("library", "text", title="kernels of"),
    Column("kernels", "u64", title="launched"),
    Column("loaded", "u64", title="loaded in a launch"),
    Column("time", "u64", "ns"),
    Column("share", "f64", "%"),
)
LONGEST = (
    Column("name", "text", "function", "longest call"),
    Column("kernel", "text?", "kernel", shown="any"),
    Column("start", "u64", "ns", "at"),
    Column("took", "u64", "ns"),
)
PROCESSES = (
    *PROGRAM,
    *WHO,
    Column("time", "u64", "ns", "until it's steady"),
    Column("first", "u64?", "ns", "first unit"),
    Column("usual", "u64?", "ns", "later ones"),
    Column("most", "text", title="mostly"),
    Column("most_time", "u64", "ns", "time"),
)
PARTS = (
    Column("what", "text", title="time of"),
    Column("time", "u64", "ns"),
    Column("share", "f64", "%"),
    Column("told", "text", shown="line"),
)
START, STEADY = "start-up", "steady work"
MOSTLY = 3  # kinds of time named in a sentence
TOP, TELL = 10, 10  # rows of a table; minimum % of the time for a row to be worth a sentence
NO_LAUNCH = (
    "no launch of a kernel or graph in the trace, and a start ends when launches repeat: 'gpt-hook run' records "
    "launches unless --calls or ctl excludes them"
)
PARTIAL = "only the chosen calls count: the time of others counts as host code"
UNTIMED = "{} counted but not timed: {} time counts as host code"


@dataclass
class StartupPart:
    """The start-up of each process that launched anything, and the headers of all processes. `later` is about the
    steady work of the process with the longest start, if it's alone on its GPUs: its number, and its idle times.
    """

    headers: list[dict[str, Any]] = field(default_factory=list)
    # number of the process, its start-up, and the number of calls that were only counted
    found: list[tuple[int, Startup, int]] = field(default_factory=list)
    partial: bool = False  # True if the selection excludes calls
    later: tuple[int, IdlePart] | None = None


class StartupFold(Parts[StartupPart]):
    """An analysis of where the time goes before programs are steady."""

    drains = True
    kinds = CALLS | COUNTED | LOADS | GPU_TIMES | RANGES | SAMPLES

    def find(self, trace: TraceModel) -> StartupPart:
        """Return the start-up of each process that launched anything."""
        from gpt.analyze.lib.sequence import launches_any
        from gpt.analyze.lib.short_calls import Tapes
        from gpt.analyze.lib.startup_times import find_startup
        from gpt.analyze.lib.steady import find_steady

        part = StartupPart([process.header for process in trace.processes])
        part.partial = any(process.is_partial or process.is_narrow for process in trace.processes)
        begins: dict[int, int] = {}
        for number in range(len(trace.processes)):
            if launches_any(trace, number):
                steady = find_steady(Tapes(trace, number))
                found = find_startup(trace, number, steady)
                part.found.append((number, found, trace.counted(number)))
                if steady:
                    begins[number] = steady.begin
        longest = max(part.found, key=lambda one: one[1].time, default=None)
        if longest and longest[0] in begins and _is_alone(trace, longest[0]):
            part.later = longest[0], find_part(trace, {longest[0]: begins[longest[0]]})
        return part

    def find_need(self, parts: list[StartupPart]) -> str | None:
        """Return a message about what's missing if the traces have no launches, or None."""
        return None if any(part.found for part in parts) else NO_LAUNCH

    def answer_parts(self, parts: list[StartupPart]) -> Answers:
        """Yield the process that takes longest to start, its libraries and calls, and all processes if there are
        several.
        """
        headers = [header for part in parts for header in part.headers]
        who = tell_apart(headers)
        found, first = [], 0
        later: dict[int, IdlePart] = {}
        for part in parts:
            found += [(who[first + number], startup, counted) for number, startup, counted in part.found]
            first += len(part.headers)
            later |= {id(one): part.later[1] for number, one, _ in part.found if part.later and number == part.later[0]}
        found.sort(key=lambda one: (-one[1].time, one[1].header.get("rank", -1)))
        if not found:
            return
        one, startup, counted = found[0]
        several = f", of {len(found):,} that launched: --pid chooses" if len(found) > 1 else ""
        verdict = [f"{describe(one)}{several}: {line}" for line in _describe(startup)]
        if len(found) > 1:
            whole = human_time(sum(each.time for _, each, _ in found))
            verdict.append(f"the {len(found):,} processes take {whole} together until they're steady")
        verdict += [f"recording was off for {human_time(startup.off)}, which are in no row"] if startup.off else []
        verdict += [UNTIMED.format(amount(counted, "call"), "its" if counted == 1 else "their")] if counted else []
        verdict += [PARTIAL] if any(part.partial for part in parts) else []
        verdict += [*_describe_images(startup), "'from' and 'at' count from the beginning of the process"]
        if startup.steady:
            yield make_answer("parts", PARTS, _iter_parts(startup, later.get(id(startup))))
        drawn = plot("stack", "what", "time", title="time until the program is steady")
        yield make_answer("startup", STARTUP, _iter_kinds(startup), verdict, plots=[drawn])
        if startup.libraries:
            yield make_answer("libraries", LIBRARIES, _iter_libraries(startup), top=TOP)
        if startup.longest:
            calls = [(call.name, call.kernel, max(0, call.at), call.took) for call in startup.longest]
            yield make_answer("longest", LONGEST, calls, top=TOP)
        if len(found) > 1:
            rows = [(*name_program(each.header), *where, *_find_sums(each)) for where, each, _ in found]
            yield make_answer("processes", PROCESSES, rows)


def _is_alone(trace: TraceModel, number: int) -> bool:
    """Return whether no other process uses the GPUs of this one."""
    from gpt.trace.calls_store import NO_DEVICE

    users: dict[Any, set[int]] = {}
    for process, device in trace.gpus():
        key = trace.processes[process].gpu(None if device == NO_DEVICE else device)
        users.setdefault(key, set()).add(process)
    return all(own == {number} for own in users.values() if number in own)


def _iter_parts(startup: Startup, later: IdlePart | None) -> list[tuple[Any, ...]]:
    """Return rows of PARTS, longest first: what takes most of the start, and what keeps the steady work from being
    faster.
    """
    from gpt.analyze.lib.compiled import describe_compiled

    most = sorted(startup.kinds.items(), key=lambda one: (-one[1].time, one[0]))[:MOSTLY]
    most = [(what, kind) for what, kind in most if 100 * kind.time >= TELL * startup.time]
    start = ", ".join(f"{human_time(kind.time)} in '{what}'" for what, kind in most)
    if startup.compiled:
        start += f"; it loads code again and again, {describe_compiled(startup.compiled)}"
    units = f"{amount(startup.times - startup.skipped, 'repetition')} of {amount(startup.length, 'launch')}"
    steady = f"{units}, usually {human_time(startup.usual)} each{_describe_later(later)}"
    whole = startup.time + startup.after or 1
    rows = [
        (what, time, 100 * time / whole, told)
        for what, time, told in ((START, startup.time, start), (STEADY, startup.after, steady))
    ]
    return sorted(rows, key=lambda row: -row[1])


def _describe_later(later: IdlePart | None) -> str:
    """Return the end of a sentence: the main cause why the steady work isn't faster."""
    from gpt.analyze.lib.idle_verdict import LEAST, iter_verdicts

    if later is None or not later.uses:
        return ""
    rows = [row for row in iter_verdicts(IdleSums([later])) if row[4] >= LEAST]
    most = max(rows, key=lambda row: row[0], default=None)
    return f"; {human_share(most[4])} of that: {most[5]}" if most else ""


def _describe_images(startup: Startup) -> Iterator[str]:
    """Return a sentence about the loaded images that the driver had to compile, if there were any."""
    images, ptx = startup.images
    if ptx:
        told = "is PTX, which the driver compiles" if ptx == 1 else "are PTX, which the driver compiles"
        yield f"{ptx:,} of {amount(images, 'loaded image')} {told} unless its cache has the result"


def _find_sums(startup: Startup) -> tuple[Any, ...]:
    """Return values for the columns PROCESSES, from `time` on."""
    times = {what: kind.time for what, kind in startup.kinds.items()}
    most = max(times, key=lambda what: (times[what], what), default="-")
    return startup.time, startup.first or None, startup.usual or None, most, times.get(most, 0)


def _describe(startup: Startup) -> Iterator[str]:
    """Return a sentence about when the process became steady, and how slow it was before."""
    if not startup.steady:
        yield f"no unit of launches repeats, so this is all of its {human_time(startup.time)}"
        return
    yield (
        f"{human_time(startup.time)} and {amount(startup.launches, 'launch')} until it steadily repeats a unit of "
        f"{amount(startup.length, 'launch')}, which comes {startup.times:,} times and takes {human_time(startup.usual)}"
    )
    if startup.skipped:
        first = human_time(startup.first)
        if startup.skipped == 1:
            yield f"its first unit isn't steady yet: it took {first}"
        else:
            yield f"its first {startup.skipped:,} units aren't steady yet: the first of them took {first}"


def _iter_kinds(startup: Startup) -> Iterator[tuple[Any, ...]]:
    """Yield rows of STARTUP, longest first."""
    for what, kind in sorted(startup.kinds.items(), key=lambda one: (-one[1].time, one[0])):
        share = 100 * kind.time / (startup.time or 1)
        rate = kind.bytes / kind.time * 1e9 if kind.bytes and kind.time else None
        pageable = kind.pageable if kind.bytes else None
        told = _advise(startup, what) if share >= TELL else None
        row = what, kind.time, share, kind.calls or None, kind.bytes or None, rate, pageable
        yield *row, None if kind.begin is None else max(0, kind.begin), told


def _iter_libraries(startup: Startup) -> list[tuple[Any, ...]]:
    """Return rows of LIBRARIES, longest first."""
    found = sorted(startup.libraries.items(), key=lambda one: (-one[1].time, -one[1].kernels, one[0]))
    return [(name, one.kernels, one.loaded, one.time, 100 * one.time / (startup.time or 1)) for name, one in found]


def _advise(startup: Startup, what: str) -> str:
    """Return a sentence about how to shorten a part of the start-up."""
    from gpt.analyze.lib import startup_times as kinds

    kind = startup.kinds[what]
    match what:
        case kinds.IMPORTS:
            return (
                "imports, and loading libraries before CUDA is used: import less, or cut the libraries with gpt-debloat"
            )
        case kinds.LOAD | kinds.LAZY:
            return _advise_loading(startup)
        case kinds.LINK:
            return "the driver compiles or links PTX: ship machine code for this GPU, or keep CUDA's cache of it"
        case kinds.DRIVER | kinds.CONTEXT:
            return "the driver starts and makes contexts: nvidia-persistenced keeps it loaded; use one context"
        case kinds.MEMORY:
            return f"{amount(kind.calls, 'call')}: allocate less often, in larger pieces"
        case kinds.PINNED:
            return f"{amount(kind.calls, 'call')}: pin less, or reuse pinned memory"
        case kinds.INPUT:
            rate = human(kind.bytes / kind.time * 1e9) if kind.time else "-"
            told = f"{human(kind.bytes)} at {rate} a second"
            if kind.pageable:
                return f"{told}, {human(kind.pageable)} of them from pageable memory: read into pinned memory instead"
            return told
        case kinds.CAPTURE | kinds.GRAPH:
            return "graphs are captured and instantiated: capture fewer sizes, or only when they are needed"
        case kinds.WAITS:
            return "the host waits for the GPU: 'gpt-analyze summary' lists what ran there"
        case kinds.WARM_HOST:
            return "between launches, in the warm-up: compilation, the choice of algorithms, Python"
        case kinds.HOST:
            return "between the first call and the first launch: reading weights, building the model"
        case kinds.COPIES:
            return "copies from the device or within it, and memsets"
    return f"{amount(kind.calls, 'call')}, which load no code" if what == kinds.LAUNCHES else amount(kind.calls, "call")


def _advise_loading(startup: Startup) -> str:
    """Return a sentence about the libraries whose code was loaded, and when it was."""
    from gpt.analyze.lib import startup_times as kinds

    lazy = startup.kinds[kinds.LAZY].time if kinds.LAZY in startup.kinds else 0
    time = lazy + (startup.kinds[kinds.LOAD].time if kinds.LOAD in startup.kinds else 0)
    told = f"loading GPU code takes {human_time(time)}, {human_share(100 * time / (startup.time or 1))} of the start"
    loaded = {name: one for name, one in startup.libraries.items() if one.loaded}
    if lazy and loaded:
        inside = human_time(lazy)
        most = max(loaded, key=lambda name: (loaded[name].time, name))
        kernels = amount(sum(one.loaded for one in loaded.values()), "first launch")
        told += f", {inside} of that in {kernels} of kernels, mostly of {most}"
    return f"{told}: run a warm-up before it matters, or cut the code with gpt-debloat"


ANALYSIS = Analysis("Show where the time goes before steady work.", StartupFold)
