"""The tables that stages print on a terminal, or when they're asked to.

All stages use the same summary, because a table depends on the records, and not on the stage that wrote them: elements
by architecture, tallies by reason, patched libraries, and a count of everything else. It keeps only the values that its
rows need, and accepts only records that have the declared form (gpt/stream/records.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rich.text import Text

from gpt.base import cli
from gpt.base.errors import MalformedError
from gpt.base.printable import printable, shorten
from gpt.screen.demangle import readable
from gpt.screen.grid import Grid, common_folder, fold, folder_line, render
from gpt.screen.units import human, human_count, percent
from gpt.stream import records
from gpt.stream.reasons import find_reason

if TYPE_CHECKING:
    from gpt.screen.answers import AnswerTables

Record = Mapping[str, Any]
Lines = Iterator[Text]

NEEDS = ("registers", "spills", "stack", "shared", "constant")
COUNTS = ("elements", "kernels", "bytes")
ELEMENT_COUNTS = ("elements", "kernels", "packed", "unpacked")
TRIMMED = ("kernels", "functions", "code", "size_before", "size_after")
RECOMPRESSED = ("size_before", "size_after", "time")
MODES = {"fill", "hole", "compact", "copy"}
KEPT, TOTAL = "kept", "total"
MAX_REASONS = 12  # limit for the reasons that get a column of their own
NAME = 40  # columns of a name in a sentence


class LibraryTables:
    """Collects the records of a stream, and prints tables of them."""

    def __init__(self) -> None:
        self._titles: dict[str, str] = {}
        self._elements: dict[str, Counter[tuple[str, str, str]]] = {}
        self._tallied: dict[tuple[str, str], dict[str, Counter[str]]] = {}  # library, arch -> reason -> COUNTS
        self._patched: list[Record] = []
        self._trimmed: Counter[str] = Counter()
        self._whole: Counter[str] = Counter()  # reason why an element couldn't be trimmed -> number of elements
        self._left: Counter[str] = Counter()  # reason -> unused kernels in these elements
        self._repacked: list[Record] = []
        self._recompressed: dict[tuple[str, str, str], Counter[str]] = {}  # type, arch, codec before -> sums
        self._each: dict[str, list[Record]] = {}  # recompressed elements by library, with --verbose
        self._zeroed: Counter[str] = Counter()  # reason why kernels couldn't be dropped -> number of elements
        self._modules: list[tuple[str, ...]] = []
        self._answers: AnswerTables | None = None
        self._kernels: list[Record] = []
        self._probed: list[tuple[str, str, list[int]]] = []  # name, why it has no probes, counts
        self._functions: dict[int, str] = {}  # names of kernels with probes
        self._launches: dict[int, Counter[str]] = {}  # by kernel with probes
        self._takers: dict[str, Callable[[Record], None]] = {
            "library": self._add_library,
            "element": self._add_element,
            "tally": self._add_tally,
            "patched": self._add_patched,
            "trimmed": self._add_trimmed,
            "repacked": self._add_repacked,
            "recompressed": self._add_recompressed,
            "ptx": self._add_ptx,
            "kernel": self._add_kernel,
            "probed": self._add_probed,
            "answer": self._add_answer,
        }

    def add(self, record: Record) -> str | None:
        """Add a record. Kinds without a table are ignored. Return an error message if it's malformed."""
        if record["kind"] not in self._takers:
            return None
        if fault := records.check(record):
            return fault
        try:
            self.take({key: record[key] for key in ("kind", *records.KINDS[record["kind"]]) if key in record})
        except MalformedError as error:
            return error.fact
        return None

    def take(self, record: Record) -> None:
        """Add a record that has been checked. Raises MalformedError."""
        if take := self._takers.get(record["kind"]):
            take(record)

    def _add_library(self, record: Record) -> None:
        details = [record.get("machine"), human(record["size"]), record.get("build_id")]
        self._titles[record["path"]] = ", ".join(str(d) for d in details if d)

    def _add_element(self, record: Record) -> None:
        counts = self._elements.setdefault(record["library"], Counter())
        row = (record["arch"], record["type"])
        counts[*row, "elements"] += 1
        counts[*row, "kernels"] += len(record["kernels"])
        counts[*row, "packed"] += record["payload_size"]
        counts[*row, "unpacked"] += record["size"]

    def _add_tally(self, record: Record) -> None:
        reasons = self._tallied.setdefault((record["library"], record.get("arch", "")), {})
        reasons.setdefault(record["reason"], Counter()).update({key: record[key] for key in COUNTS})

    def _add_patched(self, record: Record) -> None:
        self._patched.append(record)

    def _add_trimmed(self, record: Record) -> None:
        if "reason" in record:
            self._whole[record["reason"]] += 1
            self._left[record["reason"]] += record.get("left", 0)
            return
        self._trimmed.update(elements=1, **{key: record[key] for key in TRIMMED})
        if "zeroed" in record:
            self._zeroed[record["zeroed"]] += 1

    def _add_repacked(self, record: Record) -> None:
        self._repacked.append(record)

    def _add_recompressed(self, record: Record) -> None:
        sums = self._recompressed.setdefault((record["type"], record["arch"], record["codec"]), Counter())
        sums.update(elements=1, **{key: record[key] for key in RECOMPRESSED})
        if cli.verbose:
            self._each.setdefault(record["library"], []).append(record)

    def _add_ptx(self, record: Record) -> None:
        counts = human_count(len(record["kernels"])), human(len(record["data"]))
        self._modules.append((record["module"], record["arch"], *counts))

    def _add_kernel(self, record: Record) -> None:
        if "function" in record:  # in a trace, launches are shown instead of kernels
            self._functions[record["id"]] = record["name"]
            return
        if "registers" in record:
            keys = ("name", "arch", *NEEDS, *(f"{key}_before" for key in NEEDS))
            self._kernels.append({key: record[key] for key in keys if key in record})
            return
        counts = [sum(site[key] for site in record.get("sites", ())) for key in ("matched", "woven")]
        counts += [len(record.get(key, ())) for key in ("maps", "variables")]
        self._probed.append((record["name"], str(find_reason(record) or ""), counts))

    def _add_probed(self, record: Record) -> None:
        blocks = record["grid"][0] * record["grid"][1] * record["grid"][2] if len(record["grid"]) == 3 else 0
        self._launches.setdefault(record["kernel"], Counter()).update(launches=1, blocks=blocks)

    def _add_answer(self, record: Record) -> None:
        from gpt.screen.answers import AnswerTables

        self._answers = self._answers or AnswerTables()
        self._answers.take(record)

    @property
    def _tallies(self) -> dict[str, dict[str, Counter[str]]]:
        """Return the tallies by library, or if there are several --arch, by library and --arch."""
        several = len({arch for _, arch in self._tallied}) > 1
        return {f"{library} {arch}" if several else library: rows for (library, arch), rows in self._tallied.items()}

    def text(self) -> str:
        """Return the tables of the last stage that did something: patched libraries, or else tallies, or else
        elements.
        """
        return render(self._lines)

    def _lines(self, width: int) -> Lines:
        if self._patched:
            yield from self._patched_lines(width)
        elif self._tallies:
            yield from self._for_each({name: _tally_grid(rows) for name, rows in self._tallies.items()}, width)
        else:
            yield from self._for_each({name: _element_grid(rows) for name, rows in self._elements.items()}, width)
        if self._kernels:
            yield from _kernel_grid(self._kernels).lines(width)
        elif self._probed:
            yield from _probed_lines(self._probed, width)
        elif self._modules:
            grid = Grid("module", "arch", "kernels", "bytes", texts=2, paths=True)
            for row in self._modules:
                grid.add(*row)
            yield from grid.lines(width)
        if self._launches and not self._answers:
            yield from _launch_grid(self._launches, self._functions).lines(width)
        if self._answers:
            yield from self._answers.lines(width)

    def _for_each(self, grids: dict[str, Grid], width: int) -> Lines:
        """Yield a table for each library, below its name."""
        folder = common_folder(list(grids)) if len(grids) > 1 else ""
        if folder:
            yield folder_line(folder, width)
        for library, grid in grids.items():
            name, details = printable(library[len(folder) :]), printable(self._titles.get(library, ""))
            title = Text.assemble((name, "bold"), f"  {details}")
            if title.cell_len <= width:
                yield title
            else:
                yield Text(shorten(name, width), style="bold")
                yield Text("  " + shorten(details, width - 2))
            yield from grid.lines(width)

    def _patched_lines(self, width: int) -> Lines:
        if self._tallies:
            yield from _tally_grid(_sum_up(self._tallies.values())).lines(width)
            yield Text()
        modes = {row["mode"] for row in self._patched}
        after = modes.pop() if len(modes) == 1 and modes <= MODES else "after"  # no column if all have the same mode
        columns = ["mode"] if after == "after" else []
        headers = ("file", after, "less", "GPU code", after, "less")
        grid = Grid("library", *columns, *headers, texts=1 + len(columns), paths=True)
        total: Counter[str] = Counter()
        name = "output" if len({row["library"] for row in self._patched}) < len(self._patched) else "library"
        for row in self._patched:
            grid.add(row[name], *(row[key] for key in columns), *_before_after(row))
            total.update({key: value for key, value in row.items() if isinstance(value, int)})
        if len(self._patched) > 1:
            grid.add(TOTAL, *("" for _ in columns), *_before_after(total), total=True)
        yield from grid.lines(width)
        if len(self._tallies) > 1:
            yield Text()
            yield from _library_grid(self._tallies, width).lines(width)
        for library, rows in self._each.items():
            yield Text()
            yield Text(shorten(printable(library), width))
            yield from _each_grid(rows).lines(width)
        if self._recompressed:
            yield Text()
            yield from _recompressed_grid(self._recompressed).lines(width)
        if any("zstd_before" in row for row in self._patched):
            yield Text()
            yield from _zstd_grid(self._patched).lines(width)
        for row in self._patched:
            if "reason" in row:
                yield from fold(f"{row['library']}: {row['mode']} because {row['reason']}", width)
        cut = self._trimmed
        if cut["kernels"]:
            what = f"{cut['kernels']:,} kernels and {cut['functions']:,} device functions, {human(cut['code'])} of code"
            sizes = f"{human(cut['size_before'])} before, {human(cut['size_after'])} after"
            yield from fold(f"cut out of elements that stay: {what}; {cut['elements']:,} elements, {sizes}", width)
        for reason, count in self._whole.items():
            left = f" with {self._left[reason]:,} unused kernels" if self._left[reason] else ""
            yield from fold(f"elements kept whole: {count:,}{left} ({reason})", width)
        for reason, count in self._zeroed.items():
            yield from fold(f"elements with zeroed code, but no kernel dropped: {count:,} ({reason})", width)
        for row in self._repacked:  # not shortened, so that it can be copied
            sizes = f"{human(row['size_before'])} before, {human(row['size_after'])} after"
            yield Text(f"wheel written: {printable(row['output'])}  ({sizes})")


