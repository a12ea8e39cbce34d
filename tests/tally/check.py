"""The tally's checks of a module and of a kernel, and its records of the results.

A module is scanned; each item is parsed and printed, and must keep its tokens. A kernel is pruned to the code that it
needs, parsed and printed: ptxas must compile it to the same cubin, byte for byte. With debug information, which
contains line numbers of the text, the instructions must be the same. Then the built-in probes are woven in: `alone`,
one at a time, or `joint`, all at once, plus each of BOUNDED alone. It must be possible to unweave woven kernels, and
ptxas must assemble them.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from gpt.asm.assembler import Assembler, TargetCode
from gpt.asm.backend import Options
from gpt.asm.targets import GpuTarget, find_target
from gpt.base.cache import Cache
from gpt.base.errors import GptError, MalformedError
from gpt.formats.ptxtext import find_head
from gpt.probe import verify
from gpt.probe.ptx.weave import LeftAlone, Woven, unweave, weave
from gpt.probe.read import load
from gpt.ptx import parse
from gpt.ptx.prune import prune
from gpt.ptx.scan import Module, scan_module
from tests import cuda
from tests.ptx.tokens import tokens

TIMEOUT = 600  # seconds for ptxas, the default of gpt-asm
WHOLE = 1 << 18  # modules up to this size are assembled as a whole, twice
OLDEST = GpuTarget(7, 5, "")  # the oldest architecture that ptxas knows
BOUNDED = ("block_sched", "gmem_bytes", "tensorop_count")  # probes that should add few registers
NOWHERE = "no probe applies to it"
Result = dict[str, Any]


@cache
def probes() -> dict[str, Any]:
    """Return the built-in probes, verified."""
    found = {path.stem: load.load_probes(path) for path in sorted(load.BUILTIN.glob("*.toml"))}
    for file in found.values():
        verify.verify(file)
    return found


@cache
def assembler(relocatable: bool) -> Assembler:
    """Return the ptxas of the extra `cuda`. CUDA_HOME may name a newer one for newer PTX."""
    os.environ["GPT_PTXAS"] = str(cuda.tool("ptxas"))
    return Assembler([GpuTarget(9, 0, "")], Options(relocatable=relocatable, timeout=TIMEOUT), Cache(None))


def device_of(text: bytes) -> GpuTarget:
    """Return the target to assemble a module for: its own target, or the oldest that ptxas supports."""
    head = find_head(text)
    own = find_target((head and head.target) or "") or OLDEST
    return max(own, OLDEST)


def assemble(text: bytes, name: str, relocatable: bool = False) -> TargetCode:
    """Assemble a module for its own target. Raises GptError."""
    return assembler(relocatable).assemble(text, name, device_of(text))


def code_of(cubin: bytes) -> str:
    """Return nvdisasm's listing, without the line numbers that ptxas appends to names."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "cubin")
        path.write_bytes(cubin)
        return re.sub(r"__\d+\b", "", cuda.run("nvdisasm", "-c", path))


def check_module(data: bytes, name: str) -> Result:
    """Check a module: whether it's `parsed`, and whether ptxas compiles the printed text to the `same` code; each is
    "ok" or a fault.
    """
    start = time.process_time()
    found: Result = {"parsed": "ok", "same": None}
    try:
        module = scan_module(data, name)
    except MalformedError as error:
        return found | {"parsed": str(error)}
    for item in module.items:
        source = module.source(item)
        try:
            printed = str(parse.parse_item(module, item))
        except MalformedError as error:
            found["parsed"] = f"{error.where}: {error.fact}"
            break
        if tokens(printed) != tokens(source):
            found["parsed"] = f"{module.where(item.start)}: prints other tokens"
            break
    if found["parsed"] == "ok" and (len(data) <= WHOLE or not module.entries):
        found["same"] = check_same(data, name, not module.entries)[0]
    found["cpu"] = round(time.process_time() - start, 3)
    return found


