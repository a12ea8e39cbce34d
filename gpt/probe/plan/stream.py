"""Weave probes into the modules of a stream. For each kernel with probes, a module is written, and one more for all
other kernels.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar

from gpt.base.errors import GptError, MalformedError
from gpt.base.keep import keep, keeping
from gpt.probe.model import ProbeFile
from gpt.probe.plan.left_alone import LeftAlone
from gpt.probe.plan.maps import make_map
from gpt.probe.plan.woven import Woven
from gpt.stream import records
from gpt.stream.reasons import Reason
from gpt.stream.stage import Stage

NAMED = 3  # kernels that a message lists

M = TypeVar("M")
Records = Iterator[dict[str, Any]]


def _with(record: dict[str, Any], **values: Any) -> dict[str, Any]:
    """Return a record with some values replaced. Keys that we know come first, in canonical order, then unknown
    ones.
    """
    declared = records.KINDS[record["kind"]]
    made = records.make(record["kind"], **{key: record[key] for key in declared if key in record} | values)
    return made | {key: value for key, value in record.items() if key not in declared}


class Weaving(ABC, Generic[M]):
    """Processes one stream: it replaces the record of each module by one record for each of its kernels.

    `kind` is the type of these records, which have the keys id, module, kernels, data and original. M is what a back
    end reads from their data.
    """

    kind: str

    def __init__(
        self,
        stage: Stage,
        files: list[ProbeFile],
        keep: list[str],
        drop: list[str],
        verified: bool,
    ) -> None:
        self._stage = stage
        self.files = files
        self._keep, self._drop = keep, drop
        self._idle = dict.fromkeys(keep)  # parts of -k that no name has matched so far
        self._verified = verified
        self._modules = self._maps = 0  # the ids that were assigned last
        self._seen = self._kernels = 0  # modules and kernels in this segment
        self._names: list[str] = []  # some of the excluded kernels
        self._wanted = self._woven = False  # True once a kernel was requested, and once one was woven
        self._refused = False  # True once a kernel was left alone that may contain something that matches
        self._matched: Counter[tuple[str, str]] = Counter()
        self._told: set[str] = set()
        self._faults: set[Reason] = set()  # the reasons for which kernels were left alone with an error

    @abstractmethod
    def read(self, data: bytes, name: str) -> M:
        """Read a module. Raises GptError."""

    @abstractmethod
    def kernels(self, module: M) -> list[str]:
        """Return the names of all kernels in a module."""

    @abstractmethod
    def weave(self, module: M, kernel: str) -> Woven:
        """Weave the probes into a kernel. Raises LeftAlone, or another GptError if the program is at fault."""

    @abstractmethod
    def prune(self, module: M, kernels: list[str]) -> bytes:
        """Return the module with some of its kernels, without probes."""

    def name(self, record: dict[str, Any]) -> str:
        """Return a module's name for messages."""
        return str(record.get("module", ""))

    def open(self, record: dict[str, Any], name: str) -> M:
        """Read the module of a record. Raises GptError."""
        return self.read(record["data"], name)

    def texts(self, whole: bytes, woven: Woven) -> dict[str, bytes]:
        """Return the files to keep for a kernel if GPT_KEEP is set. `whole` is its module."""
        return {
            f"original.{self.kind}": whole,
            f"pruned.{self.kind}": woven.original,
            f"probed.{self.kind}": woven.data,
        }

    def handle(self, record: dict[str, Any]) -> Records:
        """Yield the record, or if it's a module, the records that replace it."""
        if record["kind"] == "end":
            yield from self._report()
        if record["kind"] == self.kind:
            yield from self._module(record)
        else:
            yield record

    def _module(self, record: dict[str, Any]) -> Records:
        name = self.name(record)
        fault = records.check(record)
        try:
            if fault:
                raise MalformedError(fault, name)
            module = self.open(record, name)
        except GptError as error:
            yield record if fault or self.kind == "element" else self._numbered(record)
            yield self._stage.error(error, ref=name)
            return
        self._seen += 1
        left: dict[str, Reason] = {}
        every = self.kernels(module)
        names = [name for name in every if name in record["only"]] if "only" in record else every
        self._idle = {part: None for part in self._idle if not any(part in name for name in names)}
        self._names += [name for name in names if not self._wants(name)][: NAMED - len(self._names)]
        for kernel in filter(self._wants, names):
            self._kernels += 1
            self._wanted = True
            yield from self._kernel(record, module, kernel, left)
        if left or not (every or self._keep):
            yield from self._pass(record, module, left, len(left) == len(every))

    def _wants(self, name: str) -> bool:
        kept = not self._keep or any(part in name for part in self._keep)
        return kept and not any(part in name for part in self._drop)

    def _kernel(self, record: dict[str, Any], module: M, kernel: str, left: dict[str, Reason]) -> Records:
        """Weave probes into a kernel. If the kernel is left alone, add the reason to `left`."""
        try:
            woven = self.weave(module, kernel)
        except LeftAlone as error:
            left[kernel] = error.reason
            self._refused |= error.reason != Reason("no_place")
            return
        except GptError as error:
            left[kernel] = Reason("stage_error", error.fact)
            self._refused = True
            self._faults.add(left[kernel])
            yield self._stage.error(error, ref=kernel)
            return
        for fact in woven.misfits:
            yield from self._tell(f"{fact}; left alone there", kernel)
        yield from self._records(record, woven)

    def _records(self, record: dict[str, Any], woven: Woven) -> Records:
        self._woven = True
        if keeping():
            yield from self._keep_texts(record["data"], woven)
        for site in woven.sites:
            self._matched[site.probe, site.position] += site.matched
        first, self._maps = self._maps, self._maps + len(woven.maps)
        fits = len(woven.data) + len(woven.original) <= records.MAX_RECORD - (1 << 20)
        original = woven.original if fits else b""
        module = self._numbered(record, kernels=[woven.kernel], data=woven.data, original=original or None)
        yield module
        for id_, placed in enumerate(woven.maps, first):
            yield make_map(id_, placed)
        yield woven.make_kernel(module["id"], first, self._verified)

    def _keep_texts(self, whole: bytes, woven: Woven) -> Records:
        try:
            keep(woven.kernel, woven.data, self.texts(whole, woven))
        except OSError as error:
            yield from self._tell(f"GPT_KEEP: {error.strerror or error}", str(error.filename))

    def _pass(self, record: dict[str, Any], module: M, left: dict[str, Reason], everything: bool) -> Records:
        """Yield the kernels without probes as they are."""
        names = list(left)
        data = record["data"] if everything else self.prune(module, names)
        rest = self._numbered(record, kernels=names, data=data)
        yield rest
        for name, reason in left.items():
            yield records.make("kernel", id=rest["id"], name=name, **reason.keys())
        for reason in dict.fromkeys(reason for reason in left.values() if reason not in self._faults):
            kernels = [name for name, why in left.items() if why == reason]
            more = f" and {len(kernels) - NAMED} more" if len(kernels) > NAMED else ""
            yield from self._tell(f"left alone, {reason}", ", ".join(kernels[:NAMED]) + more)

    def _numbered(self, record: dict[str, Any], **values: Any) -> dict[str, Any]:
        """Return a module with the next id, because one module may be replaced by several."""
        number, self._modules = self._modules, self._modules + 1
        return _with(record, id=number, **values)

    def _tell(self, fact: str, where: str) -> Records:
        """Yield a warning, unless it has been yielded before."""
        if f"{where}: {fact}" not in self._told:
            self._told.add(f"{where}: {fact}")
            yield self._stage.warn(where, fact)

    def _report(self) -> Records:
        """Yield warnings about probes and options that matched nothing in this segment."""
        if not self._seen:
            return
        if not self._kernels:
            if self._names and not self._wanted:
                there = ", ".join(self._names)
                yield self._stage.error(GptError(f"--kernel and --filter leave no kernel: there are {there}"))
            elif not self._names:
                yield from self._tell("no kernel", "")
            return
        if self._idle:
            yield from self._tell(f"matches no kernel: '{':'.join(self._idle)}'", "-k")
        for file in self.files:
            places = [(f"{Path(file.path).stem}.{p.name}", str(at)) for p in file.probes for at in p.positions]
            places = [place for place in places if place[1] != "kernel"]
            if places and not self._refused and not any(self._matched[place] for place in places):
                where = ":".join(dict.fromkeys(position for _, position in places))
                fact = f"matches nothing: '{where}'"
                if self._woven:
                    yield from self._tell(fact, file.path)
                else:
                    yield self._stage.error(GptError(fact, file.path))
        self._matched.clear()
        self._seen = self._kernels = 0
        self._refused = False
