"""Answer what people ask about an inference, as part of `gpt-analyze summary`.

Each question has a short answer, a figure, and the evidence for it. If the trace doesn't contain the answer, the text
names the option of gpt-hook with which another run would provide it. The facts about a process are small, so they can
be kept after it has ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from gpt.analyze.lib.answer import Answers, Column, make_answer
from gpt.analyze.lib.locations import WHO, describe, tell_apart
from gpt.base.printable import shorten
from gpt.screen.brief import brief_name
from gpt.screen.units import amount, human, human_count, human_share, human_time, percent

if TYPE_CHECKING:
    from gpt.analyze.lib.iterations import IdleShare, Unit
    from gpt.analyze.lib.totals import FunctionTotals, ProcessTotals, Totals
    from gpt.trace.machines import Header
    from gpt.trace.process import Process

QUESTIONS = (
    Column("question", "text"),
    Column("short", "text", title="answer"),
    Column("value", "f64?", shown="never"),
    Column("unit", "text?", shown="never"),
    Column("evidence", "text?", shown="line"),
    Column("option", "text?", shown="never"),
)
ITERATIONS = (
    Column("unit", "text", title="what repeats"),
    Column("scope", "text", shown="never"),
    Column("first_kernel", "text?", "kernel", "begins with"),
    *WHO[:2],
    WHO[2]._replace(shown="never"),
    Column("launches", "u64"),
    Column("kernels", "u64"),
    Column("count", "u64", title="times"),
    Column("time", "u64", "ns", "each"),
    Column("first", "u64", "id", "from launch"),
    Column("begin", "u64", "ns", shown="never"),
    Column("covered", "f64", "%", "of all"),
    Column("in_threads", "u64?", shown="never"),  # if several threads launch
)
PHASES = (
    Column("phase", "text", title="calls of"),
    *WHO,
    Column("calls", "u64"),
    Column("launches", "u64"),
    Column("time", "u64", "ns"),
)
LOADING, BEFORE, ITERATING, REST = "loading", "before iterations", "iterations", "the rest"
IO = ("memcpy", "memset")
COMPUTE = ("kernel", "graph")
NO_KERNEL = {"memcpy": "a copy", "memset": "a memset", "graph": "a graph"}  # what ran instead, by the call's type
NOT_KNOWN, NOT_RECORDED, NOTHING = "not known", "not recorded", "nothing ran"
SHOWN, WIDEST = 4, 60  # parts named in a line; maximum width of a kernel's name
TOP = 12  # rows per table
NEVER = 1 << 64  # a time stamp
FAR = 2  # times the median
WAIT = "cuStreamSynchronize"
# The resource manager's control commands that put channels on the GPU's runlists or take them off (NVIDIA,
# open-gpu-kernel-modules: ctrla06c.h, ctrla06f/ctrla06fgpfifo.h).
SCHEDULING = {0xA06C0101: "schedule a group of channels", 0xA06C0103: "set a time slice", 0xA06C0105: "preempt",
              0xA06F0103: "schedule a channel", 0xA06F0104: "bind a channel to an engine"}  # fmt: skip


class InferenceFacts(NamedTuple):
    """The facts of one process that the questions need; times are ns."""

    header: Header
    threads: int
    span: int  # recorded time from the start of the process to the end of its last call
    launches: int  # including launches that weren't examined
    looked_at: int  # number of launches that were examined
    units: list[tuple[Any, ...]]  # rows of ITERATIONS, without WHO
    phases: list[tuple[Any, ...]]  # rows of PHASES, without WHO
    loading: Counter[str]  # calls by type
    counted: int  # calls that were counted, but not recorded
    step: int  # one in `step` calls was examined
    idle: IdleShare | None
    around: tuple[str, str] | None  # names of the work before and after the GPU's longest idle time
    idle_all: bool  # True if `idle` covers all the work
    controls: Counter[int]  # control commands


def make_facts(totals: ProcessTotals) -> InferenceFacts:
    """Collect the facts about a process from the records read so far."""
    from gpt.analyze.lib.iterations import MOST, WHOLE

    process, clock = totals.process, totals.process.clock
    unrecorded = process.unrecorded
    units = totals.launches.find_units()
    first = totals.launches.first()
    bounds = [(LOADING, 0, NEVER if first is None else first)]
    if first is not None and units and (units[0].role, units[0].scope) == (WHOLE, "all"):
        bounds += [(BEFORE, first, units[0].start), (ITERATING, units[0].start, units[0].end)]
        bounds += [(REST, units[0].end, NEVER)]
    elif first is not None:
        bounds += [(REST, first, NEVER)]
    phases, loading = [], Counter[str]()
    last = totals.last_stamp
    for phase, begin, end in bounds:
        calls = totals.call_times.count(begin, end)
        counts = {id_: count for id_, count in calls.items() if not process.is_ioctl(id_)}
        if phase == LOADING:
            for id_, count in counts.items():
                loading[process.api(id_).type] += count
        if counts:
            edges = clock.times(_array(max(begin, totals.first_stamp), min(end, last))).tolist()
            edges[1] = totals.last if end > last else edges[1]
            took = max(0, edges[1] - edges[0] - unrecorded.within_one(*edges))
            phases.append((phase, sum(counts.values()), totals.launches.count(begin, end), float(took)))
    idle = totals.busy.find_idle(clock, totals.find_loaded(), unrecorded)
    around = None
    if idle:
        around = _name_work(process, *idle.after), _name_work(process, *idle.before)
        idle = idle._replace(at=max(0, idle.at - clock.monotonic))
    rows = [_unit_row(totals, unit) for unit in units]
    span = totals.last - clock.monotonic - process.unrecorded_until(totals.last)
    looked = min(totals.launches.total, MOST)
    return InferenceFacts(
        process.header,
        len(process.threads),
        span,
        totals.launches.total,
        looked,
        rows,
        phases,
        loading,
        totals.counted,
        totals.call_times.step,
        idle,
        around,
        totals.busy.total <= totals.busy.KEPT,
        process.controls.copy(),
    )


def _name_work(process: Process, function: int, api: int) -> str:
    """Return the kernel's name, or `a copy (cuMemcpyHtoD)`."""
    if name := process.kernels().get(function):
        return shorten(brief_name(name), WIDEST, middle=False)
    call = process.api(api)
    return f"{NO_KERNEL[call.type]} ({call.name})" if call.type in NO_KERNEL else call.name


