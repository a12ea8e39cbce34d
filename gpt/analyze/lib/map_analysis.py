"""The base of analyses of a probe's map. It reads the data that each launch saved, and reports what's missing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from gpt.analyze.lib.answer import Answers, Column
from gpt.analyze.lib.coverage import Coverage, make_coverage
from gpt.base.errors import GptError, MissingError, TruncatedError
from gpt.screen.units import amount, kept_share
from gpt.trace.params import to_text

if TYPE_CHECKING:
    from gpt.trace.buffers import Buffer, MapLayout, SavedBuffer
    from gpt.trace.process import Process
    from gpt.trace.sums import BufferSums

LAUNCH = (  # columns of a launch, to the left of its map's columns
    Column("kernel", "text", "kernel", "launches of"),
    Column("launch", "u64", "id", "no"),
    Column("host", "text", shown="never"),
    Column("pid", "u64", "id", shown="never"),
    Column("id", "u64", "id", shown="never"),
    Column("device", "u64", "id", shown="never"),
    Column("stream", "u64", "id", shown="never"),
    Column("start", "u64", "ns", shown="never"),
    Column("blocks", "u64"),
    Column("threads", "u64"),
    Column("params", "text?", shown="never"),
)
KILLED, ABSENT = "the trace ends before it was written", "it is not in the trace"


def launch_row(number: int, process: Process, buffer: Buffer) -> tuple[Any, ...]:
    """Return values for the columns LAUNCH; `number` counts the launches of all traces."""
    launch = buffer.launch
    where = number, process.header["host"], process.pid
    ids = *where, launch.id, launch.device, launch.stream, process.clock.realtime_at(launch.start)
    return buffer.kernel, *ids, launch.blocks, launch.threads, to_text(buffer.arguments) or None


class MapAnalysis(ABC):
    """An analysis of the map `name`, whose records have unsigned `fields` and `floats`, and may have `optional` fields.

    In a field name with `|`, such as `a|b`, one of the alternatives must exist. An analysis of several maps overrides
    `maps`.

    A subclass implements `add`, which gets the data that a launch saved. If --detail kept only the sums of a launch,
    `add_sums` gets those instead; `summed` names the totals that include them. `iter_answers` yields the
    answers; its `verdict` has the lines that say what's missing.
    """

    streams = True
    name: str
    fields: tuple[str, ...]
    optional: tuple[str, ...] = ()
    floats: tuple[str, ...] = ()
    log = False  # True if the map is a log
    summed = "all"
    partial: frozenset[str] = frozenset()  # maps that lack a field if a kernel has no use for it

    def __init__(self) -> None:
        from gpt.trace.kinds import SAVES

        self.kinds = SAVES | {"clock", "function", "launch", "launches"}
        self._wanted: int | None = None  # number of the launch to show, if any
        self._number = 0  # number of the last launch, if the analysis numbers launches
        self._known = False  # True once a trace had the map
        self._last_lost: tuple[int, int] | None = None  # pid and id of a launch
        self._read = 0  # buffers
        self._details = Counter[bool]()  # launches, by whether only sums of them were kept
        self._last_read = (0, 0), False  # pid and id of a launch, and whether it was reduced
        self._lost = Counter[str]()  # launches, by why their data is lost
        self._logs = Counter[str]()  # records `kept` and `dropped`, and launches: all, and those with `full` logs
        self._blocks: tuple[int, int] | None = None  # the first and the last block with records in full logs
        self._done = Coverage()  # for processes that have ended
        self._launches: dict[Process, Counter[int]] = defaultdict(Counter)  # for processes that haven't, by function

    @property
    def maps(self) -> Mapping[str, tuple[str, ...]]:
        """Return the fields of each map that the analysis reads."""
        return {self.name: self.fields}

    @abstractmethod
    def add(self, process: Process, buffer: Buffer, saved: SavedBuffer) -> None:
        """Add the data that a launch saved."""

    @abstractmethod
    def add_sums(self, process: Process, buffer: Buffer, sums: BufferSums) -> None:
        """Add a launch for which only sums were kept."""

    @abstractmethod
    def iter_answers(self, verdict: list[str]) -> Answers:
        """Yield the answers, if a launch saved anything."""

    def take(self, process: Process) -> None:
        """Add the buffers that a process has collected."""
        self._launches[process] += process.take_launches()
        for buffer in process.probes.take():
            if self.wants(buffer.map):
                self._take(process, buffer)
        self._known |= any(map(self.wants, process.probes.maps.values()))

    def wants(self, layout: MapLayout) -> bool:
        """Return True if the analysis reads a map of this name; `check` looks at its fields."""
        return layout.name in self.maps

    def check(self, layout: MapLayout) -> None:
        """Raise GptError if a map has the expected name but not the expected fields."""
        wanted = self.maps[layout.name]
        choices = [name.split("|") for name in wanted]
        missing = [f"unsigned field '{one[-1]}'" for one in choices if layout.unsigned.isdisjoint(one)]
        if layout.name in self.partial and len(missing) < len(wanted):
            missing = []
        missing += [f"field '{name}' of a float" for name in self.floats if layout.types.get(name, "")[:1] != "f"]
        if (layout.type == "log") != self.log or layout.copies or not layout.capacity:
            missing.append("log of records" if self.log else "slot for each unit")
        if missing:
            raise GptError(f"map '{layout.name}' has no {missing[0]}, unlike the built-in probe's")

    def _take(self, process: Process, buffer: Buffer) -> None:
        self.check(buffer.map)
        try:
            if buffer.reduced:
                sums = buffer.read_sums()
                self._count(process, buffer)
                self.add_sums(process, buffer, sums)
                return
            saved = buffer.read()
        except (MissingError, TruncatedError) as error:
            where = process.pid, buffer.launch.id
            self._lost[error.fact] += where != self._last_lost  # a launch with several maps counts once
            self._last_lost = where
            return
        self._count(process, buffer)
        if saved.units is not None and buffer.map.capacity:
            full = saved.dropped > 0
            self._logs.update(kept=len(saved.units), dropped=saved.dropped, launches=1, full=int(full))
            self._blocks = _join(self._blocks, find_blocks(buffer, saved))
        self.add(process, buffer, saved)

    def _count(self, process: Process, buffer: Buffer) -> None:
        """Count a buffer that was read, and its launch; one of several maps counts once."""
        self._read += 1
        (where, was), at = self._last_read, (process.pid, buffer.launch.id)
        if where == at:
            self._details[was] -= 1
        reduced = buffer.reduced or (was and where == at)
        self._details[reduced] += 1
        self._last_read = at, reduced

    def end(self, process: Process) -> None:
        """Add the coverage of a process that has ended."""
        self._done.merge(make_coverage(process, self._launches.pop(process, None)))
        if process.probes.pending:
            self._lost[KILLED if process.status is None else ABSENT] += process.probes.pending
        process.probes.check_taken()

    def merge_launches(self, other: MapAnalysis) -> None:
        """Add the launches that another analysis read from later traces, and count the lost ones."""
        self._number += other._number
        self._known |= other._known
        self._read += other._read
        self._details.update(other._details)
        self._lost.update(other._lost)
        self._logs.update(other._logs)
        self._blocks = _join(self._blocks, other._blocks)
        self._done.merge(other._done)

    def renumbered(self, rows: list[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        """Renumber rows of launches from later traces, so that they follow our last launch."""
        return ((row[0], row[1] + self._number, *row[2:]) for row in rows)

    def find_lack(self, kinds: set[str]) -> str | None:
        """Return which probe would have recorded the map, or that there's no launch with the requested number; None if
        there's data.
        """
        if self._read:
            absent = self._wanted is not None and self._wanted > self._number
            return f"no launch {self._wanted}: they are numbered from 1 to {self._number}" if absent else None
        fact = f"no map '{self.name}' in the trace: 'gpt-hook run -p {self.name}' records one"
        if self._known:
            fact = f"no launch has a buffer of map '{self.name}'"
        ran = list(self._done.verdict())[:1] if self._known or self._done.rejects() else []
        return "; ".join([fact, *ran, *self._lost_lines()])

    def answer(self, incomplete: list[str]) -> Answers:
        """Yield the answers, and the table of launches without probes."""
        coverage = Coverage()
        coverage.merge(self._done)
        for process, launches in self._launches.items():
            coverage.merge(make_coverage(process, launches))
        if self._read:
            lines = [*self._detail_lines(), *self._kept_lines(), *coverage.verdict(), *self._lost_lines()]
            yield from self.iter_answers(lines)
        yield from coverage.answer()

    @property
    def kept(self) -> str:
        """Return the share of records that logs kept, or an empty string if they kept all. If every launch dropped
        some, it also says from which blocks records were kept.
        """
        logs = self._logs
        blocks = self._blocks if logs["full"] == logs["launches"] else None
        return kept_share(logs["kept"], logs["dropped"], blocks=blocks) if logs["dropped"] else ""

    def titled(self, title: str) -> str:
        """If logs dropped records, add a line about that to the title of a picture of all launches."""
        return f"{title}\n{self.kept}" if self.kept else title

    def _detail_lines(self) -> Iterator[str]:
        if self._details[True]:
            launches = amount(self._details.total(), "launch")
            yield f"detail: {self._details[False]:,} of {launches}, totals: {self.summed}"

    def _kept_lines(self) -> Iterator[str]:
        if self.kept:
            full, launches = self._logs["full"], self._logs["launches"]
            which = f"{full:,} of {amount(launches, 'launch')}" if launches > 1 else "the launch"
            yield (
                f"{self.kept}: the log of {which} was too small; later launches of the same kernel get "
                "a larger one, within --max-memory"
            )

    def _lost_lines(self) -> Iterator[str]:
        for reason, count in self._lost.most_common(3):
            yield f"{'1 launch lost what it' if count == 1 else f'{count:,} launches lost what they'} saved: {reason}"
        if more := sum(sorted(self._lost.values())[:-3]):
            yield f"{amount(more, 'launch')} lost records for other reasons"


def find_blocks(buffer: Buffer, saved: SavedBuffer) -> tuple[int, int] | None:
    """For a log that dropped entries, return the first and the last block that has entries. Return None for
    other maps.
    """
    if saved.units is None or not saved.dropped or not len(saved.units):
        return None
    units = buffer.map.units(buffer.launch.threads)
    return int(saved.units.min()) // units, int(saved.units.max()) // units


def _join(one: tuple[int, int] | None, other: tuple[int, int] | None) -> tuple[int, int] | None:
    """Return the smallest range of blocks that includes both ranges."""
    return (min(one[0], other[0]), max(one[1], other[1])) if one and other else one or other
