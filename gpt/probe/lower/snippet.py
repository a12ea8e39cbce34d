"""Lower a snippet at a site to PTX: replace helpers with operands and SAVE with stores, and rename registers and
labels.

If the instruction at the site has a guard, instructions of the snippet with lasting effects get the same guard, in
addition to their own. Local computations run without a guard, because a register that's written under a guard would be
live from the kernel's entry on.

A block or warp that `sample` leaves out jumps over the whole snippet. That's one uniform branch: all threads of a warp
take it or none do, even if blocks are sampled, so lanes that reach the snippet together also leave it together.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from gpt.probe.lower.claim import Room
from gpt.probe.lower.emit import Condition
from gpt.probe.lower.fetch import CannotProbe, Fetcher
from gpt.probe.lower.leader import find_leader
from gpt.probe.lower.registers import Names, part_name, room_names
from gpt.probe.lower.save import save
from gpt.probe.model import COUNTS, HELPERS, SKIPPED, Line, Save, Snippet, names_of, type_of_name
from gpt.probe.plan.maps import PlacedMap
from gpt.ptx import tree
from gpt.ptx.types import SIZES, SPECIAL, takes_no_constant, types_of

TIMES = {"CLOCK": "%clock64", "TIME": "%globaltimer"}  # read at each use
CLOCKS = {"CLOCK", "%clock", "%clock_hi", "%clock64"}
END = ""  # the label after a snippet; labels of probes are never empty
LANES = ("%tid", "%lane", "LANEID", "WARPID", "ADDR", "PRED", "IN", "OUT")  # what each lane has for itself begins so
_WORD = re.compile(r"\W", re.ASCII)


class Lowering:
    """Lowers one snippet at one site. `run` returns the lines to put before the instruction, and the lines of the
    snippet.

    `sampled` is the condition under which a probe with a `sample` runs; it's the same in all lanes of a warp. `base`
    returns the register with the address of a map's buffer. `used` collects the registers of the file that the snippet
    uses, and `shared` the registers that outlive it. A line consists of its text and its line number in the probe file.
    """

    def __init__(
        self,
        read: Fetcher,
        sampled: Condition | None,
        names: Names,
        maps: dict[str, PlacedMap],
        base: Callable[[PlacedMap], str],
        label: str,
        used: set[str],
        shared: set[str],
    ) -> None:
        self.read, self.code, self.use, self.sampled = read, read.code, read.use, sampled
        self.names, self.maps, self.base = names, maps, base
        self.label, self.used, self.shared = label, used, shared
        self.values: dict[str, str] = {}  # helpers fetched so far
        self.parts: dict[str, str] = {}
        self.labels: dict[str, int] = {}
        self.varying: set[str] = set()  # registers that may have different values in the lanes of a warp

    def run(self) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
        """Lower a snippet. Raises CannotProbe."""
        code, read, probe, snippet = self.code, self.read, self.use.probe, self.use.snippet
        self.own = self.names.own.get((probe.name, self.use.when), set())
        self.varying = self.names.names.keys() - self.own
        read.keep()
        before = [(text, snippet.lines[0].line if snippet.lines else probe.line) for text in read.outer.take()]
        if self.sampled:
            code.jump(self._label(END), Condition(self.sampled.register, not self.sampled.negated))
        known, skipping = code.known_values() if self.sampled else {}, code.take()
        if self.use.place.kind == "exit" and not code.meets and not _reads_clock(snippet):
            code.settle()
        read.condition = None if probe.no_pred else read.guard()
        for helper in sorted(snippet.helpers - TIMES.keys() - {"OUT", "IN1", "IN2", "IN3", "IN4", "PRED"}):
            self.values[helper] = read.helper(helper)
        if self.use.when == "after" and self.use.replaces and read.condition is None:
            self._find_leaders(snippet)
        done: list[tuple[str, int]] = []
        for number, line in enumerate(snippet.lines):
            match line.node:
                case tree.Label(name):
                    code.lines.append(f"{self._label(name)}:")
                    code.forget()
                case Save():
                    self._save(line.node, snippet.lines[number + 1 :])
                case tree.Instruction():
                    self._instruction(line.node)
                    self._note(line.node)
            done += [(text, line.line) for text in code.take()]
        if self.sampled and done:
            first, last = done[0][1], done[-1][1]
            done = [*((text, first) for text in skipping), *done, (f"{self._label(END)}:", last)]
            code.forget(known)
        return before, done

    def drop(self) -> None:
        """Discard the code of a snippet that can't run here."""
        self.read.outer.take()
        self.code.take()
        self.code.forget()

    # Operands

    def _operand(self, operand: tree.Operand, wanted: str | None, plain: bool) -> str:
        """Lower an operand of an instruction in a snippet. If it's `plain`, as in mov, it may be a special register."""
        match operand:
            case tree.Name("PRED", ()):
                return self.code.positive(self.read.guard())
            case tree.Name(name, ()) if name in TIMES:
                return TIMES[name] if plain else self.code.make("b64", "mov.u64", TIMES[name])
            case tree.Name(name, ()) if name in self.values:
                value = self.values[name]
                wide = name in COUNTS and wanted in ("u64", "s64", "b64") and value.startswith("%")
                return self.code.make("b64", "cvt.u64.u32", value) if wide else value
            case tree.Name(name, parts) if name in HELPERS:
                bound, element = self.read.bound, "".join(parts)
                source = bound.operand(name, element) if bound and HELPERS[name] is None else None
                if bound is None or source is None:
                    raise CannotProbe(f"has no {operand}")
                width = bound.width(name, element)
                return self.read.sized(
                    source, wanted, fresh=name == "OUT", width=width, low=bound.low(name), cut=width is not None
                )
            case tree.Name(name, parts) if name in SPECIAL and not plain:
                type_ = SPECIAL[name]
                return self.code.make(f"b{SIZES[type_] * 8}", f"mov.{type_}", operand)
            case tree.Name(name, parts):
                return self._register(name) + "".join(parts)
            case tree.Prefixed(prefixes, inner):
                return "".join(prefixes) + self._operand(inner, wanted, plain)
            case tree.Expression(operands, operators) if set(operators) == {"|"}:
                return "|".join(self._operand(part, wanted, plain) for part in operands)
            case tree.Vector(items):
                part = f"b{SIZES[wanted] * 8 // len(items)}" if wanted else None
                return "{" + ", ".join(self._operand(item, part, plain) for item in items) + "}"
        return str(operand)

    def _register(self, name: str) -> str:
        found = self.names.names.get(name)
        if found is None:
            return name
        self.used.add(name)
        if name not in self.own:
            self.shared.add(name)
        return found

    # Statements

    def _label(self, name: str) -> str:
        number = self.labels.setdefault(name, len(self.labels))
        return f"{self.label}_{number}_{_WORD.sub('_', name)}"

    def _guard(self, guard: tree.Guard | None) -> Condition | None:
        if guard is None:
            return None
        if guard.register != "PRED":
            return Condition(self._register(guard.register), guard.negated)
        found = self.read.guard()
        if found is None:
            return Condition(self.code.positive(None), guard.negated)
        return Condition(found.register, found.negated != guard.negated)

    def _instruction(self, node: tree.Instruction) -> None:
        condition = self.code.both(self.read.condition, self._guard(node.guard))
        if node.opcode == "bra":
            self.code.branch(self._label(str(node.operands[0])), condition, node.name)
            self.code.forget()
            return
        if not node.operands:  # only if the file wasn't verified
            self.code.put(node.name, condition)
            return
        wanted = types_of(node)
        plain = node.opcode == "mov"  # only mov takes every special register
        values = [self._operand(o, w, plain) for o, w in zip(node.operands[1:], wanted[1:], strict=True)]
        for place, (operand, type_) in enumerate(zip(node.operands[1:], wanted[1:], strict=True)):
            if takes_no_constant(node, place + 1) and isinstance(operand, tree.Name) and values[place][0] != "%":
                values[place] = self.code.make(f"b{SIZES[type_ or 'b32'] * 8}", f"mov.{type_}", values[place])
        target = self._operand(node.operands[0], wanted[0], True)
        if not node.guard and set(names_of(node.operands[0])) <= self.own:
            condition = None
        self.code.put(f"{node.name} {', '.join([target, *values])}", condition)

    def _note(self, node: tree.Instruction) -> None:
        """Keep track of the registers that may vary."""
        written = {name for operand in node.operands[:1] for name in names_of(operand)}
        read = {name for operand in node.operands[1:] for name in names_of(operand)}
        read |= {node.guard.register} if node.guard else set()
        if any(name in self.varying or name.startswith(LANES) for name in read):
            self.varying |= written
        elif node.guard is None:
            self.varying -= written

    def _find_leaders(self, snippet: Snippet) -> None:
        """Choose the saving lane before the exit of a kernel reads its clocks: there, other instructions hide the
        latency.
        """
        for node in (line.node for line in snippet.lines if isinstance(line.node, Save)):
            placed = self.maps.get(node.map)
            if placed and not node.guard and placed.type == "array" and placed.map.level != "thread":
                find_leader(self.code, placed.map)

    def _save(self, node: Save, rest: tuple[Line, ...]) -> None:
        placed = self.maps.get(node.map)
        if placed is None:
            raise CannotProbe(f"saves to map '{node.map}', which does not exist")
        guard = self._guard(node.guard)
        if guard and node.guard and self.code.meets and node.guard.register not in {*self.varying, "PRED"}:
            guard = self.code.hide(guard)
        condition = self.code.both(self.read.condition, guard)
        fields = placed.map.fields
        types = [field.type for field in fields[node.first :]][: len(node.values)]
        if len(types) < len(node.values) or (node.last and node.first + len(types) < len(fields)):
            raise CannotProbe(f"does not save as many values as map '{node.map}' has fields")  # only if unverified
        if placed.map.type != "array":
            types = [self._added(value, type_) for value, type_ in zip(node.values, types, strict=True)]
        idle = {SKIPPED.name, *self.names.zeros} if placed.map.type == "total" and node.last else ()
        given = ["", ""] if node.mark else []  # a RANGE reads the clock in its own way, and its room has the SM
        if node.mark and node.mark[0] == "end":
            given[0] = self._read_late(condition)
        values = given + [
            "" if isinstance(value, tree.Name) and value.name in idle else self._value(value, type_)
            for value, type_ in zip(node.values[len(given) :], types[len(given) :], strict=True)
        ]
        if not node.last:
            ends_here = any(isinstance(line.node, Save) and line.node.last for line in rest)
            for number, value in enumerate(values, node.first):
                self._part(part_name(node.map, number), value, condition, ends_here)
            return
        parts = [part_name(node.map, number) for number in range(node.first)]
        before = [self.parts[part] if part in self.parts else self._register(part) for part in parts]
        constant = [False] * node.first + [self._is_constant(value) for value in node.values]
        is_log = placed.type == "log"
        save(
            self.code,
            placed,
            self.base,
            before + values,
            [field.size for field in fields[: node.first]] + [SIZES[type_] for type_ in types],
            condition,
            overwrite=self.use.replaces and placed.map.capacity == 1,
            label=lambda: self._label(f"{len(self.labels)} "),  # with the space, it differs from any label of a probe
            constant=constant,
            room=Room(*map(self._register, room_names(node.map))) if is_log else None,
        )

    def _read_late(self, condition: Condition | None) -> str:
        """Read the clock at the end of a range: when the condition is known, and the warp has left a barrier. It may
        issue a few more instructions before the barrier stops it. So the clock is only read once bits of an earlier
        reading are counted, as in probes/sync_wait.toml.
        """
        code = self.code
        lanes = code.once("b32", "activemask.b32")
        bits = code.make("b32", "or.b32", lanes, code.make("b32", "mov.u32", "%clock"))  # never 0
        here = code.make("b32", "popc.b32", bits)
        there = code.both(Condition(code.make("pred", "setp.ne.u32", here, 0)), condition)
        clock = code.make("b64", "mov.u64", 0)
        code.put(f"mov.u64 {clock}, %clock64", there)
        return clock

    def _is_constant(self, value: tree.Operand) -> bool:
        """Return whether a saved value is a constant, as BYTES often is."""
        name = value.name if isinstance(value, tree.Name) and not value.parts else None
        return not self.values.get(name, "%").startswith("%") if name else isinstance(value, tree.Number)

    def _added(self, value: tree.Operand, type_: str) -> str:
        """Return the type in which a value is added to a field: a 32-bit register may be added to a 64-bit field."""
        if not isinstance(value, tree.Name) or value.name in COUNTS:
            return type_
        given = type_of_name(value, self.names.types)
        return given if given == "u32" and type_ == "u64" else type_

    def _part(self, part: str, value: str, condition: Condition | None, ends_here: bool) -> None:
        """Store a value in a register until a SAVE, in this snippet or another one, completes the record."""
        type_ = self.names.types[part]
        if ends_here:
            self.parts[part] = self.code.make(type_, f"mov.{type_}", value)
        else:
            self.code.put(f"mov.{type_} {self._register(part)}, {value}", condition)

    def _value(self, value: tree.Operand, type_: str) -> str:
        """Return a register that holds a value for a field of this type. Constants are loaded into a new register."""
        text = self._operand(value, type_, False)
        if text.startswith("%"):
            return text
        bits = max(16, SIZES[type_] * 8)
        kind = f"f{bits}" if type_ in ("f32", "f64") else f"b{bits}"
        return self.code.make(f"b{bits}", f"mov.{kind}", text)


def _reads_clock(snippet: Snippet) -> bool:
    return any(name in CLOCKS for line in snippet.lines for name in names_of(line.node))
