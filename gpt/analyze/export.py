"""gpt-analyze export: write traces as database tables, with the names that Nsight Systems uses in its exports.

Rows are written as they're read, so memory doesn't grow with the length of a trace. Data about the whole trace comes
last, such as the texts that rows refer to by number. The file is created in a separate folder next to its destination,
and renamed once it's complete. For standard output, it's created in a temporary folder and then copied, because SQLite
doesn't write sequentially.
"""

from __future__ import annotations

import os
from collections import Counter
from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any

from gpt.analyze.lib import base
from gpt.analyze.lib.answer import Answers
from gpt.analyze.lib.command import Analysis
from gpt.base.errors import UsageError
from gpt.base.options import Option
from gpt.base.outputs import check_free, take_name
from gpt.base.scratch import enter_scratch
from gpt.stream.stage import DASH, FLUSH_BYTES, Stage

if TYPE_CHECKING:
    from gpt.export.rows import ProcessRows
    from gpt.trace.process import Process

NAMES = {"sqlite": "tables.sqlite", "parquet": "tables"}  # file names within that folder
PREFIX = ".gpt-export."  # prefix of the folder's name


class ExportFormat(StrEnum):
    """Formats of the output."""

    sqlite = "sqlite"
    parquet = "parquet"


class Export:
    """The output file, and the rows that can only be written at the end."""

    streams = False
    timed = True  # times count from the start of the first trace
    drains = True  # ranges and ioctls are taken from processes as they arrive

    def __init__(self, stage: Stage, json: bool, shape: ExportFormat | None, output: Path | None) -> None:
        from gpt.export.files import load_pyarrow
        from gpt.trace.kinds import COSTS, DETAILS, NODE_TIMES, RANGES, RUNS, SAVES

        if json:
            raise UsageError("export writes a database: it has no --json")
        if not shape:
            raise UsageError("export needs --format sqlite or parquet")
        if not output:
            raise UsageError("export needs -o FILE")
        if shape is ExportFormat.parquet:
            load_pyarrow()
        self.kinds = RUNS | SAVES | COSTS | RANGES | NODE_TIMES | DETAILS | {"device", "diag"}
        if output == DASH:
            _check_stdout(shape)
        self._stage, self._form, self._output = stage, shape, output
        self._stack = ExitStack()
        self._processes: dict[Process, ProcessRows] = {}  # processes that haven't ended
        self._pids = Counter[int]()
        self._lacks = False

    def __enter__(self) -> Export:
        try:
            self._open()
        except BaseException:  # a signal, too
            self._stack.close()
            raise
        return self

    def _open(self) -> None:
        from gpt.export.files import FILES
        from gpt.export.maps import MapTables
        from gpt.export.schema import TABLES
        from gpt.export.strings import Strings
        from gpt.export.targets import Targets

        if self._output == DASH:
            folder = enter_scratch(self._stack, "gpt-export.")
        else:
            check_free(self._output, self._form is ExportFormat.parquet)
            folder = enter_scratch(self._stack, PREFIX, self._output.parent)
        self._path = Path(folder.working, NAMES[self._form])
        if self._form is ExportFormat.parquet:
            self._path.mkdir()
        self._tables = FILES[self._form](self._path, self._path if self._output == DASH else self._output)
        for table in TABLES:
            self._tables.create(table)
        self._strings, self._targets = Strings(), Targets(self._tables)
        self._maps = MapTables(self._tables, self._strings)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._stack.close()

    def take(self, process: Process) -> None:
        """Write the rows that a process has collected."""
        self._rows(process).take()

    def _rows(self, process: Process) -> ProcessRows:
        from gpt.export.rows import ProcessRows

        rows = self._processes.get(process)
        if rows is None:
            offset = self._targets.offset(process)
            number = self._pids[process.pid]
            self._pids[process.pid] += 1
            rows = ProcessRows(process, number, offset, self._strings, self._tables, self._maps)
            self._processes[process] = rows
        return rows

    def end(self, process: Process) -> None:
        """Write the rows that had to wait until the process ended."""
        self._end(process)
        process.probes.check_taken()

    def _end(self, process: Process) -> None:
        rows = self._rows(process)
        rows.take(over=True)
        del self._processes[process]
        self._targets.add(rows, self._strings)

    def find_lack(self, kinds: set[str]) -> str | None:
        """Return the message for traces with nothing to export."""
        lack = base.find_lack(kinds, self.kinds)
        self._lacks = lack is not None
        return lack

    def answer(self, incomplete: list[str]) -> Answers:
        """Complete the file and rename it. There are no answers."""
        if self._lacks:
            return
        for process in list(self._processes):  # those with malformed rows never ended
            self._end(process)
        incomplete += [f"map {name} has no table: there are too many" for name in sorted(self._maps.left_out)[:3]]
        self._targets.close(incomplete, self._strings)
        self._tables.close()
        if self._output == DASH:
            with open(self._path, "rb") as file:
                while data := file.read(FLUSH_BYTES):
                    self._stage.write_bytes(data)
        else:
            take_name(self._path, self._output)
        yield from ()


def _check_stdout(form: ExportFormat) -> None:
    """Raise UsageError if this format can't be written to standard output."""
    if form is ExportFormat.parquet:
        raise UsageError("--format parquet writes a folder, which standard output is not: name one", "-o")
    if os.isatty(1):
        raise UsageError("a database can't be written to a terminal", "-o")


OPTIONS: dict[str, Any] = {
    "shape": Annotated[ExportFormat | None, Option("--format", help="A database, or a folder of files.")],
    "output": Annotated[
        Path | None, Option("--output", "-o", metavar="FILE", help="Write it there; - is standard output.")
    ],
}
ANALYSIS = Analysis("Write tables for databases, as Nsight Systems does.", Export, OPTIONS, lines=True)
