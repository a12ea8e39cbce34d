"""gpt-analyze dmat: which pages of global memory a launch accesses, and when.

A launch can make a hundred million accesses, which take 32 bytes each in a memory-mapped file. The file is read BATCH
accesses at a time, in several passes: first to find the range of clocks and pages, then the pages that are accessed
(page_ranks.py), and last to count the accesses in a matrix of at most ROWS by COLUMNS. The rows are the pages that are
accessed at all (the map is *dense*: addresses in between take no room), the columns are clocks since the first access.
Each SM has its own clock, which counts from its first access in the launch. If entries don't name the SM (Neutrino's
don't), SMs whose clocks differ are drawn side by side. A row is named after the tensor in its first page, if
`gpt.tensors` or TensorTrace recorded the tensors. An entry may stand for several accesses, `count`, as in a `.dmat`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from gpt.analyze.lib.answer import Answers, Column, make_answer, make_array_answer, plot
from gpt.analyze.lib.command import Analysis
from gpt.analyze.lib.map_analysis import LAUNCH, MapAnalysis, find_blocks, launch_row
from gpt.base.errors import UsageError
from gpt.base.options import Option
from gpt.screen.units import amount, kept_share
from gpt.trace.kinds import TENSORS

if TYPE_CHECKING:
    from gpt.trace.buffers import Buffer, SavedBuffer
    from gpt.trace.process import Process
    from gpt.trace.sums import BufferSums
    from gpt.trace.tensors import NamedTensor, Tensors

LAUNCHES = (
    *LAUNCH,
    Column("accesses", "u64"),
    Column("bytes", "u64?", "bytes"),
    Column("pages", "u64?"),
    Column("clocks", "u64?", "cycles"),
    Column("dropped", "u64", title="lost", shown="any"),
)
ACCESSES = (
    Column("page", "u64", "address"),
    Column("clock", "u64", "cycles"),
    Column("accesses", "u64"),
    Column("tensor", "text?", shown="any"),
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
NONE = (1 << 32) - 1  # no text
BATCH = 4 << 20  # accesses processed at once
ROWS, COLUMNS = 1024, 1024  # limits for the matrix
MOST_SMS = 4096  # a larger number can't be an SM
PAGE = 4096  # bytes
TOP_LAUNCHES, TOP_ACCESSES = 10, 5  # rows that tables show
MOST_LAUNCHES = 100_000  # launches listed at most
AFTER_ALL = (1 << 63) - 1  # a time stamp later than all lines of a tensor.trace

Number = Annotated[int | None, Option("--launch", metavar="NUMBER", min=1, help="Show this launch.")]
Page = Annotated[int | None, Option("--page", metavar="BYTES", help="Page size, a power of two; 4096.")]
Names = Annotated[Path | None, Option("--tensors", metavar="FILE", help="Tensor names: a tensor.trace from Neutrino.")]


class Matrix(NamedTuple):
    """The accesses of a launch: `counts` by row and column. A row begins at a page; a column is `step` clocks wide."""

    pages: Any  # the first address in each row
    rows: int  # pages per row
    step: int
    counts: Any


class _Shown(NamedTuple):
    number: int
    process: Process
    buffer: Buffer
    matrix: Matrix
    accesses: int
    lost: int
    blocks: tuple[int, int] | None  # the first and the last with accesses, if some were lost


class Dmat(MapAnalysis):
    """All launches, and the matrix of one launch: number `launch`, or the launch with the most accesses."""

    name = "dmat"
    fields = ("address", "clock")
    optional = ("bytes", "sm", "count")  # an entry can stand for `count` accesses
    log = True
    summed = "accesses and bytes"

    def __init__(self, launch: int | None = None, page: int | None = None, tensors: Path | None = None) -> None:
        super().__init__()
        self.kinds |= TENSORS
        page = page or PAGE
        if page < 1 or page & (page - 1):
            raise UsageError(f"--page is not a power of two: {page}")
        self._shift = page.bit_length() - 1
        self._tensors = _read_names(tensors) if tensors else None
        self._wanted = launch
        self._number = 0
        self._shown: _Shown | None = None
        self._rows: list[tuple[Any, ...]] = []

    def add(self, process: Process, buffer: Buffer, saved: SavedBuffer) -> None:
        """Count the accesses of a launch, and of each page if it's the launch to show so far."""
        self._number += 1
        slots, known = saved.slots, buffer.map.unsigned
        clock = _Clock(slots, "sm" in known)
        found = _find_pages(slots, self._shift)
        size = _sum(slots, "bytes") if "bytes" in known else None
        accesses = _sum(slots, "count") if "count" in known else len(slots)
        row = accesses, size, len(found.pages), clock.last, saved.dropped
        if len(self._rows) < MOST_LAUNCHES:
            self._rows.append((*launch_row(self._number, process, buffer), *row))
        best = self._shown.accesses if self._shown else 0
        if accesses and (self._wanted == self._number or (self._wanted is None and accesses > best)):
            matrix = _make_matrix(slots, found, clock, self._shift, "count" in known)
            blocks = find_blocks(buffer, saved)
            self._shown = _Shown(self._number, process, buffer, matrix, accesses, saved.dropped, blocks)

    def add_sums(self, process: Process, buffer: Buffer, sums: BufferSums) -> None:
        """Add a launch for which only sums were kept, so it has no matrix."""
        self._number += 1
        size, count = (sums.fields.get(name) for name in ("bytes", "count"))
        row = int(count.total) if count else sums.records, int(size.total) if size else None, None, None, sums.dropped
        if len(self._rows) < MOST_LAUNCHES:
            self._rows.append((*launch_row(self._number, process, buffer), *row))

    def iter_answers(self, verdict: list[str]) -> Answers:
        """Yield the launches, and the matrix of one."""
        import numpy as np

        from gpt.screen.brief import brief_name

        yield make_answer("launches", LAUNCHES, self._rows, verdict, top=TOP_LAUNCHES)
        if not self._shown:
            lines = [f"no launch with the number {self._wanted} has accesses"] if self._wanted else []
            yield make_answer("accesses", ACCESSES, [], lines)
            return
        number, process, buffer, matrix, accesses, lost, blocks = self._shown
        row, column = np.nonzero(matrix.counts)
        many = amount(matrix.rows, "page")
        where = f"{many} of {amount(1 << self._shift, 'byte')} a row, {amount(matrix.step, 'clock')} a column"
        kept = f" ({kept_share(accesses, lost, 'access', blocks)})" if lost else ""
        said = f"launch {number}: {amount(accesses, 'access')}{kept}, {where}"
        known, start = (self._tensors, AFTER_ALL) if self._tensors else (process.tensors, buffer.launch.start)
        owners = _find_tensors(known, start, matrix.pages, 1 << self._shift)
        tensors = [known.tensors[at] for at in np.unique(owners[owners >= 0])]
        texts = [_describe(tensor) for tensor in tensors]
        which = np.where(owners < 0, NONE, np.searchsorted(np.unique(owners[owners >= 0]), owners))
        more = {"lane": "tensor"} if tensors else {}
        title = f"{brief_name(buffer.kernel)}\n{said}"
        drawn = plot("heat", "clock", "page", color="accesses", title=title, **more)
        values = [matrix.pages[row], column * matrix.step, matrix.counts[row, column], which[row]]
        yield make_array_answer("accesses", ACCESSES, values, [said], TOP_ACCESSES, [drawn], texts)
        if tensors:
            of = matrix.counts.sum(axis=1)
            counts = [int(of[which == at].sum()) for at in range(len(tensors))]
            rows = [
                (text, t.name, "x".join(map(str, t.shape)), t.dtype, count, 100 * count / accesses, t.size, t.address)
                for text, t, count in zip(texts, tensors, counts, strict=True)
            ]
            rows.sort(key=lambda row: -row[4])
            yield make_answer("tensors", TENSORS_OF, rows, ["a row of pages counts for one tensor"], top=TOP_LAUNCHES)


