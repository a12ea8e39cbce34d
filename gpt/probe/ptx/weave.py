"""Weave probes into one kernel of a PTX module.

The program's behaviour doesn't change: weaving inserts lines (edits.py) and lets the kernel find the variables of its
module (variables.py), and `unweave` restores the text. The code of a probe has its own registers and buffers, and
doesn't branch out of itself (gpt/probe/lower).

For each map, a parameter with the address of its buffer is added after the kernel's own parameters, which keep their
offsets. Device functions can't read the parameters of the kernel. So if a kernel has probes in device functions, it
keeps these addresses, and the registers that the probes share, in local memory (state.py), and passes its address in
calls (calls.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from gpt.base.errors import GptError
from gpt.probe.face import Template
from gpt.probe.lower.emit import Condition, Emitter, Functions
from gpt.probe.lower.fetch import CannotProbe, Fetcher
from gpt.probe.lower.registers import Names
from gpt.probe.lower.save import find_addresses
from gpt.probe.lower.snippet import Lowering
from gpt.probe.model import ProbeFile, Save
from gpt.probe.plan.function import Block, Place, PlacedSnippet
from gpt.probe.plan.left_alone import LeftAlone
from gpt.probe.plan.maps import PlacedMap
from gpt.probe.plan.plan import Plan
from gpt.probe.plan.woven import Woven
from gpt.probe.ptx.calls import in_front, pass_state, propagate
from gpt.probe.ptx.edits import (
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
from gpt.probe.ptx.function import PtxFunction
from gpt.probe.ptx.fuse import fuse
from gpt.probe.ptx.params import declare, extended
from gpt.probe.ptx.room import add_room, find_room
from gpt.probe.ptx.state import State
from gpt.probe.ptx.template import Shapes
from gpt.probe.ptx.variables import Variables
from gpt.ptx.attributes import block_of, cluster_of
from gpt.ptx.scan import Module, scan_module
from gpt.stream.records import MAX_RECORD

__all__ = ["MARK", "LeftAlone", "Woven", "unweave", "weave"]
PROVIDED = {"vprintf", "malloc", "free", "__assertfail"}  # functions that the driver links into every module
OLDEST = (6, 2)  # the PTX version that introduced activemask
MAX_TEXT = MAX_RECORD - (2 << 20)  # limit for the characters of a kernel, which leaves room for names and parameters
FEW = 8  # up to this number, snippets are inlined; more of them share functions, which ptxas compiles once
ORDER = {"entry": ENTRY, "before": BEFORE, "after": AFTER, "label": LABEL, "exit": KERNEL_EXIT, "leave": LEAVE}


def weave(
    data: bytes | Module,
    kernel: str,
    files: Sequence[ProbeFile],
    name: str = "PTX",
    *,
    count: bool = False,
    relocatable: bool = False,
) -> Woven:
    """Weave the probes of `files` into a module that contains what one kernel needs (see prune). With `count`, records
    are only counted. A `relocatable` module may call functions that it doesn't define. Raises LeftAlone,
    MalformedError.
    """
    module = data if isinstance(data, Module) else scan_module(data, name)
    return _Weaver(module, kernel, files, count, relocatable).run()


def has_redux(module: Module) -> bool:
    """Return whether a module can use redux.sync, which requires sm_80 and PTX 7.0."""
    return module.target >= 80 and module.version >= (7, 0)


Sampled = dict[tuple[str, int] | None, Condition]  # for each `sample`, the condition under which its probes run


class _Insertion(NamedTuple):
    """The code of some snippets: `before` is inserted before the instruction, and `text` where the probes are placed.

    `misfits` has, for each snippet, the reason why it can't run there, or None.
    """

    before: Template
    text: Template
    misfits: list[str | None]


class _Weaver:
    """Weaves probes into one kernel."""

    def __init__(self, module: Module, kernel: str, files: Sequence[ProbeFile], count: bool, relocatable: bool) -> None:
        self.module, self.files, self.relocatable = module, files, relocatable
        item = module.find(kernel)
        if item is None or item.kind != "entry":
            raise GptError(f"no kernel '{kernel}'", module.name)
        self.kernel = kernel
        self.check()
        self.prefix = next(p for n in itertools.count() if (p := f"gpt{n or ''}_") not in module.text)
        self.variables = Variables(module, kernel, self.prefix, relocatable)
        self.redux = has_redux(module)
        self.known = block_of(module, item)
        shapes = Shapes()
        self.functions = [
            PtxFunction(module, one, shapes) for one in module.functions if one.kind == "func" or one is item
        ]
        self.entry = next(function for function in self.functions if function.is_kernel)
        self.plan = Plan(kernel, self.functions, files, self.prefix, count)
        self.room = 0 if relocatable else find_room(module, self.functions, self.plan, self.prefix)
        self.names = [
            Names(file, f"{self.prefix}{number}_", self.plan.find_zeros(number)) for number, file in enumerate(files)
        ]

    def run(self) -> Woven:
        plan, module = self.plan, self.module
        maps, state, kept = plan.settle(self.lower_all)
        if self.entry not in kept:
            kept.append(self.entry)
        state.hold([function.shared for function in kept if not function.is_kernel])
        pass_state(module, kept, state, self.insertions)
        declare(module, self.entry.item, [placed.param for placed in maps], self.insertions)
        for function in kept:
            self.declare_registers(function, state)
            fuse(module, function, self.insertions, f"{self.prefix}c_")
        params, added = extended(module, self.entry.item, len(maps))
        self.variables.share(self.insertions, {f.item: f.statements for f in self.functions})
        return Woven(
            self.kernel,
            self.insertions.text(module.text),
            module.text.encode("latin-1"),
            params,
            added,
            maps,
            plan.matched,
            plan.misfits,
            cluster_of(module, self.entry.item),
            *self.variables.shared,
            self.room,
        )

    def check(self) -> None:
        """Raise LeftAlone if the module can't have probes."""
        if MARK in self.module.text:
            raise LeftAlone("woven", f"'{MARK}' is in it, if only in a comment", self.kernel)
        if (found := self.module.version) < OLDEST:
            raise LeftAlone("old_ptx", "PTX {}.{} is older than {}.{}".format(*found, *OLDEST), self.kernel)
        if any(i.kind == "address_size" and "32" in self.module.source(i) for i in self.module.items):
            raise LeftAlone("old_ptx", "its addresses have 32 bits", self.kernel)
        if not self.relocatable and (name := _undefined(self.module)):
            raise LeftAlone("undefined", f"'{name}' (-c weaves it, for gpt-asm -c)", self.kernel)

    # Lowering

    def lower_all(self) -> tuple[list[PlacedMap], State, list[PtxFunction]]:
        """Insert the code of all probes. Return the maps in use, the state, and the functions that have changed."""
        self.insertions = Insertions()
        self.shared = Functions(self.prefix, len(list(self.plan.uses)) > FEW)
        for function in self.functions:
            function.begin(Emitter(f"{self.prefix}f_", known=self.known))
        maps = self.plan.used_maps
        state = State(self.prefix, self.names, maps)
        self.plan.check_age(self.module.version, self.module.target)
        propagate(self.module, self.functions, self.kernel)
        kept = [function for function in self.functions if function.uses or function.stateful]
        for function in kept:
            self.lower(function, state)
        for lines in self.shared.texts.values():
            self.insertions.add(self.functions[0].item.start, DECLARE, lines)
        add_room(self.module, self.entry, maps, self.prefix, self.known, self.insertions)
        return maps, state, kept

    def lower(self, function: PtxFunction, state: State) -> None:
        """Insert the code of the probes in a function. Equal blocks are lowered only once."""
        sampled = self.sampled(function)
        addresses, finding = self.addresses(function)
        made: dict[tuple[object, ...], _Insertion] = {}
        for block in function.blocks():
            found = made.get(block.key)
            if found is None:
                code = Emitter(self.prefix, self.redux, self.known, functions=self.shared)
                code.addresses = addresses if block.place.kind == "exit" else {}
                found = made[block.key] = self.block(function, state, code, block, sampled)
            for use, misfit in zip(block.uses, found.misfits, strict=True):
                self.plan.note(use, misfit)
            values = block.uses[0].values
            if before := found.before.fill(values):
                self.insertions.put(in_front(function.statements, block.place.number), KEEP, before)
            self.insertions.put(_offset(function, block.place), ORDER[block.place.kind], found.text.fill(values))
            if len(self.module.text) + self.insertions.size > MAX_TEXT:
                raise LeftAlone("too_large", f"more than {MAX_TEXT >> 20} MiB", self.kernel)
        self.insertions.add(function.item.body + 1, ENTRY, finding)

    def block(self, function: PtxFunction, state: State, code: Emitter, block: Block, sampled: Sampled) -> _Insertion:
        """Return the code of the snippets at one place, in which the parts that differ between instructions are
        slots.
        """
        before, text = "", ""
        misfits: list[str | None] = []
        is_labelled = False
        for number, use in enumerate(block.uses):
            lowering = self.lowering(function, state, code, use, f"${self.prefix}{number}", sampled)
            try:
                kept, lines = lowering.run()
            except CannotProbe as error:
                lowering.drop()
                misfits.append(str(error))
                continue
            misfits.append(None)
            is_labelled |= bool(lowering.labels)
            before += self.marked(kept, use)
            text += self.marked(lines, use)
        if (declared := code.declarations()) or is_labelled:  # these names occur in several places
            text = "".join([marked("{"), *map(marked, declared), text, marked("}")])
        return _Insertion(Template(before), Template(text), misfits)

    def lowering(
        self, function: PtxFunction, state: State, code: Emitter, use: PlacedSnippet, label: str, sampled: Sampled
    ) -> Lowering:
        """Return the Lowering of a snippet into `code`. Its labels begin with `label`."""
        slots = use.face.types if use.face else {}

        def type_of(name: str) -> str | None:
            return slots[name] if name in slots else function.types[name]

        def base(placed: PlacedMap) -> str:
            return _base(code, placed) if function.is_kernel else state.base(placed, code)

        return Lowering(
            Fetcher(code, function.code, type_of, use),
            sampled.get(use.probe.sample),
            self.names[use.file],
            self.plan.maps[use.file],
            base,
            label,
            used=function.used.setdefault(use.file, set()),
            shared=function.shared.setdefault(use.file, set()),
        )

    def marked(self, lines: list[tuple[str, int]], use: PlacedSnippet) -> str:
        """Mark the lines of a snippet with where they're from."""
        path = self.files[use.file].path
        return "".join(marked(text, path, line) for text, line in self.variables.lines(lines))

    def sampled(self, function: PtxFunction) -> Sampled:
        """Write code at the entry that determines which blocks and warps run probes with a `sample`."""
        found: Sampled = {}
        code = function.code
        for sample in dict.fromkeys(use.probe.sample for use in function.uses if use.probe.sample):
            found[sample] = code.sampled(*sample)
        self.insertions.add(function.item.body + 1, ENTRY, code.take())
        return found

    def addresses(self, function: PtxFunction) -> tuple[dict[str, str], list[str]]:
        """Return the addresses to which probes at the exits of the kernel save, and the lines that compute them. These
        lines go to the entry, because the program's own instructions hide their latency there; at an exit, nothing
        does.
        """
        if not function.is_kernel:  # the addresses are in the state
            return {}, []
        ends = [use for use in function.uses if use.when == "after" and use.site.position.kind == "kernel"]
        saves = [(use.file, line.node.map) for use in ends for line in use.snippet.lines if isinstance(line.node, Save)]
        maps = [self.plan.maps[file][name] for file, name in saves if name in self.plan.maps[file]]
        return find_addresses(function.code, maps, partial(_base, function.code)), function.code.take()

    # Declarations

    def declare_registers(self, function: PtxFunction, state: State) -> None:
        """Declare the registers that probes use in a function. In the kernel, also initialize them."""
        lines, initial = function.code.declarations(), []
        for number, used in function.used.items():
            names = self.names[number]
            for name in sorted(used):
                lines.append(f".reg .{names.types[name]} {names.names[name]};")
                if name in names.initial and function.is_kernel:
                    initial.append(state.initial(names, name))
        self.insertions.add(function.item.body + 1, DECLARE, lines + initial)


def _undefined(module: Module) -> str | None:
    """Return the first function that's declared, but defined neither in the module nor by the driver; None if there's
    none.
    """
    defined = {item.name for item in module.functions} | PROVIDED
    defined |= {item.name for item in module.items if item.kind == "alias"}
    return next((item.name for item in module.items if item.kind == "func" and item.name not in defined), None)


def _base(code: Emitter, placed: PlacedMap) -> str:
    """Load the address of a map's buffer from the parameters of the kernel."""
    return code.once("b64", "ld.param.u64", f"[{placed.param}]")


def _offset(function: PtxFunction, place: Place) -> int:
    """Return the offset of a place in the text."""
    statements = function.statements
    match place.kind:
        case "entry":
            return function.item.body + 1
        case "after" | "label":
            return statements[place.number].end
    return in_front(statements, place.number) if place.number < len(statements) else function.item.end - 1
