"""The launches with probes in the part of a segment that has been read, and their buffers.

Each thread writes chunks of its own, so a `buffer` may come before the `probed`, `map` or `kernel` that it refers to,
and then has to wait for them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from gpt.base.errors import MalformedError
from gpt.stream.reasons import OTHER, Reason, find_reason
from gpt.trace.buffers import Buffer, MapLayout, ProbedLaunch
from gpt.trace.parts import Parts, SideFiles, parse_part
from gpt.trace.rows import PROBED, Collector
from gpt.trace.select import Selected

Record = dict[str, Any]

BATCH = 16 << 20  # bytes of collected buffers from which on it's `full`
MOST = 1000  # number of collected buffers from which on it's `full`


def _parse_launch(record: Record) -> ProbedLaunch:
    for key in ("grid", "block"):
        if len(record[key]) != 3 or not all(record[key]):
            raise MalformedError(f"probed.{key} is not three numbers from 1 on")
    numbers = {key: record[key] for key in ("id", "kernel", "function", "thread", "start", "device", "stream")}
    grid, block = tuple(record["grid"]), tuple(record["block"])
    params, repeats = record.get("params", b""), record.get("repeats") == 1
    return ProbedLaunch(**numbers, grid=grid, block=block, params=params, repeats=repeats,
                        exec=record.get("exec"))  # fmt: skip


class Probes:
    """The launches with probes in the part of a segment that has been read.

    `maps` are by id. `probed` counts launches by function, and `unprobed` by function and reason. A buffer is kept
    until it's taken, and a launch until all of its buffers have been. `kinds` are the kinds of records that the reader
    needs. `counted` collects the `launches` records, which also count launches whose `probed` record hasn't arrived.
    """

    def __init__(
        self, folder: Path | None, kinds: frozenset[str] = frozenset(("buffer",)), selected: Selected | None = None
    ) -> None:
        self.maps: dict[int, MapLayout] = {}
        self.probed = Counter[int]()
        self.unprobed = Counter[tuple[int, Reason]]()
        self.counted = Collector("launches", PROBED, ("function",))
        self.quick = 0  # bytes of buffers that were packed without zstd
        self.codes: dict[int, Record] = {}  # `kernel` records that describe code, by function
        self._with_buffers = "buffer" in kinds
        self._with_launches = "times" in kinds
        self._told: dict[str, list[Any]] = {"probed": [], "times": [], "memusage": []}  # since the last `take_told`
        self._selected = selected if selected and selected.selection.chooses else None
        self._fates: dict[int, int | None] = {}  # functions of launches without times so far; None: not chosen
        self._files = SideFiles(folder)
        self._kernels: dict[int, _Kernel] = {}
        self._unwritten = Counter[int]()
        self._launches: dict[int, ProbedLaunch] = {}
        self._taken: dict[int, set[int]] = {}  # by launch, the maps whose buffers have been taken
        self._begun: dict[tuple[int, int], Parts] = {}  # incomplete buffers, by launch and map
        self._buffers: list[Record] = []
        self._size = 0  # bytes of buffers since the last `take`
        self._fresh = 0  # number of buffers since the last `take`

    @property
    def full(self) -> bool:
        """True if there are enough buffers to `take` them."""
        return self._size >= BATCH or self._fresh >= MOST

    @property
    def pending(self) -> int:
        """The number of chosen launches with buffers that haven't arrived or haven't been taken.

        If a launch has no `probed` record, only its kernel is known, so all other filters count as matching.
        """
        unwritten = self.unwritten()
        if not self._selected:
            return len(self._launches) + sum(unwritten.values())
        chosen = filter(self._is_chosen, self._launches.values())
        known = sum(self._is_of_chosen(launch.function) for launch in chosen)
        return known + sum(count for function, count in unwritten.items() if self._is_of_chosen(function))

    def unwritten(self) -> dict[int, int]:
        """Return, by function, how many launches with probes have no `probed` record."""
        for _, rows in self.counted.take():
            if "probed" in (rows.dtype.names or ()):
                for function, count in rows[["function", "probed"]].tolist():
                    self._unwritten[function] += count
        return {function: count for function, count in self._unwritten.items() if count > 0}

    def add(self, record: Record) -> None:
        """Add a record whose kind is known. Raises MalformedError if it's invalid."""
        match record["kind"]:
            case "map":
                self.maps[record["id"]] = MapLayout(record)
            case "kernel":
                if "registers" in record and "function" in record:
                    self.codes[record["function"]] = record
                if "maps" in record:  # the other `kernel` record describes its code, and may arrive first
                    asked = frozenset(site["probe"].partition(".")[0] for site in record.get("sites", ()))
                    maps, params = frozenset(record["maps"]), record.get("params", [])
                    kernel = _Kernel(record["name"], maps, params, asked)
                    self._kernels[record["id"]] = kernel
            case "probed":
                launch = _parse_launch(record)
                chosen = self._is_chosen(launch)
                self.probed[launch.function] += chosen
                self._unwritten[launch.function] -= launch.exec is None  # the counts don't include graphs
                if self._with_launches and chosen:
                    self._told["probed"].append(launch)
                if self._with_launches and self._selected and launch.exec is None:  # nodes of graphs have no times
                    self._fates[launch.id] = launch.function if chosen else None
                if self._with_buffers and self._launches.setdefault(launch.id, launch) is not launch:
                    raise MalformedError(f"two probed launches have the number {launch.id}")
            case "times" | "memusage" as kind:
                self._told[kind].append(record)
            case "unprobed":
                self.unprobed[record["function"], find_reason(record) or Reason(OTHER)] += record["launches"]
            case "buffer":
                part = parse_part(record)
                self.quick += part.length if record.get("quick") else 0
                self._buffers.append(record)
                self._size += len(record.get("data", b""))
                self._fresh += 1

    def take(self) -> Iterator[Buffer]:
        """Yield the new buffers that are complete, once all records that they refer to have arrived."""
        found, self._buffers, self._size, self._fresh = self._buffers, [], 0, 0
        for record in found:
            launch, layout = self._launches.get(record["launch"]), self.maps.get(record["map"])
            kernel = self._kernels.get(launch.kernel) if launch else None
            if not (launch and layout and kernel):
                self._buffers.append(record)
                continue
            taken, key = self._taken.setdefault(launch.id, set()), (launch.id, layout.id)
            if layout.id not in kernel.maps or layout.id in taken:
                raise MalformedError(
                    f"buffer of launch {launch.id}: no further buffer of map '{layout.name}' can belong to it"
                )
            parts = self._begun.setdefault(key, Parts(record["size"]))
            if not parts.add(record):
                continue
            taken.add(layout.id)
            del self._begun[key]
            if len(taken) == len(kernel.maps):
                del self._launches[launch.id], self._taken[launch.id]
            if self._is_of_chosen(launch.function if self._is_chosen(launch) else None):
                yield Buffer(launch, layout, kernel.name, parts.lost, kernel.params, parts, self._files)

    def _is_chosen(self, launch: ProbedLaunch) -> bool:
        at = launch.thread, launch.start, launch.device, launch.stream
        return self._selected is None or self._selected.of_launch(*at)

    def _is_of_chosen(self, function: int | None) -> bool:
        return self._selected is None or self._selected.of_function(function)

    def maps_of(self, kernel: int) -> list[str]:
        """Return the names of a kernel's maps that are known so far."""
        found = self._kernels.get(kernel)
        return sorted({self.maps[map_].name for map_ in found.maps if map_ in self.maps}) if found else []

    def unsaved_of(self, kernel: int) -> set[str]:
        """Return the probes that were requested for a kernel, but had nothing to save in it."""
        found = self._kernels.get(kernel)
        return set(found.asked).difference(self.maps_of(kernel)) if found else set()

    def take_told(self, kind: str) -> list[Any]:
        """Return the chosen launches (`probed`) or records (`times`, `memusage`) that have arrived since the previous
        call.

        `memusage` records are sums that have neither a thread nor a time, so if the selection depends on these, they're
        left out.
        """
        found, self._told[kind] = self._told[kind], []
        if not self._selected:
            return found
        if kind == "probed":
            return [launch for launch in found if self._is_of_chosen(launch.function)]
        if kind == "memusage":
            narrow = self._selected.selection.narrow
            return [needs for needs in found if self._is_of_chosen(None if narrow else needs["function"])]
        self._told[kind] = [times for times in found if times["launch"] not in self._fates]
        known = [times for times in found if times["launch"] in self._fates]
        return [times for times in known if self._is_of_chosen(self._fates.pop(times["launch"]))]

    def check_taken(self) -> None:
        """Raise MalformedError if a buffer refers to a record that never arrived."""
        if self._buffers:
            record = self._buffers[0]
            raise MalformedError(
                f"buffer of launch {record['launch']} and map {record['map']}: one of them has no record"
            )


class _Kernel(NamedTuple):
    name: str
    maps: frozenset[int]
    params: list[Record]
    asked: frozenset[str]  # requested probes
