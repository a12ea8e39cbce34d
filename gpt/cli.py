"""What every executable's command line shares: options, messages, exit status, input and output.

A stage is a function with typer options, handed to `run`. Inside it a `Stage` reads records, does for headers,
ends and syncs what gpt-stream(5) asks of a filter, and writes to standard output: a table on a terminal,
msgpack otherwise, JSON lines with --json.
"""

from __future__ import annotations

import os
import signal
import stat
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from io import BufferedReader, FileIO, RawIOBase
from pathlib import Path
from typing import Annotated, Any

import typer

import gpt
from gpt import records, signals, stream
from gpt.errors import GptError, MissingError, UsageError

STDIN, STDOUT = "<stdin>", "<stdout>"
FLUSH_BYTES = 1 << 18

Output = dict[str, Any] | stream.Packed
Handler = Callable[[dict[str, Any]], Iterable[Output]]


def _show_version(context: typer.Context, value: bool) -> None:
    if value:
        typer.echo(f"{context.find_root().info_name} {gpt.__version__}")
        raise typer.Exit


def _set_verbose(value: bool) -> bool:
    global verbose
    verbose = value
    return value


verbose = False  # whether a fault shows its traceback

Json = Annotated[bool, typer.Option("--json", help="Write one JSON object a line.")]
FromJson = Annotated[bool, typer.Option("--from-json", help="Read JSON lines.")]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", callback=_set_verbose, is_eager=True, help="Show the traceback of a fault.")
]
Version = Annotated[
    bool,
    typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit."),
]


def run(tool: str, command: Callable[..., int] | dict[str, Callable[..., int]]) -> int:
    """Runs a stage's command over sys.argv and returns its exit status. No exception leaves it.

    With several commands the first word says which.
    """
    settings = {"help_option_names": ["-h", "--help"]}
    app = typer.Typer(
        add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, context_settings=settings
    )
    if isinstance(command, dict):
        app.callback()(_no_command)
        for name, one in command.items():
            app.command(name)(one)
    else:
        app.command(context_settings=settings)(command)
    _occupy_closed()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy starts threads that no stage uses
    signals.catch()
    try:
        return int(app(args=sys.argv[1:], prog_name=tool, standalone_mode=False) or 0)
    except signals.Terminated as ended:
        return signals.die(ended.number)
    except SystemExit:  # typer's answer to a pipe that breaks under --help, and to nothing else
        return signals.die(signal.SIGPIPE)
    except Exception as error:
        return _report(tool, error)


def _no_command(version: Version = False) -> None:
    pass


