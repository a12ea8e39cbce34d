"""gpt-analyze graphs: what the launches of CUDA graphs ran, by executable graph and by kernel.

A `graph` record lists the kernels and copies of the graph that a handle refers to from that time on; a call says which
handle it launched. GPU times show how long a replay takes, and the probe block_sched how long its kernels take.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

from gpt.analyze.lib.answer import Answers, Column, make_answer, plot
from gpt.analyze.lib.command import of_model
from gpt.base.errors import MissingError, TruncatedError
from gpt.base.printable import shorten
from gpt.screen.brief import brief_name
from gpt.screen.units import amount, human_share, human_time
from gpt.trace.kinds import CALLS, GPU_TIMES, NODE_TIMES, NODES, RANGES, SAVES
from gpt.trace.node_times import name_type
from gpt.trace.replays import COPIES, Replays, sum_replays

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpt.trace.event_costs import EventCost
    from gpt.trace.graphs import GraphContents, Operation
    from gpt.trace.model import TraceModel
    from gpt.trace.node_times import TimedReplay
    from gpt.trace.process import Process

GRAPHS = (
    Column("graph", "u64", "id"),
    Column("exec", "u64", "address", "handle"),
    Column("pid", "u64", "id"),
    Column("since", "u64", "ns", shown="never"),
    Column("nodes", "u64"),
    Column("kernels", "u64"),
    Column("replays", "u64"),
    Column("time", "u64?", "ns", "GPU time", "any"),
    Column("p50", "u64?", "ns", "median", "any"),
    Column("longest", "u64?", "ns", shown="never"),
    Column("call", "u64?", "ns", "a call"),
    Column("copies", "u64", shown="any"),
    Column("copied", "u64", "bytes", shown="any"),
)
KERNELS = (
    Column("kernel", "text", "kernel", "kernels of graphs"),
    Column("graph", "u64", "id"),
    Column("replay", "u64", title="a replay"),
    Column("launches", "u64"),
    Column("probed", "u64?", shown="any"),
    Column("time", "u64?", "ns", shown="any"),
    Column("mean", "u64?", "ns", shown="any"),
    Column("share", "f64?", "%", shown="any"),
)
MODULES = (
    Column("module", "text", title="modules of graphs"),
    Column("graph", "u64", "id"),
    Column("replay", "u64", title="a replay"),
    Column("launches", "u64"),
)
MAP = "block_sched"
MOST, WIDEST = 0.5, 60  # minimum share of a replay for a kernel to be named, width of its name
TOP = 30  # rows that tables show
NODES_OF = (
    Column("node", "u64", "id"),
    Column("kernel", "text", "kernel", "nodes in their order"),
    Column("module", "text?", shown="any"),
    Column("graph", "u64", "id"),
    Column("timed", "u64", shown="never"),
    Column("time", "u64", "ns", "mean"),
    Column("least", "u64", "ns", shown="never"),
    Column("most", "u64", "ns", shown="never"),
    Column("stamps", "u64", "ns", shown="never"),
    Column("share", "f64", "%"),
)


class Replayed(NamedTuple):
    """A graph, the time from which its handle refers to it, and the calls that launched it."""

    number: int
    process: Process
    handle: int
    made: GraphContents
    calls: Any

    @property
    def copies(self) -> list[Operation]:
        """Return the copies and memsets in a launch."""
        return [one for one in self.made.operations or () if one.type in COPIES]


class Timed(NamedTuple):
    """A graph whose nodes were timed in some replays, and a row of NODES_OF for each node."""

    graph: Replayed
    replays: list[TimedReplay]
    cost: EventCost
    rows: list[tuple[Any, ...]]


def graphs(trace: TraceModel) -> Answers:
    """Yield the graphs that were launched, in the order of their first launches, and their kernels by name."""
    from gpt.trace.event_costs import median

    found = _find_graphs(trace)
    if not found:
        return
    times, spans = _gpu_times(trace, found), _spans(trace, found)
    rows, kernels, lacking = [], [], Counter[str]()
    for graph in found:
        took = times[graph.number]["duration"] if graph.number in times else None
        gpu = (float(took.sum()), median(took), float(took.max())) if took is not None else (None,) * 3
        made, copies = graph.made, graph.copies
        since = max(0, int(trace.times(graph.process, _stamps([made.since]))[0]))
        copied = sum(one.nodes for one in copies), sum(one.bytes for one in copies)
        rows.append((graph.number, graph.handle, graph.process.pid, since, made.nodes, made.kernels.total(),
                     len(graph.calls), *gpu, median(graph.calls["duration"]), *copied))  # fmt: skip
        names = graph.process.kernels()
        # by name, since several functions may have the same name: number of nodes, and the entries in `spans`
        own: dict[str, tuple[int, int, int, float]] = {}
        for function, count in made.kernels.items():
            probed, timed, span = spans.get((graph.number, function), (0, 0, 0.0))
            name = names.get(function, f"#{function}")
            before = own.get(name, (0, 0, 0, 0.0))
            own[name] = before[0] + count, before[1] + probed, before[2] + timed, before[3] + span
        whole = sum(span for *_, span in own.values())
        for name, (count, probed, timed, span) in own.items():
            known = (span, span / timed, 100 * span / (whole or 1)) if timed else (None,) * 3
            lacking["probes"] += not probed
            lacking["times"] += probed > 0 == timed
            lacking["some"] += 0 < timed < probed
            kernels.append((name, graph.number, count, count * len(graph.calls), probed or None, *known))
    replays = Replays()
    for process in trace.processes:
        mine = ((graph.made, len(graph.calls)) for graph in found if graph.process is process)
        replays.merge(sum_replays(mine, process.graphs))
    verdict = [] if times else ["no GPU times: 'gpt-hook run --gpu-time' records how long replays took"]
    if times and (untimed := sum(len(graph.calls) for graph in found) - sum(map(len, times.values()))):
        verdict.append(f"no GPU time for {amount(untimed, 'replay')}: the times leave them out")
    verdict += replays.verdict()
    nodes = _list_all_nodes(trace, found)
    verdict += _find_longest(trace, found, nodes, times)
    yield make_answer("graphs", GRAPHS, rows, verdict, top=TOP)
    kernels.sort(key=lambda row: (-(row[5] or 0), -row[3], row[0], row[1]))
    verdict = []
    if not spans:
        verdict.append(f"no kernel times in replays: 'gpt-hook run -p {MAP}' records them")
    else:
        told = {
            "probes": f"no times from probe {MAP}",
            "times": "probes, but no times: only sums were kept, or clocks can't be compared; shares leave them out",
            "some": "times for some launches only, which time, mean and share are about",
        }
        verdict += [
            f"{count:,} of these kernels {'has' if count == 1 else 'have'} {told[what]}"
            for what, count in lacking.items()
            if count
        ]
    if zero := sum(1 for row in kernels if row[2] == 0):
        what = amount(zero, "kernel")
        verdict.append(f"not counted: launches of {what} in conditional or disabled nodes; only probes count them")
    drawn = plot("bars", "kernel", "time" if spans else "launches")
    yield make_answer("kernels", KERNELS, kernels, verdict, top=TOP, plots=[drawn])
    yield from _iter_modules(trace, found)
    yield from _iter_nodes(found, nodes, times)


def _find_longest(trace: TraceModel, found: list[Replayed], nodes: list[Timed], times: dict[int, Any]) -> Iterator[str]:
    """Yield a line for each graph in which the nodes of one kernel take most of a replay, by the times of its nodes,
    or else by the mean time that the kernel had outside of graphs.
    """
    from gpt.trace.event_costs import median

    means = {number: _find_means(trace, number) for number in range(len(trace.processes))}
    by_node = {one.graph.number: one.rows for one in nodes}
    for graph in found:
        took, counts = Counter[str](), Counter[str]()  # ns in a replay, and nodes, by name
        if rows := by_node.get(graph.number):
            for row in rows:
                took[row[1]] += row[5]
                counts[row[1]] += 1
            whole = took.total()
        elif graph.number in times:
            names, own = graph.process.kernels(), means[trace.processes.index(graph.process)]
            for function, count in graph.made.kernels.items():
                counts[names.get(function, f"#{function}")] += count
            took.update({name: own.get(name, 0) * count for name, count in counts.items()})
            whole = max(round(median(times[graph.number]["duration"])), took.total())
        for name, ns in took.most_common(1):
            if whole and ns >= MOST * whole:
                share = human_share(100 * ns / whole)
                told = f"{shorten(brief_name(name), WIDEST, middle=False)} takes {share} of a replay"
                more = f", {human_time(ns)}" if rows else ", going by times outside of graphs"
                yield f"graph {graph.number}: {told}, in {amount(counts[name], 'node')}{more}"


def _find_means(trace: TraceModel, number: int) -> dict[str, int]:
    """Return the mean ns of each kernel of a process outside of graphs."""
    import numpy as np

    names, times = trace.processes[number].kernels(), trace.gpu_times()
    times = times[(times["process"] == number) & (times["function"] != 0)]
    sums, counts = Counter[str](), Counter[str]()
    functions, which, found = np.unique(times["function"], return_inverse=True, return_counts=True)
    totals = np.bincount(which, times["duration"], len(functions))
    for function, total, count in zip(functions.tolist(), totals.tolist(), found.tolist(), strict=True):
        name = names.get(function, f"#{function}")
        sums[name] += round(total)
        counts[name] += count
    return {name: round(sums[name] / counts[name]) for name in sums}


def _iter_modules(trace: TraceModel, found: list[Replayed]) -> Answers:
    """Yield the modules or NVTX ranges in which the kernel nodes were created, or nothing if no graph's nodes are
    known.
    """
    from gpt.trace.calls_store import times_of
    from gpt.trace.modules import find_modules, fold

    rows: list[tuple[Any, ...]] = []
    for graph in found:
        number = trace.processes.index(graph.process)
        origins = graph.process.graphs.origins(graph.handle, graph.made)
        if origins is None or not trace.ranges(number).texts:
            continue
        names, which = find_modules(trace, number, times_of(graph.process, origins.calls), origins.threads)
        counts = Counter(fold(names[at]) for at in which.tolist())
        rows += [(name, graph.number, count, count * len(graph.calls)) for name, count in counts.items()]
    if rows:
        rows.sort(key=lambda row: (-row[3], row[0], row[1]))
        yield make_answer("modules", MODULES, rows, top=TOP, plots=[plot("bars", "module", "launches")])


def _list_all_nodes(trace: TraceModel, found: list[Replayed]) -> list[Timed]:
    """Return the graphs whose nodes were timed, with their nodes."""
    from gpt.trace.event_costs import find_costs, find_pause

    costs = {process: find_costs(trace, number) for number, process in enumerate(trace.processes)}
    all_ = []
    for graph in found:
        if replays := graph.process.graphs.timed(graph.handle, graph.made):
            key = graph.handle, graph.made.since
            cost = costs[graph.process].get(key) or find_pause(graph.process, replays)
            all_.append(Timed(graph, replays, cost, [*_list_nodes(trace, graph, replays, cost)]))
    return all_


def _iter_nodes(found: list[Replayed], nodes: list[Timed], times: dict[int, Any]) -> Answers:
    """Yield the nodes of graphs whose nodes were timed, and why other graphs' nodes weren't."""
    rows: list[tuple[Any, ...]] = []
    verdict = []
    timed = {one.graph.number: one for one in nodes}
    for graph in found:
        if reason := graph.process.graphs.untimed(graph.handle, graph.made):
            verdict.append(f"graph {graph.number}: no times of nodes: {reason}; {reason.advice.partition(': ')[2]}")
        if one := timed.get(graph.number):
            rows += one.rows
            verdict += _tell_cost(graph, one.replays, one.cost, times.get(graph.number))
    if rows or verdict:
        yield make_answer("nodes", NODES_OF, rows, verdict, top=TOP, plots=[plot("bars", "kernel", "time")])


def _list_nodes(
    trace: TraceModel, graph: Replayed, replays: list[TimedReplay], cost: EventCost
) -> Iterator[tuple[Any, ...]]:
    """Yield a row for each node of a graph, as listed in the last replay."""
    import numpy as np

    from gpt.trace.calls_store import times_of
    from gpt.trace.event_costs import find_means
    from gpt.trace.modules import find_modules
    from gpt.trace.node_times import same_nodes

    process, last, same = graph.process, replays[-1], same_nodes(replays)
    durations = _stamps([one.durations for one in same])
    times = cost.own(process, durations)
    modules: list[str | None] = [None] * len(last.types)
    if trace.ranges(number := trace.processes.index(process)).texts:
        known, which = find_modules(trace, number, times_of(process, last.calls), last.threads)
        modules = [known[at] for at in which.tolist()]
    means = np.maximum(find_means(process.clock.durations(durations)) - cost.each, 0)
    whole = means.sum() or 1
    for at, (type_, function) in enumerate(zip(last.types.tolist(), last.functions.tolist(), strict=True)):
        name = process.kernels().get(function, f"#{function}") if function else f"({name_type(type_)})"
        yield (at + 1, name, modules[at], graph.number, len(same), means[at], times[:, at].min(), times[:, at].max(),
               cost.each, 100 * means[at] / whole)  # fmt: skip


def _tell_cost(graph: Replayed, replays: list[TimedReplay], cost: EventCost, times: Any) -> Iterator[str]:
    """Say how the nodes of a graph were timed, and how much longer the timed replays took."""

    from gpt.trace.event_costs import find_timed, median

    if cost.replay is None:
        how = "the time between two stamps, as no replay without stamps has a GPU time; that's likely too little"
    else:
        how = "so that the nodes add up to" if cost.each else "they don't add up to more than"
        how += f" {human_time(cost.replay)}, the median of replays without stamps"
    yield (
        f"graph {graph.number}: {amount(len(replays), 'replay')} of {len(graph.calls):,} ran a copy with a stamp"
        f" between any two nodes; a node's time is that between its stamps, less {human_time(cost.each)}: {how}"
    )
    if early := int(replays[-1].early.sum()):
        what = f"{amount(early, 'node')} may begin before the node before ends, but waited for it in such a replay"
        yield f"graph {graph.number}: {what}"
    if times is None:
        return
    timed = find_timed(graph.process, replays, times) >= 0
    if timed.any() and not timed.all():
        took, others = (human_time(median(times["duration"][chosen])) for chosen in (timed, ~timed))
        yield f"graph {graph.number}: such a replay took {took}, another one {others} (medians)"


def _stamps(values: Any) -> Any:
    import numpy as np

    return np.array(values, np.uint64)


def _find_graphs(trace: TraceModel) -> list[Replayed]:
    """Return the launched graphs, numbered from 1 in the order of their first launches."""
    calls = trace.calls("object", "stamp")
    calls = calls[trace.chosen(calls, type="graph", op="launch")]
    calls = calls[(calls["result"] == 0) & (calls["duration"] > 0)]  # a launch that never returned may not have run
    found = []
    for number, process in enumerate(trace.processes):
        mine = calls[calls["process"] == number]
        for handle, made, places in process.graphs.iter_launched(mine["object"], mine["stamp"]):
            found.append(Replayed(0, process, handle, made, mine[places]))
    found.sort(key=lambda graph: int(graph.calls["start"][0]))
    return [graph._replace(number=number) for number, graph in enumerate(found, 1)]


def _gpu_times(trace: TraceModel, found: list[Replayed]) -> dict[int, Any]:
    """Return the known times of each graph's replays, in ns."""
    from gpt.trace.find_calls import find_calls

    times = trace.gpu_times()
    numbers = {process: number for number, process in enumerate(trace.processes)}
    mine: dict[int, Any] = {}
    for graph in found:
        own = times[(times["process"] == numbers[graph.process]) & (times["function"] == 0)]
        chosen = find_calls(own["thread"], own["call"], graph.calls["thread"], graph.calls["start"]) >= 0
        if chosen.any():
            mine[graph.number] = own[chosen]
    return mine


