"""Read a trace folder as the records of a trace: a segment, with a `probed` for each launch that has a result.

event.log       events: names of kernels, launches with their results and times
probe.toml      the layout of records in results (maps.py)
result/*.bin    the data that probes saved (results.py)
kernel/*/       kernel.info: the name of a kernel, its probes; process.log: its registers
tensor.trace    names of tensors

Any of these may be missing, which leaves gaps; only the probe file is required if there are launches. Buffers refer
to their results, which are read on demand.
"""

from __future__ import annotations

import math
import re
import struct
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gpt.base.errors import GptError
from gpt.compat.neutrino.traces.files import FolderFiles
from gpt.compat.neutrino.traces.log import Log, LoggedLaunch
from gpt.compat.neutrino.traces.maps import FolderMap, choose, read_maps
from gpt.compat.neutrino.traces.results import COUNT, WARP, Result, SectionLayout, find_place
from gpt.stream import records
from gpt.stream.reasons import parse
from gpt.trace.tensors import read_tensor_records

Record = dict[str, Any]

TOOL = CODEC = "neutrino"
UNKNOWN = "unknown kernel"
CODE = 1 << 32  # first id of records about code
PAIR = struct.Struct("<QI4x")
WHAT = {"Memcpy": ("memcpy", ""), "Memset": ("memset", "set"), "Free": ("memory", "free"), "Alloc": ("memory", "alloc")}
SECONDS = re.compile(r"(\d{1,10})\.(\d{6})(?:\.bin)", re.ASCII)


class _Located(NamedTuple):
    """A launch's grid and block. `maps` says for each map, by its index, where the records are or why they are lost."""

    launch: LoggedLaunch
    grid: tuple[int, ...]
    block: tuple[int, ...]
    maps: dict[int, SectionLayout | str]