def _read_names(path: Path) -> Tensors:
    from gpt.trace.tensors import read_lines

    return read_lines(path)


def _sum(slots: Any, name: str) -> int:
    return sum(int(batch[name].sum(dtype="u8")) for batch in _iter_batches(slots))


def _find_tensors(tensors: Tensors, start: int, pages: Any, size: int) -> Any:
    """Return the number of the tensor at the start of each page, or else at its end, or -1."""
    import numpy as np

    if not tensors.tensors:
        return np.full(len(pages), -1)
    begin, end = (tensors.find(addresses, start).tensors for addresses in (pages, pages + np.uint64(size - 1)))
    return np.where(begin < 0, end, begin)


def _describe(tensor: NamedTensor) -> str:
    return f"{tensor.name} {'x'.join(map(str, tensor.shape))} {tensor.dtype}".strip()


class _Pages(NamedTuple):
    """The sorted numbers of the accessed pages; `rank` returns the indexes of pages among them."""

    pages: Any
    rank: Callable[..., Any]


class _Clock:
    """Clocks since the first access, per SM if entries name their SM; `last` is the largest."""

    def __init__(self, slots: Any, named: bool) -> None:
        import numpy as np

        batches = list(_iter_batches(slots))
        named = named and all(batch["sm"].max() < MOST_SMS for batch in batches)
        self._named = named
        self._first = np.full(MOST_SMS if named else 1, np.iinfo(np.uint64).max, np.uint64)
        for batch in batches:
            if named:
                np.minimum.at(self._first, batch["sm"], batch["clock"])
            else:
                self._first[0] = min(self._first[0], batch["clock"].min())
        self.last = max((int(self.since(batch).max()) for batch in batches), default=0)

    def since(self, batch: Any) -> Any:
        """Return each entry's clocks since the first access."""
        return batch["clock"] - (self._first[batch["sm"]] if self._named else self._first[0])


