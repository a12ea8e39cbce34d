"""A run of an executable: the stream that it reads, the stream that it writes, and its exit status.

A `Stage` reads records, and handles headers, ends and syncs in the way that gpt-stream(5) requires of a filter. It
writes to standard output: a table on a terminal, JSON lines with --json, msgpack otherwise. A sink has answers for
people, so it writes text unless it's asked for a stream.
"""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from io import BufferedReader
from pathlib import Path
from typing import Any

from gpt.base import messages, signals, wrong_input
from gpt.base.errors import EmptyPipeError, GptError, MalformedError, UsageError
from gpt.stream import records, wire

STDIN, STDOUT = "<stdin>", "<stdout>"
DASH = Path("-")  # as an output: standard output
FLUSH_BYTES = 1 << 18

# The kind of records that a filter processes, and its message if the stream has none.
ELEMENT = "element", "no GPU code listed in the stream: gpt-extract without --ptx lists it"
MODULE = "module", "no module in the stream: 'gpt-hook run --save-modules' records some"
PTX = "ptx", "no PTX in the stream: gpt-extract --ptx reads it"

Output = dict[str, Any] | wire.Packed
Handler = Callable[[dict[str, Any]], Iterable[Output]]


def _new_table() -> Any:
    from gpt.screen.tables import LibraryTables

    return LibraryTables()


