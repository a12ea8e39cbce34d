"""Base class of analyses whose results, each for some traces, can be merged.

The result of a subclass is small enough to be sent by a worker of a cluster (cluster.py). It contains nothing that
depends on other processes: the names and start times of processes depend on all headers, so they're only computed for
the answer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from gpt.analyze.lib import base
from gpt.analyze.lib.answer import Answers

if TYPE_CHECKING:
    from gpt.trace.model import TraceModel
    from gpt.trace.process import Process

Part = TypeVar("Part")


class Parts(ABC, Generic[Part]):
    """The traces that this fold has read, and the results of other folds."""

    streams = True
    drains: ClassVar[bool] = False
    kinds: frozenset[str]

    def __init__(self) -> None:
        from gpt.trace.model import TraceModel

        self._found: list[Part] = []
        self._here: Part | None = None  # the result for the traces read so far, or None after reading more
        self._model: TraceModel | None = TraceModel(drains=self.drains)

    def take(self, process: Process) -> None:
        """Keep the rows that a process has collected."""
        assert self._model
        self._here = None
        self._model.take(process)

    def end(self, process: Process) -> None:
        """Note that a process has ended."""
        assert self._model
        self._here = None
        self._model.end(process)

    @abstractmethod
    def find(self, trace: TraceModel) -> Part:
        """Return the result for these traces."""

    @abstractmethod
    def find_need(self, parts: list[Part]) -> str | None:
        """Return the option that would have recorded the missing data, or None if there's an answer."""

    @abstractmethod
    def answer_parts(self, parts: list[Part]) -> Answers:
        """Yield the answers. `parts` are the results for all traces."""

    def parts(self) -> list[Part]:
        """Return the results of the folds that were merged, then our own."""
        if self._here is None and self._model and self._model.processes:
            self._here = self.find(self._model)
        return self._found if self._here is None else [*self._found, self._here]

    def merge(self, other: Parts[Part]) -> None:
        """Merge a fold of later traces."""
        self._found = [*self.parts(), *other.parts()]
        self._here = self._model = None

    def __getstate__(self) -> dict[str, Any]:
        """Send only the results: rows are spilled to a file that other machines can't read."""
        return {"_found": self.parts(), "_here": None, "_model": None}

    def find_lack(self, kinds: set[str]) -> str | None:
        """Return the option that would have recorded the missing input, or None if there's an answer."""
        return base.find_lack(kinds, self.kinds) or self.find_need(self.parts())

    def answer(self, incomplete: list[str]) -> Answers:
        """Yield the answers."""
        yield from self.answer_parts(self.parts())
