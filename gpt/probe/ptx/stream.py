"""Weave probes into the PTX of a stream."""

from __future__ import annotations

from difflib import unified_diff
from typing import Any

from gpt.formats.closed import REASON as CLOSED
from gpt.probe.plan.closed import ClosedCode
from gpt.probe.plan.left_alone import LeftAlone
from gpt.probe.plan.stream import Records, Weaving
from gpt.probe.plan.woven import Woven
from gpt.probe.ptx.weave import weave
from gpt.ptx.head import read_head
from gpt.ptx.prune import prune, pruned
from gpt.ptx.scan import Module, scan_module


class PtxWeaving(Weaving[Module]):
    """Weaves probes into the kernels of `ptx` records. `count` and `relocatable` are options of `weave`."""

    kind = "ptx"

    def __init__(self, *args: Any, count: bool, relocatable: bool) -> None:
        super().__init__(*args)
        self.count, self.relocatable = count, relocatable
        self._closed = ClosedCode()
        self._is_closed = False  # the module that's being woven

    def handle(self, record: dict[str, Any]) -> Records:
        """Yield a record, or the records that replace it if it's a module."""
        self._closed.note(record)
        yield from super().handle(record)

    def open(self, record: dict[str, Any], name: str) -> Module:
        """Read a record's module."""
        library = name.rpartition("#")[0] or name
        # Without a library record, gpt-extract answers a request, and has looked at the names.
        names = record["kernels"] if self._closed.knows(library) else ()
        self._is_closed = self._closed.covers(library, names)
        return super().open(record, name)

    def read(self, data: bytes, name: str) -> Module:
        """Scan a module."""
        module = scan_module(data, name)
        read_head(module)
        return module

    def kernels(self, module: Module) -> list[str]:
        """Return the names of a module's kernels."""
        return [item.name for item in module.entries]

    def weave(self, module: Module, kernel: str) -> Woven:
        """Remove everything else from the module, and weave the probes into this kernel."""
        if self._is_closed:
            raise LeftAlone(CLOSED, "", kernel)
        return weave(pruned(module, [kernel]), kernel, self.files, count=self.count, relocatable=self.relocatable)

    def prune(self, module: Module, kernels: list[str]) -> bytes:
        """Return a module that has only what these kernels need."""
        return prune(module, kernels)

    def texts(self, whole: bytes, woven: Woven) -> dict[str, bytes]:
        """Return the text before and after weaving, and the differences."""
        before, after = (text.decode("latin-1").splitlines(keepends=True) for text in (woven.original, woven.data))
        diff = "".join(unified_diff(before, after, "pruned.ptx", "probed.ptx"))
        return super().texts(whole, woven) | {"probes.diff": diff.encode("latin-1")}
