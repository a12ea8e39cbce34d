"""gpt-analyze dmat: which pages of global memory a launch accesses, and when.

gpt/analyze/lib/density.py counts the accesses, in a matrix; gpt/analyze/lib/regions.py names its rows, and
gpt/screen/density.py draws it, both for this command and for `neutrino -t dmat`. An entry of the log may stand for
several accesses; their number is its `count`, as in a `.dmat` file.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from gpt.analyze.lib.answer import Answers, Column, Record, make_answer, make_array_answer, plot
from gpt.analyze.lib.command import Analysis
from gpt.analyze.lib.map_analysis import LAUNCH, MapAnalysis, find_blocks, launch_row
from gpt.base.errors import UsageError
from gpt.base.options import Option
from gpt.base.printable import printable
from gpt.screen.units import amount, human, human_time, kept_share
from gpt.trace.kinds import TENSORS

if TYPE_CHECKING:
    from gpt.analyze.lib.density import Clocks, Matrix
    from gpt.analyze.lib.regions import Regions
    from gpt.trace.buffers import Buffer, SavedBuffer
    from gpt.trace.process import Process
    from gpt.trace.sums import BufferSums
    from gpt.trace.tensors import Tensors

LAUNCHES = (
    *LAUNCH,
    Column("accesses", "u64"),
    Column("bytes", "u64?", "bytes"),
    Column("pages", "u64?"),
    Column("clocks", "u64?", "cycles"),
    Column("dropped", "u64", title="lost", shown="any"),
)
ACCESSES = (
    Column("memory", "text"),
    Column("page", "u64", "address"),
    Column("row", "u64", "id", shown="never"),
    Column("clock", "u64", "cycles"),
    Column("next", "u64", "cycles", shown="never"),
    Column("time", "f64?", "ns", shown="any"),
    Column("until", "f64?", "ns", shown="never"),
    Column("accesses", "u64"),
    Column("tensor", "text?", shown="never"),
)
TENSORS_OF = (
    Column("tensor", "text"),
    Column("name", "text", shown="never"),
    Column("shape", "text"),
    Column("dtype", "text", title="type"),
    Column("accesses", "u64"),
    Column("share", "f64", "%"),
    Column("bytes", "u64", "bytes"),
    Column("address", "u64", "address"),
)
NONE = (1 << 32) - 1  # stands for no text
PAGE = 4096  # bytes
MOST_PAGE = 1 << 40
TOP_LAUNCHES, TOP_ACCESSES = 10, 5  # rows that tables show
MOST_LAUNCHES = 100_000  # launches listed at most
AFTER_ALL = (1 << 63) - 1  # a time stamp that's later than any in a tensor.trace

Number = Annotated[int | None, Option("--launch", metavar="NUMBER", min=1, help="Show this launch.")]
Page = Annotated[int | None, Option("--page", metavar="BYTES", help="Page size, a power of two; 4096.")]
Names = Annotated[Path | None, Option("--tensors", metavar="FILE", help="Tensor names: a tensor.trace from Neutrino.")]


class _Shown(NamedTuple):
    number: int
    process: Process
    buffer: Buffer
    matrix: Matrix
    clocks: Clocks
    accesses: int
    lost: int
    blocks: tuple[int, int] | None  # the first and the last block with accesses, if some accesses were dropped

    def describe_clocks(self) -> str:
        """Return a sentence about how well the clocks of SMs are aligned."""
        from gpt.analyze.lib.sm_clocks import describe_bound

        clocks = self.clocks
        if clocks.sms == 1:
            return "all accesses are from one SM"
        if clocks.rate is None:
            own = "each SM's clock counts from its own first access"
            return own if clocks.own else "clocks are as recorded: the accesses don't name their SM"
        return describe_bound(clocks.step, clocks.bound)


class Dmat(MapAnalysis):
    """An analysis of all launches, and a matrix of one: number `launch`, or by default the one with the most
    accesses.
    """

    name = "dmat"
    fields = ("address", "clock")
    optional = ("bytes", "sm", "count")  # an entry can stand for `count` accesses
    log = True
    summed = "accesses and bytes"

    def __init__(self, launch: int | None = None, page: int | None = None, tensors: Path | None = None) -> None:
        super().__init__()
        self.kinds |= TENSORS | {"device"}
        page = page or PAGE
        if page < 1 or page & (page - 1):
            raise UsageError(f"--page is not a power of two: {page}")
        if page > MOST_PAGE:
            raise UsageError(f"--page is larger than {human(MOST_PAGE)}: {page}")
        self._shift = page.bit_length() - 1
        self._tensors = _read_names(tensors) if tensors else None
        self._wanted = launch
        self._number = 0
        self._shown: _Shown | None = None
        self._rows: list[tuple[Any, ...]] = []

    def add(self, process: Process, buffer: Buffer, saved: SavedBuffer) -> None:
        """Count the accesses of a launch. If it's the one to show, judging by the launches so far, make its matrix as
        well.
        """
        from gpt.analyze.lib import density
        from gpt.analyze.lib.sm_clocks import highest_rate

        self._number += 1
        slots, known = saved.slots, buffer.map.unsigned
        clocks = density.Clocks(saved, "sm" in known, highest_rate(process.cards.get(buffer.launch.device, {})))
        found = density.find_pages(slots, self._shift)
        size = _sum(slots, "bytes") if "bytes" in known else None
        accesses = _sum(slots, "count") if "count" in known else len(slots)
        row = accesses, size, len(found.pages), clocks.last, saved.dropped
        if len(self._rows) < MOST_LAUNCHES:
            self._rows.append((*launch_row(self._number, process, buffer), *row))
        best = self._shown.accesses if self._shown else 0
        if accesses and (self._wanted == self._number or (self._wanted is None and accesses > best)):
            matrix = density.make_matrix(slots, found, clocks, self._shift, "count" in known)
            blocks = find_blocks(buffer, saved)
            self._shown = _Shown(self._number, process, buffer, matrix, clocks, accesses, saved.dropped, blocks)

    def add_sums(self, process: Process, buffer: Buffer, sums: BufferSums) -> None:
        """Add a launch for which only sums were kept. It has no matrix."""
        self._number += 1
        size, count = (sums.fields.get(name) for name in ("bytes", "count"))
        row = int(count.total) if count else sums.records, int(size.total) if size else None, None, None, sums.dropped
        if len(self._rows) < MOST_LAUNCHES:
            self._rows.append((*launch_row(self._number, process, buffer), *row))

    def iter_answers(self, verdict: list[str]) -> Answers:
        """Yield the launches, and the matrix of one."""
        yield make_answer("launches", LAUNCHES, self._rows, verdict, top=TOP_LAUNCHES)
        if not self._shown:
            lines = [f"no launch with the number {self._wanted} has accesses"] if self._wanted else []
            yield make_answer("accesses", ACCESSES, [], lines)
            return
        from gpt.analyze.lib.regions import describe, find_regions

        process, buffer, matrix = self._shown.process, self._shown.buffer, self._shown.matrix
        tensors = (self._tensors, AFTER_ALL) if self._tensors else (process.tensors, buffer.launch.start)
        regions = find_regions(matrix.pages, matrix.rows, 1 << self._shift, tensors, buffer.arguments)
        yield self._make_accesses(self._shown, regions)
        if regions.tensors:
            of, accesses = matrix.counts.sum(axis=1), self._shown.accesses
            counts = [int(of[regions.owners == at].sum()) for at in range(len(regions.tensors))]
            rows = [
                (text, t.name, "x".join(map(str, t.shape)), t.dtype, count, 100 * count / accesses, t.size, t.address)
                for text, t, count in zip(map(describe, regions.tensors), regions.tensors, counts, strict=True)
            ]
            rows.sort(key=lambda row: -row[4])
            few = matrix.rows == 1
            each = "a page counts" if few else f"{amount(matrix.rows, 'page')} in a row count"
            yield make_answer("tensors", TENSORS_OF, rows, [f"{each} for one tensor"], top=TOP_LAUNCHES)

    def _make_accesses(self, shown: _Shown, regions: Regions) -> Record:
        """Return the matrix of a launch."""
        import numpy as np

        from gpt.analyze.lib.density import fold
        from gpt.screen.brief import brief_name

        matrix, which = fold(shown.matrix, regions.which)
        rate, step = shown.clocks.rate, matrix.step
        upto = "up to " if matrix.rows > 1 else ""
        cell = f"a cell is {upto}{amount(matrix.rows, 'page')} of {human(1 << self._shift)} by {amount(step, 'clock')}"
        cell += f" ({human_time(step * rate)})" if rate else ""
        aligned = shown.describe_clocks()
        said = f"launch {shown.number}: {amount(shown.accesses, 'access')}"
        lost = [kept_share(shown.accesses, shown.lost, "access", shown.blocks)] if shown.lost else []
        title = [printable(brief_name(shown.buffer.kernel)), f"{said}; accessed pages, the lowest at the bottom"]
        title += [cell, aligned, *(f"incomplete: {line}" for line in lost)]
        x = ("time", "until") if rate else ("clock", "next")
        drawn = plot("heat", x[0], "row", end=x[1], color="accesses", lane="memory", title="\n".join(title))
        row, column = np.nonzero(matrix.counts)
        owner = np.full(len(regions.names), NONE)
        owner[regions.which] = np.where(regions.owners < 0, NONE, regions.which)
        time = [step * rate * at if rate else np.full(len(row), np.nan) for at in (column, column + 1)]
        values = [
            *(which[row], matrix.pages[row], row, column * step, (column + 1) * step, *time),
            *(matrix.counts[row, column], owner[which[row]]),
        ]
        verdict = [", ".join([said, *lost]), cell, aligned]
        return make_array_answer("accesses", ACCESSES, values, verdict, TOP_ACCESSES, [drawn], regions.names)


def _read_names(path: Path) -> Tensors:
    from gpt.trace.tensors import read_lines

    return read_lines(path)


def _sum(slots: Any, name: str) -> int:
    from gpt.analyze.lib.density import iter_batches

    return sum(int(batch[name].sum(dtype="u8")) for batch in iter_batches(slots))


ANALYSIS = Analysis(
    "Show which pages of memory a launch accesses when.",
    Dmat,
    {"launch": Number, "page": Page, "tensors": Names},
    picture=True,
)
