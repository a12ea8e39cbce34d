"""gpt-analyze roofline: compare the operations and bytes of kernels with the limits of the device.

Bytes are counted as instructions ask for them (gmem_bytes), even if caches serve them. Operations are counted only in
tensor cores (tensorop_count). The *intensity* of a kernel is operations divided by bytes. Below the intensity of the
device, its memory is what limits a kernel; above, its arithmetic. These two limits form the roof. A kernel far below
the roof is bound by *latency* instead: of instructions, of memory, or because it has too few blocks.

Bytes, operations and times may come from different runs: each is a mean over the launches for which it's known.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

from gpt.analyze.lib.answer import Answers, Column, make_answer, plot
from gpt.analyze.lib.command import Analysis
from gpt.analyze.lib.map_analysis import MapAnalysis
from gpt.analyze.lib.peaks import PRECISIONS, find_bytes, find_flops, find_others, is_simulated
from gpt.analyze.lib.timed_launches import TimedLaunches
from gpt.base.errors import UsageError
from gpt.base.options import Option
from gpt.screen.roofs import LOW
from gpt.screen.units import amount
from gpt.trace.loading import FirstLaunches

if TYPE_CHECKING:
    from gpt.trace.buffers import Buffer, SavedBuffer
    from gpt.trace.process import Process
    from gpt.trace.sums import BufferSums

KERNELS = (
    Column("name", "text", "kernel", "kernel"),
    Column("bound", "text?"),
    Column("timed", "text?", title="timed by"),
    Column("share", "f64?", "%", "of roof"),
    Column("intensity", "f64?", title="FLOPs/byte"),
    Column("tflops", "f64?", title="TFLOP/s"),
    Column("gbytes", "f64?", title="GB/s"),
    Column("time", "u64?", "ns"),
    Column("bytes", "u64?", "bytes"),
    Column("flops", "u64?", title="FLOPs"),
    Column("launches", "u64"),
    Column("device", "text", shown="never"),
    Column("peak_tflops", "f64?", shown="never"),
    Column("peak_gbytes", "f64?", shown="never"),
    *(Column(f"peak_{name.lower()}", "f64?", title=name, shown="never") for name in PRECISIONS),
)
DEVICES = (
    Column("device", "text", title="peak of"),
    Column("flops_from", "text", shown="never"),
    Column("bytes_from", "text", shown="never"),
    *(Column(f"peak_{name.lower()}", "f64?", title=f"{name} TFLOP/s", shown="any") for name in PRECISIONS[:3]),
    Column("peak_tflops", "f64?", title="TFLOP/s"),
    *(Column(f"peak_{name.lower()}", "f64?", title=f"{name} TFLOP/s", shown="any") for name in PRECISIONS[3:]),
    Column("peak_gbytes", "f64?", title="GB/s"),
    Column("ridge", "f64?", title="FLOPs/byte"),
)
MOVED = ("read", "written", "async")
MAPS = {
    "gmem_bytes": (*MOVED, "bulk", "expected"),
    "tensorop_count": ("flops",),
    "block_sched": ("start", "end", "stop|elapsed", "sm"),
}
TIMES = ("benchmark", "gpu-time", "probed", "block_sched")  # sources of times, the best one first
MEMORY, COMPUTE, LATENCY = "memory", "compute", "latency"
COUNTS = {"gmem_bytes": "bytes", "tensorop_count": "flops"}  # maps with amounts, and what they count
NO_DEVICE = "unknown device"
TOP, SOURCES = 30, 3  # rows that tables show; devices whose peaks are explained
CACHED = "more than 100 % of the memory: bytes that caches serve count too"

Flops = Annotated[float | None, Option("--peak-flops", metavar="NUMBER", help="FLOPs a second of the device.")]
Bytes = Annotated[float | None, Option("--peak-bytes", metavar="NUMBER", help="Bytes a second of its memory.")]

Key = tuple[str, str]  # kernel and device


class _Sums:
    """The sums of a kernel on a device: for each quantity, the total and the number of launches for which it's
    known.
    """

    def __init__(self) -> None:
        self.sums: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()

    def add(self, what: str, value: Any, count: int = 1) -> None:
        """Add an amount."""
        self.sums[what] += value
        self.counts[what] += count

    def mean(self, what: str) -> float | None:
        """Return the mean of a quantity over launches, or None if it isn't known for any."""
        return self.sums[what] / self.counts[what] if self.counts[what] else None

    def time(self) -> tuple[str | None, float | None]:
        """Return the source of the best time that's known, and its ns."""
        return next(((what, self.mean(what)) for what in TIMES if self.sums[what] > 0), (None, None))


