"""Attribute launches and GPU time to kernels, open NVTX ranges, modules of a model, or stacks, for 'summary --by'.

A launch belongs to the ranges that were open on its thread when it was called. A node of a graph belongs to the ranges
that were open when it was captured or created, however often and wherever the graph is replayed, or else to the ranges
around the replay.

A replay has one GPU time for all of its nodes. If its nodes belong to different rows, that time is split among them in
proportion to the times that 'gpt-hook run --node-times' measured in some replays, or else to the mean times that their
kernels had outside of graphs; without these, it stays in a row of its own. A small copy counts as the graph's shortest
kernel, and stays in that row, because the trace doesn't say where it was captured.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gpt.analyze.lib.answer import Answers, Column, make_answer, plot
from gpt.analyze.lib.attributed import UNSPLIT, Sums, Verdict
from gpt.analyze.lib.sequence import IOCTL, LAUNCH, Acts
from gpt.screen.brief import brief_name
from gpt.screen.demangle import demangle
from gpt.trace.calls_store import times_of
from gpt.trace.event_costs import EventCost, find_costs
from gpt.trace.find_calls import find_calls
from gpt.trace.graphs import GRAPH_LAUNCH
from gpt.trace.modules import IN_RANGE, LAYERS, SET_UP, UNKNOWN, find_layer, fold, name_module, name_range
from gpt.trace.node_times import name_type
from gpt.trace.open_ranges import NO_PATH, OpenRanges
from gpt.trace.sites import BETWEEN
from gpt.trace.xla import XLA

if TYPE_CHECKING:
    from gpt.trace.graphs import GraphContents, NodeOrigins
    from gpt.trace.model import TraceModel
    from gpt.trace.process import Process
    from gpt.trace.spill import Array

COPIES = "(copies)"
CALLER = " < "  # between a function and its caller
SMALL = 1 << 16  # bytes of a copy that takes about as long as a short kernel
FRAMES = 8  # functions of a stack that a row names
TOP = 40  # rows
MOMENT = [("time", "<i8"), ("thread", "<u8"), ("function", "<u4"), ("object", "<u8"), ("stamp", "<u8")]
TIMED = [("time", "<i8"), ("thread", "<u8"), ("api", "<u4"), ("function", "<u4"), ("duration", "<f8")]
CREATED = [("time", "<i8"), ("thread", "<u8"), ("stamp", "<u8")]

Label = Callable[["_Part", int, int], str]  # path, and function or minus the api of a copy
Key = tuple[int, int]  # path, function
FindGroup = Callable[["Array"], "Array"]  # the group of each call, by its time in ns
Replay = tuple[int, int, int]  # path, handle, time stamp from which the graph has it


@dataclass
class _Part:
    """The launches and GPU times of one process, grouped by the ranges that were open."""

    process: Process
    ranges: OpenRanges
    texts: list[tuple[str | None, str]]
    costs: dict[tuple[int, int], EventCost]  # by handle and the graph's `since`
    nodes: dict[tuple[int, int], int]  # paths by the thread and stamp of origins
    direct: dict[Key, Sums] = field(default_factory=lambda: defaultdict(Sums))
    replays: dict[Replay, Sums] = field(default_factory=lambda: defaultdict(Sums))

    def names(self, path: int) -> list[str]:
        """Return the names of the open ranges."""
        return [name_range(self.texts[name]) for name in self.ranges.paths[path]]

    def module(self, path: int) -> str:
        """Return the innermost module, or if no module is open, the innermost range."""
        return name_module(self.ranges.paths[path], self.texts)

    def kernel(self, function: int) -> str:
        """Return the mangled name of a function, or the type and op of a copy."""
        if not function:
            return UNKNOWN
        if function > 0:
            return self.process.kernels().get(function, f"#{function}")
        return " ".join(self.process.api(-function)[:2])


def _by_kernel(part: _Part, path: int, function: int) -> str:
    return part.kernel(function)


def _by_range(part: _Part, path: int, function: int) -> str:
    return "/".join(map(fold, part.names(path))) or UNKNOWN


def _by_module(part: _Part, path: int, function: int) -> str:
    return fold(part.module(path))


def _by_layer(part: _Part, path: int, function: int) -> str:
    name = part.module(path)
    return fold(name) if name.endswith(IN_RANGE) else find_layer(name)


def _by_stack(part: _Part, path: int, function: int) -> str:
    """Name the functions of stack number `path`, innermost first, without the libraries in between."""
    if not path:
        return COPIES if function < 0 else UNKNOWN
    found: list[str] = []
    for frame in part.process.sites.frames(path):
        file = os.path.basename(frame.path or "?")
        if found or not file.startswith(BETWEEN):
            found.append(frame.function or f"{file}+{frame.offset:#x}")
    return CALLER.join(found[:FRAMES]) or UNKNOWN


class Manner(NamedTuple):
    """A grouping for `summary --by`: the label of a row, the title of its column, whether ranges, modules or
    stacks are required, and what separates the frames in a label (for flame graphs).
    """

    label: Label
    title: str
    ranges: bool = False
    layers: bool = False
    stacks: bool = False
    separator: str = ""

    def path(self, label: str) -> str | None:
        """Convert a label to a line of a flame graph: frames separated by semicolons, outermost first. Return None if
        labels have no frames.
        """
        if not self.separator:
            return None
        if label.startswith(SET_UP):
            return label.replace(";", ",")
        text, _, note = label.replace(";", ",").partition(" (") if self.layers else (label.replace(";", ","), "", "")
        frames = text.split(self.separator)
        return ";".join([*([f"({note}"] if note else []), *(frames[::-1] if self.stacks else frames)])


MANNERS = {
    "kernel": Manner(_by_kernel, "kernel"),
    "range": Manner(_by_range, "range", ranges=True, separator="/"),
    "module": Manner(_by_module, "module", ranges=True, layers=True, separator="."),
    "layer": Manner(_by_layer, "layer", ranges=True, layers=True, separator="."),
    "stack": Manner(_by_stack, "called by", stacks=True, separator=CALLER),
}
NO_RANGES = "no NVTX range in the trace: the program sets none, or set none while it was recorded"
NO_LAYERS = "no modules in the trace: 'gpt-hook run --layers' records the modules of a PyTorch model"
NO_STACKS = (
    "no call stacks in the trace: 'gpt-hook run --stacks kernel,graph' records where launches came from, and "
    "--sample-host 50 where the launching threads were, 50 times a second"
)


def attribute(trace: TraceModel, by: str) -> Answers:
    """Yield launches and GPU time by kernel, range, module, layer or stack."""
    manner = MANNERS[by]
    rows: dict[str, Sums] = defaultdict(Sums)
    parts = [part for number in range(len(trace.processes)) for part in _add_up(trace, number, manner)]
    verdict = Verdict(by, bool(trace.gpus()))
    means = _find_means(parts, manner)
    for part in parts:
        verdict.started += part.ranges.started
        _add_part(part, manner, means, rows, verdict)
    yield _make(by, manner, rows, verdict)


def sum_layers(
    trace: TraceModel, number: int, groups: int, find_group: FindGroup
) -> tuple[list[dict[str, Sums]], list[str]]:
    """Add up the launches and GPU times of a process by layer, for each group of calls. Return these sums for all
    groups but the first, and lines that say how the times of replays were split.
    """
    manner, verdict = MANNERS["layer"], Verdict("layer", timed=True)
    parts = _add_up(trace, number, manner, groups, find_group)
    means, found = _find_means(parts, manner), []
    for part in parts[1:]:
        rows: dict[str, Sums] = defaultdict(Sums)
        _add_part(part, manner, means, rows, verdict)
        found.append(rows)
    both: dict[str, Sums] = defaultdict(Sums)
    for rows in found:
        for name, sums in rows.items():
            both[name] += sums
    return found, [*verdict.lines(both)]


def _add_part(part: _Part, manner: Manner, means: dict[str, float], rows: dict[str, Sums], verdict: Verdict) -> None:
    for (path, function), sums in part.direct.items():
        rows[label := manner.label(part, path, function)] += sums
        if label == UNKNOWN:
            verdict.contents[brief_name(part.kernel(function))] += round(sums.time if verdict.timed else sums.launches)
    for (path, handle, since), sums in part.replays.items():
        _add_replays(part, manner, path, handle, since, sums, means, rows, verdict)


def _add_up(
    trace: TraceModel, number: int, manner: Manner, groups: int = 1, find_group: FindGroup | None = None
) -> list[_Part]:
    """Read the launches and GPU times of a process, each with its open ranges. Return a part for each group of
    calls.
    """
    process = trace.processes[number]
    texts = trace.ranges(number).texts
    wanted = [at for at, (domain, _) in enumerate(texts)
              if (manner.ranges and domain != LAYERS) or (manner.layers and domain == LAYERS)]  # fmt: skip
    ranges, nodes = OpenRanges(trace.ranges(number), process, trace.last(number), wanted), dict[tuple[int, int], int]()
    costs = find_costs(trace, number)
    parts = [_Part(process, ranges, texts, costs, nodes) for _ in range(groups)]
    find_group = find_group or (lambda times: np.zeros(len(times), np.int64))
    origins = _list_origins(process)
    streams = ((_iter_launches(trace, number), MOMENT), (_iter_times(trace, number), TIMED), (iter([origins]), CREATED))
    launching = {id_ for id_, api in process.apis.items() if api[:2] == GRAPH_LAUNCH}
    for (launches, paths), (times, timed_paths), (created, created_paths) in ranges.iter(*streams):
        # each window of time has all GPU times of its launches
        at = find_calls(times["thread"], times["time"], launches["thread"], launches["time"])
        if manner.stacks:
            stacks = np.append(process.sites.find(launches["thread"], launches["stamp"]), 0).astype(np.int64)
            paths, timed_paths = stacks[:-1], stacks[at]
            created_paths = process.sites.find(created["thread"], created["stamp"]).astype(np.int64)
        since, handles = np.zeros(len(launches) + 1, np.uint64), np.append(launches["object"], 0)
        launched, ran = find_group(launches["time"]), find_group(times["time"])
        for group, part in enumerate(parts):
            own = np.flatnonzero(launched == group)
            since[own] = _count(part, launches[own], paths[own])
        for group, part in enumerate(parts):
            own = np.flatnonzero(ran == group)
            _count_times(part, times[own], timed_paths[own], handles[at[own]], since[at[own]], launching)
        pairs = zip(created["thread"].tolist(), created["stamp"].tolist(), strict=True)
        nodes.update(zip(pairs, created_paths.tolist(), strict=True))
    return parts


def _iter_launches(trace: TraceModel, number: int) -> Iterator[Array]:
    acts = Acts(trace.processes[number])
    for calls in trace.iter_calls("function", "object", "stamp", process=number):
        calls = calls[(acts.of(calls) & (LAUNCH | IOCTL)) == LAUNCH]
        if len(calls):
            rows = np.zeros(len(calls), MOMENT)
            for name, source in zip(("time", "thread", "function", "object", "stamp"),
                                    ("start", "thread", "function", "object", "stamp"), strict=True):  # fmt: skip
                rows[name] = calls[source]
            yield rows


def _iter_times(trace: TraceModel, number: int) -> Iterator[Array]:
    """Yield GPU times by the time of the call."""
    from gpt.trace.spill import Aside, Sorted

    found = Sorted(Aside(), TIMED, "time")
    for rows in trace.iter_gpu_times([place for place in trace.gpus() if place[0] == number]):
        part = np.zeros(len(rows), TIMED)
        for name in ("thread", "api", "function", "duration"):
            part[name] = rows[name]
        part["time"] = rows["call"]
        found.add(part)
    yield from found


def _list_origins(process: Process) -> Array:
    """Return the calls that created nodes of graphs, by time, without repetition."""
    known = [process.graphs.origins(handle, graph) for handle, graph in process.graphs.iter_all()]
    timed = [one for handle, graph in process.graphs.iter_all() for one in process.graphs.timed(handle, graph)[-1:]]
    pairs = [np.stack((one.threads, one.calls), axis=1) for one in (*known, *timed) if one is not None]
    unique = np.unique(np.concatenate(pairs), axis=0) if pairs else np.zeros((0, 2), np.uint64)
    unique = unique[unique[:, 1] != 0]
    rows = np.zeros(len(unique), CREATED)
    rows["thread"], rows["stamp"] = unique[:, 0], unique[:, 1]
    rows["time"] = times_of(process, rows["stamp"])
    return rows[np.argsort(rows["time"], kind="stable")]


def _iter_sums(keys: Array, *values: Array) -> Iterator[tuple[int, ...]]:
    """Yield each key with the number of its rows and the sums of their values."""
    unique, inverse = np.unique(keys, return_inverse=True)
    sums = (np.bincount(inverse, part).tolist() for part in values)
    yield from zip(unique.tolist(), np.bincount(inverse).tolist(), *sums, strict=True)


def _pack(paths: Array, functions: Array) -> Array:
    return paths << 32 | functions.astype(np.int64)


def _count(part: _Part, launches: Array, paths: Array) -> Array:
    """Count launches by path and kernel, and replays by path and graph. For each launch of a graph, return the time
    from which its handle refers to the graph.
    """
    kernels = launches["object"] == 0
    for key, count in _iter_sums(_pack(paths[kernels], launches["function"][kernels])):
        part.direct[key >> 32, key & 0xFFFFFFFF] += Sums(launches=count)
    since, own = np.zeros(len(launches), np.uint64), np.flatnonzero(~kernels)
    for handle, graph, places in part.process.graphs.iter_launched(launches["object"][own], launches["stamp"][own]):
        since[own[places]] = graph.since
        for path, count in _iter_sums(paths[own[places]]):
            part.replays[path, handle, graph.since] += Sums(launches=count)
    return since


def _count_times(part: _Part, times: Array, paths: Array, handles: Array, since: Array, launching: set[int]) -> None:
    """Add up GPU times by path and kernel, copy or graph. `handles` and `since` identify graphs, since handles are
    reused.
    """
    graphs = np.isin(times["api"], sorted(launching)) & (times["function"] == 0)
    kernels = ~graphs & (times["function"] != 0)
    copies = ~graphs & ~kernels
    for chosen, column, sign in ((kernels, "function", 1), (copies, "api", -1)):
        keys = _pack(paths[chosen], times[column][chosen])
        for key, count, time in _iter_sums(keys, times["duration"][chosen]):
            part.direct[key >> 32, sign * (key & 0xFFFFFFFF)] += Sums(timed=count, time=time)
    rows = zip(paths[graphs], handles[graphs], since[graphs], times["duration"][graphs], strict=True)
    for path, handle, at, time in rows:
        part.replays[int(path), int(handle), int(at)] += Sums(timed=1, time=float(time))


# Replays


def _find_means(parts: Iterable[_Part], manner: Manner) -> dict[str, float]:
    """Return the mean GPU time of each kernel outside of graphs, and outside of set-up if it also ran there: tuning
    tries variants of a kernel. Launches that the user's filters leave out count for kernels without others.
    """
    found = {part.kernel(id_): time for part in parts for id_, time in part.process.other_means().items()}
    sums: tuple[dict[str, Sums], ...] = defaultdict(Sums), defaultdict(Sums)  # in set-up, outside of it
    for part in parts:
        for (path, function), one in part.direct.items():
            if function >= 0 and one.timed:
                ready = manner.layers and part.module(path).startswith(SET_UP)
                sums[not ready][part.kernel(function)] += one
    return found | {name: one.time / one.timed for name, one in {**sums[0], **sums[1]}.items()}


def _iter_nodes(part: _Part, path: int, handle: int, graph: GraphContents, verdict: Verdict,
                launches: float) -> Iterator[tuple[Key, int]]:  # fmt: skip
    """Yield the kernels that a replay launches, as path and function, and how often it launches each."""
    origins: NodeOrigins | None = part.process.graphs.origins(handle, graph)
    if origins is None:
        verdict.no_origin += launches * graph.kernels.total() if verdict.by != "kernel" else 0
        yield from (((path, function), count) for function, count in graph.kernels.items())
        return
    found: dict[Key, int] = defaultdict(int)
    for function, thread, call in zip(*(column.tolist() for column in origins), strict=True):
        found[part.nodes.get((thread, call), NO_PATH) or path, function] += 1
    yield from found.items()


def _sum_nodes(part: _Part, manner: Manner, path: int, handle: int, graph: GraphContents) -> dict[str, float]:
    """Add up the times of a graph's nodes by label, over the replays that timed them. Return an empty result if none
    did.
    """
    found: dict[str, float] = defaultdict(float)
    if (cost := part.costs.get((handle, graph.since))) is None:
        return {}
    for one in part.process.graphs.timed(handle, graph):
        nodes = zip(*(getattr(one, name).tolist() for name in ("types", "functions", "threads", "calls")), strict=True)
        times = cost.own(part.process, one.durations).tolist()
        for (type_, function, thread, call), time in zip(nodes, times, strict=True):
            origin = part.nodes.get((thread, call), NO_PATH) or path
            copy = type_ and manner.label is _by_kernel
            found[f"({name_type(type_)})" if copy else manner.label(part, origin, function)] += time
    return found if sum(found.values()) else {}


def _add_replays(part: _Part, manner: Manner, path: int, handle: int, since: int, sums: Sums, means: dict[str, float],
                 rows: dict[str, Sums], verdict: Verdict) -> None:  # fmt: skip
    """Add a graph's replays to the rows that its nodes belong to: their launches, and a share of their GPU time."""
    graph = next((one for one in part.process.graphs.of(handle) if one.since == since), None)
    nodes = list(_iter_nodes(part, path, handle, graph, verdict, sums.launches)) if graph else []
    labels = [manner.label(part, *key) for key, _ in nodes]
    for label, (_, count) in zip(labels, nodes, strict=True):
        launched = sums.launches * count
        rows[label] += Sums(launches=launched, in_graphs=launched)
    if not sums.timed:
        return
    if graph and (timed := _sum_nodes(part, manner, path, handle, graph)):
        whole = sum(timed.values())
        for label, time in timed.items():
            rows[label] += Sums(timed=sums.timed, time=sums.time * time / whole)
        split = sums.time if len(timed) > 1 else 0
        verdict.by_node += split
        verdict.rough += split if part.costs[handle, since].replay is None else 0
        return
    copies = [one for one in graph.operations or () if one.type in ("memcpy", "memset")] if graph else []
    kernels = [means.get(part.kernel(function), 0.0) for (_, function), _ in nodes]
    if not nodes or len({*labels}) == 1:
        label = labels[0] if nodes else manner.label(part, path, 0) if verdict.by != "kernel" else UNSPLIT
        rows[label] += Sums(timed=sums.timed, time=sums.time)
        verdict.unsplit += sums.time if label == UNSPLIT else 0
    elif all(kernels) and all(one.bytes <= SMALL * one.nodes for one in copies):
        verdict.split += sums.time
        weights = [mean * count for mean, (_, count) in zip(kernels, nodes, strict=True)]
        if copies:
            labels.append(UNSPLIT)
            weights.append(min(kernels) * sum(one.nodes for one in copies))
        for label, weight in zip(labels, weights, strict=True):
            time = sums.time * weight / sum(weights)
            rows[label] += Sums(timed=sums.timed, time=time, split=time)
        verdict.copied += sums.time * weights[-1] / sum(weights) if copies else 0
    else:
        verdict.unsplit += sums.time
        rows[UNSPLIT] += Sums(timed=sums.timed, time=sums.time)


