"""Assemble the modules in a stream. The order of records is preserved."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

from gpt.asm.assembler import Assembler, TargetCode
from gpt.asm.backend import Faults
from gpt.asm.backlog import Backlog
from gpt.asm.images import iter_images, save
from gpt.asm.limits import limit_registers
from gpt.base.errors import GptError, MalformedError, MissingError
from gpt.base.keep import keep, keeping
from gpt.ptx.prune import blanked
from gpt.ptx.scan import scan_module
from gpt.stream import records
from gpt.stream.stage import Stage

MAX_WARNINGS = 3  # limit for the warnings reported about a module

Records = Iterator[dict[str, Any]]


class Assembly:
    """A run of gpt-asm: passes the modules of a stream to the assembler, and converts the results to records."""

    def __init__(
        self,
        stage: Stage,
        assembler: Assembler,
        backlog: Backlog[TargetCode, dict[str, Any]],
        compare: bool,
        original: bool,
        fatbin: Any,
        save: Path | None,
        kernels: list[str],
        registers: int | None,
    ) -> None:
        self._stage = stage
        self._assembler = assembler
        self._host = assembler.is_host
        self._backlog = backlog
        self._compare = compare or original
        self._original = original
        self._fatbin = fatbin
        self._save = save
        self._kernels = kernels
        self._registers = registers
        self._saved: set[Path] = set()

    def handle(self, record: dict[str, Any]) -> Records:
        """Submit a record, and yield the records at the head of the queue whose results are complete. A `ptx` record is
        followed by its results.
        """
        size = len(getattr(record, "raw", b""))
        if record["kind"] != "ptx":
            yield from self._backlog.add([], lambda _: [record], size)
            return
        if fault := records.check(record):
            diag = self._stage.error(MalformedError(fault, str(record.get("module", ""))))
            yield from self._backlog.add([], lambda _: [record, diag], size)
            return
        want = record.get("want") if self._host else None
        if want in ("text", "outline"):
            yield from self._backlog.add([], lambda _: self._begin(record), size)
            return
        texts = [record["data"]] + ([record["original"]] if self._compare and "original" in record else [])
        kernels, assembler = record.get("only", self._kernels), self._assembler
        if want == "load" and len(record["kernels"]) != 1:  # only the code of a single kernel is requested immediately
            assembler = assembler.checker
        if self._host and kernels == record["kernels"]:
            kernels = []  # ptxas also checks what no kernel needs
        try:
            texts = [_cut(text, record["module"], kernels) for text in texts]
            if limit := record.get("registers"):
                most = min(limit, self._registers or limit)
                texts[0] = limit_registers(scan_module(texts[0], record["module"]), most)
        except GptError as error:
            diag = self._stage.error(type(error)(error.fact, error.where or record["module"]))
            yield from self._backlog.add([], lambda _: [*self._begin(record), diag], size)
            return
        try:
            targets = assembler.targets(record["data"])
        except MissingError:
            if want != "load":
                raise
            targets = []  # the loader gets the outline now, and requests the code later
        jobs = [partial(assembler.assemble, text, record["module"], target) for text in texts for target in targets]
        yield from self._backlog.add(jobs, partial(self._finish, record, len(targets)), size)

    def _begin(self, record: dict[str, Any]) -> Records:
        """Yield a record and, if it requests one, its outline."""
        yield record
        if self._host and record.get("want") in ("outline", "load"):
            from gpt.asm.host.outline import read_outline

            try:
                yield records.make("outline", id=record["id"], **read_outline(record["data"], record["module"]))
            except GptError as error:
                yield from self._tell(error, record, set())

    def _finish(self, record: dict[str, Any], count: int, futures: list[Future[TargetCode]]) -> Records:
        """Yield the record, and the results of its jobs.

        The first `count` jobs have assembled the module with probes, and any others the same module without.
        """
        yield from self._begin(record)
        told: set[tuple[str, str]] = set()
        done = []
        reports: list[bytes] = []
        reports_before: list[bytes] = []
        for number, future in enumerate(futures[:count]):
            try:
                code = future.result()
            except (GptError, OSError) as error:
                reports.append(str(error).encode(errors="backslashreplace") + b"\n")
                yield from self._tell(error, record, told)
                continue
            reports.append(code.report)
            yield from self._warn(code.warnings, record, told)
            before = None
            if futures[count:]:
                try:
                    before = futures[count + number].result()
                    reports_before.append(before.report)
                except (GptError, OSError) as error:
                    text = f"cannot be assembled without probes: {error}"
                    yield from self._warn([(record["module"], text)], record, told)
            done.append((code, before))
        yield from self._keep_reports(record, {"ptxas.txt": reports, "ptxas-pruned.txt": reports_before})
        try:
            whole = len(done) == count or not self._fatbin
            originals = [before.image if before and self._original else None for _, before in done]
            for image in iter_images(record, [code for code, _ in done], originals, self._fatbin) if whole else ():
                if self._save:
                    path = save(self._save, image)
                    if path in self._saved:
                        yield self._stage.warn(str(path), "is the second of its name and replaced the first")
                    self._saved.add(path)
                yield image
        except (GptError, OSError) as error:
            yield from self._tell(error, record, told)
            return
        for code, before in done:
            for name, needs in code.kernels.items():
                plain = before.kernels.get(name, {}) if before else {}
                without = {f"{key}_before": value for key, value in plain.items()}
                yield records.make("kernel", id=record["id"], name=name, arch=str(code.target), **needs, **without)

    def _keep_reports(self, record: dict[str, Any], reports: dict[str, list[bytes]]) -> Records:
        """Save what ptxas printed about a kernel, with and without probes, in the folder that gpt-ptx-probe has made
        for it.
        """
        files = {name: b"".join(found) for name, found in reports.items() if any(found)}
        if keeping() and "original" in record and files:
            try:
                keep(next(iter(record["kernels"]), ""), record["data"], files)
            except OSError as error:
                yield self._stage.warn(str(error.filename), f"GPT_KEEP: {error.strerror or error}")

    def _tell(self, error: GptError | OSError, record: dict[str, Any], told: set[tuple[str, str]]) -> Records:
        """Yield a `diag` for each fault of a module that isn't in `told` yet, and add the fault to `told`."""
        ref = record["module"]
        if isinstance(error, OSError):
            error = GptError.of(error, error.filename or ref)
        if isinstance(error, Faults):
            faults: list[GptError] = [MalformedError(fact, where) for where, fact in error.found]
        else:
            faults = [type(error)(error.fact, error.where or ref)]
        for fault in faults:
            if (fault.where, fault.fact) not in told:
                told.add((fault.where, fault.fact))
                yield self._stage.error(fault, ref=ref, once=isinstance(error, MissingError))

    def _warn(self, found: list[tuple[str, str]], record: dict[str, Any], told: set[tuple[str, str]]) -> Records:
        for where, fact in found[:MAX_WARNINGS]:
            if (where, fact) not in told:
                told.add((where, fact))
                yield self._stage.warn(where, fact, ref=record["module"])


def _cut(text: bytes, name: str, kernels: list[str]) -> bytes:
    """Replace the parts of a module that these kernels don't need by spaces. Without kernels, return all of the
    text.
    """
    return blanked(scan_module(text, name), kernels) if kernels else text