def _launch_grid(launches: dict[int, Counter[str]], functions: dict[int, str]) -> Grid:
    """Return a table of launches with probes."""
    grid = Grid("kernel", "launches", "blocks")
    names = readable([functions.get(kernel, "") for kernel in launches])
    for name, counts in zip(names, launches.values(), strict=True):
        grid.add(name, f"{counts['launches']:,}", f"{counts['blocks']:,}")
    return grid


def _before_after(row: Record) -> list[str]:
    size = "disk" if row.get("mode") == "hole" else "size"
    cells = []
    for name in (size, "gpu"):
        before, after = row[f"{name}_before"], row[f"{name}_after"]
        cells += [human(before), human(after), percent(before - after, before)]
    return cells


def _recompressed_grid(rows: dict[tuple[str, str, str], Counter[str]]) -> Grid:
    """Return a table of recompressed elements: sizes by type, architecture and codec, and the CPU time."""
    grid = Grid("arch", "type", "packed", "elements", "before", "zstd", "less", "time", texts=3)

    def add(texts: Iterable[str], sums: Counter[str], total: bool = False) -> None:
        before, after = sums["size_before"], sums["size_after"]
        cells = human(before), human(after), percent(before - after, before), f"{sums['time'] / 1e9:,.1f} s"
        grid.add(*texts, human_count(sums["elements"]), *cells, total=total)

    for type_, arch, codec in sorted(rows, key=lambda row: (row[0], _order(row[1]), row[2])):
        add((arch, type_, codec), rows[type_, arch, codec])
    if len(rows) > 1:
        add((TOTAL, "", ""), sum(rows.values(), Counter[str]()), total=True)
    return grid