def _spans(trace: TraceModel, found: list[Replayed]) -> dict[tuple[int, int], tuple[int, int, float]]:
    """Return, by graph and function, how many launches had probes, how many of these have a known time, and the sum of
    their times in ns.
    """
    from gpt.analyze.lib.schedule import make_schedule

    by_handle = defaultdict(list)
    for graph in found:
        by_handle[graph.process, graph.handle].append(graph)
    spans: dict[tuple[int, int], tuple[int, int, float]] = {}
    for launch in trace.launches:
        handle, buffer = launch.launch.exec, launch.buffers.get(MAP)
        if handle is None or buffer is None:
            continue
        meant = [graph for graph in by_handle[launch.process, handle] if graph.made.since <= launch.launch.start]
        if not meant:
            continue
        try:
            schedule = make_schedule(buffer.read(), launch.process.cards.get(launch.device, {}))
        except (MissingError, TruncatedError):
            schedule = None
        graph = max(meant, key=lambda graph: graph.made.since)
        key = graph.number, _find_node(graph, launch.launch.function)
        probed, timed, span = spans.get(key, (0, 0, 0.0))
        known = schedule is not None and schedule.ns_per_clock is not None
        spans[key] = probed + 1, timed + known, span + (float(schedule.ended.max()) if schedule and known else 0.0)
    return spans


def _find_node(graph: Replayed, function: int) -> int:
    """Return the function that the graph's record has for a kernel. During capture, the kernel may have been looked up
    again and got a new id.
    """
    if function in graph.made.kernels:
        return function
    names = graph.process.kernels()
    return next((one for one in graph.made.kernels if names.get(one) == names.get(function)), function)


def _find_need(trace: TraceModel) -> str | None:
    if _find_graphs(trace):
        return None
    if any(True for process in trace.processes for _ in process.graphs.iter_all()):
        return "no graph was launched while calls were recorded"
    return "no CUDA graph in the trace: the program made none, or 'gpt-hook run' began after it did"


def _find_no_lack(kinds: set[str]) -> None:
    return None


KINDS = CALLS | GPU_TIMES | NODES | NODE_TIMES | RANGES | SAVES | {"graph", "device"}
ANALYSIS = of_model(graphs, "Show the kernels in CUDA graph launches.", KINDS, _find_no_lack, need=_find_need,
                    types=frozenset(("graph",)), drains=True, sends=True)  # fmt: skip
