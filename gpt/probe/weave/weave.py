"""Weave probes into one kernel of a PTX module.

The program's behaviour stays the same: weaving inserts lines (edits.py) and lets the kernel find the variables of its
module (variables.py), and `unweave` restores the program. A probe's code has registers and buffers of its own, and
doesn't branch out of itself (lower.py, save.py).

Each map adds a parameter with the address of its buffer after the kernel's own parameters, which keep their offsets.
Device functions can't read the kernel's parameters, so a kernel with probes in device functions keeps the addresses
and the probes' shared registers in local memory (state.py), and passes its address on (calls.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gpt.base.errors import GptError
from gpt.probe.forms import find_lack
from gpt.probe.model import ProbeFile, Save
from gpt.probe.positions import LEAVES
from gpt.probe.weave.calls import LeftAlone, in_front, pass_state, propagate
from gpt.probe.weave.edits import (
    AFTER,
    BEFORE,
    DECLARE,
    ENTRY,
    KEEP,
    KERNEL_EXIT,
    LABEL,
    LEAVE,
    MARK,
    Insertions,
    marked,
    unweave,
)
from gpt.probe.weave.emit import Condition, Emitter
from gpt.probe.weave.fetch import CannotProbe, Fetcher, ProbeSite
from gpt.probe.weave.lower import Lowering
from gpt.probe.weave.match import Matched, PlacedSnippet, Survey, Surveyed
from gpt.probe.weave.registers import Names
from gpt.probe.weave.save import PlacedMap, find_addresses
from gpt.probe.weave.state import State
from gpt.probe.weave.template import Shapes, Template, TemplateShape
from gpt.probe.weave.variables import SharedVariable, Variables
from gpt.ptx import tree
from gpt.ptx.attributes import block_of, cluster_of
from gpt.ptx.params import Param, addresses_after, layout, limit, reserved, room
from gpt.ptx.quick import parse_params
from gpt.ptx.scan import Module, scan_module
from gpt.stream.reasons import TABLE
from gpt.stream.records import MAX_RECORD

__all__ = ["MARK", "LeftAlone", "Matched", "Woven", "unweave", "weave"]
PROVIDED = {"vprintf", "malloc", "free", "__assertfail"}  # functions that the driver links into every module
OLDEST = (6, 2)  # activemask
MAX_TEXT = MAX_RECORD - (2 << 20)  # characters of a kernel; the rest is for names and parameters


@dataclass(frozen=True)
class Woven:
    """A kernel with probes. `added` are the parameters for the addresses of the maps' buffers, in the order of `maps`.

    `cluster` is a cluster's size in blocks (x, y, z) if a launch's grid counts clusters. `variables` are shared with
    the program's module; `table` is the name of the table for their addresses, if there is one.
    """

    kernel: str
    data: bytes
    params: list[Param]
    added: list[Param]
    cluster: list[int] | None
    maps: list[PlacedMap]
    sites: list[Matched]
    misfits: list[str]
    variables: list[SharedVariable]
    table: str | None


def weave(
    data: bytes | Module,
    kernel: str,
    files: Sequence[ProbeFile],
    name: str = "PTX",
    *,
    count: bool = False,
    relocatable: bool = False,
) -> Woven:
    """Weaves the probes of `files` into a module that holds what one kernel needs (prune). With `count` records are
    counted only. A `relocatable` one may call functions that it does not define. Raises LeftAlone, MalformedError.
    """
    module = data if isinstance(data, Module) else scan_module(data, name)
    return _Weaver(module, kernel, files, count, relocatable).run()


def has_redux(module: Module) -> bool:
    """Return whether a module can use redux.sync, which needs sm_80 and PTX 7.0."""
    return module.target >= 80 and module.version >= (7, 0)


Sampled = dict[tuple[str, int] | None, Condition]  # the condition for probes with this `sample`


class _Insertion(NamedTuple):
    """The code before an instruction and at its probes' place, and for each snippet the reason why it can't run there,
    or None.
    """

    before: Template
    text: Template
    misfits: list[str | None]


class _Weaver:
    """One kernel and its probes."""

    def __init__(self, module: Module, kernel: str, files: Sequence[ProbeFile], count: bool, relocatable: bool) -> None:
        self.module, self.files, self.relocatable = module, files, relocatable
        item = module.find(kernel)
        if item is None or item.kind != "entry":
            raise GptError(f"no kernel '{kernel}'", module.name)
        self.kernel = kernel
        self.check()
        self.prefix = next(p for n in itertools.count() if (p := f"gpt{n or ''}_") not in module.text)
        self.names = [Names(file, f"{self.prefix}{number}_") for number, file in enumerate(files)]
        places = itertools.count()
        self.maps = [  # for each file, by name
            {
                map_.name: PlacedMap(
                    map_, f"{self.prefix}map_{next(places)}", count, file.script, not file.replaces(map_)
                )
                for map_ in file.maps
            }
            for file in files
        ]
        self.variables = Variables(module, kernel, self.prefix, relocatable)
        self.redux = has_redux(module)
        self.known = block_of(module, item)
        self.survey = Survey(module, item, files, Shapes(), self.new_code)
        for names, zeros in zip(self.names, map(self.survey.zeros, range(len(files))), strict=True):
            names.zeros = zeros
        self.entry = self.survey.entry
        self.insertions = Insertions()

    def run(self) -> Woven:
        survey, module = self.survey, self.module
        maps, state, kept = self.lower_all()
        while survey.drop_unfit():  # the others don't need their code
            self.insertions = Insertions()
            for function in survey.functions:
                function.forget(self.new_code())
            maps, state, kept = self.lower_all()
        if not any(site.woven for site in survey.matched):
            reason = f": {survey.misfits[0]}" if survey.misfits else ""
            code = "no_save" if survey.is_mute else "no_place"
            raise LeftAlone(code, f"{TABLE[code][0]}{reason}", self.kernel)
        if self.entry not in kept:
            kept.append(self.entry)
        state.hold([function.shared for function in kept if function is not self.entry])
        pass_state(module, kept, self.entry, state, self.insertions)
        self.declare_parameters(maps)
        for function in kept:
            self.declare_registers(function, state)
        params, added = self.parameters(len(maps))
        self.variables.share(self.insertions, {f.item: f.statements for f in survey.functions})
        data, variables = self.insertions.text(module.text), self.variables.all
        table = self.variables.table if any(v.offset is not None for v in variables) else None
        cluster = cluster_of(module, self.entry.item)
        return Woven(self.kernel, data, params, added, cluster, maps, survey.matched, survey.misfits, variables, table)

    def parameters(self, count: int) -> tuple[list[Param], list[Param]]:
        """Return the kernel's own parameters and `count` more."""
        module = self.module
        own, where = parse_params(module, self.entry.item) or (), module.where(self.entry.item.start)
        params, plain = layout(own, reserved(module.target), where), layout(own, where=where)
        if count and addresses_after(plain, count)[-1].offset + 8 > limit(module.version):
            raise LeftAlone("too_large", f"no room for {count} more parameters", self.kernel)
        return params, addresses_after(params, count)

    def check(self) -> None:
        """Raise LeftAlone for modules that can't be probed."""
        if MARK in self.module.text:
            raise LeftAlone("woven", f"it is woven already: '{MARK}' is in it, if only in a comment", self.kernel)
        if (found := self.module.version) < OLDEST:
            raise LeftAlone("old_ptx", "PTX {}.{} is older than {}.{}".format(*found, *OLDEST), self.kernel)
        if any(i.kind == "address_size" and "32" in self.module.source(i) for i in self.module.items):
            raise LeftAlone("old_ptx", "its addresses have 32 bits", self.kernel)
        if not self.relocatable and (name := _undefined(self.module)):
            raise LeftAlone(
                "undefined",
                f"{TABLE['undefined'][0]}: '{name}' (-c weaves it, for gpt-asm -c)",
                self.kernel,
            )

    def check_age(self, maps: Iterable[PlacedMap]) -> None:
        """Raise LeftAlone if the module's PTX version or target is too old for its probes."""
        age = self.module.version, self.module.target
        for number, snippet in self.survey.snippets:
            if lack := find_lack(snippet, *age):
                raise LeftAlone("old_ptx", f"{self.files[number].path}:{lack[0]}: {lack[1]}", self.kernel)
        for placed in maps:
            if placed.type == "total" and age[1] < 60 and any(f.type == "f64" for f in placed.map.fields):
                raise LeftAlone("old_ptx", f"a total of type f64 needs sm_60, and it is for sm_{age[1]}", self.kernel)

    # Lowering

    def new_code(self) -> Emitter:
        """Return an emitter for values kept throughout a function."""
        return Emitter(f"{self.prefix}f_", known=self.known)

    def lower_all(self) -> tuple[list[PlacedMap], State, list[Surveyed]]:
        """Insert the code of all probes. Return the maps in use, the state, and the changed functions."""
        saved = self.survey.saved
        maps = [
            placed for number, maps in enumerate(self.maps) for name, placed in maps.items() if (number, name) in saved
        ]
        state = State(self.prefix, self.names, maps)
        self.check_age(maps)
        propagate(self.module, self.survey.functions, self.entry)
        kept = [function for function in self.survey.functions if function.uses or function.stateful]
        for function in kept:
            self.lower(function, state)
        return maps, state, kept

    def lower(self, function: Surveyed, state: State) -> None:
        """Insert the code of a function's probes. Snippets at one place share a block; equal blocks are made once."""
        sampled = self.sampled(function)
        addresses, finding = self.addresses(function)
        spots: dict[tuple[int, int, TemplateShape | None], list[PlacedSnippet]] = {}
        for use in function.uses:
            offset, order = _offset(function, use)
            spots.setdefault((offset, order, use.shape), []).append(use)
        blocks: dict[tuple[object, ...], _Insertion] = {}
        for (offset, order, shape), uses in spots.items():
            key = (shape, *[(id(use.snippet), use.site.position.kind) for use in uses])
            block = blocks.get(key)
            if block is None:
                code = Emitter(self.prefix, self.redux, self.known)
                code.addresses = addresses if order == KERNEL_EXIT else {}
                block = blocks[key] = self.block(function, state, code, uses, sampled)
            for use, misfit in zip(uses, block.misfits, strict=True):
                if misfit is None:
                    self.survey.done(use)
                else:
                    self.survey.misfit(use, misfit)
            values = uses[0].values
            if before := block.before.fill(values):
                self.insertions.put(in_front(function.statements, uses[0].site.first), KEEP, before)
            self.insertions.put(offset, order, block.text.fill(values))
            if len(self.module.text) + self.insertions.size > MAX_TEXT:
                raise LeftAlone("too_large", f"it has more than {MAX_TEXT >> 20} MiB with its probes", self.kernel)
        self.insertions.add(function.item.body + 1, ENTRY, finding)

    def block(
        self, function: Surveyed, state: State, code: Emitter, uses: Sequence[PlacedSnippet], sampled: Sampled
    ) -> _Insertion:
        """Return the code of the snippets at one place, with slots for the parts of the instruction."""
        before, text = "", ""
        misfits: list[str | None] = []
        is_labelled = False
        for number, use in enumerate(uses):
            lowering = self.lowering(function, state, code, use, f"${self.prefix}{number}", sampled)
            try:
                kept, lines = lowering.run(use.probe, use.when, use.snippet)
            except CannotProbe as error:
                lowering.drop()
                misfits.append(str(error))
                continue
            misfits.append(None)
            is_labelled |= bool(lowering.labels)
            before += self.marked(kept, use)
            text += self.marked(lines, use)
        if (declared := code.declarations()) or is_labelled:  # these names occur at several places
            text = "".join([marked("{"), *map(marked, declared), text, marked("}")])
        return _Insertion(Template(before), Template(text), misfits)

    def lowering(
        self, function: Surveyed, state: State, code: Emitter, use: PlacedSnippet, label: str, sampled: Sampled
    ) -> Lowering:
        """Return the Lowering of a snippet into `code`, with labels that begin with `label`."""
        instruction, bound, slots = None, None, dict[str, str | None]()
        if use.shape:
            instruction, bound, slots = use.shape.instruction, use.shape.bound, use.shape.types

        def type_of(name: str) -> str | None:
            return slots[name] if name in slots else function.types[name]

        def base(placed: PlacedMap) -> str:
            if function is self.entry:
                return code.once("b64", "ld.param.u64", f"[{placed.param}]")
            return state.base(placed, code)

        site = ProbeSite(
            instruction,
            bound,
            guard=_guard(use),
            sampled=sampled.get(use.probe.sample),
            overwrite=use.site.position.kind == "kernel",
            no_pred=use.probe.no_pred,
        )
        return Lowering(
            Fetcher(code, function.code, type_of, site),
            self.names[use.file],
            self.maps[use.file],
            base,
            label,
            used=function.used.setdefault(use.file, set()),
            shared=function.shared.setdefault(use.file, set()),
        )

    def marked(self, lines: list[tuple[str, int]], use: PlacedSnippet) -> str:
        """Mark the lines of a snippet with their origin."""
        path = self.files[use.file].path
        return "".join(marked(text, path, line) for text, line in self.variables.lines(lines))

    def sampled(self, function: Surveyed) -> Sampled:
        """Compute once, at the entry, the conditions for the blocks and warps that run probes with `sample`."""
        found: Sampled = {}
        code = function.code
        for sample in dict.fromkeys(use.probe.sample for use in function.uses if use.probe.sample):
            level, every = sample
            unit = code.unit(level)
            if every & (every - 1):
                rest = code.make("b64", "rem.u64", unit, every)
            else:  # a power of two
                rest = code.make("b64", "and.b64", unit, every - 1)
            found[sample] = Condition(code.make("pred", "setp.eq.u64", rest, 0))
        self.insertions.add(function.item.body + 1, ENTRY, code.take())
        return found

    def addresses(self, function: Surveyed) -> tuple[dict[str, str], list[str]]:
        """Return the addresses that the kernel's exits save to, and the lines that compute them at the entry. There the
        program's own instructions hide the latency; at an exit nothing does.
        """
        if function is not self.entry:  # the state has its addresses
            return {}, []
        ends = [use for use in function.uses if use.when == "after" and use.site.position.kind == "kernel"]
        saves = [(use.file, line.node.map) for use in ends for line in use.snippet.lines if isinstance(line.node, Save)]
        maps = [self.maps[file][name] for file, name in saves if name in self.maps[file]]
        return find_addresses(function.code, maps), function.code.take()

    # Declarations

    def declare_parameters(self, maps: Iterable[PlacedMap]) -> None:
        """Add the maps' addresses to the kernel's parameters in all of its declarations."""
        parameters = [f".param .u64 {placed.param}" for placed in maps]
        for item in self.module.items if parameters else ():
            if item.kind == "entry" and item.name == self.kernel:
                at, before, after = room(self.module, item)
                lines = [f", {text}" if number else f"{before}{text}" for number, text in enumerate(parameters)]
                lines[-1] += after
                self.insertions.add(at, DECLARE, lines)

    def declare_registers(self, function: Surveyed, state: State) -> None:
        """Declare the registers that probes use in a function; in the kernel, initialize them too."""
        lines, initial = function.code.declarations(), []
        for number, used in function.used.items():
            names = self.names[number]
            for name in sorted(used):
                lines.append(f".reg .{names.types[name]} {names.names[name]};")
                if name in names.initial and function is self.entry:
                    initial.append(state.initial(names, name))
        self.insertions.add(function.item.body + 1, DECLARE, lines + initial)