def check_same(data: bytes, name: str, relocatable: bool) -> tuple[str, bool, TargetCode | None]:
    """Return whether ptxas compiles a text and its printed tree to the same code; whether that's relocatable; and the
    code.

    Only "ok", or a text that begins with "differs" or "not parsed", is a statement about our code.
    """
    try:
        before = assemble(data, name, relocatable)
    except GptError as error:
        if "Unresolved extern" in error.fact and not relocatable:
            return check_same(data, name, True)
        return f"ptxas: {error.fact}", relocatable, None
    try:
        printed = str(parse.parse_module(data, name)).encode("latin-1")
    except MalformedError as error:
        return f"not parsed: {error.where}: {error.fact}", relocatable, before
    try:
        after = assemble(printed, name, relocatable)
    except GptError as error:
        return f"differs: {error.fact}", relocatable, before
    same = after.image == before.image or code_of(after.image) == code_of(before.image)
    return "ok" if same else "differs", relocatable, before


def check_kernel(module: Module, kernel: str, alone: bool) -> Result:
    """Check a kernel: whether it's the `same` after parsing and printing, and the result for each probe."""
    start = time.monotonic()
    try:
        data = prune(module, [kernel])
    except GptError as error:
        return {"same": f"not pruned: {error}", "probes": {}}
    same, relocatable, before = check_same(data, module.name, False)
    found: Result = {"size": len(data), "target": str(device_of(data)), "same": same, "probes": {}}
    if before:
        needs = before.kernels[kernel]
        found |= {key: needs[key] for key in ("registers", "spills") if key in needs}
        work = Kernel(data, kernel, module.name, relocatable, before)
        found["probes"] = work.each(probes()) if alone else work.joint()
    found["seconds"] = round(time.monotonic() - start, 3)
    return found


class Kernel:
    """A kernel that probes go into."""

    def __init__(self, data: bytes, kernel: str, name: str, relocatable: bool, before: TargetCode) -> None:
        self.data, self.kernel, self.name = data, kernel, name
        self.relocatable, self.before = relocatable, before

    def each(self, names: Iterable[str]) -> dict[str, Result]:
        """Return the result for each of these probes alone."""
        return {name: self.weave([name]) for name in names}

    def joint(self) -> dict[str, Result]:
        """Return the result for all probes together or, if that fails or one excludes the others, for each alone."""
        everything = list(probes())
        together = self.weave(everything)
        if together["status"] != "woven":
            return self.each(everything)
        places = together["woven"]
        found = {name: {"status": "woven" if name in places else "nowhere"} for name in everything}
        return found | self.each(name for name in BOUNDED if name in places)

    def weave(self, names: list[str]) -> Result:
        """Weave probes into a kernel, and return a `status`: woven, nowhere (nothing to probe), left (skipped, with the
        reason in `why`), or failed (also with `why`).
        """
        try:
            woven = weave(
                self.data, self.kernel, [probes()[name] for name in names], self.name, relocatable=self.relocatable
            )
        except LeftAlone as error:
            if error.fact == NOWHERE:
                return {"status": "nowhere"}
            return {"status": "left", "why": error.fact}
        except GptError as error:
            return {"status": "failed", "why": str(error)}
        except Exception as error:  # a bug: record it and go on
            return {"status": "failed", "why": f"{type(error).__name__}: {error}"}
        if unweave(woven.data) != self.data:
            return {"status": "failed", "why": "unweaving gives another text"}
        try:
            after = assemble(woven.data, self.name, self.relocatable)
        except GptError as error:
            return {"status": "slow" if "and was killed" in error.fact else "failed", "why": f"ptxas: {error.fact}"}
        return {"status": "woven", **self.added(woven, after)}

    def added(self, woven: Woven, after: TargetCode) -> Result:
        """Return the registers and spilled bytes that probes add, from the records of `gpt-asm --compare`."""
        old, new = self.before.kernels[self.kernel], after.kernels[self.kernel]
        found: Result = {key: new[key] - old[key] for key in ("registers", "spills") if key in new and key in old}
        found["woven"] = sorted({site.probe.partition(".")[0] for site in woven.sites if site.woven})
        if woven.misfits:
            found["misfits"] = woven.misfits
        return found
