"""Match probes to the functions of a kernel, and place their snippets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from gpt.base.errors import MalformedError
from gpt.probe.forms import counts
from gpt.probe.model import Position, Probe, ProbeFile, Snippet, names_of
from gpt.probe.positions import Body, Site, falls_through, find_sites
from gpt.probe.ptx.emit import Emitter
from gpt.probe.ptx.template import Shapes, Template, TemplateShape
from gpt.probe.verify import find_misfit
from gpt.ptx import tree
from gpt.ptx.parse import parse_statement
from gpt.ptx.registers import Registers
from gpt.ptx.scan import Item, Module, Statement


class Matched(NamedTuple):
    """A probe's position in a kernel: the number of matching places, and of places that were woven."""

    probe: str
    position: str
    matched: int
    woven: int


class Key(NamedTuple):
    """A probe and one of its positions, named as in messages and records."""

    probe: str
    position: str


class PlacedSnippet(NamedTuple):
    """A snippet at a place, not lowered yet. `file` is the number of its file.

    `values` are what the slots of the shape hold at the instruction that is there.
    """

    file: int
    probe: Probe
    when: str
    snippet: Snippet
    key: Key
    site: Site
    shape: TemplateShape | None
    values: list[str]


@dataclass
class Surveyed:
    """A function that probes are woven into.

    `used` are the registers of each file that the function's probes use; the `shared` registers outlive a snippet. A
    `stateful` function takes the state as a parameter.
    """

    item: Item
    body: Body
    types: Registers
    code: Emitter
    shapes: dict[int, tuple[TemplateShape, list[str]]] = field(default_factory=dict)
    uses: list[PlacedSnippet] = field(default_factory=list)
    stateful: bool = False
    used: dict[int, set[str]] = field(default_factory=dict)
    shared: dict[int, set[str]] = field(default_factory=dict)

    @property
    def statements(self) -> list[Statement]:
        """The statements of the body."""
        return self.body.statements

    def forget(self, code: Emitter) -> None:
        """Discard the results of lowering the probes."""
        self.code, self.stateful, self.used, self.shared = code, False, {}, {}


