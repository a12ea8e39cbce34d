"""gpt-patch: libraries without the spans that are not needed."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpt import cli, records
from gpt.errors import GptError, MalformedError, MissingError, UsageError

if TYPE_CHECKING:
    from gpt.formats.image import Image
    from gpt.patch.plan import Doomed, Plan
    from gpt.patch.trim import Trimmed
    from gpt.patch.wheel import Wheels

TOOL = "gpt-patch"
JOBS = min(4, len(os.sched_getaffinity(0)))  # as gpt-extract

Records = Iterator[dict[str, Any]]


class Kernels(StrEnum):
    """What becomes of unused kernels in a cubin that stays."""

    drop = "drop"
    zero = "zero"


class Mode(StrEnum):
    """How the output lacks what is unused."""

    fill = "fill"
    hole = "hole"
    compact = "compact"


def main() -> int:
    """Entry point of the executable."""
    return cli.run(TOOL, patch)


def patch(
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[STREAM]...", help="Standard input without any; libraries with --restore."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="DIR", help="Write the libraries here.")
    ] = None,
    mode: Annotated[Mode, typer.Option(help="Overwrite, punch holes, or make the file smaller.")] = Mode.compact,
    fill: Annotated[int, typer.Option(min=0, max=255, metavar="BYTE", help="The byte to overwrite with.")] = 1,
    parents: Annotated[bool, typer.Option("--parents", help="Keep the folders of each library below DIR.")] = False,
    kernels: Annotated[Kernels, typer.Option(help="Drop unused kernels, or make zeros of their code.")] = Kernels.drop,
    in_place: Annotated[
        bool, typer.Option("--in-place", help="Replace each library; the original stays as NAME.gpt-orig.")
    ] = False,
    no_backup: Annotated[bool, typer.Option("--no-backup", help="With --in-place: keep no original.")] = False,
    once: Annotated[bool, typer.Option("--once", help="Refuse a library that was replaced before.")] = False,
    restore: Annotated[bool, typer.Option("--restore", help="Bring back what --in-place replaced.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", "-n", help="Write no library.")] = False,
    written: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Add the path of each library written to FILE, and a NUL.")
    ] = None,
    table: cli.Table = False,
    json: cli.Json = False,
    from_json: cli.FromJson = False,
    verbose: cli.Verbose = False,
    version: cli.Version = False,
) -> int:
    """Write libraries without the GPU code that gpt-locate found unused."""
    if sum((output is not None, in_place, restore)) != 1:
        raise UsageError("one of -o DIR, --in-place and --restore is needed")
    if parents and not output:
        raise UsageError("--parents goes with -o DIR")
    for option, is_given in (("--once", once), ("--no-backup", no_backup)):
        if is_given and not in_place:
            raise UsageError(f"{option} goes with --in-place")
    if restore:
        return _restore(files or [])
    if output and not dry_run:
        output.mkdir(parents=True, exist_ok=True)
    stage = cli.Stage(TOOL, json=json, from_json=from_json, table=table)
    patcher = Patcher(
        stage, output, parents, mode.value, fill, kernels == Kernels.drop, dry_run, written, once, not no_backup
    )
    try:
        stage.filter(patcher.handle, files or (), wants=cli.LIBRARY)
        patcher.report_unfinished()
    finally:
        patcher.close()
    return stage.status


def _restore(files: list[Path]) -> int:
    from gpt.patch.backup import restore

    if not files:
        raise UsageError("name the libraries to restore")
    status = 0
    for path in files:
        try:
            restore(path)
        except (GptError, OSError) as error:
            if isinstance(error, OSError):
                error = GptError(error.strerror or str(error), str(error.filename or path))
            cli.say(TOOL, "error", error.where, error.fact)
            status = max(status, error.status)
    return status


class Patcher:
    """Collects the spans of a library and rewrites it when it is complete."""

    def __init__(
        self,
        stage: cli.Stage,
        output: Path | None,
        parents: bool,
        mode: str,
        fill: int,
        dropping: bool,
        dry_run: bool,
        written: Path | None,
        once: bool,
        backup: bool,
    ) -> None:
        self._stage = stage
        self._output = output
        self._parents = parents
        self._mode = mode
        self._fill = fill
        self._dropping = dropping
        self._dry_run = dry_run
        self._written = written
        self._once = once
        self._backup = backup
        self._wheels: Wheels | None = None
        self._library: dict[str, Any] | None = None
        self._spans: list[tuple[int, int]] = []
        self._unused: dict[int, set[str]] = {}  # offset of an element -> kernels that are not needed
        self._tallies: list[dict[str, Any]] = []
        self._targets: dict[Path, str] = {}  # output -> library, of this run

    def handle(self, record: dict[str, Any]) -> Records:
        """A record, and before the end of a library what was done to it."""
        kind = record["kind"]
        if kind in ("library", "span", "trim", "tally", "library_end") and (fault := records.check(record)):
            raise MalformedError(fault, str(record.get("path", record.get("library", ""))))
        match kind:
            case "library":
                self.report_unfinished()
                self._library, self._spans, self._unused, self._tallies = record, [], {}, []
            case "span" | "trim":
                if not self._library or record["library"] != self._library["path"]:
                    raise MalformedError(f"{kind} outside of its library", record["library"])
                if kind == "span":
                    self._spans.append((record["start"], record["end"]))
                else:
                    self._unused.setdefault(record["offset"], set()).update(record["kernels"])
            case "tally" if self._library and record["library"] == self._library["path"]:
                self._tallies.append(record)  # until it is known what was cut: of a library that fails, nothing
                return
            case "library_end" if self._library and record["path"] == self._library["path"]:
                library, self._library = self._library, None
                try:
                    yield from self._patch(library)
                except GptError as error:
                    yield self._stage.error(error, ref=library["path"])
                except OSError as error:
                    where = str(error.filename or library["path"])
                    missing = MissingError(error.strerror or str(error), where)
                    yield self._stage.error(missing, ref=library["path"])
            case "end" if self._wheels:
                yield from self._finish_wheels(self._wheels)
        yield record

    def close(self) -> None:
        """Removes what is temporary."""
        if self._wheels:
            self._wheels.close()

    def _finish_wheels(self, wheels: Wheels) -> Records:
        """Writes the wheels of which libraries were patched. Faults become `diag`s."""
        from gpt.patch.write import append

        for wheel, replaced in wheels.take_complete().items():
            try:
                target = self._target(wheel)
                wheels.write(wheel, replaced, target)
                sizes = {"size_before": wheel.stat().st_size, "size_after": target.stat().st_size}
                if self._written:
                    append(self._written, os.fsencode(os.path.abspath(target)) + b"\0")
                yield records.make("repacked", wheel=str(wheel), output=str(target), **sizes)
            except GptError as error:
                yield self._stage.error(error, ref=str(wheel))

    def report_unfinished(self) -> None:
        """Says that a library was not patched because the stream never said that it is complete."""
        if self._library:
            fact = "the stream ends before the library does: not patched"
            if self._stage.told:
                self._stage.status = max(self._stage.status, MalformedError.status)
            else:
                self._stage.error(MalformedError(fact, self._library["path"]))
            self._library = None

    def _patch(self, library: dict[str, Any]) -> list[dict[str, Any]]:
        """Plans, writes, checks and renames one library. Raises GptError; then nothing was written."""
        from gpt.formats.image import parse_image
        from gpt.formats.paths import open_regular
        from gpt.formats.source import Source
        from gpt.patch.attributes import copy_attributes
        from gpt.patch.backup import check_unreplaced, keep_backup
        from gpt.patch.plan import find_doomed
        from gpt.patch.trim import amended, trim_all
        from gpt.patch.write import append, check_output, written

        path, source_path, target, output_name = self._places(library)
        with open_regular(source_path) as file:
            if source_path != path:  # unpacked for this, and large
                source_path.unlink()
            source = Source(str(path), file.fileno())
            if source.size != library["size"] or library.get("sha256", digest := source.sha256()) != digest:
                raise GptError("has changed since it was extracted: extract it again", str(path))
            image = parse_image(source)
            if library.get("build_id", image.build_id) != image.build_id:
                raise GptError("has another build id than the one that was extracted", str(path))
            doomed = find_doomed(image, self._spans)
            if doomed.live and not doomed.kept and image.type in ("cubin", "ptx"):
                raise GptError("all of it is unused, and no smaller file says so", str(path))
            unused = {offset: names for offset, names in self._unused.items() if offset not in doomed.dead}
            trimmed = trim_all(source, unused, doomed.all, self._dropping, JOBS)
            doomed = replace(doomed, trimmed={t.element.offset: t for t in trimmed if t.cut.spans or t.dropped})
            plan = self._plan(image, doomed)
            disk_before = disk_after = os.fstat(file.fileno()).st_blocks * 512
            in_place = self._output is None
            notes = []
            if in_place and plan.mode != "copy":
                notes = self._check_in_place(target, file.fileno(), any(e.dead for e in doomed.all))
            if not (self._dry_run or (in_place and plan.mode == "copy")):
                target.parent.mkdir(parents=True, exist_ok=True)
                with written(target, file.fileno(), plan) as output:
                    check_output(image, plan, output, str(target))
                    os.fsync(output)
                    disk_after = os.fstat(output).st_blocks * 512
                    if self._written and source_path == path:  # first: what is listed and not there does no harm
                        append(self._written, os.fsencode(os.path.abspath(target)) + b"\0")
                    lost = copy_attributes(file.fileno(), output, every=in_place)
                    if in_place:
                        check_unreplaced(target, file.fileno())
                        if self._backup:
                            keep_backup(target, file.fileno(), image)
                if in_place and lost:
                    fact = f"the new file could not be given {', '.join(lost)}"
                    notes.append(self._stage.warn(str(path), fact, ref=str(path)))
        done = [*amended(self._tallies, trimmed, unused)]
        done += [trimmed_record(str(path), one, one.left(unused)) for one in trimmed]
        patched = records.make(
            "patched",
            library=str(path),
            output=output_name,
            mode=plan.mode,
            size_before=source.size,
            size_after=plan.size,
            disk_before=disk_before,
            disk_after=disk_after,
            gpu_before=sum(e.end - e.offset for e in doomed.live),
            gpu_after=doomed.kept_size,
            reason=plan.reason,
        )
        return [*notes, *done, patched]

    def _check_in_place(self, path: Path, fd: int, slimmed: bool) -> list[dict[str, Any]]:
        """Raises GptError on a file signed or replaced before; gives the `diag` of what else happens to its names."""
        from gpt.patch.attributes import find_signature
        from gpt.patch.backup import backup_of

        if signature := find_signature(fd):
            raise GptError(f"is signed ({signature}), and would not be any more: use -o DIR", str(path))
        backup = backup_of(path)
        if self._once and backup.exists() and not backup.samefile(path):
            raise GptError("was replaced before: restore it first, and unite the traces of all runs", str(path))
        if self._once and slimmed and not backup.exists():
            fact = (
                "was slimmed before, and no original is beside it: install it again, and unite the traces of all runs"
            )
            raise GptError(fact, str(path))
        names = os.fstat(fd).st_nlink - 1 - backup.exists()
        if names <= 0:
            return []
        fact = f"has {names} more name{'s' if names > 1 else ''} (hard links), which keep the original"
        return [self._stage.warn(str(path), fact, ref=str(path))]

    def _places(self, library: dict[str, Any]) -> tuple[Path, Path, Path, str]:
        """The library's path, the file to read, the file to write, and how that is called in the end."""
        path = Path(library["path"])
        if not path.exists():  # a member of a wheel: it is patched outside, and put into a new wheel when all are
            from gpt.patch.wheel import Wheels, split

            if found := split(library["path"]):
                if self._output is None:
                    raise GptError("lies in a wheel: use -o DIR", str(path))
                self._wheels = self._wheels or Wheels()
                near = Path(tempfile.gettempdir()) if self._dry_run else self._output
                return path, *self._wheels.add(*found, near), str(self._destination(found[0]) / found[1])
            raise MissingError(os.strerror(errno.ENOENT), str(path))
        target = self._target(path)
        return path, path, target, str(target)

    def _destination(self, path: Path) -> Path:
        if self._output is None:
            return path.resolve()
        return self._output / (os.path.abspath(path).lstrip("/") if self._parents else path.name)

    def _target(self, path: Path) -> Path:
        """Where the output goes: a name in the folder, or the file itself behind all links."""
        target = self._destination(path)
        if self._output and target.resolve() == path.resolve():
            raise GptError("would overwrite the library itself: use --in-place", str(path))
        if target in self._targets:
            hint = ": --parents" if self._output and not self._parents else ""
            raise GptError(f"'{self._targets[target]}' of this stream has taken the name '{target}'{hint}", str(path))
        self._targets[target] = str(path)
        return target

    def _plan(self, image: Image, doomed: Doomed) -> Plan:
        from gpt.patch.compact import plan_compact
        from gpt.patch.cuts import CannotCompact
        from gpt.patch.plan import plan_in_place

        mode, reason = self._mode, None
        if mode == "compact":
            if doomed.changed or any(element.dead for element in doomed.all):
                try:
                    return plan_compact(image, doomed, self._fill)
                except CannotCompact as error:
                    reason = str(error)
            mode = "hole"
        plan = plan_in_place(image, doomed, mode, self._fill)
        return replace(plan, reason=reason) if doomed.changed else replace(plan, mode="copy")


def trimmed_record(library: str, trimmed: Trimmed, left: int) -> dict[str, Any]:
    """What became of an element whose unused kernels were to go."""
    return records.make(
        "trimmed",
        library=library,
        offset=trimmed.element.offset,
        kernels=trimmed.cut.kernels,
        functions=trimmed.cut.functions,
        code=trimmed.cut.size,
        size_before=trimmed.element.end - trimmed.element.offset,
        size_after=trimmed.size,
        left=left or None,
        reason=trimmed.reason,
        zeroed=trimmed.zeroed_for,
    )
