"""Whose clock is whose: processes of one machine, between two boots of it, share CLOCK_MONOTONIC.

Each header pairs that clock with the time of day. The pair of the first process of a machine is used for all of its
processes, because the time of day may be set while they run. Machines are joined by the time of day alone, which is as
good as what sets it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

LIMIT = 1 << 61  # ns: 73 years
Header = dict[str, Any]


def machine_of(header: Header) -> Hashable:
    """What processes of one machine have in common. One whose boot is not known shares its clock with nobody."""
    return header.get("boot_id") or identity(header)


def identity(header: Header) -> tuple[Any, ...]:
    """What tells a process from all others: pids come back, and other machines have the same ones."""
    return header["host"], header.get("boot_id"), header["pid"], header["realtime"], header["monotonic"]


class Machines:
    """The machines of processes; times are ns since the first process of all began."""

    def __init__(self, headers: Iterable[Header] = ()) -> None:
        self._first: dict[Hashable, Header] = {}
        self._zero: int | None = None
        self._fixed = False
        for header in headers:
            self.add(header)

    def add(self, header: Header) -> None:
        """One more process."""
        machine = machine_of(header)
        first = self._first.get(machine)
        if first is None or (not self._fixed and header["monotonic"] < first["monotonic"]):
            self._first[machine] = header
            self._zero = self._zero if self._fixed else None

    def fix(self) -> None:
        """From now on offsets stay as they are, even if a process began before those that were added."""
        self._fixed = True

    def offset(self, header: Header) -> int:
        """ns to add to CLOCK_MONOTONIC of a process, one of those that were added, for the time since the first."""
        if self._zero is None:
            self._zero = min(first["realtime"] for first in self._first.values())
        first = self._first[machine_of(header)]
        return max(-LIMIT, min(int(first["realtime"]) - int(first["monotonic"]) - self._zero, LIMIT))