class Roofline(MapAnalysis):
    """An analysis of kernels, by device."""

    name = "gmem_bytes"
    summed = "bytes and FLOPs"
    partial = frozenset((name,))

    def __init__(self, peak_flops: float | None = None, peak_bytes: float | None = None) -> None:
        from gpt.trace.kinds import GPU_TIMES

        super().__init__()
        self.kinds |= GPU_TIMES | {"times", "device"}
        self._given = peak_flops, peak_bytes
        for option, value in (("--peak-flops", peak_flops), ("--peak-bytes", peak_bytes)):
            if value is not None and not 0 < value < math.inf:
                raise UsageError(f"{option} is not above 0: {value}")
        self._kernels: dict[Key, _Sums] = {}
        self._cards: dict[str, Mapping[str, Any]] = {}
        self._times: dict[Process, _Times] = {}  # processes that are still running

    @property
    def maps(self) -> Mapping[str, tuple[str, ...]]:
        """Return the fields of the maps that it can use."""
        return MAPS

    def take(self, process: Process) -> None:
        """Add the records that a process has collected."""
        if process not in self._times:
            self._times[process] = _Times(process)
        self._times[process].take()
        super().take(process)
        self._cards |= {card["name"]: card for card in process.cards.values()}

    def add(self, process: Process, buffer: Buffer, saved: SavedBuffer) -> None:
        """Add the data that a launch saved."""
        from gpt.analyze.lib.schedule import make_schedule

        if buffer.map.name in COUNTS:
            there = buffer.map.unsigned.intersection(MAPS[buffer.map.name])
            self._add(process, buffer, {name: int(saved.slots[name].sum(dtype="u8")) for name in there})
            return
        schedule = make_schedule(saved, process.cards.get(buffer.launch.device, {}))
        if schedule and schedule.ns_per_clock is not None:
            self._find(process, buffer).add("block_sched", float(schedule.ended.max()))

    def add_sums(self, process: Process, buffer: Buffer, sums: BufferSums) -> None:
        """Add a launch for which only sums were kept. The sums of block_sched don't show how long it took."""
        if buffer.map.name in COUNTS:
            self._add(process, buffer, {name: int(field.total) for name, field in sums.fields.items()})

    def _find(self, process: Process, buffer: Buffer) -> _Sums:
        return self._kernels.setdefault((buffer.kernel, name_device(process, buffer.launch.device)), _Sums())

    def _add(self, process: Process, buffer: Buffer, found: Mapping[str, int]) -> None:
        sums, unsaved = self._find(process, buffer), process.probes.unsaved_of(buffer.launch.kernel)
        if buffer.map.name == "tensorop_count":
            sums.add("flops", found["flops"])
        else:
            parts = {name: found.get(name, 0) for name in MAPS["gmem_bytes"]}
            bulk = max(parts["bulk"], parts["expected"])  # `expected` includes bulk copies by tensor map, but no stores
            sums.add("bytes", sum(parts[name] for name in MOVED) + bulk)
        for name, what in COUNTS.items():
            if name in unsaved:  # then the kernel has no such operations
                sums.add(what, 0)

    def end(self, process: Process) -> None:
        """Add the times of a process that has ended."""
        _merge(self._kernels, self._times.pop(process).sums())
        super().end(process)

    def merge(self, other: Roofline) -> None:
        """Merge an analysis of later traces."""
        _merge(self._kernels, other._kernels)
        self._cards |= other._cards
        self.merge_launches(other)

    def find_lack(self, kinds: set[str]) -> str | None:
        """Return which probes would have recorded the missing data, or None."""
        lack = super().find_lack(kinds)
        return f"{lack}, with -p tensorop_count and --gpu-time" if lack and not self._known else lack

    def iter_answers(self, verdict: list[str]) -> Answers:
        """Yield kernels, most time first, and devices."""
        found: dict[Key, _Sums] = {}
        _merge(found, self._kernels)
        for times in self._times.values():
            _merge(found, times.sums())
        probed = {key: sums for key, sums in found.items() if sums.counts["bytes"] or sums.counts["flops"]}
        peaks = {
            device: (find_flops(card, self._given[0]), find_bytes(card, self._given[1]))
            for device in sorted({device for _, device in probed})
            for card in [self._cards.get(device, {})]
        }
        others = {device: _find_others(self._cards.get(device, {})) for device in peaks}
        rows = [
            (*_make_row(key, sums, *(peak.rate for peak in peaks[key[1]])), *others[key[1]])
            for key, sums in probed.items()
        ]
        rows.sort(key=lambda row: (-(row[7] or 0) * row[10], row[0], row[11]))
        columns = [
            column._replace(shown="") if column.name == "device" and len(peaks) > 1 else column for column in KERNELS
        ]
        drawn = [plot("bars", "name", "share", title="share of the roof")] if any(row[3] for row in rows) else []
        if any(_is_drawn(row) for row in rows):
            y = ("tflops", "peak_tflops", "peak_gbytes", "gbytes", *(f"peak_{name.lower()}" for name in PRECISIONS))
            drawn.insert(0, plot("roofs", "intensity", *y, color="name", title=_entitle(rows, peaks)))
        yield make_answer("kernels", columns, rows, [*_say(rows, found), *verdict], top=TOP, plots=drawn)
        if not probed:
            return
        devices = []
        for device, (flops, bytes_) in peaks.items():
            ridge = flops.rate / bytes_.rate if flops.rate and bytes_.rate else None
            rates = _scale(flops.rate, 1e12), _scale(bytes_.rate, 1e9)
            more = others[device]
            devices.append((device, flops.source, bytes_.source, *more[:3], rates[0], *more[3:], rates[1], ridge))
        known = (pair for device, pair in peaks.items() if not is_simulated(self._cards.get(device, {})))
        unknown = any(peak.rate is None for pair in known for peak in pair)
        lines = [*_describe(peaks)]
        lines += ["not known for all devices: set it with --peak-flops and --peak-bytes"] if unknown else []
        yield make_answer("devices", DEVICES, devices, lines)


