"""Convert the time stamps of a trace to nanoseconds.

If the processor allows it, gpt-hook records ticks of the time stamp counter. The header has their rate, measured over 2
ms or more, and the values of the counter and of CLOCK_MONOTONIC at the same moment. Each `clock` record has another
such pair. As soon as a pair is far enough from the header, the rate is computed from the header and the farthest pair.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gpt.base.errors import MalformedError
from gpt.stream import records
from gpt.trace.machines import LIMIT

FAR = 100_000_000  # ns


class Clock:
    """The clock of a segment. `ns_per_tick` may change whenever a record is added."""

    def __init__(self, header: dict[str, Any]) -> None:
        """Start with the header. Raises MalformedError if it has ticks but no rate."""
        self.monotonic: int = header["monotonic"]
        if self.monotonic >= LIMIT:
            raise MalformedError("header: monotonic is over 73 years")
        self._realtime: int = header["realtime"]
        self._ticks = "tsc_hz" in header
        if self._ticks and not (header["tsc_hz"] and "tsc" in header):
            raise MalformedError("header: tsc_hz without tsc, or 0")
        self._tsc: int = header["tsc"] if self._ticks else self.monotonic
        self._farthest = FAR
        self.ns_per_tick = 1e9 / header["tsc_hz"] if self._ticks else 1.0

    def add(self, record: dict[str, Any]) -> None:
        """Add a `clock` record."""
        if fault := records.check(record):
            raise MalformedError(fault)
        ns, ticks = record["monotonic"] - self.monotonic, record["tsc"] - self._tsc
        if self._ticks and ns > self._farthest and ticks > 0:
            self._farthest = ns
            self.ns_per_tick = ns / ticks

    def durations(self, ticks: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
        """Convert durations to integers in ns, as they are in JSON lines. Only 0 ticks become 0; anything else is at
        least 1.
        """
        ns: npt.NDArray[np.float64] = ticks.astype(np.float64)
        if self._ticks:
            ns *= self.ns_per_tick
            np.rint(ns, out=ns)
            if not ns.all():
                ns[(ns == 0) & (ticks != 0)] = 1
        return ns

    def times(self, ticks: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """Convert time stamps to ns of CLOCK_MONOTONIC. They may be earlier than the header."""
        since = self.since(ticks)
        if not self._ticks:
            return np.clip(since, -LIMIT, LIMIT) + self.monotonic
        ns = np.clip(since * self.ns_per_tick, -LIMIT, LIMIT)
        return ns.astype(np.int64) + self.monotonic

    def since(self, ticks: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """Convert time stamps to ticks since the header, so that they sort by time. They're negative before the
        header.
        """
        found: npt.NDArray[np.int64] = (ticks - np.uint64(self._tsc)).view(np.int64)  # wraps around, which is correct
        return found

    def realtime_at(self, ticks: int) -> int:
        """Convert a time stamp to ns since the epoch."""
        return self.realtime(int(self.times(np.array([ticks], np.uint64))[0]))

    def realtime(self, monotonic: int) -> int:
        """Convert a time of CLOCK_MONOTONIC to ns since the epoch, which are at least 0."""
        return max(0, monotonic - self.monotonic + self._realtime)
