"""The base of analyses of maps that count something: sums of all records, by kernel and by launch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from gpt.analyze.lib.answer import Answers, Column, make_answer, plot
from gpt.analyze.lib.map_analysis import LAUNCH, MapAnalysis, launch_row

if TYPE_CHECKING:
    import numpy.typing as npt

    from gpt.trace.buffers import Buffer, MapLayout, SavedBuffer
    from gpt.trace.process import Process
    from gpt.trace.sums import BufferSums

KERNEL = (
    Column("name", "text", "kernel", "kernel"),
    Column("launches", "u64"),
    Column("share", "f64", "%"),
)
DROPPED = Column("dropped", "u64", title="lost", shown="any")
TOP, TOP_LAUNCHES = 30, 10  # rows that tables show
MOST_LAUNCHES = 100_000  # launches listed at most


class KernelSums(MapAnalysis):
    """An analysis that sums up the records of each kernel and each launch.

    Kernels are sorted by the first of the `columns`. It's the sum of `parts`, if there are any, or else a field of the
    map. The other columns are fields, or 0 if the map doesn't have the field.
    """

    columns: tuple[Column, ...]
    parts: tuple[str, ...]

    def __init__(self) -> None:
        super().__init__()
        self._number = 0
        self._kernels: dict[str, Counter[str]] = {}
        self._rows: list[tuple[Any, ...]] = []  # one per launch

    def add(self, process: Process, buffer: Buffer, saved: SavedBuffer) -> None:
        """Add a launch."""
        self._add(process, buffer, saved.dropped, {
            name: self.add_up(buffer.map, saved.slots[name])
            for name in (*self.fields, *self.optional) if name in buffer.map.unsigned
        })  # fmt: skip

    def add_sums(self, process: Process, buffer: Buffer, sums: BufferSums) -> None:
        """Add a launch for which only sums were kept."""
        self._add(process, buffer, sums.dropped, self.take_sums(buffer.map, sums))

    def take_sums(self, layout: MapLayout, sums: BufferSums) -> dict[str, int]:
        """Return the sums of fields."""
        return {name: int(field.total) for name, field in sums.fields.items() if name in layout.unsigned}

    def _add(self, process: Process, buffer: Buffer, dropped: int, found: Mapping[str, int]) -> None:
        sums = {name: found.get(name, 0) for name in (*self.fields, *self.optional)}
        sums |= {self.columns[0].name: sum(sums[name] for name in self.parts), "dropped": dropped}
        self._kernels.setdefault(buffer.kernel, Counter()).update(sums, launches=1)
        self._number += 1
        if len(self._rows) < MOST_LAUNCHES:
            self._rows.append((*launch_row(self._number, process, buffer), *self._values(sums)))

    def add_up(self, layout: MapLayout, values: npt.NDArray[Any]) -> int:
        """Sum up a field. The indexes of `values` are the block, the unit in the block, and the slot."""
        return int(values.sum(dtype="u8"))

    def merge(self, other: KernelSums) -> None:
        """Merge an analysis of later traces."""
        for name, sums in other._kernels.items():
            self._kernels.setdefault(name, Counter()).update(sums)
        self._rows += islice(self.renumbered(other._rows), MOST_LAUNCHES - len(self._rows))
        self.merge_launches(other)

    def _values(self, sums: Mapping[str, int]) -> tuple[int, ...]:
        return tuple(sums[column.name] for column in (*self.columns, DROPPED))

    def verdict(self, sums: Mapping[str, int]) -> Sequence[str]:
        """Return sentences about the sums of all launches. The first one is meant for scripts."""
        return [f"{self.name}:{sums[self.columns[0].name]}"]

    def iter_answers(self, verdict: list[str]) -> Answers:
        """Yield a table of kernels, largest sum first, and a table of launches."""
        first, total = self.columns[0].name, sum(self._kernels.values(), Counter())
        ordered = sorted(self._kernels.items(), key=lambda kernel: (-kernel[1][first], kernel[0]))
        rows = [
            (name, sums["launches"], 100 * sums[first] / (total[first] or 1), *self._values(sums))
            for name, sums in ordered
        ]
        columns, drawn = (*KERNEL, *self.columns, DROPPED), plot("bars", "name", *self.parts)
        yield make_answer("kernels", columns, rows, [*self.verdict(total), *verdict], top=TOP, plots=[drawn])
        more = self._number - len(self._rows)
        verdict = [f"{more:,} more launches are only in the sums"] if more else []
        yield make_answer("launches", (*LAUNCH, *self.columns, DROPPED), self._rows, verdict, top=TOP_LAUNCHES)
