"""Calls of ioctl(2) that the driver made, in the form of calls of its functions: a number stands for a name."""

from __future__ import annotations

from typing import Any

from gpt.errors import MalformedError

LAST = (1 << 32) - 1  # their numbers go down from here; those of `api` records begin at 1


class Ioctls:
    """The numbers that were given, by name."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {}
        self._numbers: dict[str, int] = {}

    def as_call(self, record: dict[str, Any]) -> dict[str, Any]:
        """An `ioctl` record as a `call`. Raises MalformedError where it lacks what a call has."""
        name = record.get("name")
        if not isinstance(name, str):
            raise MalformedError("ioctl.name is no str")
        number = self._numbers.setdefault(name, LAST - len(self._numbers))
        self.names[number] = name
        call: dict[str, Any] = {"kind": "call", "api": number, "result": record.get("error", 0)}
        return call | {key: record[key] for key in ("thread", "start", "duration") if key in record}
