"""What a person sees: the table that a stage prints when standard output is a terminal.

One summary for every stage, because a table follows from the records, not from who wrote them: elements by
architecture, tallies by reason, patched libraries, and a count of the rest.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from gpt.tracetables import TraceTables

UNFOLDED = 8192  # characters of a line that nobody's terminal folds: a row is a line to grep
COLUMNS = {
    "elements": ("arch", "type", "elements", "kernels", "packed", "unpacked"),
    "tally": ("reason", "elements", "kernels", "bytes", "share"),
    "tallies": ("library", "elements", "left", "kernels", "left"),
    "kernels": ("kernel", "arch", "regs", "spills", "stack", "shared", "const"),
    "probed": ("kernel", "places", "woven", "maps", "variables"),
    "patched": ("library", "mode", "file before", "after", "less", "GPU before", "after", "less"),
}
NEEDS = ("registers", "spills", "stack", "shared", "constant")

COUNTS = ("elements", "kernels", "bytes")
TRIMMED = ("kernels", "functions", "code", "size_before", "size_after")


def human(size: int) -> str:
    """Bytes in binary units, three digits."""
    value, units = float(size), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1000 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{size} B" if units[0] == "B" else f"{value:.3g} {units[0]}"


def percent(part: int, whole: int) -> str:
    """A share, `-` where there is no whole."""
    return f"{100 * part / whole:.1f} %" if whole else "-"


class LibraryTables:
    """Collects the records of a stream that is about libraries and prints a table for each kind of news.

    `full` tables of patched libraries also say why elements went, in all and of each library.
    """

    def __init__(self, full: bool = False) -> None:
        self._full = full
        self._titles: dict[str, str] = {}
        self._elements: dict[str, Counter[tuple[str, str, str]]] = {}
        self._tallies: dict[str, list[dict[str, Any]]] = {}
        self._patched: list[dict[str, Any]] = []
        self._trimmed: Counter[str] = Counter()
        self._whole: Counter[str] = Counter()  # reason why an element could not be trimmed -> elements
        self._zeroed: Counter[str] = Counter()  # reason why its kernels could not be dropped -> elements
        self._modules: list[dict[str, Any]] = []
        self._trace: TraceTables | None = None
        self._kernels: list[dict[str, Any]] = []
        self._probed: list[dict[str, Any]] = []

    def add(self, record: dict[str, Any]) -> None:
        """Takes a record in; what it has no table for is passed over."""
        match record["kind"]:
            case "library":
                details = [record.get("machine"), human(record["size"]), record.get("build_id")]
                self._titles[record["path"]] = ", ".join(str(d) for d in details if d)
            case "element":
                counts = self._elements.setdefault(record["library"], Counter())
                row = (record["arch"], record["type"])
                counts[*row, "elements"] += 1
                counts[*row, "kernels"] += len(record["kernels"])
                counts[*row, "packed"] += record["payload_size"]
                counts[*row, "unpacked"] += record["size"]
            case "tally":
                self._tallies.setdefault(record["library"], []).append(record)
            case "patched":
                self._patched.append(record)
            case "trimmed" if "reason" in record:
                self._whole[record["reason"]] += 1
            case "trimmed":
                self._trimmed.update(elements=1, **{key: record[key] for key in TRIMMED})
                if "zeroed" in record:
                    self._zeroed[record["zeroed"]] += 1
            case "ptx":
                self._modules.append(record)
            case "kernel" if "registers" in record:
                self._kernels.append(record)
            case "kernel":
                self._probed.append(record)
            case "process" | "timing" | "transfer" | "launched":
                if self._trace is None:
                    from gpt.tracetables import TraceTables

                    self._trace = TraceTables()
                self._trace.add(record)

    def print(self) -> None:
        """Prints the news of the last stage that had any: patched libraries, else tallies, else elements."""
        pipe = not sys.stdout.isatty() and "COLUMNS" not in os.environ
        width, height = (UNFOLDED, 25) if pipe else (None, None)  # both, or TERM=dumb has it 80 columns wide
        console = Console(highlight=False, width=width, height=height)
        if self._patched:
            if self._full and self._tallies:
                console.print(_tally_table(_sum_up(self._tallies.values())))
                console.print()
            console.print(self._patched_table())
            if self._full and len(self._tallies) > 1:
                console.print()
                console.print(_library_table(self._tallies))
            for row in self._patched:
                if "reason" in row:
                    console.print(Text(f"{row['library']}: {row['mode']} because {row['reason']}"))
            self._print_trimmed(console)
        elif self._tallies:
            for library, rows in self._tallies.items():
                console.print(self._title(library))
                console.print(_tally_table(rows))
        else:
            for library, counts in self._elements.items():
                console.print(self._title(library))
                console.print(_element_table(counts))
        if self._kernels:
            console.print(_kernel_table(self._kernels))
        elif self._probed:
            console.print(_probed_table(self._probed))
        elif self._modules:
            console.print(_module_table(self._modules))
        for table in self._trace.iter_tables(console.width) if self._trace else ():
            console.print(table)

    def _print_trimmed(self, console: Console) -> None:
        cut = self._trimmed
        if cut["kernels"]:
            what = f"{cut['kernels']:,} kernels and {cut['functions']:,} device functions, {human(cut['code'])} of code"
            sizes = f"{human(cut['size_before'])} before, {human(cut['size_after'])} after"
            console.print(Text(f"cut out of elements that stay: {what}; {cut['elements']:,} elements, {sizes}"))
        for reason, count in self._whole.items():
            console.print(Text(f"elements kept whole: {count:,} ({reason})"))
        for reason, count in self._zeroed.items():
            console.print(Text(f"elements of which code is zeroed, and no kernel dropped: {count:,} ({reason})"))

    def _title(self, library: str) -> Text:
        return Text.assemble((library, "bold"), f"  {self._titles.get(library, '')}")

    def _patched_table(self) -> Table:
        table = _table("patched", left=2)
        total: Counter[str] = Counter()
        for row in self._patched:
            table.add_row(Text(row["library"]), row["mode"], *_before_after(row))
            total.update({key: value for key, value in row.items() if isinstance(value, int)})
        if len(self._patched) > 1:
            table.add_section()
            table.add_row("total", "", *_before_after(total))
        return table


def _before_after(row: Any) -> list[str]:
    size = "disk" if row.get("mode") == "hole" else "size"
    cells = []
    for name in (size, "gpu"):
        before, after = row[f"{name}_before"], row[f"{name}_after"]
        cells += [human(before), human(after), percent(before - after, before)]
    return cells


def _table(name: str, left: int) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for index, column in enumerate(COLUMNS[name]):
        table.add_column(column, justify="left" if index < left else "right", overflow="fold")
    return table


def _element_table(counts: Counter[tuple[str, str, str]]) -> Table:
    table = _table("elements", left=2)
    keys = COLUMNS["elements"][2:]
    rows = sorted({(type_, _order(arch), arch) for arch, type_, _ in counts})
    for type_, _, arch in rows:
        numbers = [counts[arch, type_, key] for key in keys]
        table.add_row(arch, type_, *(f"{n:,}" for n in numbers[:2]), *(human(n) for n in numbers[2:]))
    if len(rows) > 1:
        numbers = [sum(counts[arch, type_, key] for type_, _, arch in rows) for key in keys]
        table.add_section()
        table.add_row("total", "", *(f"{n:,}" for n in numbers[:2]), *(human(n) for n in numbers[2:]))
    return table


def _order(arch: str) -> tuple[int, str]:
    digits = "".join(c for c in arch if c.isdigit())
    return int(digits or 0), arch


def _sum_up(tallies: Iterable[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The tallies of several libraries as those of one, what is kept last."""
    sums: dict[str, Counter[str]] = {}
    for row in sorted((row for rows in tallies for row in rows), key=lambda row: row["reason"] == "kept"):
        sums.setdefault(row["reason"], Counter()).update({key: row[key] for key in COUNTS})
    return [{"reason": reason, **{key: counts[key] for key in COUNTS}} for reason, counts in sums.items()]


