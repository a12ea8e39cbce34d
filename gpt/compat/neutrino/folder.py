"""Write the trace folder of a process as its records arrive.

The lines for a launch stay together. They're written once everything about the launch has arrived: the data that its
probes saved, their cost (`times`), and how long its kernel ran on the GPU. So they come after the lines for calls that
the program made in the meantime. Calls that arrive together are sorted by time.
"""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from gpt.analyze.lib.sm_clocks import highest_rate
from gpt.base.errors import GptError
from gpt.base.outputs import make_open_folder, replacing
from gpt.compat.neutrino import events
from gpt.compat.neutrino.kernels import KernelFolders, Settings
from gpt.compat.neutrino.results import ResultSection, make_section, write_result
from gpt.stream import wire
from gpt.stream.reasons import find_reason
from gpt.trace.buffers import COUNT, Buffer, MapLayout, SavedBuffer
from gpt.trace.complete_launches import WholeLaunch
from gpt.trace.kinds import CALLS, LOADS
from gpt.trace.probes import Probes
from gpt.trace.process import LoadedFunction, Process

Record = dict[str, Any]

MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
KINDS = CALLS | LOADS | {"gpu_times", "probed", "unprobed", "kernel", "map", "times", "memusage"}
QUIET = frozenset(("header", "end", "child", "sync", "resume", "diag"))  # kinds that don't create a folder
NOT_KEPT = "code of kernels could not be kept"
Analyze = Callable[[Path], None]  # starts the analysis of a result


@dataclass
class _Launch:
    """A launch for which records have arrived. It has `lines` once its buffers have been written."""

    probed: Record
    lines: list[str] = field(default_factory=list)
    result: Path | None = None
    times: Record | None = None
    done: bool = False  # True once its buffers are complete


