"""Write the files of an export: an SQLite database, or a folder with a Parquet file for each table.

Rows are passed as columns. A column is an array (masked where there's no value), a list, or one value for all rows; a
missing column is NULL. SQLite has no unsigned 64-bit integers, so numbers from 2^63 on are negative there. It has no
NaN, either, so NaN becomes NULL. Parquet has both.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from gpt.base.errors import OutputError
from gpt.base.install import missing_package
from gpt.export.schema import ExportTable, TableColumn

Columns = Mapping[str, Any]

AT_ONCE = 1 << 14  # rows that are converted to objects at once, for SQLite
GROUP = 1 << 17  # rows per row group of Parquet
CACHE = 16 << 10  # KiB of SQLite's page cache


class TableFile(Protocol):
    """A destination for rows. Methods raise OutputError."""

    def create(self, table: ExportTable) -> None:
        """Create a table with its fixed rows."""

    def write(self, table: ExportTable, count: int, columns: Columns) -> None:
        """Add rows to a table that was created."""

    def close(self) -> None:
        """Finish the file."""


def clean(text: str | None) -> str | None:
    """Make text valid in every database: replace NUL, and anything that isn't UTF-8, by U+FFFD."""
    if text is None or (text.isascii() and "\0" not in text):
        return text
    data = text.encode(errors="surrogateescape") if _is_escaped(text) else text.encode(errors="surrogatepass")
    return data.decode(errors="replace").replace("\0", "\ufffd")


def _is_escaped(text: str) -> bool:
    """Return whether all surrogates in a text stand for bytes."""
    return all(not 0xD800 <= ord(c) <= 0xDFFF or 0xDC80 <= ord(c) <= 0xDCFF for c in text)


def _cut(field: TableColumn, column: Any, at: int, end: int) -> list[Any]:
    """Return the values of some rows. `column` has one for each row, or one for all. A u64 that's too large becomes the
    maximum.
    """
    part = column[at:end] if isinstance(column, list) else [column] * (end - at)
    if field.type == "u64":
        return [value if value is None else min(value, (1 << 64) - 1) for value in part]
    return [clean(value) for value in part] if field.type == "text" else part


class SqliteFile:
    """A database. It's written without interruption and then moved to its place, so it needs no journal."""

    def __init__(self, path: Path, named: Path) -> None:
        """Open the database. `named` is its name in messages."""
        self._named = named
        with self._reported(), _made_first(path):
            self._database = sqlite3.connect(f"file:{path}?mode=rw", uri=True, isolation_level=None)
            for setting in ("journal_mode=OFF", "synchronous=OFF", f"cache_size=-{CACHE}", "locking_mode=EXCLUSIVE"):
                self._database.execute(f"PRAGMA {setting}")
            self._database.execute("BEGIN")

    @contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise OutputError(str(error), str(self._named)) from None
        except OSError as error:
            raise OutputError(error.strerror or str(error), str(self._named)) from None

    def create(self, table: ExportTable) -> None:
        """Create a table with its fixed rows."""
        types = {"text": "TEXT", "f32": "REAL", "f64": "REAL"}
        fields = ", ".join(f'"{field.name}" {types.get(field.type, "INTEGER")}' for field in table.fields)
        with self._reported():
            self._database.execute(f'CREATE TABLE "{table.name}" ({fields})')
            if table.rows:
                marks = ", ".join("?" * len(table.fields))
                self._database.executemany(f'INSERT INTO "{table.name}" VALUES ({marks})', table.rows)

    def write(self, table: ExportTable, count: int, columns: Columns) -> None:
        """Add rows."""
        given = [field for field in table.fields if columns.get(field.name) is not None]
        names, marks = ", ".join(f'"{field.name}"' for field in given), ", ".join("?" * len(given))
        statement = f'INSERT INTO "{table.name}" ({names}) VALUES ({marks})'
        for at in range(0, count, AT_ONCE):
            end = min(count, at + AT_ONCE)
            values = [self._objects(field, columns[field.name], at, end) for field in given]
            with self._reported():
                self._database.executemany(statement, zip(*values, strict=True))

    def _objects(self, field: TableColumn, column: Any, at: int, end: int) -> list[Any]:
        if isinstance(column, np.ndarray):
            values = column[at:end]
            if field.type == "u64" and values.dtype.kind == "u":
                values = values.astype(np.uint64).view(np.int64)
            found: list[Any] = values.tolist()
            return found
        part = _cut(field, column, at, end)
        if field.type == "text":
            return part
        return [value if value is None or value < 1 << 63 else value - (1 << 64) for value in part]

    def close(self) -> None:
        """Finish the file."""
        with self._reported():
            self._database.execute("COMMIT")
            self._database.close()