class _Times:
    """The times of a process's kernels. They can be computed once all records have arrived."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._launches = TimedLaunches(process)
        self._rows: Counter[tuple[int, int, bool]] = Counter()  # ns, by function, device, and whether it had probes
        self._counts: Counter[tuple[int, int, bool]] = Counter()
        self._firsts = FirstLaunches()

    def take(self) -> None:
        """Add the records that the process has collected."""
        import numpy as np

        process = self._process
        for _, rows in process.gpu_times.take():
            self._firsts.add(rows)
            known = set(rows.dtype.names or ())
            zeros = np.zeros(len(rows), np.uint32)
            device, probed = (rows[name] if name in known else zeros for name in ("device", "probed"))
            keys = np.stack([rows["function"], device, probed != 0], axis=1).astype(np.int64)
            found, which, counts = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
            ns = np.bincount(which.ravel(), process.clock.durations(rows["duration"]), len(found))
            for (function, where, had), time, count in zip(found.tolist(), ns.tolist(), counts.tolist(), strict=True):
                self._rows[function, where, bool(had)] += time
                self._counts[function, where, bool(had)] += count
        self._launches.take()

    def _firsts_of(self) -> dict[tuple[int, int, bool], tuple[float, int]]:
        """Return, for each kernel and device, the number of first launches (one per thread) and their ns."""
        rows = self._firsts.rows
        took = self._process.clock.durations(rows["duration"]).tolist()
        found: dict[tuple[int, int, bool], tuple[float, int]] = {}
        for (function, device, probed), ns in zip(rows[["function", "device", "probed"]].tolist(), took, strict=True):
            before = found.get((function, device, probed != 0), (0.0, 0))
            found[function, device, probed != 0] = before[0] + ns, before[1] + 1
        return found

    def sums(self) -> dict[Key, _Sums]:
        """Return sums by kernel and device."""
        found: dict[Key, _Sums] = {}
        names = self._process.kernels()
        without = self._firsts_of()
        for kind, ns in self._rows.items():
            function, device, probed = kind
            if function in names and self._process.is_chosen(names[function]):
                key = names[function], name_device(self._process, device)
                count = self._counts[kind]
                took, firsts = without.get(kind, (0.0, 0))  # first launches may include loading the code
                taken = (ns - took, count - firsts) if count > firsts else (ns, count)
                found.setdefault(key, _Sums()).add("probed" if probed else "gpu-time", *taken)
        for name, launch, times, _ in self._launches.joined():
            if "original" in times:
                key = name, name_device(self._process, launch.device)
                found.setdefault(key, _Sums()).add("benchmark", times["original"])
        return found


def name_device(process: Process, index: int) -> str:
    """Return the name of a device of a process."""
    return str(process.cards.get(index, {}).get("name") or NO_DEVICE)


def _merge(into: dict[Key, _Sums], found: Mapping[Key, _Sums]) -> None:
    for key, sums in found.items():
        known = into.setdefault(key, _Sums())
        known.sums.update(sums.sums)
        known.counts.update(sums.counts)


def _scale(rate: float | None, unit: float) -> float | None:
    return None if rate is None else rate / unit


def _make_row(key: Key, sums: _Sums, peak_flops: float | None, peak_bytes: float | None) -> tuple[Any, ...]:
    """Return a row of KERNELS."""
    bytes_, flops, (timed, ns) = sums.mean("bytes"), sums.mean("flops"), sums.time()
    intensity = None if flops is None or not bytes_ else flops / bytes_
    rates = [None if what is None or not ns else what / ns * 1e9 for what in (flops, bytes_)]
    shares = [
        100 * rate / peak
        for rate, peak in zip(rates, (peak_flops, peak_bytes), strict=True)
        if peak and rate is not None
    ]
    bound = None
    if bytes_ is not None and flops is not None and peak_flops and peak_bytes and (bytes_ or flops):
        bound = MEMORY if flops / peak_flops < bytes_ / peak_bytes else COMPUTE
        bound = LATENCY if shares and max(shares) < 100 * LOW else bound
    peaks = _scale(peak_flops, 1e12), _scale(peak_bytes, 1e9)
    scaled = _scale(rates[0], 1e12), _scale(rates[1], 1e9)
    launches = max(sums.counts.values())
    numbers = max(shares, default=None), intensity, *scaled, ns, bytes_, flops, launches
    return key[0], bound, timed, *numbers, key[1], *peaks


def _find_others(card: Mapping[str, Any]) -> list[float | None]:
    """Return the peaks of a device in 10^12 FLOPs per second, for each of PRECISIONS; None stands for an unknown
    peak.
    """
    known = find_others(card)
    return [_scale(known.get(name), 1e12) for name in PRECISIONS]


def _is_drawn(row: tuple[Any, ...]) -> bool:
    """Return whether a kernel can be drawn as a point: either its rate and intensity are known, or only its bytes per
    second.
    """
    return bool(row[4] and row[5]) or bool(row[6] and not row[9])


def _describe(peaks: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each of the first devices that says where its peaks come from."""
    for device, (flops, bytes_) in list(peaks.items())[:SOURCES]:
        yield f"{device}: FLOPs: {flops.source}; memory: {bytes_.source}"


