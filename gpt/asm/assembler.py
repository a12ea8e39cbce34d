"""PTX modules to code: looks into the cache, and has the target's back end make what is not in it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpt.asm.backend import AssembledModule, Options, Target
from gpt.asm.backends import BACKENDS
from gpt.base.cache import Cache, key_of
from gpt.base.errors import GptError

FORMAT = b"4"  # of what is kept: a change makes all of it unknown


@dataclass(frozen=True, kw_only=True)
class TargetCode(AssembledModule):
    """What was made of a module for one target; `kind` is the record that holds the image."""

    target: Target
    kind: str


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
        done = self._find_or_make(text, name, target)
        kind = BACKENDS[target.family].kind
        return TargetCode(done.image, done.kernels, done.warnings, done.report, target=target, kind=kind)

    def targets(self, text: bytes) -> list[Target]:
        """What to assemble a module for, each once."""
        return list(dict.fromkeys(self._backends[one.family].target_for(text, one) for one in self._targets))

    def stop(self) -> None:
        """Ends what runs, and assembles nothing more."""
        for backend in self._backends.values():
            backend.stop()

    def _find_or_make(self, text: bytes, name: str, target: Target) -> AssembledModule:
        backend = self._backends[target.family]
        try:
            key = key_of([FORMAT, target.family.encode(), *backend.key(text, target), text])
        except GptError as error:
            raise type(error)(error.fact, error.where or name) from None
        kept = self._cache.get(key)
        if kept is not None and (made := AssembledModule.unpack(kept, name)):
            return made
        made = backend.make(text, name, target)
        self._cache.put(key, made.pack(name))
        return made
