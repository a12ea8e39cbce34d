"""Define the interface of a back end, which compiles PTX for a family of targets. backends.py lists them."""

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
    check: bool = False  # only check the module, without generating code


@dataclass(frozen=True)
class AssembledModule:
    """The result of assembling a module. `image` is the code to load.

    `kernels` has the resources that each kernel needs, with the same names as the fields of a `kernel` record; unknown
    values are absent. `warnings` are pairs of location and text. `report` is the output of the tool, which is empty if
    the result comes from the cache.
    """

    image: bytes
    kernels: dict[str, dict[str, int]]
    warnings: list[tuple[str, str]]
    report: bytes = b""

    def pack(self, name: str) -> bytes:
        """Return the bytes to store in the cache. Warnings lose the name of the module, because another module may have
        the same text.
        """
        warnings = [(where.removeprefix(name), where.startswith(name), fact) for where, fact in self.warnings]
        data: bytes = msgpack.packb([self.image, self.kernels, warnings], unicode_errors="surrogateescape")
        return data

    @classmethod
    def unpack(cls, data: bytes, name: str) -> AssembledModule | None:
        """Restore a result from the cache, for a module with this name. Return None if the bytes weren't written by
        `pack`.
        """
        try:
            image, kernels, warnings = msgpack.unpackb(data, unicode_errors="surrogateescape")
            told = [(name + where if own else where, fact) for where, own, fact in warnings]
            return cls(image, {kernel: dict(needs) for kernel, needs in kernels.items()}, told)
        except (ValueError, TypeError, AttributeError, msgpack.UnpackException):
            return None


class Faults(MalformedError):
    """Raised if a back end rejects a module. `found` lists its errors as pairs of location and text."""

    def __init__(self, found: list[tuple[str, str]]) -> None:
        super().__init__(found[0][1], found[0][0])
        self.found = found


class Target(Protocol):
    """A target for which to compile. `str` returns its name in `--arch` and in records. Targets can be compared."""

    @property
    def family(self) -> str:
        """The back end to use, as a key of BACKENDS."""


T = TypeVar("T", bound=Target)


class Backend(Protocol[T]):
    """A compiler from PTX to code. Several threads may use it at once."""

    kind: ClassVar[str]  # kind of the record that holds an image

    def __init__(self, options: Options) -> None:
        """Find the tool. Raises MissingError if it isn't installed."""

    @staticmethod
    def parse_target(word: str) -> T:
        """Parse a word of `--arch`. Raises UsageError if it isn't a target of this back end."""

    def target_for(self, text: bytes, target: T) -> T:
        """Return the target for which a module should be compiled if the user asks for `target`."""

    def key(self, text: bytes, target: T) -> list[bytes]:
        """Return everything besides the text that the result of `make` depends on. Raises GptError if the module can't
        be compiled.
        """

    def make(self, text: bytes, name: str, target: T) -> AssembledModule:
        """Compile a module, called `name` in messages.

        Raises Faults if the tool rejects the text, GptError if the tool fails.
        """

    def stop(self) -> None:
        """End running jobs and start no more."""
