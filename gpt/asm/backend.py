"""What a back end is: it makes code of PTX for the targets of a family. backends.py lists them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeVar

import msgpack

from gpt.base.errors import MalformedError


@dataclass(frozen=True)
class Options:
    """What the command line asks for besides the targets; a back end passes on what its tool has an option for."""

    level: int | None = None
    registers: int | None = None
    relocatable: bool = False
    line_info: bool = False
    tool: str | None = None  # a path, in place of the tool that would be found
    timeout: float = 600  # seconds for a module
    check: bool = False  # nothing is made


@dataclass(frozen=True)
class AssembledModule:
    """What became of a module: `image` is what is loaded.

    `kernels` has for each kernel what it needs, under the names that the record `kernel` has for it; what is not
    known is absent. `warnings` are (location, text). `report` is what the tool said, if it ran now.
    """

    image: bytes
    kernels: dict[str, dict[str, int]]
    warnings: list[tuple[str, str]]
    report: bytes = b""

    def pack(self, name: str) -> bytes:
        """As it is kept. Of warnings the module's name is left out: other modules may have the same text."""
        warnings = [(where.removeprefix(name), where.startswith(name), fact) for where, fact in self.warnings]
        data: bytes = msgpack.packb([self.image, self.kernels, warnings], unicode_errors="surrogateescape")
        return data

    @classmethod
    def unpack(cls, data: bytes, name: str) -> AssembledModule | None:
        """What was kept, for a module of this name; None if it is not what `pack` makes."""
        try:
            image, kernels, warnings = msgpack.unpackb(data, unicode_errors="surrogateescape")
            told = [(name + where if own else where, fact) for where, own, fact in warnings]
            return cls(image, {kernel: dict(needs) for kernel, needs in kernels.items()}, told)
        except (ValueError, TypeError, AttributeError, msgpack.UnpackException):
            return None


class Faults(MalformedError):
    """Why a back end refuses a module: several faults, as (location, text)."""

    def __init__(self, found: list[tuple[str, str]]) -> None:
        super().__init__(found[0][1], found[0][0])
        self.found = found


class Target(Protocol):
    """What code is made for. Its text is what `--arch` and records call it; equal ones are the same target."""

    @property
    def family(self) -> str:
        """Which back end makes its code: a key of BACKENDS."""


T = TypeVar("T", bound=Target)


class Backend(Protocol[T]):
    """Makes code, from several threads at once."""

    kind: ClassVar[str]  # of the record that holds an image

    def __init__(self, options: Options) -> None:
        """Raises MissingError if its tool is not installed."""

    @staticmethod
    def parse_target(word: str) -> T:
        """The target that a word of `--arch` names. Raises UsageError if it is not one of this back end's."""

    def target_for(self, text: bytes, target: T) -> T:
        """What a module is assembled for if `target` is asked for."""

    def key(self, text: bytes, target: T) -> list[bytes]:
        """What decides, besides the text, what `make` makes of it. Raises GptError if it takes no such module."""

    def make(self, text: bytes, name: str, target: T) -> AssembledModule:
        """Makes code of a module, which messages call `name`.

        Raises Faults if the text is refused, GptError if the tool fails.
        """

    def stop(self) -> None:
        """Ends what runs; nothing more is made."""
