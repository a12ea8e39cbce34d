"""A filter that holds its output back while it is not known whether what it adds may stand.

What is held lies in memory, from SPOOL bytes on in a temporary file: a frame a record, {u8 whether it was added, u64
size}, and the record as it goes into a stream.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Sequence
from tempfile import SpooledTemporaryFile
from typing import Any

from gpt import stream
from gpt.errors import GptError
from gpt.stage import Output, Stage

SPOOL = 32 << 20  # bytes
FRAME = struct.Struct("<?Q")


class Added(dict[str, Any]):
    """A record that is left out if the verdict is bad."""


class Holding(Stage):
    """A stage that can hold back what it writes. `judge` says what is wrong with what was added so far."""

    judge: Callable[[], Sequence[GptError]] = tuple
    _held: Any = None

    def hold(self) -> None:
        """From now on nothing is written, until `release`, a sync, or the end of the stream."""
        self._held = self._held or SpooledTemporaryFile(SPOOL)

    def release(self, faults: Sequence[GptError] = (), *, added: bool = True) -> None:
        """Writes what is held: with faults, those, and nothing that was added."""
        held, self._held = self._held, None
        if held is None:
            return
        for fault in faults:
            self.write(self.error(fault))
        held.seek(0)
        while frame := held.read(FRAME.size):
            is_added, size = FRAME.unpack(frame)
            data = held.read(size)
            if not is_added or (added and not faults):
                self.write(stream.unpack(data))
        held.close()

    def write(self, record: Output) -> None:
        """See Stage. A sync asks for an answer now: what is not known by then is taken for wrong."""
        if self._held is None:
            super().write(record)
        elif isinstance(record, stream.Packed):
            for one in record:
                self.write(one)
        elif record["kind"] == "sync":
            self.release(self.judge())
            super().write(record)
        else:
            data = stream.pack(record)
            self._held.write(FRAME.pack(isinstance(record, Added), len(data)) + data)

    def close(self) -> int:
        """See Stage. If a stream ends too early, it is not known what else would have come."""
        cut = sys.exception() is not None
        if self._held is not None:
            self.release(() if cut else self.judge(), added=not cut)
        return super().close()
