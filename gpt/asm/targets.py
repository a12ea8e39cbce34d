"""The targets of ptxas: compute capabilities, and which PTX can be assembled for which."""

from __future__ import annotations

from gpt.base.arch import Arch, find_arch
from gpt.formats.ptxtext import find_head


class GpuTarget(Arch):
    """A compute capability to assemble for."""

    @property
    def family(self) -> str:
        """See backend.Target."""
        return "sm"

    def for_source(self, source: GpuTarget | None) -> GpuTarget:
        """What PTX for `source` is assembled for if this one is asked for: `sm_90a` runs on what `sm_90` names."""
        return source if source and source.suffix == "a" and self == source._replace(suffix="") else self

    def runs(self, source: GpuTarget) -> bool:
        """Whether PTX for `source` can be assembled for this one."""
        if source.suffix == "a":
            return self == source
        if source.suffix == "f":
            return self.major == source.major and self.minor >= source.minor
        return (self.major, self.minor) >= (source.major, source.minor)


def find_target(text: str) -> GpuTarget | None:
    """`sm_90a` as a GpuTarget, None if it is not one."""
    found = find_arch(text)
    return GpuTarget(*found) if found else None


def find_source(text: bytes) -> GpuTarget | None:
    """What the PTX of a module is for, from its `.target`."""
    head = find_head(text)
    return find_target(head.target) if head and head.target else None


def find_version(text: bytes) -> tuple[int, int] | None:
    """The PTX version of a module, from its `.version`."""
    head = find_head(text)
    return head.version if head else None