def _each_grid(rows: Iterable[Record]) -> Grid:
    """Return a table of the elements in a library that were compressed again, with the bytes saved and the time
    taken.
    """
    grid = Grid("offset", "arch", "type", "packed", "before", "zstd", "less", "time", texts=4)
    for row in rows:
        before, after = row["size_before"], row["size_after"]
        less = "as it was" if "reason" in row else percent(before - after, before)
        texts = f"{row['offset']:#x}", row["arch"], row["type"], row["codec"]
        grid.add(*texts, human(before), human(after), less, f"{row['time'] / 1e6:,.1f} ms")
    return grid


def _zstd_grid(patched: Iterable[Record]) -> Grid:
    """Return a table of the sizes before and after the cut, if everything were packed with zstd at level 19."""
    grid = Grid("library", "zstd 19 before", "after", "less", paths=True)
    total: Counter[str] = Counter()
    rows = [row for row in patched if "zstd_before" in row]
    for row in [*rows, total]:
        before, after = row["zstd_before"], row["zstd_after"]
        total.update({"zstd_before": before, "zstd_after": after} if row is not total else {})
        if row is not total or len(rows) > 1:
            name = TOTAL if row is total else row["library"]
            grid.add(name, human(before), human(after), percent(before - after, before), total=row is total)
    return grid


