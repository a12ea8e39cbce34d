"""Choose the part of traces that's read: filters by process, thread, device, stream, kernel, time and more.

Rows and launches that are left out never reach the reader. Some records lack what a filter checks: counts of calls and
launches have no thread, stream or time, a call has no device, and an ioctl no kernel. In that case, counts are left
out, and launches are counted from calls instead. If a process has only one device, everything counts as being on it.
For launches without probes, counts only have the kernel.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gpt.base.errors import GptError
from gpt.formats.paths import is_regular
from gpt.screen.demangle import readable
from gpt.trace.machines import Machines
from gpt.trace.rows import Rows, Threads

if TYPE_CHECKING:
    from gpt.trace.clock import Clock
    from gpt.trace.machines import Header

Mask = npt.NDArray[np.bool_]


@dataclass
class Selection:
    """The user's filters. Without any, everything is chosen.

    `kernels` are globs, for mangled names or names in the source. `begin` and `end` are in ns since the first process
    began, considering all headers in `machines`. All processes that are read are added.
    """

    pids: frozenset[int] = frozenset()
    ranks: frozenset[int] = frozenset()
    hosts: frozenset[str] = frozenset()
    threads: frozenset[int] = frozenset()
    devices: frozenset[int] = frozenset()
    streams: frozenset[int] = frozenset()
    kernels: tuple[str, ...] = ()
    begin: float = -math.inf
    end: float = math.inf
    machines: Machines = field(default_factory=Machines)

    def look(self, paths: Iterable[Path], read: Callable[[Path], Iterator[dict[str, Any]]]) -> None:
        """Add the first header of each trace. Errors are ignored here; they occur again when the trace is read."""
        for path in paths:
            with suppress(GptError, OSError):
                if (path.is_dir() or is_regular(path)) and (header := next(read(path), None)):
                    self.machines.add(header)

    @property
    def chooses(self) -> bool:
        """True if the selection leaves anything out."""
        return bool(self.pids or self.ranks or self.hosts or self.kernels) or self.narrow

    def excludes(self, header: Header) -> bool:
        """Return whether the selection leaves out this process."""
        wanted = ((self.pids, header["pid"]), (self.ranks, header.get("rank")), (self.hosts, header["host"]))
        return any(chosen and value not in chosen for chosen, value in wanted)

    @property
    def timed(self) -> bool:
        """True if the selection limits the time."""
        return (self.begin, self.end) != (-math.inf, math.inf)

    @property
    def narrow(self) -> bool:
        """True if the selection uses a filter that can't be applied to counts."""
        return bool(self.threads or self.devices or self.streams or self.timed)

    def __str__(self) -> str:
        """Return the options that describe the selection."""
        seconds = [f"{at / 1e9:g}" if math.isfinite(at) else "" for at in (self.begin, self.end)]
        said: dict[str, Iterable[Any]] = {
            "pid": sorted(self.pids),
            "rank": sorted(self.ranks),
            "host": sorted(self.hosts),
            "tid": sorted(self.threads),
            "gpu": sorted(self.devices),
            "cuda-stream": map(hex, sorted(self.streams)),
            "kernel": self.kernels,
            "time": [",".join(seconds)] if self.timed else [],
        }
        return " ".join(f"--{name} {value}" for name, values in said.items() for value in values)


