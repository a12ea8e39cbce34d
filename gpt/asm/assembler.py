"""PTX modules to code: looks into the cache, and has the target's back end make what is not in it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpt.asm.backend import Made, Options
from gpt.asm.backends import BACKENDS
from gpt.asm.cache import Cache, key_of
from gpt.asm.targets import Target, find_target
from gpt.errors import GptError
from gpt.formats.ptxtext import find_head

FORMAT = b"4"  # of what is kept: a change makes all of it unknown


@dataclass(frozen=True)
class TargetCode(Made):
    """What was made of a module for one target."""

    target: Target


class Assembler:
    """Assembles modules for some targets, from several threads at once."""

    def __init__(self, targets: Iterable[Target], options: Options, cache: Cache) -> None:
        """Raises MissingError if a back end lacks its tool."""
        self._targets = list(targets)
        self._cache = cache
        self._backends = {family: BACKENDS[family](options) for family in {one.family for one in self._targets}}

    def assemble(self, text: bytes, name: str, target: Target) -> TargetCode:
        """Assembles a module, which messages call `name`.

        Raises MalformedError (Faults) if the back end refuses it, MissingError if its tool knows no such
        version, and GptError if it is for another GPU, or the tool fails.
        """
        source = _target_of(text)
        if source and not target.runs(source):
            raise GptError(f"is for {source} and cannot be assembled for {target}", name)
        done = self._find_or_make(text, name, target)
        return TargetCode(done.image, done.kernels, done.warnings, target)

    def targets(self, text: bytes) -> list[Target]:
        """What to assemble a module for, each once."""
        source = _target_of(text)
        return list(dict.fromkeys(target.for_source(source) for target in self._targets))

    def stop(self) -> None:
        """Ends what runs, and assembles nothing more."""
        for backend in self._backends.values():
            backend.stop()

    def _find_or_make(self, text: bytes, name: str, target: Target) -> Made:
        backend = self._backends[target.family]
        try:
            key = key_of([FORMAT, target.family.encode(), *backend.key(text, target), text])
        except GptError as error:
            raise type(error)(error.fact, error.where or name) from None
        kept = self._cache.get(key)
        if kept is not None and (made := Made.unpack(kept, name)):
            return made
        made = backend.make(text, name, target)
        self._cache.put(key, made.pack(name))
        return made


def _target_of(text: bytes) -> Target | None:
    head = find_head(text)
    return find_target(head.target) if head and head.target else None
