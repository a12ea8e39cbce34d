"""Compile PTX modules: look them up in the cache first, and if they aren't there, call the back end of the target."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from gpt.asm.backend import AssembledModule, Options, Target
from gpt.asm.backends import BACKENDS
from gpt.base.cache import Cache, key_of
from gpt.base.errors import GptError

FORMAT = b"4"  # version of the cached data; increment it to invalidate all entries


@dataclass(frozen=True, kw_only=True)
class TargetCode(AssembledModule):
    """The code of a module for one target. `kind` is the kind of record that holds the image."""

    target: Target
    kind: str


class Assembler:
    """Assembles modules for several targets. Several threads can use it at once."""

    def __init__(self, targets: Iterable[Target], options: Options, cache: Cache) -> None:
        """Set up the back ends. Raises MissingError if one of them lacks its tool."""
        self._targets = list(targets)
        self._options = options
        self._cache = cache
        self._backends = {family: BACKENDS[family](options) for family in {one.family for one in self._targets}}

    @property
    def is_host(self) -> bool:
        """True if all targets are this machine's processor."""
        return all(target.family == "host" for target in self._targets)

    @cached_property
    def checker(self) -> Assembler:
        """Return an assembler that only checks modules. If there are targets other than host, it's this one."""
        return Assembler(self._targets, replace(self._options, check=True), self._cache) if self.is_host else self

    def assemble(self, text: bytes, name: str, target: Target) -> TargetCode:
        """Assemble a module, called `name` in messages.

        Raises MalformedError (Faults) if the back end rejects the module, MissingError if no tool supports its PTX
        version or target, and GptError if the module is for another GPU or the tool fails.
        """
        done = self._find_or_make(text, name, target)
        kind = BACKENDS[target.family].kind
        return TargetCode(done.image, done.kernels, done.warnings, done.report, target=target, kind=kind)

    def targets(self, text: bytes) -> list[Target]:
        """Return the targets to assemble a module for, without duplicates."""
        return list(dict.fromkeys(self._backends[one.family].target_for(text, one) for one in self._targets))

    def stop(self) -> None:
        """End running jobs and start no more."""
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
