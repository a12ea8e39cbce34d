"""Export the records that probes saved, as a table for each map with a row for each record."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from gpt.export.files import TableFile
from gpt.export.schema import MAP, ExportTable, TableColumn, make_fields, make_names
from gpt.export.strings import Strings

if TYPE_CHECKING:
    from gpt.trace.buffers import Buffer, MapLayout

MOST_TABLES = 200
WINDOW = 1 << 18  # records per write
WIDTHS = {"f16": "f32"}  # databases lack the former
COUNT, SLOT, NAME = TableColumn("recorded", "u64"), TableColumn("slot", "u32"), TableColumn("nameId", "i64")


class MapTables:
    """The tables of all maps. `left_out` has the names of maps without a table, because there are too many of them."""

    def __init__(self, tables: TableFile, strings: Strings) -> None:
        self.left_out: set[str] = set()
        self._tables, self._strings = tables, strings
        self._made: dict[tuple[str, tuple[tuple[str, str], ...], bool, bool], tuple[ExportTable, list[str]]] = {}

    def add(self, global_pid: int, buffer: Buffer) -> None:
        """Write what a launch saved in a map. Raises the same errors as `Buffer.read`."""
        found = self._find(buffer.map)
        if found is None:
            self.left_out.add(buffer.map.name)
            return
        table, names = found
        saved = buffer.read()
        who = {"launchId": buffer.launch.id, "globalPid": global_pid}
        ranges = [self._strings.number(name) for name in buffer.map.ranges]
        for places, slots in _iter_windows(buffer, saved):
            count = len(places["block"])
            columns = {name: slots[field] for name, field in zip(names, slots.dtype.names or (), strict=False)}
            if ranges and buffer.map.has_ranges:
                columns[NAME.name] = np.array([*ranges, 0])[np.minimum(slots["range"] // 2, len(ranges))]
            if count:
                self._tables.write(table, count, who | places | columns)

    def _find(self, layout: MapLayout) -> tuple[ExportTable, list[str]] | None:
        """Return the table of a map, and the columns of its fields. Maps with the same name, but different fields, have
        separate tables.
        """
        stored = layout.capacity > 0 and layout.type != "histogram"
        counted = (COUNT,) if not stored or layout.table else ()
        key = layout.name, tuple(layout.types.items()), stored, layout.has_ranges
        if key not in self._made:
            if len(self._made) >= MOST_TABLES:
                return None
            (name,) = make_names([f"GPT_MAP_{layout.name}"], (table.name for table, _ in self._made.values()))
            where = (*make_fields(MAP), *counted, *((SLOT,) if stored else ()), *((NAME,) if layout.has_ranges else ()))
            names = make_names(layout.types, (field.name for field in where)) if stored else []
            types = [WIDTHS.get(type_, type_) for type_ in layout.types.values()]
            fields = (TableColumn(name, type_) for name, type_ in zip(names, types, strict=False))
            table = ExportTable(name, (*where, *fields))
            self._tables.create(table)
            self._made[key] = table, names
        return self._made[key]


def _iter_windows(buffer: Buffer, saved: Any) -> Iterator[tuple[dict[str, Any], Any]]:
    """Yield the positions of records, and the records, several blocks at a time. Units are numbered within their
    block.
    """
    if buffer.map.copies and not (buffer.map.table and buffer.map.capacity):  # a row for each bin, or one for all
        bins = saved.counts if saved.bins is None else saved.bins
        yield (
            {"block": np.zeros(len(bins), int), "unit": np.arange(len(bins)), "recorded": bins},
            np.zeros(len(bins), []),
        )
        return
    if buffer.map.table and buffer.map.capacity:  # a row for each key
        none, place = np.zeros(len(saved.slots), int), np.arange(len(saved.slots))
        yield {"block": none, "unit": none, "recorded": saved.counts, "slot": place}, saved.slots
        return
    layout, (blocks, units) = buffer.map, (buffer.launch.blocks, buffer.map.units(buffer.launch.threads))
    if saved.units is not None:
        for at in range(0, len(saved.slots), WINDOW):
            number = saved.units[at : at + WINDOW]
            place = np.arange(at, at + len(number))
            yield {"block": number // np.uint64(units), "unit": number % np.uint64(units), "slot": place}, \
                saved.slots[at : at + WINDOW]  # fmt: skip
        return
    capacity = max(layout.capacity, 1)
    step = max(1, WINDOW // (units * capacity))
    for at in range(0, blocks, step):
        counts, slots = saved.counts[at : at + step], saved.slots[at : at + step]
        if not layout.capacity:
            block, unit = (one.ravel() for one in np.indices(counts.shape))
            yield {"block": block + at, "unit": unit, "recorded": counts.ravel()}, np.zeros(counts.size, [])
            continue
        there = np.arange(capacity, dtype=np.uint64) < counts[..., None]
        if layout.type == "total":
            there = np.ones(slots.shape, bool)
        block, unit, slot = np.nonzero(there)
        yield {"block": block + at, "unit": unit, "slot": slot}, slots[there]
