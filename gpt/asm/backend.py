"""Define the interface of a back end, which compiles PTX for one family of targets. backends.py lists them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeVar

import msgpack

from gpt.base.errors import MalformedError


@dataclass(frozen=True)
class Options:
    """Command-line options besides the targets; a back end ignores options that its tool doesn't have."""

    level: int | None = None
    registers: int | None = None
    relocatable: bool = False
    line_info: bool = False
    tool: str | None = None  # path of the tool; None searches for one
    timeout: float = 600  # seconds per module
    check: bool = False  # check the module only, without making code


@dataclass(frozen=True)
class AssembledModule:
    """The result of assembling a module; `image` is the code to load.

    `kernels` maps each kernel to the resources it needs, named like the fields of the record `kernel`; unknown values
    are absent. `warnings` are (location, text). `report` is the tool's output; it's empty if the result comes from the
    cache.
    """

    image: bytes
    kernels: dict[str, dict[str, int]]
    warnings: list[tuple[str, str]]
    report: bytes = b""

    def pack(self, name: str) -> bytes:
        """Return the bytes for the cache. Warnings lose the module's name, as another module may have the same text."""
        warnings = [(where.removeprefix(name), where.startswith(name), fact) for where, fact in self.warnings]
        data: bytes = msgpack.packb([self.image, self.kernels, warnings], unicode_errors="surrogateescape")
        return data

    @classmethod
    def unpack(cls, data: bytes, name: str) -> AssembledModule | None:
        """Restore a result from the cache for a module of this name; None if `pack` didn't write these bytes."""
        try:
            image, kernels, warnings = msgpack.unpackb(data, unicode_errors="surrogateescape")
            told = [(name + where if own else where, fact) for where, own, fact in warnings]
            return cls(image, {kernel: dict(needs) for kernel, needs in kernels.items()}, told)
        except (ValueError, TypeError, AttributeError, msgpack.UnpackException):
            return None


class Faults(MalformedError):
    """A back end rejected a module: `found` lists its errors as (location, text)."""

    def __init__(self, found: list[tuple[str, str]]) -> None:
        super().__init__(found[0][1], found[0][0])
        self.found = found


class Target(Protocol):
    """A target to compile for. `str` gives its name in `--arch` and in records; targets compare by value."""

    @property
    def family(self) -> str:
        """The back end to use, as a key of BACKENDS."""


T = TypeVar("T", bound=Target)


class Backend(Protocol[T]):
    """A compiler from PTX to code; several threads may call it at once."""

    kind: ClassVar[str]  # kind of the record that holds an image

    def __init__(self, options: Options) -> None:
        """Find the tool. Raises MissingError if it isn't installed."""

    @staticmethod
    def parse_target(word: str) -> T:
        """Parse a word of `--arch`. Raises UsageError if it isn't a target of this back end."""

    def target_for(self, text: bytes, target: T) -> T:
        """Return the target to use for a module when the user asks for `target`."""

    def key(self, text: bytes, target: T) -> list[bytes]:
        """Return everything that the result of `make` depends on besides the text. Raises GptError if it can't take
        this module.
        """

    def make(self, text: bytes, name: str, target: T) -> AssembledModule:
        """Compile a module, called `name` in messages.

        Raises Faults if the tool rejects the text, GptError if the tool fails.
        """

    def stop(self) -> None:
        """End running jobs and start no more."""