def _rank(name: str) -> int:
    """Return where a row belongs: work, then set-up, then what couldn't be attributed."""
    return 2 if name in (UNKNOWN, UNSPLIT) else int(name.startswith(SET_UP))


def _make(by: str, manner: Manner, rows: dict[str, Sums], verdict: Verdict) -> dict[str, Any]:
    columns = (
        Column("name", "text", "kernel" if by == "kernel" else "", manner.title),
        Column("launches", "u64"),
        Column("in_graphs", "u64", title="in graphs", shown="any"),
        Column("share", "f64", "%"),
        Column("gpu_total", "u64?", "ns", "GPU time", "any"),
        Column("split", "u64?", "ns", "estimated", "any"),
        Column("path", "text?", shown="never"),
    )
    total = [sum(getattr(one, name) for one in rows.values()) for name in ("launches", "time")]
    whole = total[1] if verdict.timed else total[0]
    found = []
    known = sorted({word for name in rows for word in name.split(CALLER)}) if manner.stacks else []
    titles = dict(zip(known, demangle(known), strict=True))
    for name, one in rows.items():
        name = CALLER.join(titles.get(word, word) for word in name.split(CALLER)) if manner.stacks else name
        share = 100 * (one.time if verdict.timed else one.launches) / (whole or 1)
        times = (one.time, one.split) if verdict.timed else (None, None)
        found.append((name, one.launches, one.in_graphs, share, *times, manner.path(name)))
    found.sort(key=lambda row: (_rank(row[0]), -(row[4] or 0), -row[1], row[0]))
    value = "gpu_total" if verdict.timed else "launches"
    plots = [plot("bars", "name", value)]
    if any(row[-1] for row in found):
        plots.append(plot("flame", value, "path", title="GPU time" if verdict.timed else "launches"))
    return make_answer(f"by_{by}", columns, found, [*verdict.lines(rows)], top=TOP, plots=plots)


def find_lack(by: str, trace: TraceModel) -> str | None:
    """Return a message that says what's missing if nothing can be attributed, or None."""
    manner = MANNERS[by]
    if manner.stacks:
        return None if any(len(one.sites) or len(one.samples) for one in trace.processes) else NO_STACKS
    texts = [domain for number in range(len(trace.processes)) for domain, _ in trace.ranges(number).texts]
    if manner.layers:
        return None if {LAYERS, XLA} & {*texts} else NO_LAYERS
    return NO_RANGES if manner.ranges and all(domain == LAYERS for domain in texts) else None
