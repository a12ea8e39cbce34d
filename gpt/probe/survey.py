"""Which probes go where in a kernel: every function of it with the snippets that have a place there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from gpt.probe.code import Code
from gpt.probe.lower import Site
from gpt.probe.model import Probe, ProbeFile, Snippet, names_of
from gpt.probe.operands import bind
from gpt.probe.positions import Site as Place
from gpt.probe.positions import find_sites
from gpt.probe.state import Registers
from gpt.probe.verify import find_misfit
from gpt.ptx.quick import parse_instruction
from gpt.ptx.scan import Item, Module, Statement


class Matched(NamedTuple):
    """A probe's position in a kernel: the places that it means, and how many of them the probe went into."""

    probe: str
    position: str
    matched: int
    woven: int


@dataclass
class Use:
    """A snippet at a place, still to be lowered. `file` is its file's number, `key` the probe and position."""

    file: int
    probe: Probe
    when: str
    snippet: Snippet
    place: Place
    site: Site
    key: tuple[str, str]

    @property
    def maps(self) -> set[tuple[int, str]]:
        """The maps that it saves to, each with the number of its file."""
        return {(self.file, save.map) for save in self.snippet.saves}


@dataclass
class Function:
    """A function that is being woven into.

    `used` are the registers of each file that its probes use, `shared` those of them that outlive a snippet. With
    `stateful` it passes the state on.
    """

    item: Item
    statements: list[Statement]
    types: Registers
    code: Code
    uses: list[Use] = field(default_factory=list)
    stateful: bool = False
    used: dict[int, set[str]] = field(default_factory=dict)
    shared: dict[int, set[str]] = field(default_factory=dict)


class Survey:
    """The functions of a kernel with their probes, and what is told of them."""

    def __init__(self, module: Module, entry: Item, files: Sequence[ProbeFile], prefix: str, redux: bool) -> None:
        self.module, self.files = module, files
        self.misfits: list[str] = []
        self._counts: dict[tuple[str, str], list[int]] = {}
        self._woven: set[tuple[tuple[str, str], Place]] = set()
        self.functions = [
            self._function(item, Code(prefix, redux))
            for item in module.functions
            if item.kind == "func" or item is entry
        ]
        self.entry = next(function for function in self.functions if function.item is entry)
        self._drop_idle()

    @property
    def uses(self) -> Iterator[Use]:
        """All snippets at all places."""
        return (use for function in self.functions for use in function.uses)

    @property
    def matched(self) -> list[Matched]:
        """What matched, and what of it was woven."""
        return [Matched(*key, *counts) for key, counts in self._counts.items()]

    def misfit(self, probe: Probe, position: str, reason: str) -> None:
        """A probe fits an instruction at its position not."""
        text = f"probe '{probe.name}' at '{position}': an instruction {reason}"
        if text not in self.misfits:
            self.misfits.append(text)

    def done(self, use: Use) -> None:
        """A snippet is woven."""
        if (use.key, use.place) not in self._woven:
            self._woven.add((use.key, use.place))
            self._counts[use.key][1] += 1

    def _function(self, item: Item, code: Code) -> Function:
        statements = self.module.statements(item)
        function = Function(item, statements, Registers(self.module, statements), code)
        for number, file in enumerate(self.files):
            for probe in file.probes:
                seen: set[tuple[str, int, int]] = set()
                for place in find_sites(self.module, item, statements, probe.positions):
                    if place[1:] not in seen:
                        seen.add(place[1:])
                        self._place(function, number, probe, place)
        return function

    def _place(self, function: Function, number: int, probe: Probe, place: Place) -> None:
        key = (f"{Path(self.files[number].path).stem}.{probe.name}", str(place.position))
        counts = self._counts.setdefault(key, [0, 0])
        skipped = {"entry": "after", "exit": "before", "end": "before"}.get(place.kind)
        snippets = [(when, snippet) for when, snippet in probe.snippets if when != skipped]
        counts[0] += bool(snippets)
        site = Site(overwrite=place.position.kind == "kernel", no_pred=probe.no_pred)
        if place.kind in ("instruction", "exit"):
            source = self.module.source(function.statements[place.first])
            instruction = parse_instruction(source, self.module.name)
            bound = bind(instruction)
            if reason := find_misfit(probe, bound):
                self.misfit(probe, str(place.position), reason)
                return
            site = replace(site, instruction=instruction, bound=bound, guard=instruction.guard)
        function.uses += [Use(number, probe, when, snippet, place, site, key) for when, snippet in snippets]

    def _drop_idle(self) -> None:
        """Drops probes that could only tell that nothing happened: of those that share registers, only `kernel` ones
        matched.
        """
        for number, file in enumerate(self.files):
            matched = {u.probe.name for u in self.uses if u.file == number and u.place.position.kind != "kernel"}
            for group in cooperating(file):
                others = any(p.kind != "kernel" for probe in group for p in probe.positions)
                if others and not any(probe.name in matched for probe in group):
                    for function in self.functions:
                        function.uses = [u for u in function.uses if u.file != number or u.probe not in group]


def cooperating(file: ProbeFile) -> list[list[Probe]]:
    """The probes of a file in groups that share registers."""
    registers = {register.name for register in file.registers}
    groups: list[tuple[set[str], list[Probe]]] = []
    for probe in file.probes:
        named = {n for _, snippet in probe.snippets for line in snippet.lines for n in names_of(line.node)} & registers
        joined = [group for group in groups if group[0] & named]
        groups = [group for group in groups if group not in joined]
        groups.append((named.union(*(g[0] for g in joined)), [p for g in joined for p in g[1]] + [probe]))
    return [probes for _, probes in groups]
