"""Keep a few rows in memory, and spill all others to an unnamed file in TMPDIR.

Analyses of ten million calls process them in the order of time, but each thread writes separate chunks. This is a merge
sort on disk: each batch is sorted and spilled as a *run*, and the runs are merged when they're read. Each run that
overlaps others at the current time has one block in memory. The rows in these blocks that come before everything unread
are a *chunk*. A trace is written almost in order, so even in a long trace, runs hardly overlap.

Rows with equal keys are in the same chunk. So when a reader that keeps state between chunks gets to a key, it has seen
all rows before it, and none with that key. Rows with equal keys are in the order of their runs, and within a run, in
the order in which they're stored.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from gpt.base.errors import OutputError
from gpt.trace.rows import take

Array = npt.NDArray[Any]

IN_MEMORY = 8 << 20  # bytes that are kept in memory before a file is created
BATCH = 1 << 17  # rows per run
ROOM = 1 << 17  # rows in all blocks in memory
LEAST = 512  # minimum number of rows in a block
LEVEL = 1  # level of zstd, for files that are sent to another process


class Aside:
    """A temporary file to which arrays are appended. It exists as long as this object."""

    def __init__(self, room: int = IN_MEMORY) -> None:
        self._file = tempfile.SpooledTemporaryFile(room)
        self._size = 0

    def write(self, *arrays: Array) -> int:
        """Append arrays one after another, and return where they begin. Raises OutputError."""
        at = self._size
        try:
            self._file.seek(at)
            for array in arrays:
                self._size += self._file.write(array.tobytes())
        except OSError as error:
            raise OutputError.of(error, tempfile.gettempdir()) from None
        return at

    def read(self, dtype: Any, at: int, count: int) -> Array:
        """Read `count` items at an offset. Raises OutputError, since this may first have to write buffered data to the
        disk.
        """
        try:
            self._file.seek(at)
            return np.frombuffer(self._file.read(count * np.dtype(dtype).itemsize), dtype)
        except OSError as error:
            raise OutputError.of(error, tempfile.gettempdir()) from None

    def __getstate__(self) -> list[bytes]:
        """Return the contents, compressed, to be sent to another process."""
        import zstandard

        packer = zstandard.ZstdCompressor(LEVEL)
        blocks = (self.read(np.uint8, at, min(IN_MEMORY, self._size - at)) for at in range(0, self._size, IN_MEMORY))
        return [packer.compress(block.tobytes()) for block in blocks] or [b""]

    def __setstate__(self, state: list[bytes]) -> None:
        """Write the contents to a new file."""
        import zstandard

        self.__init__()  # type: ignore[misc]
        for block in filter(None, state):
            self.write(np.frombuffer(zstandard.decompress(block), np.uint8))


class Tape:
    """An array of any length, to which rows can be appended, and of which slices can be read."""

    def __init__(self, aside: Aside, dtype: Any) -> None:
        self.dtype = np.dtype(dtype)
        self._aside = aside
        self._blocks: list[int] = []  # offsets of blocks of BATCH rows
        self._last: list[Array] = []  # rows that aren't in a block yet
        self._pending = 0

    def __len__(self) -> int:
        return len(self._blocks) * BATCH + self._pending

    def append(self, rows: Array) -> None:
        """Append rows."""
        if not len(rows):
            return
        self._last.append(rows.astype(self.dtype))
        self._pending += len(rows)
        if self._pending < BATCH:
            return
        whole = np.concatenate(self._last)
        for at in range(0, len(whole) - BATCH + 1, BATCH):
            self._blocks.append(self._aside.write(whole[at : at + BATCH]))
        self._last = [whole[len(whole) - len(whole) % BATCH :].copy()]
        self._pending = len(self._last[0])

    def __getitem__(self, places: slice) -> Array:
        """Return the rows of a slice without a step."""
        start, stop, _ = places.indices(len(self))
        parts = []
        for number in range(start // BATCH, len(self._blocks)):
            low, high = max(start - number * BATCH, 0), min(stop - number * BATCH, BATCH)
            if low >= high:
                break
            parts.append(self._aside.read(self.dtype, self._blocks[number] + low * self.dtype.itemsize, high - low))
        rest = len(self._blocks) * BATCH
        if stop > max(start, rest):
            self._last = [np.concatenate(self._last)]
            parts.append(self._last[0][max(start - rest, 0) : stop - rest])
        return np.concatenate(parts) if parts else np.zeros(0, self.dtype)

    def take(self, places: npt.NDArray[np.integer[Any]]) -> Array:
        """Return the rows at these places, which must be in ascending order."""
        numbers = places // BATCH
        edges = np.flatnonzero(np.diff(numbers)) + 1
        found = np.zeros(len(places), self.dtype)
        for low, high in pairwise([0, *edges.tolist(), len(places)]) if len(places) else ():
            first, last = int(places[low]), int(places[high - 1])
            found[low:high] = self[first : last + 1][places[low:high] - first]
        return found

    def __iter__(self) -> Iterator[Array]:
        """Yield all rows, BATCH at a time."""
        for at in range(0, len(self), BATCH):
            yield self[at : at + BATCH]


class SortedRun(Protocol):
    """Rows that are sorted by a key."""

    low: int  # a lower bound of the keys
    count: int

    def read(self, at: int, count: int) -> Array:
        """Read `count` rows. The result may have fewer, or none."""


class Sorted:
    """Rows that are added in any order, and read sorted by an integer field."""

    def __init__(self, aside: Aside, dtype: Any, key: str) -> None:
        self.dtype = np.dtype(dtype)
        self.key = key
        self._aside = aside
        self._runs: list[_Stored] = []
        self._parts: list[Array] = []
        self._pending = 0

    def add(self, rows: Array) -> None:
        """Add rows."""
        self._parts.append(rows)
        self._pending += len(rows)
        if self._pending >= BATCH:
            self._put_aside()

    def _put_aside(self) -> None:
        if self._pending:
            rows = sort(join(self._parts), self.key)
            low = int(rows[self.key][0])
            self._runs.append(_Stored(self._aside, self.dtype, self._aside.write(rows), low, len(rows)))
            self._parts, self._pending = [], 0

    def __iter__(self) -> Iterator[Array]:
        """Yield all rows, in chunks."""
        self._put_aside()
        return merge(self._runs, self.key)


class _Stored:
    """A run that's stored in the file."""

    def __init__(self, aside: Aside, dtype: np.dtype[Any], offset: int, low: int, count: int) -> None:
        self._aside, self._dtype, self._offset, self.low, self.count = aside, dtype, offset, low, count

    def read(self, at: int, count: int) -> Array:
        """Read some of its rows."""
        return self._aside.read(self._dtype, self._offset + at * self._dtype.itemsize, count)


