"""gpt-analyze events: print each call on a line, oldest or slowest first.

Each thread writes its own chunks, and each process its own file, so the first call isn't known until all traces have
been read. Rows are spilled to a temporary file. Memory holds 24 bytes per call: its start as a time stamp and in
nanoseconds, and its position in the order. Lines are formatted column by column, WINDOW calls at a time.
"""

from __future__ import annotations

import json
import mmap
import tempfile
from collections.abc import Iterator
from enum import StrEnum
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from gpt.analyze.lib import base
from gpt.analyze.lib.answer import Answers
from gpt.analyze.lib.command import Analysis
from gpt.analyze.lib.locations import Who, tell_apart
from gpt.base.errors import OutputError, UsageError
from gpt.base.options import Option
from gpt.base.printable import printable_json
from gpt.stream.stage import Stage

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from gpt.analyze.lib.comments import Notes
    from gpt.trace.process import Api, Process
    from gpt.trace.rows import Rows, Threads

WINDOW = 1 << 16
RECORDING = {0: "off", (1 << 31) - 1: "on"}  # pseudo function ids in the rows of when recording was turned off and on
TIMED = ("start", "duration", "result")  # fields that each kind of line formats differently


class Order(StrEnum):
    """The order of lines."""

    START = "start"
    TOOK = "took"


class EventFormat(StrEnum):
    """Formats besides text."""

    CSV = "csv"


class Events:
    """The calls of all processes read so far."""

    streams = False

    def __init__(
        self,
        stage: Stage,
        json: bool,
        notes: bool = False,
        sort: Order = Order.START,
        top: int | None = None,
        form: EventFormat | None = None,
    ) -> None:
        from gpt.trace.kinds import CALLS

        if notes and not json:
            raise UsageError("--notes requires --json")
        if form and json:
            raise UsageError("--format cannot be combined with --json")
        self._sort, self._top, self._csv = sort, top, form is EventFormat.CSV
        self._notes: Notes | None = None
        self.kinds = CALLS
        if notes:
            from gpt.analyze.lib.comments import KINDS, Notes

            self._notes, self.kinds = Notes(), KINDS
        self._stage = stage
        self._json = json
        self._file = tempfile.TemporaryFile()  # lives as long as the object
        self._batches: list[_Batch] = []

    def take(self, process: Process) -> None:
        """Spill the calls that a process has collected."""
        for threads, rows in process.calls.take():
            self._put_aside(process, threads, rows)
        if self._notes:
            self._notes.take(process)

    def _put_aside(self, process: Process, threads: Threads, rows: Rows) -> None:
        offset = self._file.tell()
        try:
            self._file.write(threads.tobytes())
            self._file.write(rows.tobytes())
            self._file.flush()
        except OSError as error:
            raise OutputError.of(error, tempfile.gettempdir()) from None
        took = rows["duration"].copy() if self._sort is Order.TOOK else rows["duration"][:0]
        self._batches.append(_Batch(process, rows.dtype, offset, rows["start"].copy(), took))

    def end(self, process: Process) -> None:
        """Spill the times at which recording was turned on and off, as rows. They're sorted with the calls later."""
        import numpy as np

        from gpt.stream.packed import TYPES
        from gpt.trace.rows import CALL

        changes = process.changes
        rows = np.zeros(len(changes), [(name, "<" + TYPES[type_]) for name, type_ in CALL.items()])
        rows["start"], rows["api"] = [at for at, _ in changes], [[*RECORDING][on] for _, on in changes]
        if changes:
            self._put_aside(process, np.zeros(len(changes), np.uint64), rows)

    def find_lack(self, kinds: set[str]) -> str | None:
        """Return the message for a trace without calls."""
        return base.find_lack(kinds, self.kinds)

    def answer(self, incomplete: list[str]) -> Answers:
        """Write the lines directly, since they aren't records."""
        if self._json:
            around = (self._notes.iter_before(), self._notes.iter_after()) if self._notes else ((), ())
            for lines in chain(around[0], self.iter_lines(), around[1]):
                self._stage.write_text(lines)
        else:
            from gpt.screen.events import HEADER, EventCsv, EventText

            text = EventCsv() if self._csv else EventText()
            self._stage.write_text(text.head() if isinstance(text, EventCsv) else HEADER)
            for lines in self.iter_lines():
                for line in text.iter_lines(lines):
                    self._stage.write_text(line)
        yield from ()

    def iter_lines(self) -> Iterator[str]:
        """Yield all calls, or the first `top` of them, in the requested order, as text of a few thousand lines each."""
        import numpy as np

        if not self._batches:
            return
        processes = {id(batch.process): batch.process for batch in self._batches}
        machines = self._notes.machines() if self._notes else self._batches[0].process.machines
        who = tell_apart(process.header for process in processes.values())
        texts = {key: _CallText(process, one) for (key, process), one in zip(processes.items(), who, strict=True)}
        times = np.concatenate(
            [b.process.clock.times(b.starts) + machines.offset(b.process.header) for b in self._batches]
        )
        order = np.argsort(times, kind="stable")
        if self._sort is Order.TOOK:  # calls that never returned come last
            took = np.concatenate([b.process.clock.durations(b.took) for b in self._batches])
            order = order[np.argsort(-took[order], kind="stable")]
        order = order[: self._top]
        edges = np.cumsum([0, *(len(batch.starts) for batch in self._batches)])
        with mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            for at in range(0, len(order), WINDOW):
                window = order[at : at + WINDOW]
                lines = np.empty(len(window), object)
                numbers = np.searchsorted(edges, window, side="right") - 1
                for number in np.unique(numbers):
                    places = np.flatnonzero(numbers == number)
                    batch = self._batches[number]
                    threads, rows = batch.read(data, window[places] - edges[number])
                    lines[places] = list(texts[id(batch.process)].iter_lines(times[window[places]], threads, rows))
                yield "".join(lines)
                data.madvise(mmap.MADV_DONTNEED)  # the next window is elsewhere in the file


