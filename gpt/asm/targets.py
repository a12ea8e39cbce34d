"""Targets of ptxas: compute capabilities, and which PTX can be assembled for each of them."""

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
        """Return `source` if it's a variant of this target for the same GPU, such as `sm_90a`. Otherwise, return this
        target.
        """
        return source if source and source.suffix == "a" and self == source._replace(suffix="") else self

    def runs(self, source: GpuTarget) -> bool:
        """Return whether PTX for `source` can be assembled for this target."""
        if source.suffix == "a":
            return self == source
        if source.suffix == "f":
            return self.major == source.major and self.minor >= source.minor
        return (self.major, self.minor) >= (source.major, source.minor)


def find_target(text: str) -> GpuTarget | None:
    """Parse a name like `sm_90a`; return None if it isn't a GPU target."""
    found = find_arch(text)
    return GpuTarget(*found) if found else None


def find_source(text: bytes) -> GpuTarget | None:
    """Return the GPU in the `.target` of a module."""
    head = find_head(text)
    return find_target(head.target) if head and head.target else None


def find_version(text: bytes) -> tuple[int, int] | None:
    """Return the PTX version in the `.version` of a module."""
    head = find_head(text)
    return head.version if head else None