def _occupy_closed() -> None:
    """Fills standard descriptors that came closed, so that no file that is opened later takes their place.

    The modes are the wrong ones: using them fails as it does with a closed one.
    """
    for number, mode in enumerate((os.O_WRONLY, os.O_RDONLY, os.O_RDONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, mode)  # takes the lowest free number


def _report(tool: str, error: Exception) -> int:
    """One line on standard error for whatever went wrong, and the exit status that goes with it."""
    if verbose:
        traceback.print_exception(error)
    if isinstance(error, GptError):
        say(tool, "error", error.where, error.fact)
        return error.status
    if hasattr(error, "format_message"):  # typer's own: a bad option or argument
        say(tool, "error", "", f"{error.format_message()} (see {tool} --help)")
        return UsageError.status
    if isinstance(error, OSError):
        say(tool, "error", str(error.filename or ""), error.strerror or str(error))
        missing = isinstance(error, FileNotFoundError | PermissionError)
        return MissingError.status if missing else GptError.status
    if isinstance(error, MemoryError):
        say(tool, "error", "", "out of memory")
        return GptError.status
    say(
        tool,
        "error",
        "",
        f"internal error: {type(error).__name__}: {error} (-v shows where; please report it)",
    )
    return GptError.status


def say(tool: str, level: str, where: str, fact: str) -> None:
    """`tool: level: where: fact` on standard error, on one line whatever the fact holds."""
    text = ": ".join(part for part in (tool, level, where, fact) if part)
    line = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    try:
        os.write(2, (line + "\n").encode(errors="backslashreplace"))
    except OSError:
        pass  # nobody listens


class _AsItIs(RawIOBase):
    """A file up to the size that it has now: after one that a program goes on writing a reader might run for ever."""

    def __init__(self, file: FileIO) -> None:
        self._file = file
        found = os.fstat(file.fileno())
        self._left = found.st_size if stat.S_ISREG(found.st_mode) else sys.maxsize

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        size = self._file.readinto(memoryview(buffer)[: self._left])
        self._left -= size or 0
        return size


def _new_table(full: bool) -> Any:
    from gpt.tables import LibraryTables

    return LibraryTables(full)


class Stage:
    """One run of an executable: its input, its output, and the worst that happened.

    `status` is the exit status so far; `error` raises it, `warn` does not.
    """

    def __init__(self, tool: str, *, json: bool = False, from_json: bool = False, table: bool = False) -> None:
        self.tool = tool
        self.status = 0
        self.from_json = from_json
        self.json = json
        self.table = _new_table(table) if table or (not json and os.isatty(1)) else None
        self._buffer = bytearray()
        self._count = 0  # records since the header
        self._said: set[tuple[str, ...]] = set()

    # Messages

    def warn(self, where: str, fact: str, ref: str | None = None) -> dict[str, Any]:
        """Says it on standard error, each line once, and returns the `diag` to write."""
        self._say("warning", where, fact)
        return records.make("diag", level="warning", where=where, text=fact, ref=ref)

    def error(self, error: GptError, ref: str | None = None) -> dict[str, Any]:
        """The same for a fault that the stage survives: it goes on, and ends with the fault's status."""
        self._say("error", error.where, error.fact)
        self.status = max(self.status, error.status)
        return records.make("diag", level="error", where=error.where, text=error.fact, ref=ref)

    def _say(self, *line: str) -> None:
        if line not in self._said:  # a module has many kernels, and each the same to complain of
            self._said.add(line)
            say(self.tool, *line)

    # Input

    def read(self, files: Sequence[Path] = ()) -> Iterator[dict[str, Any]]:
        """The records of the files one after the other, or of standard input."""
        for path in files:
            with open(path, "rb", buffering=0) as file:
                yield from self._records(BufferedReader(_AsItIs(file)), str(path))
        if not files:
            if os.isatty(0):
                raise UsageError("reads a stream on standard input, which is a terminal", STDIN)
            yield from self._records(self.stdin, STDIN)

    @cached_property
    def stdin(self) -> BufferedReader:
        """Standard input. All read it through this one object, for what one peeks at is in its buffer."""
        try:
            os.read(0, 0)  # fails where it is closed, or a directory
            return open(0, "rb", closefd=False)
        except OSError as error:
            error.filename = STDIN
            raise

    def _records(self, file: Any, name: str) -> Iterator[dict[str, Any]]:
        if self.from_json:
            from gpt import jsonl

            return jsonl.read_lines(file, name)
        return stream.read_records(file, name)

    # Output

    def write(self, record: Output) -> None:
        """Writes a record, or several that are packed; `end` is recounted here, a `sync` flushed."""
        if isinstance(record, stream.Packed):
            if self.table or self.json:
                for one in record:
                    self.write(one)
            else:
                self._count += record.count
                self._append(record.data)
            return
        match record["kind"]:
            case "header":
                self._count = 0
            case "end":
                record = {**record, "records": self._count}
            case _:
                self._count += 1
        if self.table:
            self.table.add(record)
            return
        if self.json:
            from gpt import jsonl

            lines = list(jsonl.lines(record))
            self._count += len(lines) - 1  # a `calls` record becomes several
            self._append("".join(line + "\n" for line in lines).encode())
        else:
            self._append(stream.pack(record))
        if record["kind"] == "sync":
            self.flush()

    def write_text(self, lines: str) -> None:
        """Writes lines of a form that is not the stream's."""
        self._append(lines.encode(errors="replace"))

    def _append(self, data: bytes | bytearray) -> None:
        self._buffer += data
        if len(self._buffer) >= FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Hands everything written so far to the reader."""
        data, self._buffer = memoryview(self._buffer), bytearray()
        try:
            while data:
                data = data[os.write(1, data) :]
        except BrokenPipeError:
            raise signals.Terminated(signal.SIGPIPE) from None  # typer would make exit 1 of it
        except OSError as error:
            error.filename = STDOUT
            raise

    def source(self, produce: Iterable[Output], argv: Sequence[str]) -> int:
        """Writes one segment of what `produce` yields, `end` last whatever happened. Returns the status."""
        self.write(stream.header(self.tool, list(argv)))
        try:
            for record in produce:
                self.write(record)
        except GptError as error:
            self.write(self.error(error))
        self.write(records.make("end", records=0, status=self.status))
        return self.close()

    def filter(
        self, handle: Handler, files: Sequence[Path] = (), settle: Callable[[], Iterable[Output]] = tuple
    ) -> int:
        """Passes a stream through `handle`, which gives the records that take a record's place.

        Headers get this stage's name in `via`, a `sync` is flushed. `handle` also sees `end`, and what it gives
        then stands before it. A `handle` that does not give everything at once has a `settle`, which gives the
        rest: it is called before a header, a sync, an end, and when there is no more, be it that the stream is cut.
        Returns the exit status.
        """
        try:
            for record in self.read(files):
                if record["kind"] in ("header", "sync", "end"):
                    self._write_all(settle())
                match record["kind"]:
                    case "header":
                        self.write({**record, "via": [*record["via"], self.tool]})
                    case "sync":
                        self.write(record)
                    case _:
                        self._write_all(handle(record))
        except GptError:
            self._write_all(settle())
            self.close()
            raise
        self._write_all(settle())
        return self.close()

    def _write_all(self, found: Iterable[Output]) -> None:
        for record in found:
            self.write(record)

    def close(self) -> int:
        """Flushes, prints the table if there is one, and returns the exit status."""
        self.flush()
        if self.table:
            self.table.print()
        return self.status


class Progress:
    """`done/total` on standard error, from the first second on, when it is a terminal."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._next = time.monotonic() + 1 if os.isatty(2) else float("inf")
        self._shown = False

    def show(self, done: int, total: int) -> None:
        """Redraws the line, at most ten times a second."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + 0.1
            self._shown = True
            os.write(2, f"\r\x1b[K{self._what}: {100 * done // max(total, 1)} %".encode(errors="replace"))

    def clear(self) -> None:
        """Removes the line."""
        if self._shown:
            os.write(2, b"\r\x1b[K")
