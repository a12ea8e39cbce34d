"""Lay out tables that fit the screen. Columns with text come first, and may be shortened. Columns with numbers come
after them, and are never shortened.

A row is a single line, whatever is in its names; `--json` has the full names. If all paths have a folder in common,
it's printed only once, above the table. Lines are rich's Text, which has colors but no width.
"""

from __future__ import annotations

import os
import stat
import textwrap
from collections.abc import Callable, Collection, Iterator, Sequence

from rich.cells import cell_len
from rich.text import Text

from gpt.base.printable import printable, shorten
from gpt.screen.brief import fit_names, fit_paths

NO_TERMINAL, WIDEST = 80, 160  # columns
LEAST = 12  # minimum width of a text
LONGEST = 2000  # longest text that's processed, in characters
GAP = 2  # spaces between columns


def screen_width() -> int:
    """Return the width of the screen: COLUMNS, or up to 160 columns of the terminal, or 80 if there's no terminal."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isascii() and columns.isdecimal() and int(columns[:6]):
        return int(columns[:6])
    try:  # a pipe may lead to a pager, on the same terminal as standard error; a file has no width
        for file in (1, 2) if stat.S_ISFIFO(os.fstat(1).st_mode) else (1,):
            if os.isatty(file) and (found := os.get_terminal_size(file).columns):
                return min(found, WIDEST)
    except OSError:
        pass  # closed, or a terminal without a size
    return NO_TERMINAL


def fold(text: str, width: int, indent: str = "") -> Iterator[Text]:
    """Wrap a sentence."""
    text, more = printable(_cut(text)), indent + "  "
    for line in textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=more, break_on_hyphens=False):
        yield Text(line)


def common_folder(paths: Sequence[str]) -> str:
    """Return the folder that all paths share, with its `/`, or an empty string."""
    folder = os.path.commonprefix([path[: path.rfind("/") + 1] for path in paths])  # noqa: RUF071 - cut below
    folder = folder[: folder.rfind("/") + 1]
    return folder if folder != "/" else ""


def folder_line(folder: str, width: int) -> Text:
    """Return the line above names whose folder was removed."""
    return Text(f"in {shorten(printable(_cut(folder)), width - 4)}:", style="dim")


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST // 2] + "…" + text[-LONGEST // 2 :]


class Grid:
    """A table with a header. The first `texts` columns are text. With `paths`, the first column has paths."""

    def __init__(
        self, *columns: str, texts: int = 1, paths: bool = False, kernels: Collection[int] = (),
        functions: Collection[int] = (),
    ) -> None:  # fmt: skip
        """Make a table with these columns.

        `kernels` and `functions` are the numbers of columns with names of kernels, and with names of driver functions,
        which are shortened in the middle, because many of them begin in the same way.
        """
        self._texts = texts
        self._kernels = kernels
        self._functions = functions
        self._paths = paths
        self._rows = [[printable(_cut(column)) for column in columns]]
        self._styles = ["dim"]
        self._named: set[int] = set()  # rows whose first cell is a path

    def add(self, *cells: str, style: str = "", total: bool = False) -> None:
        """Add a row. The first cell of a total isn't a path."""
        if self._paths and not total:
            self._named.add(len(self._rows))
        self._rows.append([printable(_cut(cell)) for cell in cells])
        self._styles.append(style)

    def least(self) -> int:
        """Return the width that the table has if all texts are shortened as much as possible."""
        widths = _widths(self._rows)
        return _sum(min(width, LEAST) if at < self._texts else width for at, width in enumerate(widths))

    def lines(self, width: int) -> Iterator[Text]:
        """Yield the lines of the table for a screen of this width."""
        rows = self._rows
        widths = _widths(rows)
        if self._named and (len(self._named) > 1 or _sum(widths) > width):
            folder = common_folder([rows[at][0] for at in self._named])
            if folder:
                yield folder_line(folder, width)
                rows = [[row[0][len(folder) :], *row[1:]] if at in self._named else row for at, row in enumerate(rows)]
                widths = _widths(rows)
        room = width - _sum((*widths[self._texts :], *([0] * self._texts)))
        most = max(widths[: self._texts])
        while most > LEAST and sum(min(w, most) for w in widths[: self._texts]) > room:
            most -= 1
        widths[: self._texts] = [min(w, most) for w in widths[: self._texts]]
        if shortened := [at for at in self._kernels if widths[at] < _widths(rows)[at]]:
            columns: list[Sequence[str]] = [*zip(*rows, strict=True)]
            for at in shortened:
                columns[at] = fit_names(columns[at], widths[at])
            rows = [[*cells] for cells in zip(*columns, strict=True)]
        middle = {*self._functions, 0} if self._paths else self._functions
        for at in (at for at in middle if widths[at] < _widths(rows)[at]):
            texts = fit_paths([row[at] for row in rows], widths[at])
            rows = [[*row[:at], text, *row[at + 1 :]] for text, row in zip(texts, rows, strict=True)]
        for cells, style in zip(rows, self._styles, strict=True):
            fitted = (self._fit(at, *it) for at, it in enumerate(zip(cells, widths, strict=True)))
            yield Text((" " * GAP).join(fitted).rstrip(), style=style)

    def _fit(self, at: int, cell: str, width: int) -> str:
        if at >= self._texts:
            return " " * (width - cell_len(cell)) + cell
        cell = shorten(cell, width, middle=False)
        return cell + " " * (width - cell_len(cell))


def _widths(rows: list[list[str]]) -> list[int]:
    return [max(map(cell_len, cells)) for cells in zip(*rows, strict=True)]


def _sum(widths: Iterator[int] | Sequence[int]) -> int:
    widths = list(widths)
    return sum(widths) + GAP * (len(widths) - 1)


def render(lines: Callable[[int], Iterator[Text]]) -> str:
    """Lay out lines for the width of the screen, and return their text, with colors if standard output is a
    terminal.
    """
    import io

    from rich.console import Console

    file, width = io.StringIO(), screen_width()
    terminal = os.isatty(1) or None
    console = Console(
        file=file, width=width, height=1, force_terminal=terminal, highlight=False, markup=False, emoji=False
    )
    for line in lines(width):
        safe = line if line.plain.isprintable() else Text(printable(line.plain))  # for callers that forgot to escape it
        console.print(safe, soft_wrap=True)
    return file.getvalue()