@contextmanager
def _made_first(path: Path) -> Iterator[None]:
    """Create an empty file for the block to open. Raise OSError if the block opens a different one.

    SQLite converts a path in /proc to names, and if others can rename files, these names may lead to another file by
    then.
    """
    with open(path, "xb") as made:
        yield
        if sum(map(partial(_is_open, made.fileno()), os.listdir("/proc/self/fd"))) < 2:
            raise OSError(0, "another process renamed or replaced it meanwhile")


def _is_open(file: int, descriptor: str) -> bool:
    try:
        return os.path.samestat(os.fstat(file), os.fstat(int(descriptor)))
    except OSError:  # the folder itself reported it
        return False


class ParquetFiles:
    """A folder with files NAME.parquet. Rows are kept until there are enough of them for a row group."""

    def __init__(self, folder: Path, named: Path) -> None:
        """Open the folder. `named` is its name in messages. Raises MissingError without pyarrow."""
        pyarrow, self._parquet = load_pyarrow()
        self._pyarrow = pyarrow
        self._folder, self._named = folder, named
        self._types = {"text": pyarrow.string(), "f32": pyarrow.float32(), "f64": pyarrow.float64()}
        for size in (8, 16, 32, 64):
            self._types |= {f"i{size}": getattr(pyarrow, f"int{size}")(), f"u{size}": getattr(pyarrow, f"uint{size}")()}
        self._writers: dict[str, Any] = {}
        self._waiting: dict[str, list[Any]] = {}
        self._rows: dict[str, int] = {}  # rows that haven't been written

    @contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OutputError(error.strerror or str(error), str(self._named)) from None

    def create(self, table: ExportTable) -> None:
        """Create a file with its fixed rows."""
        schema = self._pyarrow.schema([(field.name, self._types[field.type]) for field in table.fields])
        with self._reported():
            path = self._folder / f"{table.name}.parquet"
            self._writers[table.name] = self._parquet.ParquetWriter(path, schema, compression="zstd")
        self._waiting[table.name], self._rows[table.name] = [], 0
        if table.rows:
            columns = {field.name: [row[at] for row in table.rows] for at, field in enumerate(table.fields)}
            self.write(table, len(table.rows), columns)

    def write(self, table: ExportTable, count: int, columns: Columns) -> None:
        """Add rows."""
        schema = self._writers[table.name].schema
        for at in range(0, count, GROUP):
            end = min(count, at + GROUP)
            arrays = [self._array(field, columns.get(field.name), at, end) for field in table.fields]
            self._waiting[table.name].append(self._pyarrow.record_batch(arrays, schema=schema))
            self._rows[table.name] += end - at
            if self._rows[table.name] >= GROUP:
                self._flush(table.name)

    def _array(self, field: TableColumn, column: Any, at: int, end: int) -> Any:
        type_ = self._types[field.type]
        if isinstance(column, np.ndarray):
            values = column[at:end]
            mask = np.ma.getmaskarray(values) if isinstance(values, np.ma.MaskedArray) else None
            dtype = type_.to_pandas_dtype()
            return self._pyarrow.array(np.ascontiguousarray(np.ma.getdata(values)).astype(dtype), type_, mask=mask)
        return self._pyarrow.array(_cut(field, column, at, end), type_)

    def _flush(self, name: str) -> None:
        waiting, self._waiting[name], self._rows[name] = self._waiting[name], [], 0
        if waiting:
            with self._reported():
                self._writers[name].write_table(self._pyarrow.Table.from_batches(waiting))

    def close(self) -> None:
        """Finish the files."""
        for name, writer in self._writers.items():
            self._flush(name)
            with self._reported():
                writer.close()


def load_pyarrow() -> tuple[Any, Any]:
    """Return pyarrow, and its module that writes files. Raises MissingError."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise missing_package("pyarrow") from None
    return pyarrow, parquet


FILES: dict[str, Callable[[Path, Path], TableFile]] = {"sqlite": SqliteFile, "parquet": ParquetFiles}
