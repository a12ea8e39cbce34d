"""Print the answers of analyses: as tables on a screen, as Markdown to paste, or as CSV for other programs.

The columns of an answer say what their type and unit are, and how a table shows them, so nothing here depends on an
analysis. Tables and Markdown have readable numbers and names, and if there are many rows, only the first ones. CSV has
all rows, with exact values.
"""

from __future__ import annotations

import csv
import io
import math
import re
from bisect import bisect
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, islice
from typing import Any

from rich.cells import cell_len
from rich.text import Text

from gpt.base.errors import MalformedError
from gpt.base.printable import as_cell, printable, shorten
from gpt.screen.brief import fit_names
from gpt.screen.demangle import readable
from gpt.screen.grid import GAP, LEAST, Grid, fold, render
from gpt.screen.units import UNITS, amount, exact_count, human_count
from gpt.stream import packed, records

MOST, CELLS = 10_000, 200_000  # limits of a table
COLUMNS = 64  # limit of a table
INDENT = "    "  # for text on separate lines
TITLE = 32  # columns that a title may take
LEAST_FUNCTION = 22  # columns that the name of a driver function keeps: many begin and end alike
TOLD = 16  # most values of a single row that are listed below its table
MARKDOWN_ROWS = (30, 20, 12, 8, 5, 3, 1)  # limits for rows, which are tried in this order until all answers fit
MARKDOWN_SIZE = 8000  # limit in bytes for all answers
COUNTS = ("u8", "u16", "u32", "u64")  # columns of these types can be summed
MARKDOWN_NAME = 80  # columns that a text may take
NEXT = "next"  # the answer that's printed last
Record = Mapping[str, Any]


