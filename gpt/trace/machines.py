"""Relate the clocks of processes. Between two boots of a machine, its processes share CLOCK_MONOTONIC.

Each header pairs that clock with the time of day. All processes on a machine use the first process's pair, because the
time of day may be set while they run. Different machines are aligned by the time of day alone, so their alignment is
only as good as whatever sets it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

NO_END = "killed, still running, or no longer recorded"  # with a full disk, gpt-hook stops recording and says so
LIMIT = 1 << 61  # ns: 73 years
Header = dict[str, Any]


def machine_of(header: Header) -> Hashable:
    """Return a key that processes on one machine share. A process without a boot id shares its clock with no other."""
    return header.get("boot_id") or identity(header)


def identity(header: Header) -> tuple[Any, ...]:
    """Return a key that is unique to a process: pids get reused, and other machines use the same ones."""
    return header["host"], header.get("boot_id"), header["pid"], header["realtime"], header["monotonic"]


class Machines:
    """The machines of processes; times are ns since the very first process began."""

    def __init__(self, headers: Iterable[Header] = ()) -> None:
        self._first: dict[Hashable, Header] = {}
        self._zero: int | None = None
        self._fixed = False
        for header in headers:
            self.add(header)

    def add(self, header: Header) -> None:
        """Add a process."""
        machine = machine_of(header)
        first = self._first.get(machine)
        if first is None or (not self._fixed and header["monotonic"] < first["monotonic"]):
            self._first[machine] = header
            self._zero = self._zero if self._fixed else None

    def fix(self) -> None:
        """Freeze the offsets, even if an earlier process is added later."""
        self._fixed = True

    def offset(self, header: Header) -> int:
        """Return the ns to add to an added process's CLOCK_MONOTONIC to get the time since the first process began."""
        if self._zero is None:
            self._zero = min(first["realtime"] for first in self._first.values())
        first = self._first[machine_of(header)]
        return max(-LIMIT, min(int(first["realtime"]) - int(first["monotonic"]) - self._zero, LIMIT))