class TraceFolder:
    """The folder of a process. It's created when the first record arrives that says more than that the process exists.

    If it's incomplete, `fault` is the reason. After a system error, nothing more is written.
    """

    def __init__(
        self,
        header: Record,
        parent: str,
        probe: dict[str, bytes],
        settings: Settings,
        command: Callable[[Path], str | None],
        analyze: Analyze,
    ) -> None:
        self.process = Process(header, KINDS)
        self.path: Path | None = None  # its path
        self._inside = Path()  # the folder itself, below a folder in which others may rename it
        self._fd = -1  # a descriptor of the inner folder
        self.fault: str | None = None
        self._stopped = False
        self._parent = parent
        self._probe = probe  # probe files, by name
        self._settings = settings
        self._command = command  # returns the command that analyzes a result, or None
        self._analyze = analyze
        self._log: IO[bytes] | None = None
        self._ready = False  # True once the log says that the driver is ready
        self._loads: list[str] = []  # lines since the last `sync`
        self._launches: list[str] = []
        self._results: list[Path] = []  # to be analyzed once the lines of their launches are in the log
        self.logs: dict[str, Counter[str]] = {}  # per map: `kept` and `dropped` records, `launches` and `full` logs
        self._later: list[Record] = []  # records of functions whose own records may arrive later
        self._open: dict[int, _Launch] = {}
        self._kernels: dict[int, Record] = {}  # records with maps or a reason, by id
        self._maps: dict[int, Record] = {}
        self._layouts: dict[int, MapLayout] = {}  # by the same ids
        self._modules: dict[int, Record] = {}
        self._tensors: list[Record] = []
        self._known: set[int] = set()  # functions with a folder
        self._gpu: dict[tuple[int, int], float] = {}  # ns of kernels, by thread and start of the call

    def add(self, record: Record) -> None:
        """Add a record. Raises MalformedError if it's invalid."""
        kind = record["kind"]
        self.process.add(record)
        if self.path is None and kind not in QUIET:
            self._guarded(self._begin)
        match kind:
            case "sync" | "end":
                self._guarded(self._settle)
            case "library" if os.path.basename(record["path"]).startswith("libcuda.so"):
                self._loads.append(f"[info] dl {record['path']}")
            case "module":
                self._modules[record["id"]] = record
                self._loads.append(events.load_line(record, iter(self.process.apis.values())))
            case "function":
                self._loads.append(events.function_line(self.process.functions[-1], iter(self.process.apis.values())))
            case "map":
                self._maps[record["id"]] = record
                self._layouts[record["id"]] = MapLayout(record)
            case "kernel" if "maps" in record:
                self._kernels[record["id"]] = record
            case "probed":
                self._open[record["id"]] = _Launch(record)
            case "times" if record["launch"] in self._open:
                self._open[record["launch"]].times = record
            case "tensor":
                self._tensors.append(record)
            case "unprobed" | "memusage":
                self._later.append(record)

    def add_launch(self, launch: WholeLaunch) -> None:
        """Write the data that the probes of a launch saved."""
        self._guarded(lambda: self._write_launch(launch))

    def finish(self) -> None:
        """Complete the folder after its process has ended or was killed."""
        for launch in list(self._open.values()):
            self._say(launch)
        self._guarded(self._settle)
        if log := self._log:
            self._log = None
            self._guarded(log.close)
            os.close(self._fd)

    def _guarded(self, write: Callable[[], object]) -> None:
        """Call a function that writes, unless writing has already failed."""
        if self._stopped:
            return
        try:
            write()
        except OSError as error:
            self._stopped = True
            self.fault = error.strerror or str(error)

    def _begin(self) -> None:
        header = self.process.header
        at = time.localtime(header["realtime"] // 10**9)
        name = f"{MONTHS[at.tm_mon - 1]}{time.strftime('%d_%H%M%S', at)}_{header['pid']}"
        for number in range(1, 1000):  # the pid stays the same after exec(3)
            path = Path(os.path.join(self._parent, name if number == 1 else f"{name}_{number}"))
            try:
                self._fd = make_open_folder(path)
                break
            except FileExistsError:
                continue
        self.path = path
        self._inside = Path(f"/proc/self/fd/{self._fd}")
        for folder in ("result", "kernel"):
            (self._inside / folder).mkdir()
        for file, data in self._probe.items():
            with replacing(self._inside / file) as out:
                out.write(data)
        self._log = open(self._inside / "event.log", "xb")
        self._write(events.iter_head(header))
        self._folders = KernelFolders(self._inside / "kernel", header["pid"], self._settings)

    def _write(self, lines: Iterator[str] | list[str]) -> None:
        if self._log:
            self._log.write("".join(f"{events.one_line(line)}\n" for line in lines).encode(errors="surrogateescape"))
            self._log.flush()

    def _settle(self) -> None:
        """Write the lines since the last call."""
        for _, rows in self.process.gpu_times.take():
            if {"thread", "call"} <= set(rows.dtype.names or ()):
                kernels = rows[rows["function"] != 0]
                keys = zip(kernels["thread"].tolist(), kernels["call"].tolist(), strict=True)
                took = self.process.clock.durations(kernels["duration"]).tolist()
                self._gpu.update(zip(keys, took, strict=True))
        later, self._later = self._later, []
        for record in later:
            self._add_unprobed(record)
        for launch in [launch for launch in self._open.values() if self._is_whole(launch)]:
            self._say(launch)
        said = [*self._loads, *(line for _, line in sorted(events.iter_calls(self.process)))]
        # The log begins with a single line about the driver. If code was loaded, the driver must be ready, even if the
        # call that reports this is recorded later.
        begins = not self._ready and any(line == events.READY or line.startswith("[mod]") for line in said)
        self._ready |= begins
        said = [line for line in said if line != events.READY] + [events.READY] * begins
        said.sort(key=lambda line: not line.startswith("[info]"))
        self._write([*said, *self._launches])
        self._loads, self._launches = [], []
        results, self._results = self._results, []
        for path in results:
            self._analyze(path)
        if self._tensors and self.path:
            found, self._tensors = self._tensors, []
            with open(self._inside / "tensor.trace", "ab") as file:
                for record in found:
                    line = events.tensor_line(record, self.process.clock.realtime_at(record["at"]))
                    file.write(f"{line}\n".encode(errors="surrogateescape"))

    def _add_unprobed(self, record: Record) -> None:
        if record["kind"] == "memusage":
            self._find(record["function"], None, "only its buffers are added up (--memusage)")
            self._launches.append(f"[exec] probe-mem {record['most']} (bytes)")
        else:
            reason = str(find_reason(record))
            self._find(record["function"], None, reason)
            name = self._function(record["function"], None).name
            self._launches.append(f"[exec] backup {record['launches']} {reason} {name}")

    def _is_whole(self, launch: _Launch) -> bool:
        probed, times = launch.probed, launch.times
        if self._settings.benchmark:
            return times is not None
        timed = (probed["thread"], probed["start"]) in self._gpu
        return launch.done and ("exec" in probed or (times is not None and timed))

    def _say(self, launch: _Launch) -> None:
        """Write the lines for a launch that are complete."""
        probed, times = launch.probed, launch.times
        del self._open[probed["id"]]
        took = self._gpu.pop((probed["thread"], probed["start"]), None)
        if not launch.lines:
            self._guarded(lambda: self._find(probed["function"], probed["kernel"], ""))
            benchmarked = times is not None and self._settings.benchmark
            more = [self._needed_line(probed) if benchmarked else "[exec] lost: what its probes saved was not read"]
            launch.lines = [*self._iter_launch(probed), *more]
        lines = [events.times_line(times, took)] if times else []
        self._launches += [*launch.lines, *lines]
        if launch.result and (command := self._command(launch.result)):
            self._launches.append(f"[analyze] subproc {command}")
            self._results.append(launch.result)

    def _iter_launch(self, probed: Record) -> Iterator[str]:
        realtime = self.process.clock.realtime_at(probed["start"])
        return events.iter_launch(probed, realtime, self._kernels.get(probed["kernel"], {}).get("params", []))

    def _needed_line(self, probed: Record, grown: int = 0) -> str:
        blocks, threads = math.prod(probed["grid"]), math.prod(probed["block"])
        maps = self._kernels.get(probed["kernel"], {}).get("maps", [])
        needed = grown + sum(self._layouts[map_].size(blocks, threads) for map_ in maps)
        return f"[exec] probe-mem {needed} (bytes)"

    def _write_launch(self, launch: WholeLaunch) -> None:
        probed = launch.probed
        if launch.fault:
            raise OSError(0, launch.fault)
        self._find(probed["function"], probed["kernel"], "")
        entry = self._open.setdefault(launch.id, _Launch(probed))
        entry.lines = list(self._iter_launch(probed))
        found: list[tuple[ResultSection, SavedBuffer]] = []
        grown = 0  # bytes by which logs are larger than their maps say
        order = self._kernels.get(probed["kernel"], {}).get("maps", [])
        for buffer in sorted(_iter_buffers(launch), key=lambda buffer: order.index(buffer.map.id)):
            if buffer.map.copies:
                entry.lines.append(f"[exec] lost {buffer.map.name}: results have no {buffer.map.type}s")
                continue
            size = self._settings.sizes.get(buffer.map.name, 0)
            try:
                saved = buffer.read()
                found.append((make_section(buffer.launch, buffer.map, saved, size), saved))
                if saved.units is not None:
                    more = len(saved.units) - buffer.map.capacity
                    grown += max(0, more) * (COUNT + buffer.map.stride)
                    counts = {"kept": len(saved.units), "dropped": saved.dropped, "launches": 1}
                    log = self.logs.setdefault(buffer.map.name, Counter())
                    log.update(counts, full=int(saved.dropped > 0))
                lost = saved.dropped + saved.overwritten
                if lost and (saved.units is not None or buffer.map.capacity > 1):
                    entry.lines.append(f"[exec] dropped {buffer.map.name}: {lost} records that did not fit")
            except GptError as error:
                entry.lines.append(f"[exec] lost {buffer.map.name}: {error.fact}")
        if found:
            assert self.path
            name = self._name_result(probed["start"])
            path = self.path / "result" / name
            with replacing(self._inside / "result" / name) as file:
                highest = highest_rate(self.process.cards.get(probed["device"], {}))
                written = write_result(file, probed, found, self._settings.second, highest)
            entry.lines += events.iter_buffers(math.prod(probed["grid"]), [section for section, _ in found])
            entry.lines += [self._needed_line(probed, grown), "[exec] succeed 0", f"[exec] save {path} size {written}"]
            entry.result = path
        entry.done = True

    def _name_result(self, start: int) -> str:
        """Return a name for a result: the seconds since the process began or, if that name is taken, the next
        free one.
        """
        header = self.process.header
        micro = max(0, self.process.clock.realtime_at(start) - int(header["realtime"])) // 1000
        while (self._inside / "result" / (name := f"{micro // 10**6}.{micro % 10**6:06d}.bin")).exists():
            micro += 1
        return name

    def _function(self, number: int, kernel: int | None) -> LoadedFunction:
        name = self._kernels[kernel]["name"] if kernel in self._kernels else f"#{number}"
        known = (found for found in self.process.functions if found.id == number)
        return next(known, LoadedFunction(number, name, None))

    def _find(self, number: int, kernel: int | None, reason: str) -> None:
        """Create the folder of a kernel, when the kernel is launched for the first time."""
        if number in self._known or self.path is None:
            return
        self._known.add(number)
        function = self._function(number, kernel)
        record = self._kernels.get(kernel) if kernel is not None else None
        maps = [self._maps[map_] for map_ in record["maps"]] if record else []
        module = self._modules.get(function.module or 0, {})
        folder = self._folders.add(function.name, module, record, maps, reason)
        self._launches += events.iter_found(function, module, folder.name)
        if self._folders.missing:
            self.fault = NOT_KEPT


def _iter_buffers(launch: WholeLaunch) -> Iterator[Buffer]:
    probes = Probes(None)
    for record in (*launch.around, launch.probed):
        if record["kind"] in ("map", "kernel", "probed"):
            probes.add(record)
    launch.buffers.seek(0)
    for record in wire.read_packed(launch.buffers, "buffers"):
        probes.add(record)
    yield from probes.take()
