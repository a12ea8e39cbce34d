"""A toy back end: kernels of a made-up machine, into which a plan weaves readable text.

    kernel copy 8 4          its name, and the bytes of its parameters
    LOAD4 r4 r2 32           load 4 bytes at [r2+32] into r4
    head:
    @p1 JUMP head
    DONE

It has everything that gpt-probe(5), BACK ENDS, requires. Nothing outside of this folder knows about it.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from gpt.base.errors import MalformedError
from gpt.formats.params import Param
from gpt.probe.face import FIRST_SLOT, Face, Template
from gpt.probe.lower.emit import Emitter
from gpt.probe.lower.fetch import CannotProbe, Fetcher
from gpt.probe.lower.registers import Names
from gpt.probe.lower.snippet import Lowering
from gpt.probe.operands import bind
from gpt.probe.plan.function import Function, Place
from gpt.probe.plan.plan import Plan
from gpt.probe.plan.stream import Weaving
from gpt.probe.plan.woven import Woven, addresses_after
from gpt.ptx.tree import Address, Expression, Guard, Instruction, Name, Number

FACES = {  # opcode -> the face's opcode, and the types of the operands; `offset` and `label` are no registers
    "LOAD4": ("ld.global.b32", ("b32", "b64", "offset")),
    "LOAD8": ("ld.global.b64", ("b64", "b64", "offset")),
    "STORE4": ("st.global.b32", ("b64", "b32", "offset")),
    "ADD": ("add.u32", ("b32", "b32", "b32")),
    "WAIT": ("bar.sync", ()),
    "JUMP": ("bra", ("label",)),
    "DONE": ("exit", ()),
}
LINE = re.compile(r"(@!?(?P<guard>p\d+) )?(?P<opcode>[A-Z]\w*)(?P<operands>( \w+)*)|(?P<label>\w+):", re.ASCII)


class Statement(NamedTuple):
    """A line of a listing."""

    kind: str
    head: str
    guard: str
    text: str


class EchoFunction(Function):
    """A function in a listing. Instructions with the same opcode and guard have the same face, which `faces` caches."""

    def __init__(self, name, is_kernel, lines, faces):
        self.faces = faces
        super().__init__(name, is_kernel, [self.parse(line) for line in lines])

    def parse(self, text):
        found = LINE.fullmatch(text)
        if not found or (found["opcode"] and found["opcode"] not in FACES):
            raise MalformedError(f"no instruction: '{text}'", self.faces["where"])
        if found["label"]:
            return Statement("label", found["label"], "", text)
        return Statement("instruction", FACES[found["opcode"]][0], found["guard"] or "", text)

    def find_face(self, number):
        found = LINE.fullmatch(self.statements[number].text)
        words = found["operands"].split() + ([found["guard"]] if found["guard"] else [])
        values = list(dict.fromkeys(words))  # a register that occurs twice gets one slot
        key = found["opcode"], (found[1] or "")[:2], tuple(map(values.index, words))
        if key not in self.faces:
            self.faces[key] = make_face(*key)
        return self.faces[key], values


def make_face(opcode, guard, numbers):
    head, types = FACES[opcode]
    opcode, *modifiers = head.split(".")
    signs = ["" if type_ in ("offset", "label") else "%" for type_ in types] + ["%"]
    slots = [f"{sign}{chr(FIRST_SLOT + number)}" for sign, number in zip(signs, numbers, strict=False)]
    registers = {slot: type_ for slot, type_ in zip(slots, (*types, "pred"), strict=False) if slot[0] == "%"}
    operands = tuple(map(Name, slots[: len(types)]))
    if "offset" in types:
        base, value = operands[:2] if opcode == "st" else operands[1::-1]
        address = Address((Expression((base, Number(slots[2])), ("+",)),))
        operands = (address, value) if opcode == "st" else (value, address)
    node = Instruction(
        opcode,
        tuple(f".{modifier}" for modifier in modifiers),
        operands,
        Guard(slots[-1], guard == "@!") if guard else None,
    )
    return Face(node, bind(node), registers)


class Listing:
    """Parse the functions of a listing: return their first words and their lines, by name."""

    def __init__(self, data, name):
        self.name, self.functions = name, {}
        for line in filter(None, map(str.strip, data.decode().splitlines())):
            kind, *rest = line.split()
            if kind in ("kernel", "function") and rest:
                lines = []
                self.functions[rest[0]] = (kind, list(map(int, rest[1:])), lines)
            elif not self.functions:
                raise MalformedError(f"no function: '{line}'", name)
            else:
                lines.append(line)

    def text(self, names):
        """Return these kernels, and all other functions."""
        kept = [name for name, (kind, *_) in self.functions.items() if kind == "function" or name in names]
        return "".join(f"{line}\n" for name in kept for line in [self.head(name), *self.functions[name][2]])

    def head(self, name):
        kind, sizes, _ = self.functions[name]
        return " ".join([kind, name, *map(str, sizes)])


def weave(listing, kernel, files):
    faces = {"where": listing.name}
    functions = [
        EchoFunction(name, kind == "kernel", lines, faces)
        for name, (kind, _, lines) in listing.functions.items()
        if kind == "function" or name == kernel
    ]
    plan = Plan(kernel, functions, files, "echo_")
    names = [Names(file, f"{number}_", plan.find_zeros(number)) for number, file in enumerate(files)]
    text = plan.settle(lambda: "".join(lower(plan, function, listing, names) for function in functions))
    params = []
    for size in listing.functions[kernel][1]:
        end = params[-1].offset + params[-1].size if params else 0
        params.append(Param(-(-end // size) * size, size, None))
    added = addresses_after(params, len(plan.used_maps))
    original = listing.text([kernel]).encode()
    return Woven(kernel, text.encode(), original, params, added, plan.used_maps, plan.matched, plan.misfits)


def lower(plan, function, listing, names):
    """Return a function as text; woven lines begin with a plus."""
    code: dict[Place, list[str]] = {}
    for block in function.blocks():
        for use in block.uses:
            try:
                kept, body, shared = lower_snippet(plan, names, use)
            except CannotProbe as misfit:
                plan.note(use, str(misfit))
                continue
            plan.note(use, None)
            code.setdefault(Place("before", block.place.number), []).extend(kept)
            code.setdefault(block.place, []).extend([f"+ {describe(use, shared)}", *body])
    params = [placed.param for placed in plan.used_maps if function.is_kernel]
    found = [" ".join([listing.head(function.name), *params]), *code.get(("entry", 0), ())]
    for number in range(len(function.statements) + 1):
        found += [line for kind in ("before", "leave", "exit") for line in code.get((kind, number), ())]
        found += [statement.text for statement in function.statements[number : number + 1]]
        found += [line for kind in ("after", "label") for line in code.get((kind, number), ())]
    return "".join(f"{line}\n" for line in found)


def describe(use, shared):
    """Return what a snippet reads and saves, and the registers of its file that outlive it."""
    saves = [save.map for save in use.snippet.saves if save.last]
    said = [f"{use.probe.name}: {use.when} {use.site.position}"]
    said += [f"reads {' '.join(sorted(use.snippet.helpers))}"] if use.snippet.helpers else []
    said += [f"saves to {' '.join(saves)}"] if saves else []
    said += [f"shares {' '.join(sorted(shared))}"] if shared else []
    return ", ".join(said)


def lower_snippet(plan, names, use):
    """Lower a body to PTX, with the listing's registers and constants. Return the copies made before the instruction,
    the rest, and the registers that outlive the body.
    """
    code, shared = Emitter("t_"), set()
    sampled = code.sampled(*use.probe.sample) if use.probe.sample else None
    read = Fetcher(code, Emitter("k_"), use.face.types.get if use.face else {}.get, use)
    maps, base = plan.maps[use.file], "%{0.param}".format
    kept, body = Lowering(read, sampled, names[use.file], maps, base, "$L", set(), shared).run()
    return *([f"+     {Template(text).fill(use.values)}" for text, _ in part] for part in (kept, body)), shared


class EchoWeaving(Weaving[Listing]):
    """The stage. Its modules are in records of kind `object`, with the same keys as a module."""

    kind = "object"

    def read(self, data, name):
        return Listing(data, name)

    def kernels(self, module):
        return [name for name, (kind, *_) in module.functions.items() if kind == "kernel"]

    def weave(self, module, kernel):
        return weave(module, kernel, self.files)

    def prune(self, module, kernels):
        return module.text(kernels).encode()
