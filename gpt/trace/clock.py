"""Convert the time stamps of a trace to nanoseconds.

Where the processor allows it, gpt-hook stores ticks of the time stamp counter. The header has their rate, measured over
2 ms or more, and one reading of the counter and CLOCK_MONOTONIC together; each `clock` record has another. Once a
reading is far enough from the header, the rate between the header and the farthest reading replaces the header's.
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
    """The clock of one segment. `ns_per_tick` may change with each `add`."""

    def __init__(self, header: dict[str, Any]) -> None:
        """Start from a header. Raises MalformedError if it has ticks without a rate."""
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
        """Convert durations to whole ns, as JSON lines have them. 0 ticks is 0, anything else at least 1."""
        ns: npt.NDArray[np.float64] = ticks.astype(np.float64)
        return np.maximum(np.rint(ns * self.ns_per_tick), ticks != 0) if self._ticks else ns

    def times(self, ticks: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """Convert time stamps to ns of CLOCK_MONOTONIC. They may precede the header."""
        since = self.since(ticks)
        if not self._ticks:
            return np.clip(since, -LIMIT, LIMIT) + self.monotonic
        ns = np.clip(since * self.ns_per_tick, -LIMIT, LIMIT)
        return ns.astype(np.int64) + self.monotonic

    def since(self, ticks: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """Convert time stamps to ticks since the header, negative before it, so that they sort by time."""
        found: npt.NDArray[np.int64] = (ticks - np.uint64(self._tsc)).view(np.int64)  # wraps round, as it should
        return found

    def realtime_at(self, ticks: int) -> int:
        """Convert a time stamp to ns since the epoch."""
        return self.realtime(int(self.times(np.array([ticks], np.uint64))[0]))

    def realtime(self, monotonic: int) -> int:
        """Convert a time of CLOCK_MONOTONIC to ns since the epoch, at least 0."""
        return max(0, monotonic - self.monotonic + self._realtime)
