"""Explain a cubin: list the sites of each kernel, what a probe would see there, which registers are free and live, and
which places would be left alone, and why.

The result is an answer (gpt-stream(5)). Each kernel has a row of its own, without an instruction, followed by a row for
each site. The row of the kernel has the smallest number of registers that are free at any site, and if the whole kernel
would be left alone, the reason for that. The row of a site has the reason if that place would be left alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpt.base.errors import GptError
from gpt.formats.cubin_edit import CubinEditor
from gpt.formats.kernel_edit import KernelEditor
from gpt.probe.model import Position, Probe, ProbeFile
from gpt.probe.positions import matches
from gpt.sass.arch import arch_of
from gpt.sass.graph import UnboundedError
from gpt.sass.kernels import Kernel, read_kernel
from gpt.sass.masks import Registers, name_ranges
from gpt.sass.sites import ENTRY, Site, iter_sites
from gpt.sass.stalls import describe_unscheduled
from gpt.sass.tables import Table, UnknownOpcodeError, table_of
from gpt.stream import records
from gpt.stream.packed import Packer
from gpt.stream.reasons import TABLE, Reason

EXIT = "exit"
PLACES = {  # why a place is left alone; gpt/stream/reasons.py has the codes for whole kernels
    "no_face": "no PTX instruction is known to stand for it",
    "never_runs": "nothing leads to it",
    "few_registers": "fewer registers are free than --registers asks for",
}
_COLUMNS: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("kernel", "text", {"unit": "kernel"}),
    ("instruction", "text?", {"shown": "under"}),
    ("face", "text?", {}),
    ("probes", "text?", {"shown": "any"}),
    ("code", "text?", {"title": "left alone", "shown": "any"}),
    ("detail", "text?", {"shown": "line"}),
    ("offset", "u64?", {"unit": "address"}),
    *((name, "u16?", {}) for name in Registers._fields),
    ("live", "text?", {"shown": "never"}),
    ("sites", "u32?", {"shown": "any"}),
    ("registers", "u16?", {"shown": "any"}),
)


@dataclass
class Row:
    """A kernel, or one of its sites. Each field is a column of the answer."""

    kernel: str
    instruction: str | None = None
    face: str | None = None
    probes: str | None = None
    code: str | None = None
    detail: str | None = None
    offset: int | None = None
    free: Sequence[int | None] = (None,) * len(Registers._fields)
    live: str | None = None
    sites: int | None = None
    registers: int | None = None

    def values(self) -> list[Any]:
        """Return the value of each column."""
        first = [self.kernel, self.instruction, self.face, self.probes, self.code, self.detail, self.offset]
        return [*first, *self.free, self.live, self.sites, self.registers]


@dataclass(frozen=True)
class Wanted:
    """The request: explain the sites of these probes, or without probes, all sites. A probe needs `registers`
    registers.
    """

    files: Sequence[ProbeFile] = ()
    registers: int = 0

    def find_probes(self, face: str) -> list[str]:
        """Return the probes that match a site, each as FILE.PROBE."""
        return [
            f"{Path(file.path).stem}.{probe.name}"
            for file in self.files
            for probe in file.probes
            if any(_goes(probe, position, face) for position in probe.positions)
        ]

    @property
    def looks_for_instructions(self) -> bool:
        """True if a probe matches instructions, so that an instruction without a face makes a difference."""
        positions = [position for file in self.files for probe in file.probes for position in probe.positions]
        return not self.files or any(position.kind == "opcode" for position in positions)


def _goes(probe: Probe, position: Position, face: str) -> bool:
    """Return whether a probe does anything at a site: the entry of a kernel runs `before`, and its exits run
    `after`.
    """
    if position.kind == "kernel":
        snippet = {ENTRY: probe.before, EXIT: probe.after}.get(face)
        return snippet is not None
    return position.kind == "opcode" and face not in ("", ENTRY) and matches(position, face)


def explain_cubin(cubin: CubinEditor, arch: str, names: Sequence[str], wanted: Wanted) -> Iterator[Row]:
    """Yield the rows for kernels of a cubin."""
    table = _find_table(arch)
    for name in names:
        if isinstance(table, Reason):
            yield leave_alone(name, table)
        else:
            yield from _explain_kernel(cubin, name, table, wanted)


def _find_table(arch: str) -> Table | Reason:
    """Return the table of an architecture, or the reason why kernels for it are left alone."""
    try:
        found = arch_of(arch)
    except GptError:
        return Reason("no_table", arch)
    return table_of(arch) if found.proven else Reason("not_proven", found.name)


def _explain_kernel(cubin: CubinEditor, name: str, table: Table, wanted: Wanted) -> Iterator[Row]:
    try:
        kernel = read_kernel(cubin, name, table)
        sites = [row for site in iter_sites(kernel) if (row := _explain_site(name, site, wanted))]
    except UnknownOpcodeError as error:
        yield leave_alone(name, Reason("unknown_opcode", error.fact))
        return
    except UnboundedError as error:
        yield leave_alone(name, Reason("unbounded", error.fact))
        return
    except GptError as error:
        yield leave_alone(name, Reason("image_unreadable", error.fact))
        return
    least = [
        min((n for n in column if n is not None), default=None)
        for column in zip(*(row.free for row in sites), strict=True)
    ]
    whole = leave_alone(name, _find_reason(kernel, KernelEditor(cubin, name).is_tile))
    whole.sites, whole.registers, whole.free = len(sites), kernel.registers, least or Row.free
    yield whole
    yield from sites


def _find_reason(kernel: Kernel, is_tile: bool) -> Reason | None:
    """Return why a kernel that can be read is left alone, or None if it isn't."""
    if is_tile:
        return Reason("tile_kernel")
    if not kernel.has_usual_entry:
        return Reason("unknown_entry", kernel.code[0].name)
    unscheduled = describe_unscheduled(kernel.code)
    return Reason("no_schedule", unscheduled) if unscheduled else None


def _explain_site(kernel: str, site: Site, wanted: Wanted) -> Row | None:
    """Return the row of a site, or None if no probe matches it."""
    probes = wanted.find_probes(site.face)
    if wanted.files and not probes and (site.face or not wanted.looks_for_instructions):
        return None
    row = Row(kernel, site.one.name, site.face or None, ", ".join(probes) or None, offset=site.one.offset)
    if site.free is None:
        row.code = "never_runs"
    else:
        row.free, row.live = [mask.bit_count() for mask in site.free], name_ranges(site.live)
        if not site.face:
            row.code = "no_face"
        elif site.free.R.bit_count() < wanted.registers:
            row.code = "few_registers"
    return row


def leave_alone(name: str, reason: Reason | None) -> Row:
    """Return the row of a kernel, with the reason if it's left alone."""
    return Row(name, code=reason.code, detail=reason.detail or None) if reason else Row(name)


def make_answer(name: str, rows: Sequence[Row]) -> dict[str, Any]:
    """Return the answer with these rows. Raises MalformedError if it's too large for a record."""
    packer = Packer({"name": name, "type": type_, "offset": 0, **more} for name, type_, more in _COLUMNS)
    counts: Counter[tuple[str, bool]] = Counter()
    for row in rows:
        packer.add(row.values())
        if row.code:
            counts[row.code, row.instruction is None] += 1
    verdict = [
        f"{count:,} {'kernel' if whole else 'place'}{'s' * (count > 1)} left alone: {code}: "
        + (TABLE[code][0] if whole else PLACES[code])
        for (code, whole), count in counts.items()
    ]
    return records.make("answer", name=name, **packer.keys(), top=None, verdict=verdict, plots=None)