class _Batch(NamedTuple):
    """Rows of one layout that were spilled together."""

    process: Process
    layout: np.dtype[np.void]
    offset: int  # where their threads are in the file, before the rows
    starts: npt.NDArray[np.uint64]
    took: npt.NDArray[np.uint64]  # empty unless calls are sorted by duration

    def read(self, data: mmap.mmap, wanted: npt.NDArray[np.intp]) -> tuple[Threads, Rows]:
        """Read the wanted rows."""
        import numpy as np

        count = len(self.starts)
        threads = np.frombuffer(data, np.uint64, count, self.offset)
        rows = np.frombuffer(data, self.layout, count, self.offset + threads.nbytes)
        return threads[wanted], rows[wanted]


class _CallText:
    """Formats the calls of a process as lines. Text that's the same for all calls of a function is formatted only
    once.
    """

    def __init__(self, process: Process, who: Who) -> None:
        host, rank, pid = who
        self._process = process
        self._who = f'"pid":{pid}' if host is None else f'"host":{_quoted(host)},"pid":{pid}'
        self._who += "" if rank is None else f',"rank":{rank}'
        self._functions = {id_: _said(api) for id_, api in process.apis.items()}
        if process.changes:
            said = '"type":"recording","op":"{0}","name":"recording {0}"'
            self._functions |= {number: said.format(op) for number, op in RECORDING.items()}
        self._kernels = {id_: _quoted(name) for id_, name in process.kernels().items()}
        # These methods return views.
        self._memory = {id_ for id_, api in process.apis.items() if api.type == "memory"}

    def iter_lines(self, times: npt.NDArray[np.int64], threads: Threads, rows: Rows) -> Iterator[str]:
        """Yield the line for each row. `times` are in ns."""
        process, functions, who = self._process, self._functions, self._who
        columns = [(times / 1000).tolist(), rows["api"].tolist(), threads.tolist(), rows["result"].tolist()]
        took = (process.clock.durations(rows["duration"]) / 1000).tolist()
        for time, api, thread, result, us, more in zip(*columns, took, self._arguments(rows), strict=True):
            said = functions.get(api) or _said(process.api(api))
            back = f',"duration_us":{us:.3f},"result":{result}' if us else ""
            yield f'{{"ts":{time:.3f},{said},{who},"tid":{thread}{back}{more}}}\n'

    def _arguments(self, rows: Rows) -> list[str]:
        """Format the remaining fields of each row as text that begins with a comma. Fields that are zero are left out,
        so the text may be empty.

        Addresses and handles are hexadecimal strings, because not every JSON reader preserves such large numbers.
        """
        columns = {name: rows[name].tolist() for name in rows.dtype.names or () if name not in TIMED}
        parts: list[list[str]] = []

        def tell(name: str, key: str, form: str = ',"{}":{}') -> None:
            if name in columns:
                parts.append([form.format(key, value) if value else "" for value in columns[name]])

        tell("bytes", "size")
        for name, alone, copied in (("to", "ptr", "dst"), ("from", "handle", "src")):
            if name in columns:
                keys = [alone if api in self._memory else copied for api in columns["api"]]
                addresses = zip(keys, columns[name], strict=True)
                parts.append([f',"{key}":"{value:#x}"' if value else "" for key, value in addresses])
        tell("object", "object", ',"{}":"{:#x}"')
        tell("stream", "stream", ',"{}":"{:#x}"')
        if "function" in columns:
            names = map(self._kernels.get, columns["function"])
            parts.append([f',"kernel":{name}' if name else "" for name in names])
        for what in ("grid", "block", "cluster"):
            xyz = [columns[f"{what}_{c}"] for c in "xyz" if f"{what}_{c}" in columns]
            sizes = zip(*xyz, strict=True) if len(xyz) == 3 else ()
            if sizes:
                parts.append([f',"{what}":[{x},{y},{z}]' if x else "" for x, y, z in sizes])
        tell("shared", "shared")
        tell("cooperative", "cooperative")
        return ["".join(texts) for texts in zip(*parts, strict=True)] if parts else [""] * len(rows)


def _said(api: Api) -> str:
    """Return the keys that name a function. The type of an ioctl is `kernel`, because it's a call of the Linux
    kernel.
    """
    if api.type == "ioctl":
        api = api._replace(type="kernel")
    return ",".join(f'"{key}":{_quoted(value)}' for key, value in api._asdict().items() if value or key != "symbol")


def _quoted(text: str) -> str:
    whole = text.encode(errors="surrogateescape").decode(errors="replace")
    return printable_json(json.dumps(whole, ensure_ascii=False))


OPTIONS: dict[str, Any] = {
    "notes": Annotated[bool, Option("--notes", help="With --json: add notes, in lines that begin with #.")],
    "sort": Annotated[Order, Option("--sort", help="Order: start, or took for the slowest first.")],
    "top": Annotated[int | None, Option("--top", metavar="NUMBER", min=1, help="Stop after this many calls.")],
    "form": Annotated[EventFormat | None, Option("--format", help="CSV: times in us, a column for each argument.")],
}
ANALYSIS = Analysis("List calls: all, or the slowest first.", Events, OPTIONS, lines=True)
