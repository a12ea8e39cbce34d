"""Compute capabilities as ptxas takes them: which there can be, and which PTX can be assembled for which."""

from __future__ import annotations

import re
from typing import NamedTuple

from gpt.errors import MissingError, UsageError

_ARCH = re.compile(r"sm_([0-9]{1,3})([0-9])([af]?)")
_VERSION = re.compile(rb"^[ \t]*\.version\s+(\d{1,4})\.(\d{1,4})", re.MULTILINE)


class Target(NamedTuple):
    """sm_90a is (9, 0, "a")."""

    major: int
    minor: int
    suffix: str

    def __str__(self) -> str:
        return f"sm_{self.major}{self.minor}{self.suffix}"

    def for_source(self, source: Target | None) -> Target:
        """What PTX for `source` is assembled for where this one is asked for: `sm_90a` runs on what `sm_90` names."""
        return source if source and source.suffix == "a" and self == source._replace(suffix="") else self

    def runs(self, source: Target) -> bool:
        """Whether PTX for `source` can be assembled for this one."""
        if source.suffix == "a":
            return self == source
        if source.suffix == "f":
            return self.major == source.major and self.minor >= source.minor
        return (self.major, self.minor) >= (source.major, source.minor)


def find_target(text: str) -> Target | None:
    """`sm_90a` as a Target, None where it is none."""
    found = _ARCH.fullmatch(text)
    return Target(int(found[1]), int(found[2]), found[3]) if found else None


def parse_targets(text: str) -> list[Target]:
    """`sm_90a,sm_80` in its order, each once. Raises UsageError, and MissingError for `host`."""
    targets: dict[Target, None] = {}
    for name in filter(None, text.split(",")):
        if name == "host":
            raise MissingError("--arch host needs the simulated device's back end, which this version does not have")
        target = find_target(name)
        if target is None:
            raise UsageError(f"--arch '{name}' is no compute capability such as sm_90 or sm_100a")
        targets[target] = None
    if not targets:
        raise UsageError("--arch SM,... is needed, as --arch sm_90")
    return list(targets)


def find_version(text: bytes) -> tuple[int, int] | None:
    """The PTX version of a module, from its first `.version`."""
    found = _VERSION.search(text)
    return (int(found[1]), int(found[2])) if found else None