def read_folder(folder: Path, only: str | None = None) -> Iterator[Record]:
    """Yield the records of a trace folder, or of one of its results. Raises MissingError, MalformedError, OSError."""
    files = FolderFiles(folder, only)
    launches = _find_launches(files, only)
    if not (launches or files.log.launches or files.log.unprobed or files.log.calls):
        raise GptError("nothing happened: no result, and no launch or call in its event.log", str(folder))
    maps = read_maps(folder) if any(one.result for one in launches) else []
    starts = [one.start - _since(one.result) for one in launches if one.start]
    first = min((one.start for one in launches if one.start), default=0)
    zero = min(first, max(0, *starts)) if starts else folder.stat().st_mtime_ns  # a result is named after its end
    base = _since(only)  # several single results are separate processes
    yield records.make("header", version="1.0", tool=TOOL, argv=files.log.argv, host="", pid=files.log.pid,
                       realtime=zero, monotonic=base, via=[])  # fmt: skip
    located = [_locate(files, launch, maps) for launch in launches]
    for number, map_ in enumerate(maps):
        places = [place for one in located if isinstance(place := one.maps.get(number), SectionLayout)]
        yield map_.make(number + 1, max((place.units * place.unit // map_.bytes for place in places), default=1))
    functions = _Functions(files)
    for number, one in enumerate(located, 1):
        yield from _say_launch(number, one, maps, functions, zero - base)
    if not only:
        yield from _say_rest(files.log, functions)
    yield from read_tensor_records(folder / "tensor.trace", zero - base)
    yield records.make("end", records=0, status=0)


def _find_launches(files: FolderFiles, only: str | None) -> list[LoggedLaunch]:
    """Return the launches in the log, then launches for results that the log doesn't name."""
    logged = [one for one in files.log.launches if one.start and only in (None, one.result)]
    known = {one.result for one in logged}
    return logged + [LoggedLaunch("", 0, result=name) for name in files.list_results() if name not in known]


def _since(result: str | None) -> int:
    """Return the ns from the start of the process to a result, according to its name."""
    match = SECONDS.fullmatch(result or "")
    return int(match[1]) * 10**9 + int(match[2]) * 1000 if match else 0


def _locate(files: FolderFiles, launch: LoggedLaunch, maps: list[FolderMap]) -> _Located:
    lost: str | None = launch.lost or "it has no result"
    head = files.read_head(launch.result) if launch.result else None
    shape, found = (launch.grid, launch.block), dict[int, SectionLayout | str]()
    if isinstance(head, Result):
        shape, info = (head.grid, head.block), files.read_info(launch.function)
        try:
            for section, number in enumerate(choose(maps, len(head.sections), info.probes if info else [])):
                map_ = maps[number]
                try:
                    found[number] = find_place(head, section, map_.level, map_.bytes, map_.capacity)
                except GptError as error:
                    found[number] = f"{launch.result}: {error.fact}"
            lost = None
        except GptError as error:
            lost = f"{launch.result}: {error.fact}"
    elif head:
        lost = head
    return _Located(launch, *shape, found if lost is None else dict.fromkeys(range(len(maps)), lost))


class _Functions:
    """The functions of a process, by pointer or name, and their ids."""

    def __init__(self, files: FolderFiles) -> None:
        self._files = files
        self._pointers = {name: pointer for pointer, name in files.log.names.items()}
        self._numbers: dict[str, int] = {}
        self._kernels: dict[tuple[int, tuple[int, ...]], int] = {}

    def number(self, function: str) -> int:
        """Return the id of a function whose records were yielded."""
        return self._numbers[self._pointers.get(function, function)]

    def kernel(self, function: str, maps: tuple[int, ...]) -> tuple[int, bool]:
        """Return the id of a kernel with these maps, and whether the id is new."""
        key = self.number(function), maps
        new = key not in self._kernels
        return self._kernels.setdefault(key, len(self._kernels) + 1), new

    def name(self, function: str) -> str:
        """Return the name of a function, if it's known."""
        info = self._files.read_info(function)
        return self._files.log.names.get(function) or (info.name if info else function or UNKNOWN)

    def say(self, function: str) -> Iterator[Record]:
        """Yield the records of a function, unless they were yielded before."""
        function = self._pointers.get(function, function)
        if function not in self._numbers:
            number = self._numbers[function] = len(self._numbers) + 1
            yield records.make("function", id=number, name=self.name(function))
            if code := self._files.find_registers(function):
                yield records.make("kernel", id=CODE + number, name=self.name(function), function=number, **code)


def _say_launch(id_: int, one: _Located, maps: list[FolderMap], functions: _Functions, zero: int) -> Iterator[Record]:
    launch = one.launch
    yield from functions.say(launch.function)
    function = functions.number(launch.function)
    kernel, new = functions.kernel(launch.function, tuple(one.maps))
    if new:
        yield records.make("kernel", id=kernel, name=functions.name(launch.function), function=function,
                           maps=[number + 1 for number in one.maps])  # fmt: skip
    start = max(0, launch.start - zero if launch.start else _since(launch.result))
    yield records.make("probed", id=id_, kernel=kernel, function=function, thread=0, start=start, device=0, stream=0,
                       grid=list(one.grid), block=list(one.block), shared=launch.shared)  # fmt: skip
    blocks, threads = math.prod(one.grid), math.prod(one.block)
    for number, found in one.maps.items():
        to = {"launch": id_, "map": number + 1}
        if isinstance(found, str):
            yield records.make("buffer", **to, size=0, lost=found)
            continue
        map_ = maps[number]
        units = {"thread": threads, "warp": -(-threads // WARP), "block": 1}[map_.level]
        log = COUNT + found.units * (found.unit // map_.bytes) * (COUNT + map_.bytes)
        size = log if map_.capacity is None else blocks * units * (COUNT + found.unit)
        yield records.make("buffer", **to, size=size, units=found.units, codec=CODEC, path=launch.result,
                           offset=found.offset, packed=found.units * found.unit,
                           dropped=launch.dropped.get(map_.name))  # fmt: skip
    if launch.times:
        yield records.make("times", launch=id_, **launch.times)


def _say_rest(log: Log, functions: _Functions) -> Iterator[Record]:
    """Yield records of counts: launches without probes, sizes of buffers, launches, calls."""
    launched = Counter[int](functions.number(one.function) for one in log.launches if one.start)
    for (function, reason), count in log.unprobed.items():
        yield from functions.say(function)
        yield records.make("unprobed", function=functions.number(function), launches=count, **parse(reason).keys())
        launched[functions.number(function)] += count
    needs = defaultdict[str, list[int]](list)
    for one in log.launches:
        if not one.start and one.needs is not None:
            needs[one.function].append(one.needs)
    for function, sizes in needs.items():
        yield from functions.say(function)
        number = functions.number(function)
        yield records.make("memusage", function=number, launches=len(sizes), bytes=sum(sizes), most=max(sizes))
    if launched:
        yield _count("launches", "function", launched)
    symbols = sorted(log.calls)
    for number, symbol in enumerate(symbols, 1):
        name = symbol.removesuffix("_v2")
        type_, op = next((what for part, what in WHAT.items() if part in name), ("memory", "other"))
        op = op or name.partition("Memcpy")[2].removesuffix("Async") or "any"
        yield records.make("api", id=number, symbol=symbol, name=name, type=type_, op=op)
    if symbols:
        yield _count("counts", "api", {number: log.calls[symbol] for number, symbol in enumerate(symbols, 1)})


def _count(kind: str, of: str, counts: Mapping[int, int]) -> Record:
    rows = b"".join(PAIR.pack(count, number) for number, count in counts.items())
    fields = [{"name": "count", "type": "u64", "offset": 0}, {"name": of, "type": "u32", "offset": 8}]
    return records.make(kind, fields=fields, stride=PAIR.size, rows=rows)
