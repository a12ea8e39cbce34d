"""Weave probes into the cubins of a stream. Each element that contains a cubin is replaced by one `cubin` per kernel.

Each of these contains only its kernel, unless the kernel can't be cut out.

gpt-hook lists the kernels that it wants in `only`, and gets a `refused` for each kernel that was left alone. Without
`only`, the kernels without probes follow in one more `cubin`, as they do for PTX modules. Elements of other types, or
without bytes, are passed on.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

from gpt.base.errors import GptError
from gpt.formats.callgraph import KeptWhole
from gpt.formats.closed import REASON as CLOSED
from gpt.formats.cubin_drop import Dropper
from gpt.formats.cubin_edit import CubinEditor
from gpt.probe.plan.closed import ClosedCode
from gpt.probe.plan.left_alone import LeftAlone
from gpt.probe.plan.stream import Weaving
from gpt.probe.plan.woven import Woven
from gpt.probe.sass.snippets import Compiler
from gpt.probe.sass.weave import weave
from gpt.sass.arch import arch_of
from gpt.sass.tables import table_of
from gpt.stream import records
from gpt.stream.reasons import Reason

Records = Iterator[dict[str, Any]]
FIRST = 1 << 31  # ids of modules and maps; gpt-ptx-probe, which may be in the same pipeline, begins with 0
WHOLE = {CLOSED, "not_proven", "no_table"}  # reasons that apply to all kernels of an image


class _Cubin:
    """An element with its bytes, and the reason if all of its kernels are left alone. Its tables are read once for all
    kernels.
    """

    def __init__(self, data: bytes, arch: str, reason: Reason | None) -> None:
        self.data, self.arch, self.reason = data, arch, reason
        self._editor = CubinEditor(data)
        self.names = [raw.decode("utf-8", "surrogateescape") for raw in self._editor.kernels]

    def cut_to(self, kernel: str) -> bytes | CubinEditor:
        """Return a cubin that contains only this kernel. If it isn't safe to cut the cubin, return all of it, to be
        loaded for this kernel only.
        """
        try:
            if len(self.names) > 1 and (dropper := self._dropper):
                return dropper.drop(set(self.names) - {kernel})
        except KeptWhole:
            pass
        return self._editor

    @cached_property
    def _dropper(self) -> Dropper | None:
        """What cuts the cubin; None if it isn't understood."""
        try:
            return Dropper(self.data)
        except KeptWhole:
            return None


class SassWeaving(Weaving[_Cubin]):
    """Weaves probes into the kernels of `element` records. `count` is an option of `weave`. With `original`, each woven
    cubin is accompanied by its code without probes.
    """

    kind = "element"

    def __init__(self, *args: Any, count: bool, original: bool) -> None:
        super().__init__(*args)
        self.count, self._original = count, original
        self._modules = self._maps = FIRST
        self._closed = ClosedCode()
        self._asked: int | None = None  # the module record that requests kernels
        self._limit: int | None = None  # the limit for registers that it sets
        self._compilers: dict[str, Compiler] = {}

    def handle(self, record: dict[str, Any]) -> Records:
        """Yield a record, or if it's an element with a cubin, the records that replace it."""
        if record["kind"] == "module":
            self._asked, self._limit = record.get("id"), record.get("registers")
        self._closed.note(record)
        if record["kind"] == self.kind and (record.get("type") != "cubin" or "data" not in record):
            yield record
            return
        yield from super().handle(record)

    def name(self, record: dict[str, Any]) -> str:
        """Return the name of an element, LIBRARY#INDEX."""
        return f"{record.get('library')}#{record.get('index')}"

    def open(self, record: dict[str, Any], name: str) -> _Cubin:
        """Read an element."""
        arch, listed = record["arch"], [symbol["name"] for symbol in record["kernels"]]
        try:
            reason = None if arch_of(arch).proven else Reason("not_proven", arch)
        except GptError:
            reason = Reason("no_table", arch)
        cubin = _Cubin(record["data"], arch, reason)
        if self._closed.covers(record["library"], [*cubin.names, *listed]):
            cubin.reason = Reason(CLOSED)
        return cubin

    def read(self, data: bytes, name: str) -> _Cubin:
        """Read a cubin about which nothing else is known."""
        return _Cubin(data, "", Reason("no_table"))

    def kernels(self, module: _Cubin) -> list[str]:
        """Return the names of its kernels."""
        return module.names

    def weave(self, module: _Cubin, kernel: str) -> Woven:
        """Weave the probes into a kernel."""
        if module.reason:
            raise LeftAlone(*module.reason, kernel)
        compiler = self._compilers.get(module.arch)
        if compiler is None:
            compiler = self._compilers[module.arch] = Compiler(module.arch, table_of(module.arch))
        woven = weave(module.cut_to(kernel), kernel, module.arch, self.files, compiler, count=self.count)
        if self._limit and woven.needs["registers"] > self._limit:
            detail = f"it takes {woven.needs['registers']}, and {self._limit} are allowed"
            raise LeftAlone("no_registers", detail, kernel)
        return woven

    def prune(self, module: _Cubin, kernels: list[str]) -> bytes:
        """Return the cubin as it is: kernels without probes stay where they are."""
        return module.data

    def _records(self, record: dict[str, Any], woven: Woven) -> Records:
        yield from super()._records(record, woven)
        if woven.needs:
            yield records.make("kernel", id=self._modules - 1, name=woven.kernel, arch=record["arch"], **woven.needs)

    def _pass(self, record: dict[str, Any], module: _Cubin, left: dict[str, Reason], everything: bool) -> Records:
        if "only" not in record:
            yield from super()._pass(record, module, left, everything)
            return
        for kernel, reason in left.items():
            name = None if reason.code in WHOLE else kernel
            yield records.make("refused", module=self._asked or 0, name=name, **reason.keys())

    def _numbered(self, record: dict[str, Any], **values: Any) -> dict[str, Any]:
        number, self._modules = self._modules, self._modules + 1
        names = [symbol["name"] for symbol in record["kernels"]]
        keys = {"kernels": names, "data": record["data"]} | values
        if not self._original:
            keys.pop("original", None)
        return records.make("cubin", id=number, module=self.name(record), arch=record["arch"], **keys)
