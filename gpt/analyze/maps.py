"""gpt-analyze maps: the records of any probe, field by field: how many there are, their range and their distribution.

It doesn't know what the fields mean, so all of them are shown in the same way. A total has one record per unit, so it
doesn't have the individual values that were added up. A table has a row for each key.
"""

from __future__ import annotations

from collections import Counter
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from gpt.analyze.lib.answer import Answers, Column, make_answer, plot
from gpt.analyze.lib.command import Analysis
from gpt.analyze.lib.map_analysis import MapAnalysis
from gpt.base.options import Option
from gpt.screen.units import amount

if TYPE_CHECKING:
    from gpt.analyze.lib.values import Distribution
    from gpt.trace.buffers import Buffer, MapLayout, SavedBuffer
    from gpt.trace.process import Process
    from gpt.trace.sums import BufferSums
    from gpt.trace.tables import Counts, Rows, TableLayout

NUMBERS = ("least", "median", "mean", "p95", "greatest", "sum")
FIELDS = (
    Column("name", "text", "kernel"),
    Column("field", "text?", shown="under"),
    Column("launches", "u64?"),
    Column("records", "u64?"),
    *(Column(name, "number?", title={"least": "min", "greatest": "max"}.get(name, "")) for name in NUMBERS),
    Column("dropped", "u64?", title="lost", shown="any"),
    Column("nans", "u64?", title="NaN", shown="any"),
    Column("infinite", "u64?", shown="any"),
)
BIN = (
    Column("field", "text"),
    Column("name", "text", "kernel", "kernel"),
    Column("low", "number", title="from", shown="exact"),
    Column("high", "number", title="up to", shown="exact"),
    Column("records", "u64"),
)
VALUES = (
    Column("name", "text", "kernel", "kernel"),
    Column("low", "u64", title="from"),
    Column("high", "u64?", title="up to"),
    Column("records", "u64", title="values"),
)
POWERS = (
    Column("name", "text", "kernel", "kernel"),
    Column("field", "text"),
    Column("low", "u64", title="from"),
    Column("high", "number", title="up to"),
    Column("records", "u64", title="values"),
)
TOP = 60  # rows that a table shows
BINS, DRAWN, PANELS = 20, 5, 8  # bins per histogram; kernels in it; number of fields that get one
RESERVED = ("bins", "unprobed")  # names of other answers
STAMP = 1 << 32  # numbers from here on are clocks or addresses, whose sum means nothing

Map = Annotated[str | None, Option("--map", metavar="GLOB", help="Only these maps, or fields as MAP.FIELD.")]


class _Field(NamedTuple):
    values: Distribution
    total: bool

    def row(self) -> tuple[Any, ...]:
        """Return values for the columns NUMBERS."""
        values = self.values
        median, p95 = values.percentile(0.5), values.percentile(0.95)
        if values.least is None:
            return (None,) * len(NUMBERS)
        stamps = values.whole and values.least >= STAMP and not self.total
        return values.least, median, values.mean, p95, values.greatest, None if stamps else values.total


