"""A filter that holds its output back until it knows whether the records that it has added are valid.

Held records stay in memory; beyond SPOOL bytes, they're spilled to a temporary file. Before each record there's a
frame, {u16 target, u64 size}. Records that the filter has added belong to a target, numbered from 1. Records that it
passes on have target 0.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Container, Sequence
from tempfile import SpooledTemporaryFile
from typing import Any, NamedTuple

from gpt.base.errors import GptError
from gpt.stream import wire
from gpt.stream.stage import Output, Stage

SPOOL = 32 << 20  # bytes
MAX_TARGETS = (1 << 16) - 1
FRAME = struct.Struct("<HQ")


class Added(dict[str, Any]):
    """A record that's left out if its target is invalid."""

    target = 1


class Verdict(NamedTuple):
    """The faults that were found, and the targets whose records must be left out."""

    faults: Sequence[GptError] = ()
    bad: Container[int] = ()


class Holding(Stage):
    """A stage that can hold its output back until `judge` decides which targets are valid."""

    judge: Callable[[], Verdict] = Verdict
    _held: Any = None

    def hold(self) -> None:
        """Hold all output back until `release`, a sync, or the end of the stream."""
        self._held = self._held or SpooledTemporaryFile(SPOOL)

    def release(self, verdict: Verdict = Verdict()) -> None:  # noqa: B008, it never changes
        """Write the faults, and then all records that were held back, except those for bad targets."""
        held, self._held = self._held, None
        if held is None:
            return
        for fault in verdict.faults:
            self.write(self.error(fault))
        held.seek(0)
        while frame := held.read(FRAME.size):
            target, size = FRAME.unpack(frame)
            data = held.read(size)
            if not target or target not in verdict.bad:
                self.write(wire.unpack(data))
        held.close()

    def write(self, record: Output) -> None:
        """Write a record, or hold it back. A sync requires a decision now, as if the stream ended here."""
        if self._held is None:
            super().write(record)
        elif isinstance(record, wire.Packed):
            for one in record:
                self.write(one)
        elif record["kind"] == "sync":
            self.release(self.judge())
            super().write(record)
        else:
            data = wire.pack(record)
            target = record.target if isinstance(record, Added) else 0
            self._held.write(FRAME.pack(target, len(data)) + data)

    def close(self) -> int:
        """Decide, and complete the output.

        If the stream was cut off, no decision is possible, so none of the added records are written.
        """
        cut = sys.exception() is not None
        if self._held is not None:
            self.release(Verdict(bad=range(MAX_TARGETS + 1)) if cut else self.judge())
        return super().close()