def _library_table(tallies: dict[str, list[dict[str, Any]]]) -> Table:
    """A row for each library: its elements and kernels, those left, and the bytes that went for each reason."""
    sums = _sum_up(tallies.values())
    table = _table("tallies", left=1)
    for row in sums[:-1]:
        table.add_column(row["reason"], justify="right")
    for library, rows in {**tallies, "total": sums}.items():
        found = {row["reason"]: row for row in rows}
        counts = [(sum(row[key] for row in rows), found["kept"][key]) for key in ("elements", "kernels")]
        size = [human(found[row["reason"]]["bytes"]) if row["reason"] in found else "-" for row in sums[:-1]]
        if library == "total":
            table.add_section()
        table.add_row(Text(library), *(f"{count:,}" for pair in counts for count in pair), *size)
    return table


def _tally_table(rows: list[dict[str, Any]]) -> Table:
    table = _table("tally", left=1)
    total = {key: sum(row[key] for row in rows) for key in COUNTS}
    for row in [{**total, "reason": "before"}, *rows]:
        if row["reason"] == "kept":
            table.add_section()
        cells = (f"{row['elements']:,}", f"{row['kernels']:,}", human(row["bytes"]))
        table.add_row(row["reason"], *cells, percent(row["bytes"], total["bytes"]))
    return table


def _module_table(modules: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column, justify in (("module", "left"), ("arch", "left"), ("kernels", "right"), ("bytes", "right")):
        table.add_column(column, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for module in modules:
        table.add_row(Text(module["module"]), module["arch"], str(len(module["kernels"])), human(len(module["data"])))
    return table


def _kernel_table(kernels: list[dict[str, Any]]) -> Table:
    """What assembled kernels need, and behind it what the probes added, where that is known."""
    table = _table("kernels", left=2)
    for kernel in kernels:
        cells = [_with_change(kernel, key) for key in NEEDS]
        table.add_row(Text(kernel["name"]), kernel.get("arch", ""), *cells)
    return table


def _probed_table(kernels: list[dict[str, Any]]) -> Table:
    """Where probes went, and the variables that the kernels share with their modules; or why none went in."""
    table = _table("probed", left=1)
    for kernel in kernels:
        if "reason" in kernel:
            table.add_row(Text(f"{kernel['name']}: {kernel['reason']}"))
            continue
        sites = kernel.get("sites", ())
        counts = (sum(site[key] for site in sites) for key in ("matched", "woven"))
        rest = (len(kernel.get(key, ())) for key in ("maps", "variables"))
        table.add_row(Text(kernel["name"]), *(f"{count:,}" for count in (*counts, *rest)))
    return table


def _with_change(kernel: dict[str, Any], key: str) -> str:
    """`40`, or `40 (+4)` where it was 36 without probes."""
    value, before = kernel.get(key), kernel.get(f"{key}_before")
    if value is None:
        return "-"
    return f"{value:,}" if before is None else f"{value:,} ({value - before:+,})"
