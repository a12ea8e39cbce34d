"""Weaves probes into one kernel of a PTX module.

Nothing of the program is changed: weaving only inserts lines, each with a mark behind it that says where it comes
from, and `unweave` takes them out again. A probe's code uses registers of its own, stores to buffers of its own, and
does not branch out of itself (lower.py, saves.py).

Each map is a parameter more behind the kernel's own, whose offsets stay: the address of its buffer. Code in device
functions cannot read the kernel's parameters, so a kernel with probes in such functions keeps the addresses, and
the registers that the probes share, in a piece of local memory, and hands its address down: the functions on the way
get a parameter more, as do their prototypes and calls. Around such a call, and at the ends of such a function, the
registers go to that memory and come back. A function whose address is taken may be called by who knows whom: a
kernel with a probe in one is left alone.

The order of what stands in one place: what probes want to know from before, probes, what calls and exits need.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from gpt.errors import GptError
from gpt.probe.code import Code, Condition
from gpt.probe.lower import Lowering, Misfit, Names, Site
from gpt.probe.model import Probe, ProbeFile, Snippet, names_of
from gpt.probe.operands import bind
from gpt.probe.params import Param, behind, layout, limit, room
from gpt.probe.positions import Site as Place
from gpt.probe.positions import find_sites
from gpt.probe.saves import Placed
from gpt.probe.state import Registers, State, called, edit_call, iter_callers
from gpt.probe.verify import find_misfit
from gpt.ptx.parse import parse_head
from gpt.ptx.quick import parse_instruction
from gpt.ptx.scan import Item, Module, Statement, scan_module

MARK = "//@"
_WOVEN = re.compile(rf"\n(?:[^\n]*{re.escape(MARK)}[^\n]*\n)+")
OLDEST = (6, 2)  # activemask
(DECLARE, STATE_IN, ENTRY, CALL_OUT, AFTER, LABEL, BEFORE, KEEP, STATE_OUT, LEAVE, KERNEL_EXIT, CALL_IN) = range(12)


class LeftAlone(GptError):
    """A kernel that no probe goes into, and why."""


class Matched(NamedTuple):
    """A probe's position in a kernel: the places that it means, and how many of them the probe went into."""

    probe: str
    position: str
    matched: int
    woven: int


@dataclass(frozen=True)
class Woven:
    """A kernel with probes. `added` are the addresses of the maps' buffers, in the order of `maps`.

    `variables` are those that the module defines for all its kernels, in global or constant memory.
    """

    kernel: str
    data: bytes
    params: list[Param]
    added: list[Param]
    maps: list[Placed]
    sites: list[Matched]
    misfits: list[str]
    variables: list[str]


class Insertion(NamedTuple):
    """Lines that go in front of the character at `offset`; `order` and then `number` tell which come first."""

    offset: int
    order: int
    number: int
    lines: list[str]


def unweave(data: bytes) -> bytes:
    """The program without what `weave` inserted."""
    return _WOVEN.sub("", data.decode("latin-1")).encode("latin-1")


def weave(data: bytes, kernel: str, files: Sequence[ProbeFile], name: str = "PTX", *, count: bool = False) -> Woven:
    """Weaves the probes of `files` into a module that holds what one kernel needs (prune). With `count` records are
    counted only. Raises LeftAlone, MalformedError.
    """
    return _Weaving(scan_module(data, name), kernel, files, count).run()


def version(module: Module) -> tuple[int, int]:
    """The `.version` of a module."""
    item = next((item for item in module.items if item.kind == "version"), None)
    major, _, minor = module.source(item).split()[1].partition(".") if item else ("0", "", "0")
    return int(major or 0), int(minor or 0)


def has_redux(module: Module) -> bool:
    """Whether a module's target has redux.sync: sm_80 or later."""
    found = re.search(r"\.target\s+sm_(\d+)", module.skeleton)
    return found is not None and int(found[1]) >= 80 and version(module) >= (7, 0)


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


@dataclass
class _Use:
    """A snippet at a place, still to be lowered."""

    file: int
    probe: Probe
    when: str
    snippet: Snippet
    place: Place
    site: Site
    key: tuple[str, str]


@dataclass
class _Function:
    """A function that is being woven into."""

    item: Item
    statements: list[Statement]
    types: Registers
    code: Code
    uses: list[_Use] = field(default_factory=list)
    stateful: bool = False
    used: dict[int, set[str]] = field(default_factory=dict)
    shared: dict[int, set[str]] = field(default_factory=dict)


