"""PTX modules to cubins: finds the right ptxas, looks into the cache, runs it, says what the kernels need."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

import msgpack

from gpt.asm.cache import Cache, key_of
from gpt.asm.find import Tool, Tools
from gpt.asm.ptxas import Assembled, Options, Report, Runner
from gpt.asm.targets import Target, find_target, find_version
from gpt.errors import GptError
from gpt.formats.nvinfo import read_needs
from gpt.formats.ptxtext import find_target as find_directive

FORMAT = b"3"  # of what is kept: a change makes all of it unknown


@dataclass(frozen=True)
class Code:
    """A module as it is for one target.

    `kernels` gives for each kernel what it needs, under the names that the record `kernel` has for it; what nobody
    said is not in it. `warnings` are (location, text).
    """

    target: Target
    cubin: bytes
    kernels: dict[str, dict[str, int]]
    warnings: list[tuple[str, str]]


class Assembler:
    """Assembles modules, from several threads at once."""

    def __init__(self, ptxas: str | None, cache: Cache, options: Options, timeout: float) -> None:
        """Raises MissingError where there is no ptxas."""
        self._tools = Tools(ptxas)
        self._tools.check()
        self._cache = cache
        self._options = options
        self._runner = Runner(timeout)

    def assemble(self, text: bytes, name: str, target: Target) -> Code:
        """Assembles a module, which messages call `name`.

        Raises MalformedError (Faults) where ptxas refuses it, MissingError where none knows its version, and
        GptError where it is for another GPU, or ptxas fails.
        """
        source = _target_of(text)
        if source and not target.runs(source):
            raise GptError(f"is for {source} and cannot be assembled for {target}", name)
        try:
            tool = self._tools.choose(find_version(text), target)
        except GptError as error:
            raise type(error)(error.fact, error.where or name) from None
        done = self._find_or_make(tool, text, name, target)
        return Code(target, done.cubin, _resources(done), done.warnings)

    @staticmethod
    def targets(text: bytes, wanted: Iterable[Target]) -> list[Target]:
        """What to assemble a module for where these are wanted, each once."""
        source = _target_of(text)
        return list(dict.fromkeys(target.for_source(source) for target in wanted))

    def stop(self) -> None:
        """Ends what runs, and assembles nothing more."""
        self._runner.stop()

    def _find_or_make(self, tool: Tool, text: bytes, name: str, target: Target) -> Assembled:
        arguments = " ".join([str(target), *self._options.arguments()])
        key = key_of([FORMAT, tool.identity.encode(), arguments.encode(), text])
        kept = self._cache.get(key)
        if kept is not None and (done := _unpack(kept, name)):
            return done
        done = self._runner.assemble(tool, text, name, target, self._options)
        self._cache.put(key, _pack(done, name))
        return done


def _target_of(text: bytes) -> Target | None:
    return find_target(find_directive(text) or "")


def _pack(done: Assembled, name: str) -> bytes:
    """As it is kept. Of warnings the module's name is left out: other modules may have the same text."""
    reports = {function: [r.frame, r.spills, r.registers, r.shared] for function, r in done.reports.items()}
    warnings = [(where.removeprefix(name), where.startswith(name), fact) for where, fact in done.warnings]
    data: bytes = msgpack.packb([done.cubin, reports, warnings], unicode_errors="surrogateescape")
    return data


def _unpack(data: bytes, name: str) -> Assembled | None:
    try:
        cubin, reports, warnings = msgpack.unpackb(data, unicode_errors="surrogateescape")
        told = [(name + where if own else where, fact) for where, own, fact in warnings]
        return Assembled(cubin, {function: Report(*values) for function, values in reports.items()}, told)
    except (ValueError, TypeError, msgpack.UnpackException):
        return None


def _resources(done: Assembled) -> dict[str, dict[str, int]]:
    """What each kernel needs.

    The cubin says how many registers, how much stack with all that is called, and which constant banks; only
    ptxas says what was spilled, and how much shared memory the kernel declares itself.
    """
    found: dict[str, dict[str, int]] = {}
    for name, needs in read_needs(done.cubin).items():
        values = asdict(needs)
        if report := done.reports.get(name):
            values |= {"spills": report.spills, "stack": max(values["stack"], report.frame)}
            values |= {} if report.shared is None else {"shared": report.shared}
        found[name] = values
    return found
