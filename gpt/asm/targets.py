"""Compute capabilities as ptxas takes them: which there can be, and which PTX can be assembled for which."""

from __future__ import annotations

from gpt.arch import Arch, find_arch, parse_archs
from gpt.errors import MissingError, UsageError
from gpt.formats.ptxtext import find_head


class Target(Arch):
    """A compute capability to assemble for."""

    @property
    def family(self) -> str:
        """Which back end it is for: what its name begins with."""
        return str(self).partition("_")[0]

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
    """`sm_90a` as a Target, None if it is not one."""
    found = find_arch(text)
    return Target(*found) if found else None


def parse_targets(text: str) -> list[Target]:
    """`sm_90a,8.0` in its order, each once. Raises UsageError, and MissingError for `host`."""
    if "host" in text.split(","):
        raise MissingError("--arch host needs the simulated device's back end, which is not implemented")
    if not text:
        raise UsageError("--arch SM,... is required, for example --arch sm_90")
    return [Target(*arch) for arch in parse_archs(text)]


def find_version(text: bytes) -> tuple[int, int] | None:
    """The PTX version of a module, from its `.version`."""
    head = find_head(text)
    return head.version if head else None
