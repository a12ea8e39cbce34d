"""The plan for a kernel: which snippets are inserted where, which maps they need, and how many sites each probe has.

A back end creates the plan for the functions of a kernel, and passes the function that lowers snippets to `settle`.
Sometimes it turns out only during lowering that an instruction lacks something that a snippet needs. The back end
reports that with `note`; the plan drops the probe at this place, and the rest is lowered again.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from gpt.probe.effects import acts, cooperating, find_zeros
from gpt.probe.face import Template
from gpt.probe.forms import find_lack
from gpt.probe.model import SKIPPED, Position, Probe, ProbeFile, Snippet
from gpt.probe.plan.function import Function, Key, PlacedSnippet, Site
from gpt.probe.plan.left_alone import LeftAlone
from gpt.probe.plan.maps import PlacedMap
from gpt.probe.plan.woven import Matched
from gpt.probe.stored import find_stored
from gpt.probe.verify import find_misfit

_SKIPPED = {"entry": "after", "exit": "before", "end": "before"}  # the snippet that a kernel's start or end doesn't run
T = TypeVar("T")


class Plan:
    """The probes of `files` in the functions of a kernel.

    If `count` is set, records are only counted. The names of the parameters for maps begin with `prefix`. `maps` has
    the maps of each file, by name. `misfits` are the warnings to print.
    """

    def __init__(
        self, kernel: str, functions: Sequence[Function], files: Sequence[ProbeFile], prefix: str, count: bool = False
    ) -> None:
        self.kernel, self.functions, self.files = kernel, functions, files
        places = itertools.count()
        self.maps = [
            {
                map_.name: PlacedMap(
                    map_,
                    f"{prefix}map_{next(places)}",
                    count,
                    file.script,
                    may_fill=not file.replaces(map_),
                    once=file.saves_once(map_),
                    stored=find_stored(file, map_) if map_.capacity is None else (),
                )
                for map_ in file.maps
            }
            for file in files
        ]
        self.misfits: list[str] = []
        self._fits: dict[tuple[int, int, int], str | None] = {}
        self._counts: dict[Key, list[int]] = {}
        self._woven: set[int] = set()  # ids of sites
        self._unfit: set[int] = set()  # ids of uses
        self._is_mute = False  # True if all probes were dropped because none could save
        self._snippets: list[tuple[int, Snippet]] = []  # each once, with the number of its file
        for function in functions:
            self._place_all(function)
        self._drop_idle()
        self._leave_out_zeros()

    @property
    def uses(self) -> Iterator[PlacedSnippet]:
        """Yield all placed snippets."""
        return (use for function in self.functions for use in function.uses)

    @property
    def matched(self) -> list[Matched]:
        """The positions that matched, with the number of places where the probe was woven in."""
        return [Matched(*key, *counts) for key, counts in self._counts.items()]

    @property
    def used_maps(self) -> list[PlacedMap]:
        """The maps that snippets save to. Each of them needs a parameter."""
        saved = {(number, save.map) for number, snippet in self._snippets for save in snippet.saves}
        return [
            placed for number, maps in enumerate(self.maps) for name, placed in maps.items() if (number, name) in saved
        ]

    def find_zeros(self, number: int) -> set[str]:
        """Return the registers of a file that are always 0, because no matching snippet writes anything else to
        them.
        """
        return find_zeros(self.files[number], (snippet for file, snippet in self._snippets if file == number))

    def check_age(self, version: tuple[int, int], target: int) -> None:
        """Raise LeftAlone if the probes need a newer PTX version or target than these (90 stands for sm_90)."""
        for number, snippet in self._snippets:
            if lack := find_lack(snippet, version, target):
                raise LeftAlone("old_ptx", f"{self.files[number].path}:{lack[0]}: {lack[1]}", self.kernel)
        for placed in self.used_maps:
            if placed.type in ("total", "table") and target < 60 and any(f.type == "f64" for f in placed.map.fields):
                raise LeftAlone(
                    "old_ptx", f"a {placed.type} of type f64 needs sm_60, and it is for sm_{target}", self.kernel
                )

    def _leave_out_zeros(self) -> None:
        """Leave out the fields of totals to which all snippets add only registers that are always 0."""
        for number, maps in enumerate(self.maps):
            zeros = self.find_zeros(number)
            for name, placed in maps.items():
                saves = [save for file, snippet in self._snippets if file == number for save in snippet.saves
                         if save.map == name]  # fmt: skip
                busy = {
                    field.name
                    for save in saves
                    for field, value in zip(placed.map.fields[save.first :], save.values, strict=False)
                    if not (save.last and (value == SKIPPED or str(value) in zeros))
                }
                idle = frozenset(field.name for field in placed.map.fields) - busy
                if saves and placed.type == "total" and busy:
                    maps[name] = replace(placed, idle=idle)

    # Placing the snippets

    def _place_all(self, function: Function) -> None:
        for number, file in enumerate(self.files):
            for probe in file.probes:
                snippets = probe.snippets
                keys: dict[Position, Key] = {}
                seen: set[tuple[str, int, int]] = set()
                # If another position matches the same site, the probe saves something even at an exit of the kernel.
                for site in function.find_sites(sorted(probe.positions, key=lambda one: one.kind == "kernel")):
                    if site[1:] in seen:
                        continue
                    seen.add(site[1:])
                    key = keys.get(site.position)
                    if key is None:
                        key = keys[site.position] = Key(f"{Path(file.path).stem}.{probe.name}", str(site.position))
                    skipped = _SKIPPED.get(site.kind)
                    placed = [one for one in snippets if one[0] != skipped] if skipped else snippets
                    self._counts.setdefault(key, [0, 0])[0] += bool(placed)
                    if site.kind in ("instruction", "line") and not function.falls_through(site.last):
                        opcode = function.statements[site.last].head.partition(".")[0]
                        if any(when == "after" for when, _ in placed):
                            self._tell(key, f"'after' an unguarded '{opcode}' never runs")
                        placed = [one for one in placed if one[0] != "after"]
                    self._place(function, number, probe, placed, key, site)

    def _place(
        self, function: Function, number: int, probe: Probe, snippets: list[tuple[str, Snippet]], key: Key, site: Site
    ) -> None:
        face, values = None, list[str]()
        if site.kind in ("instruction", "exit"):
            face, values = function.find_face(site.first)
        uses = [PlacedSnippet(number, probe, when, snippet, key, site, face, values) for when, snippet in snippets]
        if face and uses:
            fit = (number, id(probe), id(face))
            if fit not in self._fits:
                self._fits[fit] = find_misfit(probe, face.bound)
            if reason := self._fits[fit]:
                self._tell(key, f"an instruction {Template(reason).fill(values)}")
                return
        function.uses += uses

    def _tell(self, key: Key, fact: str) -> None:
        text = f"probe '{key.probe.partition('.')[2]}' at '{key.position}': {fact}"
        if text not in self.misfits:
            self.misfits.append(text)

    # Results of lowering

    def settle(self, lower: Callable[[], T]) -> T:
        """Call `lower` until everything fits, and return its last result. Raises LeftAlone if no probe remains."""
        if any(self.uses):
            found = lower()
            while self._drop_unfit():
                found = lower()
            if any(site.woven for site in self.matched):
                return found
        detail = self.misfits[0] if self.misfits else ""
        raise LeftAlone("no_save" if self._is_mute else "no_place", detail, self.kernel)

    def note(self, use: PlacedSnippet, misfit: str | None) -> None:
        """Record whether a snippet was lowered; if it can't run at its instruction, `misfit` says why, using the slots
        of the face.
        """
        if misfit is not None:
            self._tell(use.key, f"an instruction {Template(misfit).fill(use.values)}")
            self._unfit.add(id(use))
        elif id(use.site) not in self._woven:
            self._woven.add(id(use.site))
            self._counts[use.key][1] += 1

    def _drop_unfit(self) -> bool:
        """Drop probes from the sites where lowering failed. Return True if everything has to be lowered again, because
        a site lost another snippet too, or because a probe has become pointless.
        """
        if not self._unfit:
            return False
        sites = {id(use.site) for use in self.uses if id(use) in self._unfit}
        again = any(id(use.site) in sites and id(use) not in self._unfit for use in self.uses)
        for function in self.functions:
            function.uses = [use for use in function.uses if id(use.site) not in sites]
        self._unfit.clear()
        if not (self._drop_idle() or again):
            return False
        self._woven.clear()
        for count in self._counts.values():
            count[1] = 0
        return True

    def _drop_idle(self) -> bool:
        """Drop pointless probes, and return whether there were any.

        Consider the probes that share registers. They're pointless if only their `kernel` positions matched, because
        these could only report that nothing happened, and also if no matching probe among them saves.
        """
        placed = {(use.file, use.probe.name) for use in self.uses}
        matched = {(use.file, use.probe.name) for use in self.uses if use.site.position.kind != "kernel"}
        snippets = {id(use.snippet): (use.file, use.snippet) for use in self.uses}
        acting = {key for key, (number, snippet) in snippets.items() if acts(snippet, self.files[number])}
        saving = {(use.file, use.probe.name) for use in self.uses if id(use.snippet) in acting}
        idle: set[tuple[int, str]] = set()
        for number, file in enumerate(self.files):
            for group in cooperating(file):
                names = {(number, probe.name) for probe in group} & placed
                others = any(p.kind != "kernel" for probe in group for p in probe.positions)
                is_frame = others and names.isdisjoint(matched)
                if is_frame or names.isdisjoint(saving):
                    idle |= names
                    self._is_mute |= bool(names) and not is_frame
        for function in self.functions if idle else ():
            function.uses = [use for use in function.uses if (use.file, use.probe.name) not in idle]
        left = {id(use.snippet) for use in self.uses} if idle else snippets.keys()
        self._snippets = [snippet for key, snippet in snippets.items() if key in left]
        return bool(idle)
