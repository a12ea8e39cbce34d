"""Relate the clocks of processes. All processes on a machine share CLOCK_MONOTONIC until it's rebooted.

Each header pairs that clock with the time of day. All processes on a machine use the pair of the first process, because
the time of day may be changed while they run. Different machines are aligned by nothing but the time of day, so the
alignment is only as good as their clocks.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

NO_END = "killed, still running, or no longer recorded"  # with a full disk, gpt-hook stops recording and says so
LIMIT = 1 << 61  # ns: 73 years
Header = dict[str, Any]


def machine_of(header: Header) -> Hashable:
    """Return a key that all processes on a machine share. A process without a boot id shares its clock with no other
    one.
    """
    return header.get("boot_id") or identity(header)


def identity(header: Header) -> tuple[Any, ...]:
    """Return a key that's unique to a process. Pids are reused, and occur on several machines."""
    return header["host"], header.get("boot_id"), header["pid"], header["realtime"], header["monotonic"]


class Machines:
    """The machines on which processes ran. Times are ns since the first process began."""

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
        """Keep the offsets from changing, even if an earlier process is added."""
        self._fixed = True

    def offset(self, header: Header) -> int:
        """Return what to add to CLOCK_MONOTONIC of a process to get the ns since the first process began. It must have
        been added.
        """
        if self._zero is None:
            self._zero = min(first["realtime"] for first in self._first.values())
        first = self._first[machine_of(header)]
        return max(-LIMIT, min(int(first["realtime"]) - int(first["monotonic"]) - self._zero, LIMIT))
