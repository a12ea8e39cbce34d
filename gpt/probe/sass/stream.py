"""Explain the cubins of a stream: insert an answer after each element that contains its bytes. All records are passed
on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpt.base.errors import GptError, MalformedError
from gpt.formats.closed import REASON as CLOSED
from gpt.formats.cubin_edit import CubinEditor
from gpt.probe.plan.closed import ClosedCode
from gpt.probe.sass.explain import Wanted, explain_cubin, leave_alone, make_answer
from gpt.stream import records
from gpt.stream.reasons import Reason
from gpt.stream.stage import Stage

NAMED = 3  # kernels that a message lists
NO_BYTES = "no bytes in the list of GPU code: gpt-extract --payload adds them"

Records = Iterator[dict[str, Any]]


class Explaining:
    """Explains one stream. `keep` and `drop` select kernels by parts of their names."""

    def __init__(self, stage: Stage, wanted: Wanted, keep: list[str], drop: list[str]) -> None:
        self._stage, self._wanted = stage, wanted
        self._keep, self._drop = keep, drop
        self._idle = dict.fromkeys(keep)  # parts of -k that no name has matched so far
        self._closed = ClosedCode()
        self._elements = self._with_bytes = self._explained = 0  # cubins in the segment, and kernels
        self._names: list[str] = []  # some of the excluded kernels
        self._warned = False

    def handle(self, record: dict[str, Any]) -> Records:
        """Yield a record; after an element, also its answer."""
        if record["kind"] == "end":
            yield from self._report()
        yield record
        self._closed.note(record)
        if record["kind"] == "element" and record.get("type") == "cubin":
            yield from self._element(record)

    def _element(self, record: dict[str, Any]) -> Records:
        name = f"{record.get('library')}#{record.get('index')}"
        self._elements += 1
        if "data" not in record:
            return
        self._with_bytes += 1
        try:
            if fault := records.check(record):
                raise MalformedError(fault)
            if answer := self._explain(record, name):
                yield answer
        except GptError as error:
            yield self._stage.error(MalformedError(error.fact, name), ref=name)

    def _explain(self, record: dict[str, Any], name: str) -> dict[str, Any] | None:
        cubin = CubinEditor(record["data"])
        names = [raw.decode("utf-8", "surrogateescape") for raw in cubin.kernels]
        self._idle = {part: None for part in self._idle if not any(part in name for name in names)}
        wanted = [name for name in names if self._wants(name)]
        self._names += [name for name in names if not self._wants(name)][: NAMED - len(self._names)]
        if not wanted:
            return None
        self._explained += len(wanted)
        listed = [symbol["name"] for symbol in record["kernels"]]
        if self._closed.covers(record["library"], [*names, *listed]):
            rows = [leave_alone(kernel, Reason(CLOSED)) for kernel in wanted]
        else:
            rows = list(explain_cubin(cubin, record["arch"], wanted, self._wanted))
        return make_answer(name, rows)

    def _wants(self, name: str) -> bool:
        kept = not self._keep or any(part in name for part in self._keep)
        return kept and not any(part in name for part in self._drop)

    def _report(self) -> Records:
        """Yield the warnings for a segment: that there was nothing to explain, or that options matched nothing."""
        if not self._elements:
            return
        if not self._with_bytes:
            yield self._stage.error(GptError(NO_BYTES))
        elif self._names and not self._explained:
            there = ", ".join(self._names)
            yield self._stage.error(GptError(f"--kernel and --filter leave no kernel: there are {there}"))
        elif self._idle and not self._warned:
            yield self._stage.warn("-k", f"matches no kernel: '{':'.join(self._idle)}'")
            self._warned = True
        for file in self._wanted.files:
            places = [position for probe in file.probes for position in probe.positions]
            for position in places:
                if position.kind not in ("kernel", "opcode"):
                    yield self._stage.warn(file.path, f"'{position}' isn't a position in machine code")
        self._elements = self._with_bytes = self._explained = 0
        self._names.clear()