class Stage:
    """A run of an executable: its input, its output, and its worst error.

    `status` is the current exit status; `error` raises it, and `warn` doesn't.
    """

    def __init__(
        self,
        tool: str,
        *,
        json: bool = False,
        from_json: bool = False,
        table: bool = False,
        stream: bool = False,
        quiet: bool = False,
    ) -> None:
        if table and json:
            raise UsageError("--table cannot be combined with --json")
        self.tool = tool
        self.status = 0
        self.faults = 0  # number of errors
        self.from_json = from_json
        self.json = json
        self.table = _new_table() if table or not (json or stream or not os.isatty(1)) else None
        self._buffer = bytearray()
        self._counts = [0]  # number of records in each segment
        self._turn = -1  # index of the current segment in it, from the end
        self.told = False  # True if an earlier stage has reported an error
        self.header: dict[str, Any] = {}  # header of the current segment
        self._quiet = quiet  # print no messages
        self._said: set[tuple[str, ...]] = set()
        self._facts: set[str] = set()  # facts that have been reported as errors

    # Messages

    def warn(self, where: str, fact: str, ref: str | None = None) -> dict[str, Any]:
        """Print a warning on standard error, unless the same line has been printed before, and return the `diag` to
        write.
        """
        self._say("warning", where, fact)
        return records.make("diag", level="warning", where=where, text=fact, ref=ref)

    def error(self, error: GptError, ref: str | None = None, once: bool = False) -> dict[str, Any]:
        """Print an error after which the stage continues, set the exit status, and return the `diag` to write.

        With `once`, the fact doesn't depend on the location (for example, a tool is missing), so it's printed only
        once.
        """
        if not (isinstance(error, EmptyPipeError) or (once and error.fact in self._facts)):
            self._say("error", error.where, error.fact)
        self._facts.add(error.fact)
        self.faults += 1
        self.status = max(self.status, error.status)
        return records.make("diag", level="error", where=error.where, text=error.fact, ref=ref)

    def _say(self, *line: str) -> None:
        if line not in self._said and not self._quiet:  # all kernels of a module may have the same problem
            self._said.add(line)
            messages.say(self.tool, *line)

    # Input

    def read(self, files: Sequence[Path] = ()) -> Iterator[dict[str, Any]]:
        """Yield the records of the files, one after the other, or of standard input."""
        for path in files:
            with open(path, "rb") as file:
                yield from self._records(file, str(path))
        if not files:
            if os.isatty(0):
                raise UsageError("expects a stream on standard input, which is a terminal", STDIN)
            self.peek()
            yield from self._records(self.stdin, STDIN)

    def peek(self) -> bytes:
        """Return the first bytes of standard input. Raises EmptyPipeError if it's an empty pipe."""
        head = self.stdin.peek(1)
        if not head and stat.S_ISFIFO(os.fstat(0).st_mode):
            raise EmptyPipeError("empty", STDIN)
        return head

    @cached_property
    def stdin(self) -> BufferedReader:
        """Return standard input.

        Always read standard input through this object, because its buffer may already contain some of the bytes.
        """
        try:
            os.read(0, 0)  # fails if it's closed, or a directory
            return open(0, "rb", closefd=False)
        except OSError as error:
            error.filename = STDIN
            raise

    def _records(self, file: BufferedReader, name: str) -> Iterator[dict[str, Any]]:
        head = file.peek(1)
        fits = head.lstrip().startswith(b"{") if self.from_json else wrong_input.is_stream(head)
        if head and not fits and (form := wrong_input.find_form(head)):
            raise MalformedError(f"not {'JSON lines' if self.from_json else 'a stream in msgpack'} but {form}", name)
        if self.from_json:
            from gpt.stream import jsonl

            return jsonl.read_lines(file, name)
        return wire.read_records(file, name)

    # Output

    def write(self, record: Output) -> None:
        """Write one record, or several that are already packed. The count in an `end` is updated, and a `sync` flushes
        the output.
        """
        if isinstance(record, wire.Packed):
            if self.table:
                self._counts[self._turn] += record.count
                for one in record:
                    self.table.take(one)  # these are our own records, so they needn't be checked
            elif self.json:
                for one in record:
                    self.write(one)
            else:
                self._counts[self._turn] += record.count
                self.write_bytes(record.data)
            return
        match record["kind"]:
            case "header":
                self._counts.append(0)
                self._turn = -1
            case "resume":
                self._turn = -1 - record["back"]
            case "end":
                record = {**record, "records": self._counts[self._turn]}
            case _:
                self._counts[self._turn] += 1
        if self.table:
            if fault := self.table.add(record):
                self.warn("", f"{fault}: not in the tables")
            return
        if self.json:
            from gpt.stream import jsonl

            several = record["kind"] in records.ROWS  # one line for each row
            self._counts[self._turn] -= several
            for line in jsonl.lines(record):
                self._counts[self._turn] += several
                self.write_bytes(f"{line}\n".encode())
        else:
            self.write_bytes(wire.pack(record))
        if record["kind"] == "sync":
            self.flush()

    def write_text(self, lines: str) -> None:
        """Write lines of text, such as CSV."""
        self.write_bytes(lines.encode(errors="replace"))

    def write_bytes(self, data: bytes | bytearray) -> None:
        """Write bytes in a form other than the stream."""
        self._buffer += data
        if len(self._buffer) >= FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Flush the output."""
        data, self._buffer = memoryview(self._buffer), bytearray()
        try:
            while data:
                data = data[os.write(1, data) :]
        except BrokenPipeError:
            raise signals.Terminated(signal.SIGPIPE) from None  # otherwise typer would exit with 1
        except OSError as error:
            error.filename = STDOUT
            raise

    def source(self, produce: Iterable[Output], argv: Sequence[str]) -> int:
        """Write one segment with the records that `produce` yields. It always has an `end`. Returns the exit status."""
        self.write(wire.header(self.tool, list(argv)))
        try:
            for record in produce:
                self.write(record)
        except GptError as error:
            self.write(self.error(error))
        self.write(records.make("end", records=0, status=self.status))
        return self.close()

    def filter(
        self,
        handle: Handler,
        files: Sequence[Path] = (),
        settle: Callable[[], Iterable[Output]] = tuple,
        wants: tuple[str, str] | None = None,
    ) -> int:
        """Pass a stream through `handle`, which yields what replaces each record. Returns the exit status.

        The name of the stage is added to the `via` of each header, and the output is flushed after each `sync`.
        `handle` also gets each `end`, and yields its last records before it. If `handle` holds records back, `settle`
        must yield them: it's called before a header, a resume, a sync and an end, and when the stream is over, even if
        it's truncated. `wants` is the kind of records that the stage processes, and the error if the input has none.
        """
        kinds: set[str] = set()
        # The last `end`. It's held back, because an error about the whole stream must come before it.
        end: list[dict[str, Any]] = []
        inside = False
        try:
            for record in self.read(files):
                kinds.add(record["kind"])
                inside = record["kind"] != "end"
                if record["kind"] == "diag" and record.get("level") == "error":
                    self.told = True
                for one in [*end, *([record] if inside else [])]:
                    self._pass(one, handle, settle)
                end = [] if inside else [record]
            self._write_all(settle())
            # An empty list of elements is still a list, because it has a `library_end`. A stream with PTX isn't one.
            listed = {"library_end"} if wants is ELEMENT and "ptx" not in kinds else set[str]()
            # If a stream has a sync, its first request may still come.
            if wants and not kinds & {wants[0], "sync", *listed}:
                self._write_all(self._judge_idle(wants[1], kinds, bool(end)))
            for one in end:
                self._pass(one, handle, settle)
        except GptError as error:
            self._write_all(settle())
            if inside:  # tells later stages why their stream ends early
                self.write(records.make("diag", level="error", where=error.where, text=error.fact))
            self.close()
            raise
        return self.close()

    def _pass(self, record: dict[str, Any], handle: Handler, settle: Callable[[], Iterable[Output]]) -> None:
        if record["kind"] in ("header", "resume", "sync", "end"):
            self._write_all(settle())
        match record["kind"]:
            case "header":
                self.header = record
                self.write({**record, "via": [*record["via"], self.tool]})
            case "sync" | "resume":
                self.write(record)
            case _:
                self._write_all(handle(record))

    def _judge_idle(self, fact: str, kinds: set[str], inside: bool) -> Iterator[Output]:
        """Report that there was nothing to do, unless this stage or an earlier one has reported an error.

        Segments without records aren't an error: a source has found nothing.
        """
        if self.told:
            self.status = max(self.status, GptError.status)
        elif kinds - {"header", "end", "diag"} and not self.faults:
            self.flush()  # exits quietly if nobody reads
            diag = self.error(GptError(fact))
            if inside:
                yield diag

    def _write_all(self, found: Iterable[Output]) -> None:
        for record in found:
            self.write(record)

    def close(self) -> int:
        """Print the tables, if there are any, flush the output, and return the exit status."""
        if self.table:
            self.write_text(self.table.text())
        self.flush()
        return self.status