def _array(*values: int) -> Any:
    import numpy as np

    return np.array(values, np.uint64)


def _unit_row(totals: ProcessTotals, unit: Unit) -> tuple[Any, ...]:
    """Return a row of ITERATIONS, without WHO."""
    import numpy as np

    from gpt.analyze.lib.iterations import GRAPH

    process, clock, names = totals.process, totals.process.clock, totals.process.kernels()
    kernels = 0
    codes, counts = np.unique(unit.codes, return_counts=True)
    for code, count in zip(codes.tolist(), counts.tolist(), strict=True):
        if code & int(GRAPH):
            inside = process.graphs.find(totals.launches.graphs[code ^ int(GRAPH)], unit.start)
            kernels += count * inside.total()
        else:
            kernels += count
    code = int(unit.codes[0])
    name = NO_KERNEL["graph"] if code & int(GRAPH) else names.get(code, f"#{code}")
    took = float(clock.durations(_array(max(0, round(unit.took))))[0])
    begin = max(0, int(clock.times(_array(unit.start))[0]) - clock.monotonic)
    size = len(unit.codes)
    share = 100 * unit.covered / unit.launches
    told = unit.role + ("" if unit.scope == "all" else f", {unit.scope}")
    return told, unit.scope, name, size, kernels, unit.times, took, \
        unit.first + 1, begin, share, unit.in_threads or None  # fmt: skip


def answer_questions(totals: Totals, facts: Sequence[InferenceFacts], verbose: bool) -> Answers:
    """Yield the tables of iterations and phases, and the list of questions. Ioctls are included only if `verbose` is
    set.
    """
    ordered = sorted(facts, key=lambda fact: (-fact.launches, fact.header.get("rank", -1)))
    who = tell_apart(fact.header for fact in ordered)
    names = {id(fact): describe(one) for fact, one in zip(ordered, who, strict=True)}
    if units := [
        (_name_unit(row), *row[1:3], *one, *row[3:])
        for fact, one in zip(ordered, who, strict=True)
        for row in _iter_different(fact.units)
    ]:
        several = len({row[3:6] for row in units}) > 1
        shown = [one._replace(shown="any") if several and one.name == "pid" else one for one in ITERATIONS]
        yield make_answer("iterations", shown, units, top=TOP)
    if phases := [(row[0], *one, *row[1:]) for fact, one in zip(ordered, who, strict=True) for row in fact.phases]:
        step = max(fact.step for fact in facts)
        verdict = [f"too many calls to count all: one in {step} was sampled"] if step > 1 else []
        if counted := sum(fact.counted for fact in facts):
            verdict.append(f"{amount(counted, 'call')} counted but not timed: in no row")
        yield make_answer("phases", PHASES, phases, verdict, top=TOP)
    if totals.functions:
        asked = [_loading(totals, ordered, names), _iterations(totals, ordered, names), _compute(totals),
                 _idle(totals, ordered, names), _waiting(totals, facts)]  # fmt: skip
        asked += [_ioctls(totals), _scheduler(totals, facts)] if verbose else []
        yield make_answer("questions", QUESTIONS, asked)