class AnswerTable:
    """The cells in the first rows of an answer.

    The first `texts` columns are text. A row is bold if it's the sum of the rows after it.
    """

    def __init__(self, answer: Record, most: int = MOST) -> None:
        """Read the rows. Raises MalformedError if they're invalid."""
        fields, rows = packed.unpack_rows(answer)
        first = list(islice(rows, min(answer.get("top", most), most, CELLS // max(1, len(fields)))))
        columns = list(zip(range(len(fields)), fields, answer["columns"], strict=True))
        shown = [column for column in columns if _is_shown(*column, first)] or columns
        more = len(shown) - COLUMNS
        shown = shown[:COLUMNS]
        lines = [column for column in shown if column[2].get("shown") == "line" and column[1].type == packed.TEXT]
        self.folded = [[row[at] for at, _, _ in lines if row[at]] for row in first]
        shared = len(first) > 1 and self.folded[0] and all(texts == self.folded[0] for texts in self.folded)
        self.shared = self.folded[0] if shared else []  # printed once, instead of below each row
        self.folded = [[] for _ in first] if shared else self.folded
        shown = [column for column in shown if column not in lines]
        texts = [column for column in shown if column[1].type == packed.TEXT]
        under = next((at for at, _, told in texts[1:] if told.get("shown") == "under"), None)
        texts = [column for column in texts if column[0] != under]
        numbers = [column for column in shown if column[1].type != packed.TEXT]
        self.verdict: list[str] = [*([f"and {more:,} more columns"] if more > 0 else []), *answer["verdict"]]
        self.texts = len(texts)
        titles = [told.get("title", told["name"]) for _, _, told in texts + numbers]
        self.titles = [shorten(printable(title), TITLE, middle=False) for title in titles]
        self._ids = {at for at, (_, _, told) in enumerate(texts + numbers) if told.get("unit") == "id"}
        self._kernels = {at for at, (_, _, told) in enumerate(texts) if told.get("unit") == "kernel"}
        self._functions = {at for at, (_, _, told) in enumerate(texts) if told.get("unit") == "function"}
        self.bold = [under is not None and row[under] is None for row in first]
        cells = [_cells(field, told, [row[at] for row in first]) for at, field, told in texts + numbers]
        if under is not None:
            cells[0] = [
                sum_ if row[under] is None else "  " + row[under] for sum_, row in zip(cells[0], first, strict=True)
            ]
        self.rows = [list(row) for row in zip(*cells, strict=True)]
        self.hidden = answer.get("top") == 0 or not answer["rows"]  # only for a picture, or no rows to put titles on
        if not (answer["rows"] or self.verdict):
            self.verdict.append(f"{answer['name']}: no rows")
        if len(answer["rows"]) > len(first) * answer["stride"]:
            counts = [field for _, field, told in numbers if "unit" not in told and field.type in COUNTS]
            self.verdict.insert(0, _describe_rest(answer, len(first), counts, None if under is None else fields[under]))

    def lines(self, width: int) -> Iterator[Text]:
        """Yield the lines of the table for a screen of this width.

        If a table is too wide, columns whose values are all equal are moved to a line above it. Then titles are split
        over two lines, if that makes all columns fit. If it doesn't, the columns that don't fit are named below the
        table, with their values if there's only one row.
        """
        if self.hidden:
            yield from (line for text in self.verdict for line in fold(text, width))
            return
        equal = self._find_equal(width)
        if equal:
            told = ", ".join(f"{self.titles[at]} {value}" for at in equal if (value := self.rows[0][at].strip()) != "-")
            yield from (Text(line.plain, style="dim") for line in fold(f"all rows: {told}", width) if told)
        yield from (Text(line.plain, style="dim") for text in self.shared for line in fold(f"all rows: {text}", width))
        columns = [at for at in range(len(self.titles)) if at not in equal]
        heads = [self.titles]
        if self._total(columns, heads) > width:
            heads = self._split_titles(columns, width) or heads
        room = self._count_fitting(columns, width, heads)
        last, next_ = (self.titles[columns[at]] if 0 < at < len(columns) else "" for at in (room - 1, room))
        if last.endswith(" A") and next_ == last[:-1] + "B":
            room -= 1  # otherwise, A's number might be shown without B's
        columns, left = columns[:room], columns[room:]
        count = max(1, sum(at < self.texts for at in columns))
        kernels = [place for place, at in enumerate(columns) if at in self._kernels]
        functions = [place for place, at in enumerate(columns) if at in self._functions]
        grid = Grid(*(heads[0][at] for at in columns), texts=count, kernels=kernels, functions=functions)
        for head in heads[1:]:
            grid.add(*(head[at] for at in columns), style="dim")
        for row, bold in zip(self.rows, self.bold, strict=True):
            grid.add(*(row[at] for at in columns), style="bold" if bold else "")
        below = [*([] for _ in heads), *self.folded]
        for row_line, texts in zip(grid.lines(width), below, strict=True):
            yield row_line
            for text in texts:
                yield from fold(text, width, INDENT)
        if left and len(self.rows) == 1 and len(left) <= TOLD:
            yield from fold(", ".join(f"{self.titles[at]} {self.rows[0][at]}" for at in left), width)
        elif left:
            yield from fold(f"no room for {', '.join(self.titles[at] for at in left)}", width)
        for line in self.verdict:
            yield from fold(line, width)

    def _find_equal(self, width: int) -> list[int]:
        """Return the columns to move above the table: those with equal values if columns don't fit, and ids if a text
        would be shortened.
        """
        everything = list(range(len(self.titles)))
        equal = [at for at in everything[1:] if len(self.rows) > 1 and len({row[at] for row in self.rows}) == 1]
        ids = [at for at in equal if at in self._ids]
        if self._count_fitting(everything, width, [self.titles]) < len(everything):
            left = [at for at in everything if at not in ids]
            return ids if self._count_fitting(left, width, [self.titles]) == len(left) else equal
        sizes = self._widths(everything, [self.titles])
        plain = [size for at, size in enumerate(sizes[: self.texts]) if at not in self._kernels]
        most = (width - sum(size + GAP for size in sizes[self.texts :])) // max(1, self.texts) - GAP
        is_cut = self._total(everything, [self.titles]) > width and max(plain, default=0) > most
        return ids if is_cut else []

    def _count_fitting(self, columns: Sequence[int], width: int, heads: Sequence[Sequence[str]]) -> int:
        """Return how many of these columns fit if texts are shortened to the minimum."""
        sizes = zip(columns, self._widths(columns, heads), strict=True)
        least = [
            min(LEAST_FUNCTION if at in self._functions else LEAST, size) if at < self.texts else size
            for at, size in sizes
        ]
        return max(1, bisect(list(accumulate(size + GAP for size in least)), width + GAP))

    def _split_titles(self, columns: Sequence[int], width: int) -> list[list[str]] | None:
        """Split titles over two lines, as few as possible and beginning with the last one, so that all columns fit.

        Return None if that isn't possible.
        """
        parts = [*map(_split_title, _iter_titles(self.titles, self.rows))]
        heads = [[""] * len(parts), [*self.titles]]
        is_left_out = self._count_fitting(columns, width, heads) < len(columns)
        for at in reversed(columns):
            heads[0][at], heads[1][at] = parts[at]
            fits = is_left_out and self._count_fitting(columns, width, heads) == len(columns)
            if fits or self._total(columns, heads) <= width:
                return heads
        return None

    def _total(self, columns: Sequence[int], heads: Sequence[Sequence[str]]) -> int:
        return sum(size + GAP for size in self._widths(columns, heads)) - GAP

    def _widths(self, columns: Sequence[int], heads: Sequence[Sequence[str]]) -> list[int]:
        return [max(cell_len(row[at]) for row in (*heads, *self.rows)) for at in columns]

    def markdown(self) -> Iterator[str]:
        """Yield the lines of the table in Markdown, followed by the verdict."""
        marks = ["---" if at < self.texts else "---:" for at in range(len(self.titles))]
        for row in () if self.hidden else ([*map(_escape, self.titles)], marks):
            yield f"| {' | '.join(row)} |"
        columns: list[Sequence[str]] = [*zip(*self.rows, strict=True)]
        for at in self._kernels if columns else ():
            columns[at] = fit_names(columns[at], MARKDOWN_NAME)
        for row, bold in zip(map(list, zip(*columns, strict=True)), self.bold, strict=True):
            cells = [_code(cell, bold) if at < self.texts else cell for at, cell in enumerate(row)]
            yield f"| {' | '.join(cells)} |"
        for text in self.shared:
            yield ""
            yield _escape(f"all rows: {text}")
        for row, texts in zip(self.rows, self.folded, strict=True):
            if texts:
                yield ""
                yield f"{_code(row[0], bold=False)}: {'; '.join(map(_escape, texts))}"
        for line in self.verdict:
            yield ""
            yield _escape(line)


def _iter_titles(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[tuple[str, int]]:
    """Yield each title with the width of the cells below it."""
    for at, title in enumerate(titles):
        yield title, max((cell_len(row[at]) for row in rows), default=0)


def _split_title(column: tuple[str, int]) -> tuple[str, str]:
    """Split a title over two lines if that makes the column narrower."""
    title, cells = column
    cuts = [at for at, letter in enumerate(title) if letter == " "]
    if cell_len(title) <= cells or not cuts:
        return "", title
    cut = min(cuts, key=lambda at: max(at, len(title) - at - 1))
    return title[:cut], title[cut + 1 :]


def _is_shown(at: int, field: packed.RowField, told: Record, rows: list[list[Any]]) -> bool:
    shown = told.get("shown")
    return shown != "never" and (shown != "any" or any(row[at] for row in rows))


def _cells(field: packed.RowField, told: Record, values: list[Any]) -> list[str]:
    """Return the values of a column as text."""
    if field.type == packed.TEXT:
        known = ["-" if value is None else value for value in values]
        return readable(known) if told.get("unit") == "kernel" else known
    form = exact_count if told.get("shown") == "exact" else UNITS.get(told.get("unit", ""), human_count)
    return ["-" if value is None else form(value) if math.isfinite(value) else str(value) for value in values]


def _describe_rest(answer: Record, first: int, counts: list[packed.RowField], under: packed.RowField | None) -> str:
    """Return a line about the rows that aren't shown: how many there are, and the sum of their first column of
    counts. Rows that are sums are left out.
    """
    if answer.get("top") == 0:
        hidden = amount(len(answer["rows"]) // answer["stride"], "row")
        return f"{answer['name']}: {hidden}, only in CSV and JSON"
    import numpy as np

    stride, rows = answer["stride"], memoryview(answer["rows"])[first * answer["stride"] :]
    left = len(rows) // stride
    what = "row" if left == 1 else answer["name"].replace("_", " ") if answer["name"].endswith("s") else "rows"
    names = {told["name"]: told.get("title", told["name"]) for told in answer["columns"]}
    if counts and names[counts[0].name] == what:  # 3 more accesses: 500 accesses
        what = "rows"
    text = f"and {left:,} more {what}"
    if not counts:
        return text
    pair = [names[count.name] for count in counts[:2]]
    summed = counts[: 2 if len(pair) == 2 and pair[0].endswith(" A") and pair[1] == pair[0][:-1] + "B" else 1]

    def column(field: packed.RowField) -> np.ndarray[tuple[int], np.dtype[np.generic]]:
        return np.ndarray((len(rows) // stride,), "<" + field.code, rows, field.offset, (stride,))

    told = []
    for count in summed:
        values = column(count)
        known = values == values  # False for NaN
        for field in (count, under):
            if field and field.optional and field.code not in "efd":
                known &= column(field) != field.none
        with np.errstate(all="ignore"):
            total = float(values[known].sum(dtype=np.float64))
        told += [f"{human_count(round(total))} {names[count.name]}"] if math.isfinite(total) else []
    return f"{text}: {', '.join(told)}" if told else text


def _escape(text: str) -> str:
    """Escape text for Markdown."""
    return "".join(f"\\{c}" if c in r"\`*_{}[]<>()#+-!|~&" else c for c in printable(text))


def _code(text: str, bold: bool) -> str:
    """Return a name as code in Markdown, whatever it contains."""
    name = shorten(printable(text.strip()), MARKDOWN_NAME, middle=False).replace("`", "'")
    name = re.sub(r"\\*\|", r"\\|", name)  # `\\|` would end the cell, because GitHub reads an escaped backslash there
    return f"**{_escape(text)}**" if bold else f"`{name}`" if name else ""


class AnswerTables:
    """Collects the answers of a stream, and prints them as tables.

    An answer replaces an earlier one with the same name.
    """

    def __init__(self) -> None:
        self._tables: dict[str, AnswerTable] = {}
        self._missing: dict[str, list[str]] = {}  # incomplete input, by answer

    def add(self, record: Record) -> str | None:
        """Add a record if it's an answer. Returns an error message if it's malformed."""
        if record["kind"] != "answer":
            return None
        if fault := records.check(record):
            return fault
        try:
            self.take(record)
        except MalformedError as error:
            return error.fact
        return None

    def take(self, record: Record) -> None:
        """Add an answer that was checked. Raises MalformedError."""
        self._tables[record["name"]] = AnswerTable(record)
        self._missing[record["name"]] = find_missing([record])

    def text(self) -> str:
        """Return all tables as text."""
        return render(self.lines)

    def lines(self, width: int) -> Iterator[Text]:
        """Yield the lines of the tables, with an empty line between two tables, then everything that's missing, and
        finally the command to run next.
        """
        missing = dict.fromkeys(line for lines in self._missing.values() for line in lines)
        told = [Text(part.plain, style="bold") for line in missing for part in fold(line, width)]
        blocks = {name: table.lines(width) for name, table in self._tables.items()}
        last = blocks.pop(NEXT, None)
        for number, block in enumerate(filter(None, (*blocks.values(), told, last))):
            if number:
                yield Text()
            yield from block


class AnswerReport:
    """Collects the answers of a stream, and writes them as Markdown or CSV. An answer replaces an earlier one with the
    same name.
    """

    def __init__(self, form: str) -> None:
        self._write = _markdown if form == "md" else _csv
        self._answers: dict[str, Record] = {}

    def add(self, record: Record) -> str | None:
        """Add a record if it's an answer. Returns an error message if it's malformed."""
        if record["kind"] == "answer":
            try:
                deque(packed.unpack_rows(record)[1], maxlen=0)  # check rows now: others stay good
            except MalformedError as error:
                return error.fact
            self._answers[record["name"]] = record
        return None

    def text(self) -> str:
        """Return all answers as text."""
        return self._write(list(self._answers.values()))


def find_missing(answers: Iterable[Record]) -> list[str]:
    """Return a line for each part of the input that's missing, without duplicates."""
    return [*dict.fromkeys(f"incomplete: {line}" for answer in answers for line in answer.get("incomplete", ()))]


def _markdown(answers: list[Record]) -> str:
    text = ""
    missing = [[f"**{_escape(line)}**"] for line in find_missing(answers)]  # comes first, since the end may be cut off
    for most in MARKDOWN_ROWS:
        blocks = [["## " + _escape(answer["name"]), "", *AnswerTable(answer, most).markdown()] for answer in answers]
        text = "\n\n".join("\n".join(block) for block in missing + blocks) + "\n"
        if len(text.encode(errors="replace")) <= MARKDOWN_SIZE:
            return text
    more = "\n\n*There is more than fits.*\n"
    start = text.encode(errors="replace")[: MARKDOWN_SIZE - len(more)].decode(errors="ignore")
    return start[: start.rfind("\n") + 1] + more  # whole lines, because half of a name in backquotes might be HTML


def _csv(answers: list[Record]) -> str:
    """Return a block for each answer, beginning with the names of its columns, and one for missing input.

    There's an empty line between blocks.
    """
    blocks = []
    for answer in answers:
        fields, rows = packed.unpack_rows(answer)
        blocks.append(_csv_block([field.name for field in fields], rows))
    if missing := find_missing(answers):
        blocks.append(_csv_block(["incomplete"], ([line.removeprefix("incomplete: ")] for line in missing)))
    return "\n".join(blocks)


def _csv_block(names: list[str], rows: Iterable[list[Any]]) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(map(as_cell, names))
    for row in rows:
        writer.writerow([as_cell(value) if isinstance(value, str) else value for value in row])
    return file.getvalue()
