"""Patch one library: check that it hasn't changed since it was extracted, plan and write the new file, check it, and
rename it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from io import BufferedReader
from pathlib import Path
from typing import Any

from gpt.base.errors import GptError
from gpt.extract.contents import check_names
from gpt.extract.unfound import iter_unfound
from gpt.formats.fatbin import Element
from gpt.formats.image import Image, Placed, parse_image
from gpt.formats.paths import open_regular, real_path
from gpt.formats.source import Source
from gpt.locate.unused import BY_NAME, LINKED
from gpt.patch.attributes import copy_attributes, find_signature
from gpt.patch.backup import backup_of, check_unreplaced, keep_backup
from gpt.patch.compact import plan_compact
from gpt.patch.cut_names import collect
from gpt.patch.cuts import CannotCompact
from gpt.patch.places import PatchPaths
from gpt.patch.plan import Doomed, Plan, find_doomed, plan_in_place
from gpt.patch.recompress import Recompressed, can_recompress, measure_all, recompress_all
from gpt.patch.trim import ZSTD_LEVEL, Packing, Trimmed, amended, trim_all
from gpt.patch.write import append, check_output, written
from gpt.stream import records

NOTHING = "there is nothing to cut"  # the reason for a library with GPU code
NO_SMALLER = "there is nothing to cut, and zstd makes nothing smaller"


@dataclass(frozen=True)
class PatchOptions:
    """Options of the command line. gpt-patch(1) explains them."""

    mode: str
    fill: int
    dropping: bool  # True to drop unused kernels from cubins that are kept; otherwise their code is zeroed
    in_place: bool
    dry_run: bool
    once: bool
    backup: bool
    listing: Path | None  # a file to which the path of each written library is appended
    jobs: int
    level: int | None = None  # the level of zstd with which everything that's kept is compressed again
    zstd_sizes: bool = False  # True to report the sizes with zstd before and after


@dataclass
class Request:
    """The records about a library in a stream.

    `spans` are the ranges to remove, and `reasons` their starts, by reason. `unused` are the kernels to remove, and
    `kernels` all kernels; both are by the offset of their element.
    """

    library: dict[str, Any]
    spans: list[tuple[int, int]] = field(default_factory=list)
    reasons: dict[str, set[int]] = field(default_factory=dict)
    unused: dict[int, set[str]] = field(default_factory=dict)
    kernels: dict[int, list[str]] = field(default_factory=dict)
    tallies: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Outcome:
    """Records about the changes that were made, and warnings about the library."""

    records: list[dict[str, Any]]
    notes: list[str]


def rewrite(request: Request, place: PatchPaths, way: PatchOptions) -> Outcome:
    """Patch one library. If it raises GptError or OSError, nothing has been written."""
    with open_regular(place.source) as file:
        if place.is_member:  # it may be large, and the open file is enough
            place.source.unlink()
        image = _open_image(place, file, request.library)
        near = Path(tempfile.gettempdir()) if way.dry_run else place.target.parent
        doomed, trimmed, unused = _find_doomed(image, request, way)
        recompressed = _recompress(image, doomed, way, near)
        packed_again = {r.done.element.offset: r.done for r in recompressed if not r.done.reason}
        doomed = replace(doomed, trimmed=doomed.trimmed | packed_again)
        zstd = _measure(image, doomed, way, recompressed)
        plan = choose_plan(image, doomed, way)
        if plan.mode != "compact":
            doomed, recompressed = doomed.not_recompressed(), []
        notes = list(iter_unfound(image, [Placed(element) for element in doomed.live]))
        if way.in_place and plan.mode != "copy":
            notes += _check_in_place(place, file.fileno(), way, any(e.dead for e in doomed.all))
        disk = disk_after = _disk(file.fileno())
        if not (way.dry_run or (way.in_place and plan.mode == "copy")):
            disk_after, lost = _write(image, file.fileno(), plan, place, way)
            if way.in_place and lost:
                notes.append(f"the new file could not be given {', '.join(lost)}")
    patched = records.make(
        "patched",
        library=str(place.path),
        output=place.name,
        mode=plan.mode,
        size_before=image.source.size,
        size_after=plan.size,
        disk_before=disk,
        disk_after=disk_after,
        gpu_before=sum(e.end - e.offset for e in doomed.live),
        gpu_after=doomed.kept_size,
        zstd_before=zstd and zstd[0],
        zstd_after=zstd and zstd[1],
        reason=plan.reason,
    )
    tallies = amended(request.tallies, trimmed, unused)
    news = [*_iter_trimmed(str(place.path), trimmed, unused), *_iter_recompressed(str(place.path), recompressed)]
    return Outcome([*tallies, *news, patched], notes)


def choose_plan(image: Image, doomed: Doomed, way: PatchOptions) -> Plan:
    """Return a plan for the requested mode. If the file can't be made smaller, return a plan with holes that gives the
    reason.
    """
    mode, reason = way.mode, None
    if mode == "compact":
        if doomed.changed or any(element.dead for element in doomed.all):
            try:
                return plan_compact(image, doomed, way.fill)
            except CannotCompact as error:
                reason = str(error)
                if way.level is not None:
                    reason += ", so nothing is recompressed"
                    doomed = doomed.not_recompressed()
        mode = "hole"
    plan = plan_in_place(image, doomed, mode, way.fill)
    if doomed.changed:
        return replace(plan, reason=reason)
    nothing = NOTHING if way.level is None else reason or NO_SMALLER
    return replace(plan, mode="copy", reason=nothing if doomed.live else None)


def _open_image(place: PatchPaths, file: BufferedReader, library: dict[str, Any]) -> Image:
    """Open the library. Raises GptError if it has changed since it was extracted."""
    source = Source(str(place.path), file.fileno())
    if source.size != library["size"] or library.get("sha256", digest := source.sha256()) != digest:
        raise GptError("has changed since it was extracted: extract it again", str(place.path))
    image = parse_image(source)
    if library.get("build_id", image.build_id) != image.build_id:
        raise GptError("has another build id than when it was extracted", str(place.path))
    return image


def _find_doomed(
    image: Image, request: Request, way: PatchOptions
) -> tuple[Doomed, list[Trimmed], dict[int, set[str]]]:
    """Return the elements to remove, the trimmed elements, and the kernels to remove from the latter, by offset."""
    doomed = find_doomed(image, request.spans)
    if doomed.live and not doomed.kept and image.type in ("cubin", "ptx"):
        raise GptError("all of it is unused, and it can't be made smaller", image.source.name)
    check_names(image.source, _named(doomed, request.reasons), way.jobs)
    unused = {offset: names for offset, names in request.unused.items() if offset not in doomed.dead}
    packing = Packing(way.level, way.zstd_sizes)
    trimmed = trim_all(image.source, unused, doomed.all, way.dropping, way.jobs, packing)
    in_part = {one.element.offset: one for one in trimmed if one.loses}
    names = collect(image.source, doomed.all, doomed.dead, request.kernels)
    return replace(doomed, trimmed=in_part, names=names), trimmed, unused


def _recompress(image: Image, doomed: Doomed, way: PatchOptions, folder: Path) -> list[Recompressed]:
    """Compress complete elements again, in the usual sections.

    Code elsewhere isn't changed, because the library unpacks it itself.
    """
    if way.level is None:
        return []
    usual = {placed.element.offset for placed in image.iter_elements()}
    overwritten = {e.offset for e in doomed.kept for start, end in doomed.parts if e.offset < end and start < e.end}
    wanted = usual - doomed.trimmed.keys() - overwritten
    elements = [element for element in doomed.kept if element.offset in wanted and can_recompress(element)]
    if not way.dry_run:
        folder.mkdir(parents=True, exist_ok=True)
    return recompress_all(image.source, elements, way.level, way.jobs, folder)


def _measure(
    image: Image, doomed: Doomed, way: PatchOptions, recompressed: list[Recompressed]
) -> tuple[int, int] | None:
    """Return the size that the GPU code would have if it were packed with zstd at level 19, before and after the cut.
    Return None if nobody asked for it.
    """
    if not way.zstd_sizes:
        return None
    sizes = {r.done.element.offset: r.done.size for r in recompressed} if way.level == ZSTD_LEVEL else {}
    left = [e for e in doomed.live if e.offset not in sizes]
    sizes |= measure_all(image.source, [element for element in left if can_recompress(element)], way.jobs)
    before = {e.offset: sizes.get(e.offset, e.end - e.offset) for e in doomed.live}
    after = {**before, **{offset: t.zstd for offset, t in doomed.trimmed.items() if t.zstd}}
    return sum(before.values()), sum(after[element.offset] for element in doomed.kept)


def _named(doomed: Doomed, reasons: dict[str, set[int]]) -> list[Element]:
    """Return the elements that were kept or removed because of their kernels' names.

    If elements were compared with linked code, that's all of them.
    """
    if LINKED in reasons:
        return doomed.live
    starts = set().union(*(reasons.get(reason, ()) for reason in BY_NAME))
    return [element for element in doomed.live if starts & {element.offset, element.payload}]


def _write(image: Image, fd: int, plan: Plan, place: PatchPaths, way: PatchOptions) -> tuple[int, list[str]]:
    """Write the new file. Return its size on disk, and the attributes that couldn't be copied.

    Raises GptError.
    """
    place.target.parent.mkdir(parents=True, exist_ok=True)
    with written(place.target, fd, plan, way.in_place) as output:
        check_output(image, plan, output, str(place.target))
        os.fsync(output)
        disk = _disk(output)
        if way.listing and not place.is_member:  # comes first, because it does no harm if a listed path has no file
            append(way.listing, os.fsencode(os.path.abspath(place.target)) + b"\0")
        lost = copy_attributes(fd, output, every=way.in_place)
        if way.in_place:
            check_unreplaced(place.target, fd)
            if way.backup:
                keep_backup(place.target, fd, image)
    return disk, lost


def _check_in_place(place: PatchPaths, fd: int, way: PatchOptions, slimmed: bool) -> list[str]:
    """Return notes about other names of the file. Raises GptError if the file is signed, or was replaced before."""
    path = place.target
    if signature := find_signature(fd):
        raise GptError(f"is signed ({signature}), and the new file would not be: use -o DIR", str(path))
    backup = backup_of(path)
    if way.once and backup.exists() and not backup.samefile(path):
        raise GptError("was replaced before: restore it first, and combine the traces of all runs", str(path))
    if way.once and slimmed and not backup.exists():
        fact = "was slimmed before, and its original is gone: install it again, and combine the traces of all runs"
        raise GptError(fact, str(path))
    notes = []
    names = os.fstat(fd).st_nlink - 1 - backup.exists()
    if names > 0:
        notes.append(f"has {names} more name{'s' if names > 1 else ''} (hard links), which keep the original")
    if place.path.is_symlink() and path.parent != Path(real_path(place.path.parent)):  # for example, a package cache
        notes.append(f"is a link: '{path}' is replaced, also for everything else that uses it")
    return notes


def _iter_trimmed(library: str, trimmed: list[Trimmed], unused: dict[int, set[str]]) -> Iterator[dict[str, Any]]:
    """Yield a record for each element that was trimmed."""
    for one in trimmed:
        yield records.make(
            "trimmed",
            library=library,
            offset=one.element.offset,
            kernels=one.cut.kernels,
            functions=one.cut.functions,
            code=one.cut.size,
            size_before=one.element.end - one.element.offset,
            size_after=one.size,
            left=one.left(unused) or None,
            reason=one.reason,
            zeroed=one.zeroed_for,
        )


def _iter_recompressed(library: str, recompressed: list[Recompressed]) -> Iterator[dict[str, Any]]:
    """Yield a record for each element that was recompressed."""
    for one in recompressed:
        element = one.done.element
        yield records.make(
            "recompressed",
            library=library,
            offset=element.offset,
            type=element.type,
            arch=element.arch,
            codec=element.codec,
            size_before=element.end - element.offset,
            size_after=one.done.size,
            time=one.time,
            reason=one.done.reason,
        )


def _disk(fd: int) -> int:
    return os.fstat(fd).st_blocks * 512