def _element_grid(counts: Counter[tuple[str, str, str]]) -> Grid:
    grid = Grid("arch", "type", *ELEMENT_COUNTS, texts=2)
    rows = sorted({(type_, _order(arch), arch) for arch, type_, _ in counts})

    def add(arch: str, type_: str, numbers: list[int], total: bool = False) -> None:
        grid.add(arch, type_, *(human_count(n) for n in numbers[:2]), *(human(n) for n in numbers[2:]), total=total)

    for type_, _, arch in rows:
        add(arch, type_, [counts[arch, type_, key] for key in ELEMENT_COUNTS])
    if len(rows) > 1:
        sums = [sum(counts[arch, type_, key] for type_, _, arch in rows) for key in ELEMENT_COUNTS]
        add(TOTAL, "", sums, total=True)
    return grid


def _order(arch: str) -> tuple[int, str]:
    digits = "".join(c for c in arch[:20] if c in "0123456789")
    return int(digits or 0), arch


def _sum_up(tallies: Iterable[dict[str, Counter[str]]]) -> dict[str, Counter[str]]:
    """Add up the tallies of several libraries."""
    sums: dict[str, Counter[str]] = {}
    for rows in tallies:
        for reason, counts in rows.items():
            sums.setdefault(reason, Counter()).update(counts)
    return sums


def _kept_last(rows: dict[str, Counter[str]]) -> list[str]:
    return sorted(rows, key=lambda reason: reason == KEPT)


def _library_grid(tallies: dict[str, dict[str, Counter[str]]], width: int) -> Grid:
    """Return a table with a row for each library: elements and kernels, kept and in total, and the bytes removed for
    each reason.
    """
    sums = _sum_up(tallies.values())
    reasons = [reason for reason in sums if reason != KEPT]
    if len(reasons) <= MAX_REASONS:
        grid = _library_rows(tallies, sums, {reason: [reason] for reason in reasons})
        if grid.least() <= width:
            return grid
    return _library_rows(tallies, sums, {"bytes cut": reasons})


def _library_rows(
    tallies: dict[str, dict[str, Counter[str]]], sums: dict[str, Counter[str]], columns: dict[str, list[str]]
) -> Grid:
    """Return the same table with these columns, each of which adds up certain reasons."""
    grid = Grid("library", "elements", "left", "kernels", "left", *columns, paths=True)
    for name, rows in [*tallies.items(), (TOTAL, sums)]:
        whole, kept = sum(rows.values(), Counter[str]()), rows.get(KEPT, Counter[str]())
        counts = [human_count(number[key]) for key in ("elements", "kernels") for number in (whole, kept)]
        gone = [[rows[reason]["bytes"] for reason in reasons if reason in rows] for reasons in columns.values()]
        grid.add(name, *counts, *(human(sum(sizes)) if sizes else "-" for sizes in gone), total=rows is sums)
    return grid


def _tally_grid(rows: dict[str, Counter[str]]) -> Grid:
    grid = Grid("reason", *COUNTS, "share")
    total = sum(rows.values(), Counter[str]())

    def add(name: str, counts: Counter[str]) -> None:
        cells = (human_count(counts["elements"]), human_count(counts["kernels"]), human(counts["bytes"]))
        grid.add(name, *cells, percent(counts["bytes"], total["bytes"]))

    add("before", total)
    for reason in _kept_last(rows):
        add(reason, rows[reason])
    return grid


def _kernel_grid(kernels: list[Record]) -> Grid:
    """Return the resources of kernels that were assembled, each with the change due to probes, if it's known."""
    grid = Grid("kernel", "arch", "regs", "spills", "stack", "shared", "const", texts=2)
    for kernel, name in zip(kernels, readable([kernel["name"] for kernel in kernels]), strict=True):
        grid.add(name, kernel.get("arch", ""), *(_with_change(kernel, key) for key in NEEDS))
    return grid


def _probed_lines(kernels: list[tuple[str, str, list[int]]], width: int) -> Lines:
    """Yield where probes were inserted and which variables kernels share with their modules, or why there are no
    probes.
    """
    grid = Grid("kernel", "places", "woven", "maps", "variables")
    left = []
    for (_, reason, counts), name in zip(kernels, readable([kernel[0] for kernel in kernels]), strict=True):
        if reason:
            left.append(f"{shorten(printable(name), NAME, middle=False)}: {reason}")
        else:
            grid.add(name, *(human_count(number) for number in counts))
    yield from grid.lines(width)
    for line in left:
        yield from fold(line, width)


def _with_change(kernel: Record, key: str) -> str:
    """Return `40`, or if it was 36 without probes, `40 (+4)`."""
    value, before = kernel.get(key), kernel.get(f"{key}_before")
    if value is None:
        return "-"
    return human_count(value) if before is None else f"{human_count(value)} ({human_count(value - before, '+')})"