class _Weaving:
    """One kernel and its probes."""

    def __init__(self, module: Module, kernel: str, files: Sequence[ProbeFile], count: bool) -> None:
        self.module, self.files = module, files
        entry = module.find(kernel)
        if entry is None or entry.kind != "entry":
            raise GptError(f"no kernel '{kernel}'", module.name)
        self.entry = entry
        self.prefix = next(p for n in range(1000) if (p := f"gpt{n or ''}_") not in module.text)
        self.names = [Names(file, f"{self.prefix}{number}_") for number, file in enumerate(files)]
        numbered = ((number, map_) for number, file in enumerate(files) for map_ in file.maps)
        self.maps = {
            (number, map_.name): Placed(map_, f"{self.prefix}map_{place}", count)
            for place, (number, map_) in enumerate(numbered)
        }
        self.redux = has_redux(module)
        self.insertions: list[Insertion] = []
        self.labels = 0
        self.matched: dict[tuple[str, str], list[int]] = {}
        self.misfits: list[str] = []

    def run(self) -> Woven:
        self.check()
        functions = [function for item in self.module.functions if (function := self.survey(item))]
        self.drop_idle(functions)
        if not any(function.uses for function in functions):
            raise self.nothing()
        self.propagate(functions)
        entry = next(function for function in functions if function.item is self.entry)
        kept = [function for function in functions if function.uses or function.stateful or function is entry]
        pieces = [(function, list(self.lower(function))) for function in kept]
        if not any(woven for _, woven in self.matched.values()):
            raise self.nothing()
        saved = {key for function in kept for use in function.uses for key in self.keys(use)}
        maps = [placed for key, placed in self.maps.items() if key in saved]
        state = State(self.prefix, self.names, maps, [f.shared for f in kept if f is not entry])
        if any(function.stateful for function in kept):
            self.pass_state(functions, state)
        for function, insertions in pieces:
            self.finish(function, insertions, state, maps)
        params = layout(parse_head(self.module, self.entry))
        added = behind(params, len(maps))
        if added and added[-1].offset + 8 > limit(version(self.module)):
            raise LeftAlone(f"no room for {len(maps)} more parameters", self.entry.name)
        sites = [Matched(*key, *counts) for key, counts in self.matched.items()]
        return Woven(self.entry.name, self.text(), params, added, maps, sites, self.misfits, list(self.variables()))

    def nothing(self) -> LeftAlone:
        reason = f": {self.misfits[0]}" if self.misfits else ""
        return LeftAlone(f"no probe has a place in it{reason}", self.entry.name)

    def variables(self) -> Iterator[str]:
        """The variables that the module defines."""
        for item in self.module.items:
            if item.kind == "variable":
                words = self.module.skeleton[item.start : item.end].partition("=")[0].split()
                if ".extern" not in words and {".global", ".const"} & set(words):
                    yield from item.names

    def check(self) -> None:
        """Raises LeftAlone for modules that no probe can go into."""
        if MARK in self.module.text:
            raise LeftAlone("it is woven already", self.entry.name)
        if (found := version(self.module)) < OLDEST:
            raise LeftAlone("PTX {}.{} is older than {}.{}".format(*found, *OLDEST), self.entry.name)
        if any(i.kind == "address_size" and "32" in self.module.source(i) for i in self.module.items):
            raise LeftAlone("its addresses have 32 bits", self.entry.name)

    # Which probes go where

    def survey(self, item: Item) -> _Function | None:
        """A function of the kernel with its probes, those that fit."""
        if item.kind == "entry" and item is not self.entry:
            return None
        statements = self.module.statements(item)
        function = _Function(item, statements, Registers(self.module, statements), Code(self.prefix, self.redux))
        for number, file in enumerate(self.files):
            for probe in file.probes:
                seen: set[tuple[str, int, int]] = set()
                for place in find_sites(self.module, item, statements, probe.positions):
                    if place[1:] in seen:
                        continue
                    seen.add(place[1:])
                    self.place(function, number, probe, place)
        return function

    def drop_idle(self, functions: list[_Function]) -> None:
        """Drops probes that could only tell that nothing happened: of those that share registers, only `kernel` ones
        matched.
        """
        for number, file in enumerate(self.files):
            uses = [use for function in functions for use in function.uses if use.file == number]
            matched = {use.probe.name for use in uses if use.place.position.kind != "kernel"}
            for group in cooperating(file):
                others = any(p.kind != "kernel" for probe in group for p in probe.positions)
                if others and not any(probe.name in matched for probe in group):
                    for function in functions:
                        function.uses = [u for u in function.uses if u.file != number or u.probe not in group]

    def place(self, function: _Function, number: int, probe: Probe, place: Place) -> None:
        key = (f"{Path(self.files[number].path).stem}.{probe.name}", str(place.position))
        counts = self.matched.setdefault(key, [0, 0])
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
        function.uses += [_Use(number, probe, when, snippet, place, site, key) for when, snippet in snippets]

    def misfit(self, probe: Probe, position: str, reason: str) -> None:
        text = f"probe '{probe.name}' at '{position}': an instruction {reason}"
        if text not in self.misfits:
            self.misfits.append(text)

    def keys(self, use: _Use) -> set[tuple[int, str]]:
        return {(use.file, save.map) for save in use.snippet.saves}

    def propagate(self, functions: list[_Function]) -> None:
        """Finds the functions that need the state: those with probes, and those that call such."""
        names = {function.item.name: function for function in functions}
        if not any(f.uses for f in functions if f.item is not self.entry):
            return
        waiting = [f for f in functions if f.uses and f.item is not self.entry]
        calls = {name: called(self.module, f.statements) for name, f in names.items()}
        while waiting:
            function = waiting.pop()
            if not function.stateful:
                function.stateful = True
                waiting += [f for name, f in names.items() if function.item.name in calls[name]]
        for function in functions:
            if function.stateful and function.item is not self.entry:
                self.check_callable(function)

    def check_callable(self, function: _Function) -> None:
        """Raises LeftAlone for a function that could be called in another way than by its name."""
        name, module = function.item.name, self.module
        word = re.compile(rf"(?<![\w$%.]){re.escape(name)}(?![\w$])")
        named = sum(1 for _ in word.finditer(module.skeleton))
        own = sum(1 for item in module.items if item.kind == "func" and item.name == name)
        direct = sum(1 for _ in iter_callers(module, name))
        if named != own + direct:
            raise LeftAlone(f"probes in function '{name}', whose address is taken", self.entry.name)
        if any(name in called(module, module.statements(e)) for e in module.entries if e is not self.entry):
            raise LeftAlone(f"probes in function '{name}', which another kernel calls", self.entry.name)
        if any(s.word == ".reg" for p in parse_head(module, function.item).params or () for s in p.specifiers):
            raise LeftAlone(f"probes in function '{name}', whose parameters are registers", self.entry.name)

    # Lowering

    def lower(self, function: _Function) -> Iterator[Insertion]:
        """The code of a function's probes."""
        code = function.code
        sampled = self.sampled(function)
        woven: set[tuple[tuple[str, str], Place]] = set()
        for use in function.uses:
            self.labels += 1
            maps = {name: placed for (number, name), placed in self.maps.items() if number == use.file}
            lowering = Lowering(
                code,
                self.names[use.file],
                maps,
                lambda placed: self.base(function, placed),
                function.types,
                f"${self.prefix}{self.labels}",
                function.used.setdefault(use.file, set()),
                function.shared.setdefault(use.file, set()),
            )
            site = replace(use.site, sampled=sampled.get(use.probe.sample))
            try:
                before, lines = lowering.run(use.probe, use.when, use.snippet, site)
            except Misfit as error:
                code.take()
                self.misfit(use.probe, use.key[1], str(error))
                continue
            if (use.key, use.place) not in woven:
                woven.add((use.key, use.place))
                self.matched[use.key][1] += 1
            path = self.files[use.file].path
            offset, order = self.offset(function, use)
            if before:
                kept = self.in_front(function, use.place.first)
                yield self.insertion(kept, KEEP, [self.mark(text, f"{path}:{line}") for text, line in before])
            yield self.insertion(offset, order, [self.mark(text, f"{path}:{line}") for text, line in lines])

    def sampled(self, function: _Function) -> dict[tuple[str, int] | None, Condition]:
        """What holds in the blocks and warps that run the probes with `sample`, found once."""
        found: dict[tuple[str, int] | None, Condition] = {}
        code = function.code
        for sample in dict.fromkeys(use.probe.sample for use in function.uses):
            if sample:
                level, every = sample
                unit = code.unit(level)
                rest = (
                    code.make("b64", "and.b64", unit, every - 1)
                    if every & (every - 1) == 0
                    else code.make("b64", "rem.u64", unit, every)
                )
                found[sample] = Condition(code.make("pred", "setp.eq.u64", rest, 0))
        if found:
            self.insert(function.item.body + 1, ENTRY, code.take())
        return found

    def base(self, function: _Function, placed: Placed) -> str:
        code = function.code
        if function.item is self.entry:
            return code.make("b64", "ld.param.u64", f"[{placed.param}]")
        return code.make("b64", "ld.local.u64", f"[%{self.prefix}state+{{{placed.param}}}]")

    def offset(self, function: _Function, use: _Use) -> tuple[int, int]:
        """Where a snippet goes."""
        statements, place = function.statements, use.place
        match place.kind, use.when:
            case "entry", _:
                return function.item.body + 1, ENTRY
            case "end", _:
                return function.item.end - 1, KERNEL_EXIT if place.position.kind == "kernel" else LEAVE
            case "exit", _:
                order = KERNEL_EXIT if place.position.kind == "kernel" else LEAVE
                return self.in_front(function, place.first), order
            case "label", _:
                return statements[place.first].end, LABEL
            case _, "before":
                return self.in_front(function, place.first), BEFORE
        return statements[place.last].end, AFTER

    def in_front(self, function: _Function, number: int) -> int:
        """The offset in front of a statement, and of pragmas that speak of it."""
        at = function.statements[number].start
        for statement in reversed(function.statements[:number]):
            if statement.kind != "directive" or statement.head not in (".pragma", ".loc"):
                break
            at = statement.start if statement.head == ".pragma" else at
        return at

    # State

    def pass_state(self, functions: list[_Function], state: State) -> None:
        """Adds the parameter to functions, prototypes and calls, and moves the registers."""
        module = self.module
        stateful = {function.item.name for function in functions if function.stateful}
        for item in module.items:
            if item.kind == "func" and item.name in stateful:
                at, before, behind_ = room(module, item)
                self.insert(at, DECLARE, [f"{before}.param .b64 {self.prefix}in{behind_}"])
        for function in functions:
            if not function.stateful:
                continue
            used = function.shared
            for number, statement in enumerate(function.statements):
                if statement.kind != "instruction":
                    continue
                opcode = statement.head.partition(".")[0]
                if opcode == "call" and (callee := called(module, [statement])) & stateful:
                    at, before, behind_ = edit_call(module, statement, next(iter(callee)))
                    self.insert(at, CALL_IN, [f"{before}%{self.prefix}state{behind_}"])
                    self.insert(self.in_front(function, number), STATE_OUT, state.store(used, function.code))
                    self.insert(statement.end, CALL_OUT, state.load(used, function.code))
                elif opcode == "ret" and function.item is not self.entry:
                    self.insert(self.in_front(function, number), CALL_IN, state.store(used, function.code))
            if function.item is not self.entry:
                self.insert(function.item.end - 1, CALL_IN, state.store(used, function.code))
                lines = [
                    f".reg .b64 %{self.prefix}state;",
                    f"ld.param.b64 %{self.prefix}state, [{self.prefix}in];",
                    *state.load(used, function.code),
                ]
            else:
                lines = [
                    f".local .align 8 .b8 {self.prefix}memory[{state.size}];",
                    f".reg .b64 %{self.prefix}state;",
                    f"mov.u64 %{self.prefix}state, {self.prefix}memory;",
                    *state.begin(function.code),
                ]
            self.insert(function.item.body + 1, STATE_IN, lines)

    # Putting it together

    def finish(self, function: _Function, insertions: list[Insertion], state: State, maps: list[Placed]) -> None:
        for one in insertions:
            self.insertions.append(one._replace(lines=[state.place(line) for line in one.lines]))
        lines, initial = function.code.declarations(), []
        for number, used in function.used.items():
            names = self.names[number]
            for name in sorted(used):
                type_ = names.types[name]
                lines.append(f".reg .{type_} {names.names[name]};")
                if name in names.initial and function.item is self.entry:
                    initial.append(state.initial(names, name, function.code))
        if function.item is self.entry:
            parameters = [f".param .u64 {placed.param}" for placed in maps]
            if parameters:
                at, before, behind_ = room(self.module, function.item)
                last = len(parameters) - 1
                texts = [
                    f"{before if not number else ', '}{text}{behind_ if number == last else ''}"
                    for number, text in enumerate(parameters)
                ]
                self.insert(at, DECLARE, texts)
        self.insert(function.item.body + 1, DECLARE, lines + initial)

    def mark(self, text: str, where: str = "") -> str:
        return f"\t{text} {MARK}{' ' * bool(where)}{''.join(c for c in where if c.isprintable())}"

    def insert(self, offset: int, order: int, lines: Iterable[str]) -> None:
        self.insertions.append(self.insertion(offset, order, [self.mark(text) for text in lines]))

    def insertion(self, offset: int, order: int, lines: list[str]) -> Insertion:
        self.labels += 1
        return Insertion(offset, order, self.labels, lines)

    def text(self) -> bytes:
        parts, at, text = [], 0, self.module.text
        for offset, _, _, lines in sorted(self.insertions):
            if lines:
                parts += [text[at:offset], "\n", "".join(f"{line}\n" for line in lines)]
                at = offset
        return "".join([*parts, text[at:]]).encode("latin-1", "replace")