class Fields(MapAnalysis):
    """An analysis of the fields of all maps, or of maps whose names match `map_`."""

    summed = "all but median and p95"

    def __init__(self, map_: str | None = None) -> None:
        super().__init__()
        self._glob = map_
        self._sums: dict[tuple[str, str], Counter[str]] = {}  # by kernel and map
        self._fields: dict[tuple[str, str], dict[str, _Field]] = {}
        self._bins: dict[tuple[str, str], Counter[tuple[int, int | None]]] = {}  # bins of histograms
        self._powers: dict[tuple[str, str], dict[str, Counter[tuple[int, int]]]] = {}  # values by size, without detail
        self._full: set[str] = set()  # names of tables that had no room for a key
        self._rows: dict[tuple[str, str, TableLayout], tuple[Counts, Rows]] = {}  # rows of tables

    def wants(self, layout: MapLayout) -> bool:
        """Return True if the glob matches the map or one of its fields."""
        return any(self._is_named(layout.name, field) for field in layout.types)

    def _is_named(self, name: str, field: str) -> bool:
        return self._glob is None or fnmatchcase(name, self._glob) or fnmatchcase(f"{name}.{field}", self._glob)

    def check(self, layout: MapLayout) -> None:
        """Accept any map."""

    def find_lack(self, kinds: set[str]) -> str | None:
        """Return a message that there was no probe, or that no map has the given name, or None."""
        if self._read or self._known or self._glob is None:
            self.name = "any"
            told = super().find_lack(kinds)
            return told.replace(" 'any'", "").replace("-p any", "-p PROBE") if told else None
        return f"no map of the trace is named '{self._glob}': without --map all are shown"

    def add(self, process: Process, buffer: Buffer, saved: SavedBuffer) -> None:
        """Add the data that a launch saved."""
        import numpy as np

        from gpt.analyze.lib.values import Distribution

        layout, key = buffer.map, (buffer.kernel, buffer.map.name)
        slots = saved.slots
        if layout.type == "histogram":
            self._add_histogram(layout, key, saved)
            return
        if layout.table:
            self._add_table(layout, layout.table, key, saved)
            return
        if layout.type != "log":
            there = np.arange(layout.capacity) < saved.counts[:, :, None]
            slots = slots.reshape(-1) if there.all() else slots[there]
        recorded = int(saved.counts.sum()) if not layout.capacity else len(slots)
        sums = self._sums.setdefault(key, Counter())
        lost = saved.dropped + saved.overwritten
        sums.update(launches=1, records=recorded, dropped=lost if layout.capacity else 0, over=saved.overwritten)
        sums.update(counted=not layout.capacity)
        fields = self._fields.setdefault(key, {})
        for name in filter(lambda name: self._is_named(layout.name, name), layout.types):
            is_sum = layout.type == "total" and name not in layout.ops
            field = fields.setdefault(name, _Field(Distribution(), is_sum))
            if layout.capacity:
                field.values.add(slots[name])

    def add_sums(self, process: Process, buffer: Buffer, sums: BufferSums) -> None:
        """Add a launch for which only sums were kept."""
        from gpt.analyze.lib.values import Distribution

        layout, key = buffer.map, (buffer.kernel, buffer.map.name)
        counted = self._sums.setdefault(key, Counter())
        counted.update(launches=1, records=sums.records if layout.capacity else sums.saves)
        counted.update(dropped=sums.dropped if layout.capacity else 0, counted=not layout.capacity)
        fields = self._fields.setdefault(key, {})
        for name in filter(lambda name: self._is_named(layout.name, name), layout.types):
            is_sum = layout.type == "total" and name not in layout.ops
            field = fields.setdefault(name, _Field(Distribution(), is_sum))
            if layout.capacity:
                field.values.add_sums(sums.fields[name], sums.records, layout.types[name][0] != "f")
                powers = self._powers.setdefault(key, {}).setdefault(name, Counter())
                for low, high, count in sums.fields[name].iter_bins():
                    powers[low, high] += count

    def _add_histogram(self, layout: MapLayout, key: tuple[str, str], saved: SavedBuffer) -> None:
        sums = self._sums.setdefault(key, Counter())
        sums.update(launches=1, records=int(saved.counts.sum()), counted=not layout.capacity)
        self._fields.setdefault(key, {})
        if saved.bins is not None:
            bins = self._bins.setdefault(key, Counter())
            for edges, values in zip(layout.iter_edges(), saved.bins.tolist(), strict=True):
                bins[edges] += values

    def _add_table(self, layout: MapLayout, table: TableLayout, key: tuple[str, str], saved: SavedBuffer) -> None:
        import numpy as np

        sums = self._sums.setdefault(key, Counter())
        sums.update(launches=1, records=int(saved.counts.sum()), counted=not layout.capacity)
        sums.update(dropped=saved.dropped)
        self._full |= {layout.name} if saved.dropped else set()
        self._fields.setdefault(key, {})
        if layout.capacity:
            counts, rows = self._rows.get((*key, table), (saved.counts[:0], saved.slots[:0]))
            joined = np.concatenate([counts, saved.counts]), np.concatenate([rows, saved.slots])
            self._rows[(*key, table)] = table.merge(*joined)

    def iter_answers(self, verdict: list[str]) -> Answers:
        """Yield a table for each map, and the distribution of its fields."""
        maps = list(dict.fromkeys(name for _, name in self._sums))
        total = sum(self._sums.values(), Counter[str]())
        told = [f"maps:{len(maps)} records:{total['records']} lost:{total['dropped']}"]
        names = [f"{name}.{field}" for name in maps for field in self._find_fields(name)]
        if len(names) > PANELS:
            told.append(f"{PANELS} of {amount(len(names), 'field')} have a histogram: --map chooses")
        told += verdict
        for name in maps:
            lines, told = told, []
            yield self._make_table(name, lines)
            if any(of == name for _, of in self._bins):
                yield self._make_histogram(name)
            yield from self._make_tables(name)
            if any(of == name for _, of in self._powers):
                yield self._make_powers(name)
        yield self._make_bins(names[:PANELS])

    def _find_fields(self, name: str) -> list[str]:
        return list(dict.fromkeys(field for key, fields in self._fields.items() if key[1] == name for field in fields))

    def _make_table(self, name: str, verdict: list[str]) -> dict[str, Any]:
        rows: list[tuple[Any, ...]] = []
        found = sorted(self._find_kernels(name), key=lambda kernel: (-self._sums[kernel, name]["records"], kernel))
        for kernel in found:
            sums = self._sums[kernel, name]
            none = (None,) * len(NUMBERS)
            rows.append((kernel, None, sums["launches"], sums["records"], *none, sums["dropped"], None, None))
            rows += [
                (kernel, field, None, None, *one.row(), None, one.values.nans or None, one.values.infinite or None)
                for field, one in self._fields[kernel, name].items()
            ]
        if over := sum(self._sums[kernel, name]["over"] for kernel in found):
            verdict = [*verdict, f"{amount(over, 'record')} in rings were overwritten by later ones"]
        if sum(self._sums[kernel, name]["counted"] for kernel in found):
            verdict = [*verdict, "records were only counted, not saved"]
        if name in self._full:
            verdict = [*verdict, f"map '{name}' had no room for all keys: a larger 'cap' in its probe file gives more"]
        columns = (FIELDS[0]._replace(title=name), *FIELDS[1:])
        return make_answer(f"map {name}" if name in RESERVED else name, columns, rows, verdict, top=TOP)

    def _make_histogram(self, name: str) -> dict[str, Any]:
        """Return the nonempty bins of a histogram, added up over the launches of each kernel."""
        rows = [
            (kernel, low, high, values)
            for (kernel, of), bins in sorted(self._bins.items())
            for (low, high), values in sorted(bins.items(), key=lambda one: one[0][0])
            if of == name and values
        ]
        drawn = plot("bars", "low", "records", title=self.titled(name))
        return make_answer(f"histogram {name}", VALUES, rows, top=TOP, plots=[drawn])

    def _make_powers(self, name: str) -> dict[str, Any]:
        """Return how many values had each number of bits, in launches for which only sums were kept."""
        rows = [
            (kernel, field, *edges, count)
            for (kernel, of), fields in self._powers.items()
            for field, powers in fields.items()
            for edges, count in sorted(powers.items())
            if of == name
        ]
        return make_answer(f"sizes {name}", POWERS, rows, ["sizes of values in launches without detail"], top=BINS)

    def _make_tables(self, name: str) -> Answers:
        """Yield the rows of each table, most frequent key first. Tables with the same name but different fields are
        separate.
        """
        layouts = list(dict.fromkeys(table for _, of, table in self._rows if of == name))
        for number, layout in enumerate(layouts, 1):
            found = {kernel: rows for (kernel, of, table), rows in self._rows.items() if (of, table) == (name, layout)}
            kinds = {"u": "u64?", "i": "i64?", "f": "f64?"}
            columns = [Column(field, kinds[layout.dtype[field].kind], shown="exact" if field in layout.keys else "")
                       for field in [*layout.keys, *layout.values]]  # fmt: skip
            rows = [
                (kernel, *(row[column.name].item() for column in columns), count)
                for kernel, (counts, slots) in found.items()
                for count, row in zip(counts.tolist(), slots, strict=True)
            ]
            rows.sort(key=lambda row: (-row[-1], row[0], row[1 : 1 + len(layout.keys)]))
            all_ = (Column("kernel", "text", "kernel"), *columns, Column("saved", "u64"))
            yield make_answer(f"table {name}" if number == 1 else f"table {name} {number}", all_, rows, top=TOP)

    def _find_kernels(self, name: str) -> list[str]:
        return [kernel for kernel, of in self._sums if of == name]

    def _make_bins(self, names: list[str]) -> dict[str, Any]:
        from gpt.analyze.lib.values import iter_columns

        rows: list[tuple[Any, ...]] = []
        drawn = []
        for name in names:
            found = {
                key[0]: one.values
                for key, fields in self._fields.items()
                for field, one in fields.items()
                if f"{key[1]}.{field}" == name and one.values.count > one.values.infinite
            }
            most = sorted(found, key=lambda kernel: -found[kernel].count)[:DRAWN]
            rows += [(name, *row) for row in iter_columns({kernel: found[kernel] for kernel in most}, BINS)]
            if found:
                drawn.append(
                    plot("histogram", "low", "records", end="high", color="name", of=name, title=self.titled(name))
                )
        return make_answer("bins", BIN, rows, top=BINS, plots=drawn)


ANALYSIS = Analysis("Show what any probe saved, field by field.", Fields, {"map_": Map})