def _entitle(rows: list[tuple[Any, ...]], peaks: Mapping[str, Any]) -> str:
    """Return the title of the picture."""
    absent = sum(not _is_drawn(row) for row in rows)
    more = [f"not drawn for lack of a time: {amount(absent, 'kernel')}"] if absent else []
    return "\n".join(["roofline", *_describe(peaks), *more])


def _say(rows: list[tuple[Any, ...]], sums: Mapping[Key, _Sums]) -> Iterator[str]:
    """Yield the verdict, and the options that would record what's missing."""
    bounds = Counter(row[1] for row in rows if row[1])
    if bounds:
        yield f"kernels bound by memory: {bounds[MEMORY]:,}, by compute: {bounds[COMPUTE]:,}" + (
            f", by latency (below {100 * LOW:g} % of both roofs): {bounds[LATENCY]:,}" if bounds[LATENCY] else ""
        )
    counts: Counter[str] = sum((one.counts for one in sums.values()), Counter())
    lacks = {"bytes": "-p gmem_bytes", "flops": "-p tensorop_count"}
    yield from (
        f"no {what}: 'gpt-hook run {option}' records them" for what, option in lacks.items() if not counts[what]
    )
    if not any(counts[what] for what in TIMES):
        yield "no times: 'gpt-hook run --gpu-time' takes them"
    if any(row[6] and row[13] and row[6] > row[13] for row in rows):
        yield CACHED


ANALYSIS = Analysis(
    "Compare kernels with the device's peak rates.",
    Roofline,
    {"peak_flops": Flops, "peak_bytes": Bytes},
)