def _name_unit(row: tuple[Any, ...]) -> str:
    """Return a name for a row of ITERATIONS that makes sense even if a table truncates it."""
    role, _, scope = row[0].partition(", ")
    return f"{scope}: {role}" if scope else role


def _iter_different(units: list[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of ITERATIONS, but skip a stream whose unit is also the unit of a thread."""
    seen = set()
    for row in units:
        key = row[0].partition(", ")[0], *row[2:]
        if key not in seen:
            yield row
        seen.add(key)


class Said(NamedTuple):
    """A row of QUESTIONS."""

    question: str
    answer: str
    value: float | None = None
    unit: str | None = None
    evidence: str | None = None
    option: str | None = None


Names = Mapping[int, str]  # names of processes, by the id() of their facts


def _loading(totals: Totals, facts: list[InferenceFacts], names: Names) -> Said:
    question, main = "calls of loading", facts[0]
    if not main.launches and not _launched(totals):
        return Said(question, NOTHING, evidence="it ends with the first launch, but nothing was launched")
    if not main.launches:
        fact = "it ends with the first launch, and none is recorded as a call: 'gpt-hook run --calls all' records them"
        return Said(question, NOT_KNOWN, evidence=fact, option="--calls all")
    calls, every = main.loading.total(), sum(row[1] for row in main.phases)
    most = sorted(main.loading.items(), key=lambda type_: (-type_[1], type_[0]))[:SHOWN]
    parts = ", ".join(f"{name} {count:,}" for name, count in most)
    if rest := calls - sum(count for _, count in most):
        parts += f", and {rest:,} more"
    took = next((row[3] for row in main.phases if row[0] == LOADING), 0)
    about = "about " if main.step > 1 else ""
    evidence = f"{names[id(main)]}, in the {human_time(took)} until its first launch: {parts}"
    if not calls:
        evidence = f"{names[id(main)]} made no call before its first launch"
    if main.counted:
        every += main.counted
        evidence += f"; {amount(main.counted, 'call')} counted but not timed, which may be among them"
    return Said(question, f"{about}{calls:,} of {amount(every, 'call')}", calls, "calls", evidence)


def _compare_median(main: InferenceFacts, usual: float) -> Iterator[str]:
    """Yield a remark if some iterations take far longer than the median, which is `usual` ns, or if the GPU takes far
    longer than the host.
    """
    time = next((row[3] for row in main.phases if row[0] == ITERATING), 0)
    if time >= FAR * usual > 0:
        yield f"all of them take {human_time(time)}: some far longer than others"
    if time and main.idle and main.idle_all and (busy := main.idle.total - main.idle.idle) > time:
        yield f"the GPU is busy for {human_time(busy)}: the host launches ahead of it"


def _iterations(totals: Totals, facts: list[InferenceFacts], names: Names) -> Said:
    from gpt.analyze.lib.iterations import INSIDE, OTHER, WHOLE
    from gpt.analyze.lib.periods import REPEATS
    from gpt.analyze.lib.rounds import INTERLEAVED

    question, main = "kernels an iteration", facts[0]
    units = [row for row in main.units if row[0].startswith(WHOLE)]
    if units:
        _, scope, name, launches, kernels, count, took, first, _, share, in_threads = units[0]
        begins = f" ({shorten(brief_name(name), WIDEST, middle=False)})" if name else ""
        graphs = kernels != launches
        unit = "launch" if launches == 1 else f"{launches:,} launches"
        unit += "" if not graphs else " of a graph" if launches == 1 else ", some of graphs,"
        whose = names[id(main)] + ("" if scope == "all" else f", {scope}")
        parts = [f"{whose}: the same {unit} {amount(count, 'time')}"]
        parts.append(f"from launch {first:,}{begins} on")
        parts.append(f"{human_share(share)} of its launches" + (", where a graph counts as one" if graphs else ""))
        lasts = f"each takes {human_time(took)}, the median from its first launch to the one after its last"
        told = [", ".join(parts), lasts, *_compare_median(main, count * took)]
        if in_threads and in_threads > count:
            told.append(INTERLEAVED.format(f"{in_threads:,} times"))
        same = [row for row in main.units if row[1] == scope]
        if inside := [f"{amount(row[3], 'launch')}" for row in same if row[0].startswith(INSIDE)]:
            verb = "repeats" if inside == ["1 launch"] else "repeat"
            told.append(f"inside it, {' and '.join(inside)} {verb}")
        if others := [row for row in same if row[0].startswith(OTHER)]:
            other = " and ".join(f"{human_time(row[6])} ({row[5]:,} times)" for row in others[:SHOWN])
            told.append(f"other units of {amount(launches, 'launch')} repeat, too: {other}")
        told += [f"of the first {main.looked_at:,} launches"] if main.looked_at < main.launches else []
        return Said(question, f"{kernels:,}, {count:,} times", kernels, "kernels", "; ".join(told))
    if main.units:
        what = amount(main.units[0][3], "launch")
        evidence = f"{names[id(main)]}: {len(main.units)} units of {what} repeat, but none covers half of the launches"
        return Said(question, "no single iteration", evidence=evidence)
    if main.launches:
        among = " of kernels and graphs" if _chosen(totals, ("graph",), "launch") else ""
        evidence = f"{names[id(main)]}: {amount(main.launches, 'launch')}{among}"
        if main.launches >= REPEATS:
            evidence += "; no unit covers half of them by repeating three times, or nearly all by two"
        return Said(question, "no repeating unit", evidence=evidence)
    launched = _launched(totals)
    if not launched:
        return Said(question, NOTHING, evidence="no kernel or graph was launched")
    counted = "" if totals.replays.unseen else f"{amount(launched, 'launch')} counted, "
    fact = f"{counted}none recorded as a call: 'gpt-hook run --calls all' records them"
    return Said(question, NOT_KNOWN, evidence=fact, option="--calls all")


def _chosen(totals: Totals, types: Sequence[str], op: str = "") -> list[FunctionTotals]:
    """Return the functions of these types, and with this op if it's given."""
    return [function for api, function in totals.functions.items() if api.type in types and op in (api.op, "")]


def _launched(totals: Totals) -> int:
    """Return the number of launches that were recorded as calls or only counted. Graphs may have launched more
    kernels.
    """
    counted = sum(kernel.launches for kernel in totals.kernels.values())
    return counted or sum(function.calls for function in _chosen(totals, COMPUTE, "launch")) or totals.replays.unseen


def _host_time(functions: list[FunctionTotals]) -> float:
    return sum(function.durations.total for function in functions)


def _gpu_time(functions: list[FunctionTotals]) -> tuple[float, int]:
    return sum(function.gpu.total for function in functions), sum(function.gpu.count for function in functions)


def _compute(totals: Totals) -> Said:
    question = "compute against copies"
    launching, copying = _chosen(totals, COMPUTE, "launch"), _chosen(totals, IO)
    (kernels, launches), (copies, copied) = _gpu_time(launching), _gpu_time(copying)
    replayed = [done for (type_, _), done in totals.replays.done.items() if type_ in IO]
    size = human(sum(one.moved["bytes"] for one in copying) + sum(done.bytes for done in replayed))
    inside = sum(done.number for done in replayed)
    made = sum(function.moved["calls"] for function in copying) + inside
    host = f"on the host {human_time(_host_time(launching))} in launch calls, "
    sets = [one for api, one in totals.functions.items() if api.type == "memset"]
    noun = " and sets" if any(one.calls for one in sets) else ""
    host += f"{human_time(_host_time(copying))} in {amount(made, 'copy')}{noun} of {size}" if made else "no copy"
    host += f", {inside:,} in graphs" if inside else ""
    if not (launches or copied or made or _launched(totals)):
        return Said(question, NOTHING, evidence="no launch and no copy")
    if not launches and not copied:
        fact = f"{host}; 'gpt-hook run --gpu-time' records their time on the GPU"
        return Said(question, NOT_KNOWN, evidence=fact, option="--gpu-time")
    ratio = kernels / copies if copies else None
    share = percent(round(kernels), round(kernels + copies))
    told = f"{human_count(ratio)} : 1 ({share} compute)" if ratio else "only compute" if kernels else "only copies"
    graphs = _gpu_time(_chosen(totals, ("graph",), "launch"))[1]
    among = f" ({graphs:,} of graphs)" if graphs else ""
    evidence = f"on the GPU {human_time(kernels)} for {amount(launches, 'launch')}{among}, "
    evidence += (
        f"{human_time(copies)} for {amount(copied, 'copy')}{noun if _gpu_time(sets)[1] else ''}"
        if copied
        else "no copy"
    )
    return Said(question, told, ratio, "ratio", f"{evidence}; {host}")


def _idle(totals: Totals, facts: Sequence[InferenceFacts], names: Names) -> Said:
    question = "idle periods of the GPU"
    main = next((fact for fact in facts if fact.idle), None)
    if main is None and not (_launched(totals) or any(function.calls for function in _chosen(totals, IO))):
        return Said(question, NOTHING, evidence="no launch and no copy: it had nothing to do")
    if main is None or main.idle is None or main.around is None:
        fact = "'gpt-hook run --gpu-time' records when kernels ran; 'gpt-analyze gaps' shows the host's gaps"
        return Said(question, NOT_KNOWN, evidence=fact, option="--gpu-time")
    idle, around = main.idle, main.around
    share = 100 * idle.idle / (idle.total or 1)
    told = f"{names[id(main)]}: {human_time(idle.idle)} of the {human_time(idle.total)} from its first work to its last"
    if idle.number:
        told += f", in {amount(idle.number, 'period')}; the longest, {human_time(idle.longest)}, began "
        told += f"{human_time(idle.at)} after the process, between {around[0]} and {around[1]}"
    told += "" if main.idle_all else "; only the first of its kernels and copies were looked at"
    told += "; work of other processes does not count" if len(facts) > 1 else ""
    return Said(question, f"{human_share(share)} of the time", share, "%", f"{told}; 'gpt-analyze idle' says why")


def _waiting(totals: Totals, facts: Sequence[InferenceFacts]) -> Said:
    span, syncs = sum(fact.span for fact in facts), _chosen(totals, ("sync",))
    found = [function for api, function in totals.functions.items() if api.name == WAIT]
    took, calls = _host_time(found), sum(function.calls + function.counted for function in found)
    every, waits = _host_time(syncs), sum(function.calls for function in syncs)
    shares = [percent(round(ns), span) if ns <= span else "over 100 %" for ns in (took, every)]
    own = "the time" if len(facts) == 1 else "the time of all processes"
    all_waits = f"all waits: {human_time(every)} in {amount(waits, 'call')}, {shares[1]} of {own}"
    evidence = f"{amount(calls, 'call')}; {all_waits}" if calls else all_waits if waits else "no other waits either"
    told = f"{human_time(took)}, {shares[0]} of the time" if calls else "not called"
    if waits and sum(fact.threads for fact in facts) > len(facts):
        evidence += "; if threads wait at the same time, each counts"
    elif every > span:
        evidence += "; a wait counts whole, even if recording was off in it"
    return Said(f"in {WAIT}", told, took, "ns", evidence)


def _ioctls(totals: Totals) -> Said:
    question = "ioctls to nvidia.ko"
    found = {api.name: function for api, function in totals.functions.items() if api.type == "ioctl"}
    if not found:
        return Said(question, NOT_RECORDED, evidence="'gpt-hook run --ioctl' records them", option="--ioctl")
    calls = sum(function.calls for function in found.values())
    first = sorted(found, key=lambda name: (-found[name].calls, name))[:SHOWN]
    told = ", ".join(f"{name} {found[name].calls:,}" for name in first)
    more = f", {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    took = human_time(_host_time([*found.values()]))
    return Said(
        question, f"{amount(calls, 'call')} of {amount(len(found), 'kind')}", calls, "calls", f"{took}: {told}{more}"
    )


def _scheduler(totals: Totals, facts: Sequence[InferenceFacts]) -> Said:
    question, why = "scheduler of the GPU", "launches reach it without a system call"
    if not _chosen(totals, ("ioctl",)):
        fact = f"{why}; 'gpt-hook run --ioctl' records the ioctls for channels, '-p block_sched' when blocks ran"
        return Said(question, NOT_RECORDED, evidence=fact, option="--ioctl")
    found = sum((fact.controls for fact in facts), Counter[int]())
    calls = sum(found[command] for command in SCHEDULING)
    told = ", ".join(f"{what} {found[command]:,}" for command, what in SCHEDULING.items() if found[command])
    fact = f"{why}; {told or 'no ioctl schedules channels'}; 'gpt-hook run -p block_sched' records when blocks ran"
    return Said(question, f"{amount(calls, 'ioctl')} to schedule channels", calls, "calls", fact)