def _undefined(module: Module) -> str | None:
    """Return the first function that's declared, but neither defined nor provided by the driver."""
    defined = {item.name for item in module.functions} | PROVIDED
    defined |= {item.name for item in module.items if item.kind == "alias"}
    return next((item.name for item in module.items if item.kind == "func" and item.name not in defined), None)


def _guard(use: PlacedSnippet) -> tree.Guard | None:
    """Return the guard for a snippet. After a jump only threads that didn't take it remain, so the guard is negated; a
    snippet at the exit of a kernel or function runs before the instruction and keeps it.
    """
    instruction = use.shape.instruction if use.shape else None
    if not instruction or not instruction.guard:
        return None
    others = use.when == "after" and use.site.kind == "instruction" and instruction.opcode in LEAVES
    return tree.Guard(instruction.guard.register, instruction.guard.negated != others)


def _offset(function: Surveyed, use: PlacedSnippet) -> tuple[int, int]:
    """Return a snippet's offset in the text, and its order there."""
    site = use.site
    if site.kind in ("instruction", "line"):
        if use.when == "before":
            return in_front(function.statements, site.first), BEFORE
        return function.statements[site.last].end, AFTER
    exit_ = KERNEL_EXIT if site.position.kind == "kernel" else LEAVE
    match site.kind:
        case "entry":
            return function.item.body + 1, ENTRY
        case "exit":
            return in_front(function.statements, site.first), exit_
        case "end":
            return function.item.end - 1, exit_
    return function.statements[site.first].end, LABEL