def sort(rows: Array, key: str) -> Array:
    """Sort rows by a field."""
    keys = rows[key]
    if (keys[1:] >= keys[:-1]).all():
        return rows
    return take(rows, np.argsort(keys, kind="stable"))


class _Cursor:
    """The position of a reader in a run."""

    def __init__(self, number: int, run: SortedRun, key: str) -> None:
        self.number = number
        self.rows: Array | None = None
        self.keys: Array = np.zeros(0, np.int64)
        self._run, self._key, self._at = run, key, 0

    @property
    def more(self) -> bool:
        """True if there are rows that haven't been read."""
        return self._at < self._run.count

    def fill(self, block: int) -> None:
        """Read more rows, until there are two different keys among them or the run ends."""
        while self.more and (not len(self.keys) or self.keys[0] == self.keys[-1]):
            count = min(max(block, len(self.keys)), self._run.count - self._at)
            rows = self._run.read(self._at, count)
            self._at += count
            self.rows = rows if self.rows is None or not len(self.rows) else join([self.rows, rows])
            self.keys = self.rows[self._key]

    def pop(self, bound: int | None) -> Array:
        """Remove and return the rows before a key, or all rows if it's None."""
        assert self.rows is not None
        count = len(self.keys) if bound is None else search(self.keys, bound)
        found, self.rows = self.rows[:count], self.rows[count:]
        self.keys = self.keys[count:]
        return found


def join(parts: Sequence[Array]) -> Array:
    """Concatenate rows of one dtype. They're treated as bytes, because that's faster than field by field."""
    if len(parts) == 1:
        return parts[0]
    dtype = parts[0].dtype
    return np.concatenate([part.view(f"V{dtype.itemsize}") for part in parts]).view(dtype)


def merge(runs: Sequence[SortedRun], key: str) -> Iterator[Array]:
    """Merge runs, and yield their rows in chunks, sorted by a field. Rows with equal keys are in the order of their
    runs.
    """
    waiting = sorted((run.low, number) for number, run in enumerate(runs) if run.count)[::-1]
    opened: list[_Cursor] = []
    while waiting or opened:
        for cursor in opened:
            cursor.fill(max(LEAST, ROOM // len(opened)))
        opened = [cursor for cursor in opened if len(cursor.keys)]
        bound = min((int(cursor.keys[-1]) for cursor in opened if cursor.more), default=None)
        if waiting and (bound is None or waiting[-1][0] <= bound):
            bound = waiting[-1][0]
            held = sum(len(cursor.keys) for cursor in opened)
            if held < ROOM or min(int(cursor.keys[0]) for cursor in opened) >= bound:
                number = waiting.pop()[1]
                opened.append(_Cursor(number, runs[number], key))
                opened.sort(key=lambda cursor: cursor.number)
                continue
        if parts := [part for cursor in opened if len(part := cursor.pop(bound))]:
            yield sort(join(parts), key)


def search(keys: Array, key: int, side: Literal["left", "right"] = "left") -> int:
    """Find a number in sorted keys. It's first converted to their type, because numpy would convert the keys."""
    return int(np.searchsorted(keys, keys.dtype.type(key), side))


def iter_windows(*streams: tuple[Iterator[Array], Any, str]) -> Iterator[tuple[Array, ...]]:
    """Read several streams side by side. Each window has the next rows of every stream, up to a common key.

    A stream is an iterator over chunks, their dtype, and the field by which they're sorted. A chunk must contain all
    rows with the same key.
    """
    left: list[Array] = [np.zeros(0, dtype) for _, dtype, _ in streams]
    over = [False] * len(streams)
    while True:
        for at, (chunks, _, _) in enumerate(streams):
            while not (len(left[at]) or over[at]):
                rows = next(chunks, None)
                over[at] = rows is None
                left[at] = left[at] if rows is None else rows
        lasts = [int(rows[streams[at][2]][-1]) for at, rows in enumerate(left) if len(rows)]
        if not lasts:
            return
        counts = [search(rows[streams[at][2]], min(lasts), "right") for at, rows in enumerate(left)]
        yield tuple(rows[:count] for rows, count in zip(left, counts, strict=True))
        left = [rows[count:] for rows, count in zip(left, counts, strict=True)]