@dataclass
class Selected:
    """The selection for one process. `names` and `devices` grow while its records are read.

    `looked` is True once anything was checked, and `kept` once anything was chosen.
    """

    selection: Selection
    header: dict[str, Any]
    clock: Clock
    names: Mapping[int, str]
    devices: set[int]  # ordinals
    looked: bool = False
    kept: bool = False
    other_times: dict[int, list[int]] = field(default_factory=dict)  # GPU times left out, by function: number and ticks
    _launches: Counter[tuple[int, int]] = field(default_factory=Counter)  # number of chosen calls, by api and function
    _matched: dict[str, bool] = field(default_factory=dict)

    def of_calls(self, threads: Threads, rows: Rows) -> Mask:
        """Return a mask of the calls that are chosen."""
        chosen = self._choose(threads, rows, "start")
        if "function" in (rows.dtype.names or ()) and self.selection.narrow:
            good = chosen & (rows["result"] == 0) & (rows["function"] != 0)
            for key, count in Counter(rows[["api", "function"]][good].tolist()).items():
                self._launches[key] += count
        return chosen

    def take_launches(self, known: Container[int], captured: Container[int], over: bool) -> Counter[int]:
        """Return how many chosen launches each function had since the last call, without launches by the `captured`
        apis.

        Launches by apis that aren't `known` yet are returned only when the process is `over`.
        """
        found, waiting = Counter[int](), Counter[tuple[int, int]]()
        for (api, function), count in self._launches.items():
            if api not in known and not over:
                waiting[api, function] = count
            elif api not in captured:
                found[function] += count
        self._launches = waiting
        return found

    def of_gpu_times(self, _: Threads, rows: Rows) -> Mask:
        """Return a mask of the GPU times that are chosen."""
        threads = rows["thread"] if "thread" in (rows.dtype.names or ()) else np.zeros(len(rows), np.uint64)
        chosen = self._choose(threads, rows, "begin")
        others = rows[~chosen & (rows["function"] != 0)]
        for function in np.unique(others["function"]).tolist():
            ticks = others["duration"][others["function"] == function]
            known = self.other_times.setdefault(function, [0, 0])
            known[0] += len(ticks)
            known[1] += int(ticks.sum(dtype=np.uint64))
        return chosen

    def of_launches(self, _: Threads, rows: Rows) -> Mask:
        """Return a mask of the counts of launches that are chosen."""
        return self._note_all(self._by_kernel(rows))

    def of_counts(self, _: Threads, rows: Rows) -> Mask:
        """Return a mask of the counts of calls that are chosen. If kernels are selected, it's empty, because these
        counts have none.
        """
        return self._note_all(np.full(len(rows), not (self.selection.narrow or self.selection.kernels)))

    def of_moment(self, thread: int, start: int) -> bool:
        """Return whether an event that has only a thread and a time is chosen."""
        return self._note(self._is_in(thread, start))

    def of_ioctl(self, thread: int, start: int) -> bool:
        """Return whether an ioctl is chosen. An ioctl has neither kernel nor stream."""
        return not (self.selection.kernels or self.selection.streams) and self._is_in(thread, start)

    def of_launch(self, thread: int, start: int, device: int, stream: int) -> bool:
        """Return whether a launch with probes is chosen, without considering its kernel."""
        selection = self.selection
        wanted = ((selection.devices, device), (selection.streams, stream))
        inside = all(value in chosen for chosen, value in wanted if chosen)
        return inside and self._is_in(thread, start)

    def of_function(self, function: int | None) -> bool:
        """Return whether a kernel is chosen by its name. `function` is None if another filter has already rejected
        it.
        """
        return self._note(function is not None and self.matches(self.names.get(function, "")))

    @property
    def says_device(self) -> bool:
        """True if records that don't name a device are chosen: in a process with a single device, they belong to that
        one.
        """
        chosen = self.selection.devices
        return not chosen or (len(self.devices) <= 1 and (self.devices or {0}) <= chosen)

    def _is_in(self, thread: int, start: int) -> bool:
        selection = self.selection
        inside = not selection.threads or thread in selection.threads
        return inside and (not selection.timed or selection.begin <= self._since(start) < selection.end)

    def _note(self, chosen: bool) -> bool:
        """Update `looked` and `kept`, and return `chosen`."""
        self.looked = True
        self.kept |= chosen
        return chosen

    def _note_all(self, chosen: Mask) -> Mask:
        """Do the same for a mask."""
        self.looked |= len(chosen) > 0
        self.kept |= bool(chosen.any())
        return chosen

    def matches(self, kernel: str) -> bool:
        """Return whether a kernel is chosen."""
        globs = self.selection.kernels
        if not globs:
            return True
        if kernel not in self._matched:
            names = {kernel, *readable([kernel])}
            self._matched[kernel] = any(fnmatchcase(name, glob) for name in names for glob in globs)
        return self._matched[kernel]

    def _since(self, start: int) -> int:
        return int(self.clock.times(np.array([start], np.uint64))[0]) + self.selection.machines.offset(self.header)

    def _choose(self, threads: npt.NDArray[np.unsignedinteger], rows: Rows, when: str) -> Mask:
        selection, names = self.selection, rows.dtype.names or ()
        chosen = np.ones(len(rows), bool)
        if selection.threads:
            chosen &= np.isin(threads, [*selection.threads])
        if selection.streams:
            chosen &= np.isin(rows["stream"], [*selection.streams]) if "stream" in names else False
        if selection.devices and "device" in names:
            chosen &= np.isin(rows["device"], [*selection.devices])
        elif not self.says_device:
            chosen &= False
        if selection.timed:
            since = self.clock.times(rows[when]) + selection.machines.offset(self.header)
            chosen &= (since >= selection.begin) & (since < selection.end)
        return self._note_all(chosen & self._by_kernel(rows) if selection.kernels else chosen)

    def _by_kernel(self, rows: Rows) -> Mask:
        if not self.selection.kernels:
            return np.ones(len(rows), bool)
        if "function" not in (rows.dtype.names or ()):
            return np.zeros(len(rows), bool)
        known = np.unique(rows["function"])
        wanted = [id_ for id_ in known.tolist() if id_ in self.names and self.matches(self.names[id_])]
        return np.isin(rows["function"], wanted)
