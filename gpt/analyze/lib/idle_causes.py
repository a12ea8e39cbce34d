"""Find the cause of each idle time of a GPU, in the calls of the host thread that launched the GPU's next work.

Each idle time is cut where a call of that thread, or an NVTX range, begins or ends, so each nanosecond counts for the
call or host code that the thread was executing. From the start of the call that launches the next work until it
returns, the thread counts as being in that call; from its return until the work begins, the work is *queued*. Then each
idle time gets one cause, by the first rule that matches:

- OFF: recording was off for a part of it, so its length isn't known.
- UNKNOWN: the trace doesn't say which call launched the next work.
- BETWEEN, LATE: at least half of the time passed after that call had returned, so the GPU had work and didn't start it.
  Up to FAST, the cause is BETWEEN: a GPU takes that long from one piece of work to the next. Longer times are LATE: the
  work waited, for example for another stream.
- WAIT: when the GPU ran out of work, the thread was waiting for it, and had waited for at least as long as the GPU was
  then idle. Without this wait, the host could have launched the next work in that time.
- PACE: the time is at most SHORT, and no call other than launches fills half of it. Kernels take less time than the
  host needs to launch the next one. If the thread had waited for at least half as long as the GPU was then idle, the
  cause is WAIT instead, because that takes more of the host's time than launches do.
- CALL: CUDA calls take more of the time than host code. The function that takes the most time is named.
- HOST: anything else. The thread ran its own code between calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpt.analyze.lib.host_calls import ALLOCATING, RUNNING, WAITING, HostCalls
from gpt.analyze.lib.host_samples import HostSamples, Places, merge_places
from gpt.analyze.lib.innermost import iter_innermost
from gpt.analyze.lib.overlay import NOTHING, PIECE, cut_out, overlay
from gpt.analyze.lib.sequence import LAUNCH, OUT, Acts
from gpt.analyze.lib.sequence import WAIT as WAITS
from gpt.screen.units import amount, human_time
from gpt.trace.rows import take
from gpt.trace.spill import Array, Aside, Sorted, Tape, join

if TYPE_CHECKING:
    from gpt.trace.model import TraceModel

HOST, QUEUED_WORK, NOT_SAID = NOTHING, -2, -3  # special values of a piece's `what`; other values are ids of functions
OFF, UNKNOWN, BETWEEN, LATE, WAIT, PACE, CALL, HOST_CODE = CAUSES = (
    "recording off", "not known", "between work", "begun late", "after a wait", "launch pace", "in a call", "host code",
)  # fmt: skip
SHORT, FAST = 100_000, 20_000  # ns
QUEUED = "launched, not begun"
IO, ASYNC = ("memcpy", "memset"), "Async"
ITEM = 64  # bytes: a program that copies no more than that reads a single value
LISTED = 1000
LEAST = 0.1  # minimum number of calls that make streams wait, per idle time that they may explain
ONCE = 0.25  # share of a long idle time that counts if it happened once
OFTEN = 0.5  # the same for calls that allocate memory
GROUP = [("number", "<i8"), ("what", "<i8"), ("range", "<i8"), ("ns", "<i8")]
FIRST = [("number", "<i8"), ("before", "<i8"), ("before_since", "<i8"), ("note", "<f8")]


@dataclass
class Times:
    """Sums for idle times of one kind: their number, total and longest ns, and what the causes need.

    `waited` is how many ns the host had waited for the GPU, `items` how many of these waits were for a small copy,
    `took` the ns of the work that ended the idle times, and `until` when the last one ended, in ns since the process
    began. Only sums by cause have `until`.
    """

    count: int = 0
    total: int = 0
    longest: int = 0
    waited: int = 0
    items: int = 0
    took: float = 0.0
    until: int = 0

    def add(self, other: Times) -> None:
        """Add other times."""
        self.longest, self.until = max(self.longest, other.longest), max(self.until, other.until)
        for name in ("count", "total", "waited", "items", "took"):
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Longest(NamedTuple):
    """One of the longest idle times of a process. `at` is when it began, counted from the beginning of the process."""

    took: int
    at: int
    gpu: int
    after: str
    before: str
    cause: str
    name: str | None
    share: float  # percentage spent in the cause's call or code
    range: str | None
    thread: int


@dataclass
class Reasons:
    """The idle times that ended with work of one process, or of several.

    `causes` has sums by cause and function; `doing` by what the thread did and in which function it had waited;
    `ranges` by NVTX range and cause. `places` says, from samples, where the threads' own code was.
    """

    causes: dict[tuple[str, str | None], Times] = field(default_factory=dict)
    doing: dict[tuple[str, str | None], Times] = field(default_factory=dict)
    ranges: dict[str | None, dict[tuple[str, str | None], Times]] = field(default_factory=dict)
    longest: list[Longest] = field(default_factory=list)
    types: dict[str, str] = field(default_factory=dict)  # types of functions, by name
    places: Places = field(default_factory=dict)
    loading: Times = field(default_factory=Times)  # idle times because of host code, in which GPU code was loaded

    def merge(self, other: Reasons) -> None:
        """Add the idle times of another process, except the longest ones."""
        for mine, theirs in ((self.causes, other.causes), (self.doing, other.doing)):
            for key, times in theirs.items():
                mine.setdefault(key, Times()).add(times)
        self.types |= other.types
        merge_places(self.places, other.places)
        self.loading.add(other.loading)
        for name, causes in other.ranges.items():
            own = self.ranges.setdefault(name, {})
            for key, times in causes.items():
                own.setdefault(key, Times()).add(times)


def describe_late(noted: Mapping[str, tuple[int, int]], late: int, several: bool) -> str:
    """Return what launched work may have waited for, going by the functions that the host called. `late` says how often
    work began late, and `several` whether processes share a GPU.
    """

    def find(names: tuple[str, ...], least: float = LEAST) -> str:
        counts = [(name, noted[name][0]) for name in names if name in noted]
        enough = least * late <= sum(count for _, count in counts) > 0
        return ", ".join(f"{amount(count, 'call')} of {name}" for name, count in counts) if enough else ""

    events, functions, memory = find(WAITING), find(RUNNING), find(ALLOCATING, OFTEN)
    found = [f"its stream waits for functions of the host ({functions})"] if functions else []
    if memory:
        told = "allocate before the loop, or take memory from a pool that keeps it"
        found.append(f"memory that was just allocated isn't ready yet ({memory}; {told})")
    if events or not found:
        found.append("its stream waits for another one" + (f" ({events})" if events else ""))
    return ", or ".join([*found, *(["the GPU serves another process"] if several else [])])


def weigh(times: Times) -> float:
    """Return how many ns matter: all, unless one of the times is more than half of them. That time happened once, such
    as in a warm-up, and what happens in each step matters more.
    """
    rest = times.total - times.longest
    return times.total if rest >= times.longest else max(rest, ONCE * times.longest)


def describe_times(times: Times) -> str:
    """Return how often something happened and how long it took on average. If one of these times was more than half of
    the total, return the total and the longest instead.
    """
    count = amount(times.count, "time")
    if times.count > 1 and 2 * times.longest > times.total:
        return f"{count}, {human_time(times.total)} together, {human_time(times.longest)} of it once"
    return f"{count}, {human_time(times.total / (times.count or 1))}{' each' if times.count > 1 else ''}"


def find_reasons(trace: TraceModel, number: int, idle: Sorted, host: HostCalls) -> Reasons:
    """Return the causes of the idle times that ended with work of a process. `idle` has these times; the calls of
    `host` are read along the way.
    """
    tape = Tape(Aside(), idle.dtype)
    pieces: Iterator[Array] = overlay(_iter_pieces(trace, number, idle, tape), host.iter_layer(), "what")
    pieces = map(_mark_queued, pieces)
    if len(trace.ranges(number).texts):
        pieces = overlay(pieces, iter_innermost(trace, number), "range")
    sums = _Sums(trace, number, tape)
    for rows in pieces:
        sums.add(rows)
    sums.finish(None)
    return sums.reasons


def _iter_pieces(trace: TraceModel, number: int, idle: Sorted, tape: Tape) -> Iterator[Array]:
    """Yield the recorded parts of idle times, cut where the call begins that launched the next work. The idle times
    themselves are stored on the tape.
    """
    unrecorded = trace.unrecorded(trace.processes[number])
    found = Sorted(Aside(), PIECE, "begin")
    for rows in idle:
        pieces = np.zeros(len(rows), PIECE)
        pieces["number"] = np.arange(len(tape), len(tape) + len(rows))
        tape.append(rows)
        for name in ("begin", "end", "thread", "call"):
            pieces[name] = rows[name]
        pieces["what"] = np.where(rows["thread"] != 0, HOST, NOT_SAID)
        pieces["before"] = pieces["since"] = pieces["range"] = NOTHING
        pieces["first"], pieces["note"] = True, np.nan
        called = (rows["call"] < rows["end"]) & (rows["thread"] != 0)
        late = pieces[called]
        late["begin"] = np.maximum(late["begin"], late["call"])
        late["what"], late["first"] = QUEUED_WORK, late["call"] <= pieces["begin"][called]
        begin, end, call = pieces["begin"][called], pieces["end"][called], pieces["call"][called]
        pieces["end"][called] = np.maximum(np.minimum(end, call), begin)
        both = join([pieces, late])
        found.add(cut_out(take(both, np.flatnonzero(both["end"] > both["begin"])), unrecorded))
    return iter(found)


def _mark_queued(pieces: Array) -> Array:
    """Assign pieces that begin after the return of the call that launched the next work to QUEUED_WORK. Pieces that
    begin during the call stay as they are.
    """
    other = (pieces["begin"] >= pieces["call"]) & (pieces["since"] != pieces["call"]) & (pieces["what"] >= 0)
    pieces["what"][other] = QUEUED_WORK
    return pieces


class _Sums:
    """Adds up pieces of idle times. The cause of an idle time is determined when all of its pieces have been added."""

    def __init__(self, trace: TraceModel, number: int, tape: Tape) -> None:
        self.reasons = Reasons()
        self._process, self._began = trace.processes[number], trace.began(trace.processes[number])
        self._texts = [text if domain is None else f"{domain}: {text}" for domain, text in trace.ranges(number).texts]
        self._names = [process.kernels() for process in trace.processes]
        self._processes = trace.processes
        self._all_acts = [Acts(process) for process in trace.processes]
        self._acts = self._all_acts[number]
        self._tape = tape
        self._samples = HostSamples(trace, number)
        self._groups, self._firsts = np.zeros(0, GROUP), np.zeros(0, FIRST)

    def add(self, pieces: Array) -> None:
        """Add pieces that follow the ones added before."""
        self._samples.find(pieces[pieces["what"] == HOST])
        groups = np.zeros(len(pieces), GROUP)
        for name in ("number", "what", "range"):
            groups[name] = pieces[name]
        begin, end = pieces["begin"], pieces["end"]
        groups["ns"] = end - begin
        self._groups = _unite(join([self._groups, groups]))
        begun = pieces[pieces["first"]]
        firsts = np.zeros(len(begun), FIRST)
        for name in ("number", "before", "before_since", "note"):
            firsts[name] = begun[name]
        self._firsts = np.concatenate((self._firsts, firsts))
        if len(pieces):
            self.finish(int(pieces["end"].max()))

    def finish(self, bound: int | None) -> None:
        """Determine the causes of all idle times that end no later than `bound`, or of all that remain."""
        if bound is None:
            self.reasons.places = self._samples.places()
        numbers = np.unique(self._groups["number"])
        rows = self._tape.take(numbers)
        done = numbers if bound is None else numbers[rows["end"] <= bound]
        if not len(done):
            return
        rows = rows if bound is None else rows[rows["end"] <= bound]
        mine, own = np.isin(self._groups["number"], done), np.isin(self._firsts["number"], done)
        self._explain(done, rows, self._groups[mine], self._firsts[own])
        self._groups, self._firsts = self._groups[~mine], self._firsts[~own]

    def _explain(self, numbers: Array, rows: Array, groups: Array, firsts: Array) -> None:
        count, which = len(numbers), np.searchsorted(numbers, groups["number"])
        total = _add_up(which, groups["ns"], count)
        host, queued, unknown = (
            _add_up(which, np.where(groups["what"] == what, groups["ns"], 0), count)
            for what in (HOST, QUEUED_WORK, NOT_SAID)
        )
        calls, top, top_time = _find_top(groups, numbers)
        before, waited, note = np.full(count, NOTHING), np.zeros(count, np.int64), np.full(count, np.nan)
        at = np.searchsorted(numbers, firsts["number"])
        before[at], note[at] = firsts["before"], firsts["note"]
        known, begin, since = firsts["before"] >= 0, rows["begin"][at], firsts["before_since"]
        waited[at] = np.where(known, begin - since, 0)
        act = self._acts.of_ids(before.astype(np.uint32))
        waits = (before >= 0) & (((act & WAITS) != 0) | self._block(before, waited))
        waited[~waits] = 0
        light = (
            (top < 0) | (2 * top_time < total) | ((self._acts.of_ids(top.astype(np.uint32)) & (LAUNCH | WAITS)) != 0)
        )
        pace = (total <= SHORT) & light
        cause = np.full(count, CAUSES.index(HOST_CODE))
        for name, mask in (
            (CALL, calls > host),
            (PACE, pace),
            (WAIT, waits & ((waited >= total) | (pace & (2 * waited >= total)))),
            (LATE, 2 * queued >= total),
            (BETWEEN, (2 * queued >= total) & (total <= FAST)),
            (UNKNOWN, unknown > 0),
            (OFF, rows["off"] > 0),
        ):
            cause[mask] = CAUSES.index(name)
        own_code = cause == CAUSES.index(HOST_CODE)
        named = np.where(cause == CAUSES.index(WAIT), before, np.where(cause == CAUSES.index(CALL), top, NOTHING))
        items = (cause == CAUSES.index(WAIT)) & self._copied_out(rows) & (note <= ITEM)
        values = {"count": np.ones(count), "waited": waited, "items": items, "took": rows["took"]}
        for key, times in _sum_by((cause, named), total, values):
            times.until = int(rows["end"][(cause == key[0]) & (named == key[1])].max()) - self._began
            self._add(self.reasons.causes, (CAUSES[key[0]], self._name(key[1])), times)
        self._add_loading(total[np.isin(numbers, numbers[which[self._load(groups["what"])]]) & own_code])
        behind = np.where(waits, before, NOTHING)[which]
        for key, times in _sum_by(*_by(numbers, which, (groups["what"], behind), groups["ns"])):
            self._add(self.reasons.doing, (self._describe(key[0]), self._name(key[1])), times)
        for key, times in _sum_by(*_by(numbers, which, (groups["range"], cause[which], named[which]), groups["ns"])):
            causes = self.reasons.ranges.setdefault(self._texts[key[0]] if key[0] >= 0 else None, {})
            self._add(causes, (CAUSES[key[1]], self._name(key[2])), times)
        part = {BETWEEN: queued, LATE: queued, CALL: top_time, HOST_CODE: host}
        parts = np.choose(cause, [part.get(name, total) for name in CAUSES])
        self._keep_longest(rows, total, cause, named, parts, groups, which)

    def _block(self, apis: Array, waited: Array) -> npt.NDArray[np.bool_]:
        """Return which calls copy or set memory and wait for completion. An asynchronous copy counts if it took longer
        than FAST.
        """
        known = self._process.apis
        copies = {id_: known[id_] for id_ in np.unique(apis).tolist() if id_ in known}
        blocks = [id_ for id_, api in copies.items() if api.type in IO and not api.name.endswith(ASYNC)]
        may = [id_ for id_, api in copies.items() if api.type == "memcpy" and api.name.endswith(ASYNC)]
        return np.isin(apis, blocks) | (np.isin(apis, may) & (waited > FAST))

    def _load(self, apis: Array) -> npt.NDArray[np.bool_]:
        """Return which calls load or link GPU code."""
        known = self._process.apis
        loads = [
            id_
            for id_, api in known.items()
            if api.type == "module" and (api.op == "load" or api.name.startswith("cuLink"))
        ]
        return np.isin(apis, loads)

    def _add_loading(self, total: Array) -> None:
        if len(total):
            self.reasons.loading.add(Times(len(total), int(total.sum()), int(total.max())))

    def _copied_out(self, rows: Array) -> npt.NDArray[np.bool_]:
        """Return which idle times follow a copy from the device."""
        found = np.zeros(len(rows), bool)
        for number in np.unique(rows["after_process"]).tolist():
            own = rows["after_process"] == number
            found |= (
                own & (rows["after_function"] == 0) & ((self._all_acts[number].of_ids(rows["after_api"]) & OUT) != 0)
            )
        return found

    def _name(self, api: int) -> str | None:
        if api < 0:
            return None
        found = self._process.api(api)
        self.reasons.types[found.name] = found.type
        return found.name

    def _describe(self, what: int) -> str:
        named = {HOST: HOST_CODE, QUEUED_WORK: QUEUED, NOT_SAID: UNKNOWN}
        return named.get(what) or self._name(what) or UNKNOWN

    @staticmethod
    def _add(sums: dict[tuple[str, str | None], Times], key: tuple[str, str | None], times: Times) -> None:
        sums.setdefault(key, Times()).add(times)

    def _keep_longest(
        self, rows: Array, total: Array, cause: Array, named: Array, part: Array, groups: Array, which: Array
    ) -> None:
        kept = self.reasons.longest
        least = kept[-1].took if len(kept) == LISTED else 0
        places = np.flatnonzero((total > least) & (rows["off"] == 0))
        places = places[np.argsort(-total[places], kind="stable")[:LISTED]]
        for at in places.tolist():
            row, inside = rows[at], groups[np.searchsorted(which, at) : np.searchsorted(which, at, "right")]
            own = inside[inside["range"] >= 0]
            ranges = np.bincount(own["range"], own["ns"]) if len(own) else np.zeros(0)
            within = self._texts[int(ranges.argmax())] if len(ranges) and 2 * ranges.max() >= total[at] else None
            after = self._work(int(row["after_process"]), int(row["after_function"]), int(row["after_api"]))
            before = self._work(int(row["process"]), int(row["function"]), int(row["api"]))
            share = 100 * float(part[at]) / (float(total[at]) or 1)
            what = CAUSES[cause[at]], self._name(int(named[at]))
            kept.append(
                Longest(int(total[at]), int(row["begin"]) - self._began, int(row["gpu"]), after, before, *what, share,
                        within, int(row["thread"]))
            )  # fmt: skip
        kept.sort(key=lambda one: -one.took)
        del kept[LISTED:]

    def _work(self, process: int, function: int, api: int) -> str:
        if function:
            return self._names[process].get(function, f"#{function}")
        return self._processes[process].api(api).name


def _unite(groups: Array) -> Array:
    """Merge rows with equal keys, adding up their ns."""
    if not len(groups):
        return groups
    groups = take(groups, np.lexsort((groups["range"], groups["what"], groups["number"])))
    new = np.ones(len(groups), bool)
    new[1:] = False
    for name in ("number", "what", "range"):
        values = groups[name]
        new[1:] |= values[1:] != values[:-1]
    first = np.flatnonzero(new)
    found = take(groups, first)
    found["ns"] = np.add.reduceat(groups["ns"], first)
    return found


def _add_up(which: Array, values: Array, count: int) -> npt.NDArray[np.int64]:
    found = np.zeros(count, np.int64)
    np.add.at(found, which, values)
    return found


def _find_top(groups: Array, numbers: Array) -> tuple[Array, Array, Array]:
    """For each idle time, return the ns in all calls, and the function with the most time and that time, or NOTHING and
    0 if there were no calls.
    """
    own = groups[groups["what"] >= 0].copy()
    own["range"] = 0
    own = _unite(own)
    which = np.searchsorted(numbers, own["number"])
    calls = _add_up(which, own["ns"], len(numbers))
    top, time = np.full(len(numbers), NOTHING), np.zeros(len(numbers), np.int64)
    order = np.argsort(own["ns"], kind="stable")  # the last of several equal indexes is assigned
    top[which[order]], time[which[order]] = own["what"][order], own["ns"][order]
    return calls, top, time


def _by(
    numbers: Array, which: Array, keys: tuple[Array, ...], ns: Array
) -> tuple[tuple[Array, ...], Array, Mapping[str, Array]]:
    """Merge the parts of each idle time that have the same key, and return keys, ns and counts for _sum_by."""
    order = np.lexsort((which, *keys))
    columns = [column[order] for column in (*keys, which)]
    first = np.zeros(len(order), bool)
    first[:1] = True
    for column in columns:
        first[1:] |= column[1:] != column[:-1]
    at = np.flatnonzero(first)
    total = np.add.reduceat(ns[order], at) if len(at) else ns[:0]
    return tuple(column[at] for column in columns[:-1]), total, {"count": np.ones(len(at))}


def _sum_by(
    keys: tuple[Array, ...], total: Array, values: Mapping[str, Array]
) -> Iterator[tuple[tuple[int, ...], Times]]:
    """Yield each combination of keys, with the sums of the idle times that have it."""
    if not len(total):
        return
    order = np.lexsort(keys)
    columns = [column[order] for column in keys]
    first = np.zeros(len(order), bool)
    first[0] = True
    for column in columns:
        first[1:] |= column[1:] != column[:-1]
    at = np.flatnonzero(first)
    longest = np.maximum.reduceat(total[order], at).tolist()
    sums: dict[str, list[Any]] = {
        name: np.add.reduceat(value[order].astype(np.float64 if name == "took" else np.int64), at).tolist()
        for name, value in {"total": total, **values}.items()
    }
    for place, where in enumerate(at.tolist()):
        key = tuple(int(column[where]) for column in columns)
        yield key, Times(longest=longest[place], **{name: value[place] for name, value in sums.items()})