class Survey:
    """The functions of a kernel with their probes, and the counts and misfits to report."""

    def __init__(
        self, module: Module, entry: Item, files: Sequence[ProbeFile], shapes: Shapes, code: Callable[[], Emitter]
    ) -> None:
        self.module, self.files, self.shapes = module, files, shapes
        self.misfits: list[str] = []
        self._fits: dict[tuple[int, int, int], str | None] = {}
        self._counts: dict[Key, list[int]] = {}
        self._woven: set[int] = set()  # ids of sites
        self._unfit: set[int] = set()  # ids of uses
        self.functions = [
            self._function(item, code()) for item in module.functions if item.kind == "func" or item is entry
        ]
        self.entry = next(function for function in self.functions if function.item is entry)
        self.is_mute = False  # probes were dropped because none could save
        self.snippets: list[tuple[int, Snippet]] = []  # each once, with the number of its file
        self._drop_idle()

    @property
    def uses(self) -> Iterator[PlacedSnippet]:
        """Yield all placed snippets."""
        return (use for function in self.functions for use in function.uses)

    @property
    def matched(self) -> list[Matched]:
        """The matched positions, with the number of places that were woven."""
        return [Matched(*key, *counts) for key, counts in self._counts.items()]

    @property
    def saved(self) -> set[tuple[int, str]]:
        """The maps that probes save to, each with the number of its file."""
        return {(number, save.map) for number, snippet in self.snippets for save in snippet.saves}

    def misfit(self, use: PlacedSnippet, reason: str) -> None:
        """Note that a snippet can't run at the instruction at its position."""
        self._tell(use.key, f"an instruction {Template(reason).fill(use.values)}")
        self._unfit.add(id(use))

    def _tell(self, key: Key, fact: str) -> None:
        text = f"probe '{key.probe.partition('.')[2]}' at '{key.position}': {fact}"
        if text not in self.misfits:
            self.misfits.append(text)

    def done(self, use: PlacedSnippet) -> None:
        """Note that a snippet is woven."""
        if id(use.site) not in self._woven:
            self._woven.add(id(use.site))
            self._counts[use.key][1] += 1

    def zeros(self, number: int) -> set[str]:
        """Return the registers of a file that are always 0, as no matching snippet writes anything else to them."""
        initial = {register.name: register.initial for register in self.files[number].registers if register.initial}
        zeros = {name for name, value in initial.items() if value == "0"}
        others = initial.keys() - zeros
        for _, snippet in (one for one in self.snippets if one[0] == number):
            for line in snippet.lines:
                if isinstance(line.node, tree.Instruction) and line.node.operands:
                    cleared = line.node.opcode == "mov" and line.node.operands[1:] == (tree.Number("0"),)
                    (zeros if cleared else others).update(names_of(line.node.operands[0]))
        return zeros - others

    # Where they go

    def _function(self, item: Item, code: Emitter) -> Surveyed:
        statements = self.module.statements(item)
        body = Body(self.module, item, statements)
        function = Surveyed(
            item, body, Registers(self.module, map(statements.__getitem__, body.directives[".reg"])), code
        )
        for number, file in enumerate(self.files):
            for probe in file.probes:
                snippets = probe.snippets
                keys: dict[Position, Key] = {}
                seen: set[tuple[str, int, int]] = set()
                for site in find_sites(body, probe.positions):
                    if site[1:] in seen:
                        continue
                    seen.add(site[1:])
                    key = keys.get(site.position)
                    if key is None:
                        key = keys[site.position] = Key(f"{Path(file.path).stem}.{probe.name}", str(site.position))
                    skipped = _SKIPPED.get(site.kind)
                    placed = [one for one in snippets if one[0] != skipped] if skipped else snippets
                    self._counts.setdefault(key, [0, 0])[0] += bool(placed)
                    if site.kind in ("instruction", "line") and not falls_through(last := statements[site.last]):
                        opcode = last.head.partition(".")[0]
                        if any(when == "after" for when, _ in placed):
                            self._tell(key, f"'after' an unguarded '{opcode}' never runs")
                        placed = [one for one in placed if one[0] != "after"]
                    self._place(function, number, probe, placed, key, site)
        return function

    def _place(
        self, function: Surveyed, number: int, probe: Probe, snippets: list[tuple[str, Snippet]], key: Key, site: Site
    ) -> None:
        shape, values = None, list[str]()
        if site.kind in ("instruction", "exit"):
            shape, values = self._shape(function, site.first)
        uses = [PlacedSnippet(number, probe, when, snippet, key, site, shape, values) for when, snippet in snippets]
        if shape and uses:
            fit = (number, id(probe), id(shape))
            if fit not in self._fits:
                self._fits[fit] = find_misfit(probe, shape.bound)
            if reason := self._fits[fit]:
                self._tell(key, f"an instruction {Template(reason).fill(values)}")
                return
        function.uses += uses

    def _shape(self, function: Surveyed, number: int) -> tuple[TemplateShape, list[str]]:
        found = function.shapes.get(number)
        if found is None:
            statement = function.statements[number]
            try:
                found = self.shapes.find(self.module.source(statement), function.types)
            except MalformedError:
                parse_statement(self.module, statement)  # raises with the program's text and line
                raise
            function.shapes[number] = found
        return found

    def drop_unfit(self) -> bool:
        """Drop probes from sites where lowering failed. Return True if the rest has to be lowered again, because a
        site lost its other snippet or a probe has nothing left to do.
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
        """Drop probes without a result, and return whether there were any.

        A group of probes that share registers has no result if only its `kernel` positions matched, which could only
        report that nothing happened, or if no matching probe saves.
        """
        placed = {(use.file, use.probe.name) for use in self.uses}
        matched = {(use.file, use.probe.name) for use in self.uses if use.site.position.kind != "kernel"}
        snippets = {id(use.snippet): (use.file, use.snippet) for use in self.uses}
        acting = {key for key, (number, snippet) in snippets.items() if _acts(snippet, self.files[number])}
        saving = {(use.file, use.probe.name) for use in self.uses if id(use.snippet) in acting}
        idle: set[tuple[int, str]] = set()
        for number, file in enumerate(self.files):
            for group in cooperating(file):
                names = {(number, probe.name) for probe in group} & placed
                others = any(p.kind != "kernel" for probe in group for p in probe.positions)
                is_frame = others and names.isdisjoint(matched)
                if is_frame or names.isdisjoint(saving):
                    idle |= names
                    self.is_mute |= bool(names) and not is_frame
        for function in self.functions if idle else ():
            function.uses = [use for use in function.uses if (use.file, use.probe.name) not in idle]
        left = {id(use.snippet) for use in self.uses} if idle else snippets.keys()
        self.snippets = [snippet for key, snippet in snippets.items() if key in left]
        return bool(idle)


def _acts(snippet: Snippet, file: ProbeFile) -> bool:
    """Return whether a snippet does more than set its file's registers: it saves, or has an unverified effect."""
    nodes = [line.node for line in snippet.lines]
    own = {register.name for register in file.registers} | {n.name for n in nodes if isinstance(n, tree.Label)} | {"_"}
    instructions = (node for node in nodes if isinstance(node, tree.Instruction))
    return any(save.last for save in snippet.saves) or any(
        node.opcode not in counts() or not node.operands or not set(names_of(node.operands[0])) <= own
        for node in instructions
    )


_SKIPPED = {"entry": "after", "exit": "before", "end": "before"}  # snippet that a kernel's start or end doesn't run


def cooperating(file: ProbeFile) -> list[list[Probe]]:
    """Group the probes of a file that share registers."""
    registers = {register.name for register in file.registers}
    groups: list[tuple[set[str], list[Probe]]] = []
    for probe in file.probes:
        named = {n for _, snippet in probe.snippets for line in snippet.lines for n in names_of(line.node)} & registers
        joined = [group for group in groups if group[0] & named]
        groups = [group for group in groups if group not in joined]
        groups.append((named.union(*(g[0] for g in joined)), [p for g in joined for p in g[1]] + [probe]))
    return [probes for _, probes in groups]
