"""Which probes go where in a kernel: each of its functions with the snippets that are woven into it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from gpt.base.errors import MalformedError
from gpt.probe.forms import counts
from gpt.probe.model import Position, Probe, ProbeFile, Snippet, names_of
from gpt.probe.positions import Body, Site, falls_through, find_sites
from gpt.probe.verify import find_misfit
from gpt.probe.weave.emit import Emitter
from gpt.probe.weave.template import Shapes, Template, TemplateShape
from gpt.ptx import tree
from gpt.ptx.parse import parse_statement
from gpt.ptx.registers import Registers
from gpt.ptx.scan import Item, Module, Statement


class Matched(NamedTuple):
    """A probe's position in a kernel: the places that it means, and how many of them the probe went into."""

    probe: str
    position: str
    matched: int
    woven: int


class Key(NamedTuple):
    """A probe and one of its positions, as messages and records name them."""

    probe: str
    position: str


class PlacedSnippet(NamedTuple):
    """A snippet at a place, still to be lowered. `file` is its file's number.

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
    """A function that is being woven into.

    `used` are the registers of each file that its probes use, `shared` those of them that outlive a snippet. With
    `stateful` it passes the state on.
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
        """Those of its body."""
        return self.body.statements

    def forget(self, code: Emitter) -> None:
        """What lowering its probes found."""
        self.code, self.stateful, self.used, self.shared = code, False, {}, {}


class Survey:
    """The functions of a kernel with their probes, and what is reported of them."""

    def __init__(
        self, module: Module, entry: Item, files: Sequence[ProbeFile], shapes: Shapes, code: Callable[[], Emitter]
    ) -> None:
        self.module, self.files, self.shapes = module, files, shapes
        self.misfits: list[str] = []
        self._fits: dict[tuple[int, int, int], str | None] = {}
        self._counts: dict[Key, list[int]] = {}
        self._woven: set[int] = set()  # the ids of sites
        self._unfit: set[int] = set()  # the ids of uses
        self.functions = [
            self._function(item, code()) for item in module.functions if item.kind == "func" or item is entry
        ]
        self.entry = next(function for function in self.functions if function.item is entry)
        self.is_mute = False  # whether probes were dropped because none could save
        self.snippets: list[tuple[int, Snippet]] = []  # each once, with the number of its file
        self._drop_idle()

    @property
    def uses(self) -> Iterator[PlacedSnippet]:
        """All snippets at all places."""
        return (use for function in self.functions for use in function.uses)

    @property
    def matched(self) -> list[Matched]:
        """What matched, and what of it was woven."""
        return [Matched(*key, *counts) for key, counts in self._counts.items()]

    @property
    def saved(self) -> set[tuple[int, str]]:
        """The maps that are saved to, each with the number of its file."""
        return {(number, save.map) for number, snippet in self.snippets for save in snippet.saves}

    def misfit(self, use: PlacedSnippet, reason: str) -> None:
        """A snippet does not fit the instruction at its position."""
        self._tell(use.key, f"an instruction {Template(reason).fill(use.values)}")
        self._unfit.add(id(use))

    def _tell(self, key: Key, fact: str) -> None:
        text = f"probe '{key.probe.partition('.')[2]}' at '{key.position}': {fact}"
        if text not in self.misfits:
            self.misfits.append(text)

    def done(self, use: PlacedSnippet) -> None:
        """A snippet is woven."""
        if id(use.site) not in self._woven:
            self._woven.add(id(use.site))
            self._counts[use.key][1] += 1

    def zeros(self, number: int) -> set[str]:
        """The registers of a file that hold 0 all the time: nothing that matched writes anything else to them."""
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
                parse_statement(self.module, statement)  # says it in the program's words, and where
                raise
            function.shapes[number] = found
        return found

    def drop_unfit(self) -> bool:
        """Drops the probes that did not fit at a site when they were lowered. Returns whether that leaves others
        without their other half or anything to do: what is left is then to be lowered again.
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
        """Drops probes that would have no result, and returns whether there were any: of those that share registers,
        only `kernel` ones matched, which could only say that nothing happened, or none that saves applies.
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
    """Whether a snippet does more than to set registers of its file: it saves, or does what was not verified."""
    nodes = [line.node for line in snippet.lines]
    own = {register.name for register in file.registers} | {n.name for n in nodes if isinstance(n, tree.Label)} | {"_"}
    instructions = (node for node in nodes if isinstance(node, tree.Instruction))
    return any(save.last for save in snippet.saves) or any(
        node.opcode not in counts() or not node.operands or not set(names_of(node.operands[0])) <= own
        for node in instructions
    )


_SKIPPED = {"entry": "after", "exit": "before", "end": "before"}  # of a probe, where the kernel begins and ends


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