def _iter_batches(slots: Any) -> Iterator[Any]:
    for at in range(0, len(slots), BATCH):
        yield slots[at : at + BATCH]


def _find_pages(slots: Any, shift: int) -> _Pages:
    import numpy as np

    from gpt.analyze.lib.page_ranks import rank_pages

    def pages() -> Iterator[Any]:
        for batch in _iter_batches(slots):
            yield batch["address"] >> np.uint64(shift)

    if not len(slots):
        return _Pages(np.zeros(0, np.uint64), np.zeros_like)
    ends = [(batch["address"].min(), batch["address"].max()) for batch in _iter_batches(slots)]
    low, high = np.array(ends, np.uint64).T
    return _Pages(*rank_pages(pages, int(low.min()) >> shift, int(high.max()) >> shift))


def _make_matrix(slots: Any, found: _Pages, clock: _Clock, shift: int, counted: bool) -> Matrix:
    import numpy as np

    rows = -(-len(found.pages) // ROWS)
    step = clock.last // COLUMNS + 1
    height, width = -(-len(found.pages) // rows), clock.last // step + 1
    counts = np.zeros(height * width, np.int64)
    for batch in _iter_batches(slots):
        row = found.rank(batch["address"] >> np.uint64(shift)) // rows
        column = (clock.since(batch) // np.uint64(step)).astype(np.int64)
        counts += np.bincount(row * width + column, batch["count"] if counted else None, height * width).astype(
            np.int64
        )
    return Matrix(found.pages[::rows] << np.uint64(shift), rows, step, counts.reshape(height, width))


ANALYSIS = Analysis(
    "Show which pages of memory a launch accesses when.",
    Dmat,
    {"launch": Number, "page": Page, "tensors": Names},
    picture=True,
)
