"""Emit PTX for one place: allocate registers, write instructions, and reuse values that have already been computed.

A temporary is written once, and only read after that; ptxas allocates the actual registers. A value that several
snippets need is computed once. A Condition is a predicate that may be negated, and None stands for a condition that
always holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

SETTLED = ("settled",)  # the key of its predicate


class Condition(NamedTuple):
    """A predicate register, or its negation."""

    register: str
    negated: bool = False

    def __str__(self) -> str:
        return f"@!{self.register} " if self.negated else f"@{self.register} "


class Value(NamedTuple):
    """A register of type b32, b64 or another type of these sizes."""

    register: str
    type: str


class Functions:
    """The functions that several places of a module share. If there are `many` places, as much code as possible is
    shared.
    """

    def __init__(self, prefix: str, many: bool = False) -> None:
        self.prefix, self.many = prefix, many
        self.texts: dict[str, list[str]] = {}


class Emitter:
    """Collects the lines of code for a place. It allocates registers, whose names begin with `prefix`.

    - `redux` is True if the target has an instruction that adds up values of all lanes in a warp.
    - `known` has the values of special registers that are the same in all threads of all launches.
    - With `meets`, ptxas must let lanes reconverge after each branch, even if all of them go the same way, as
      gpt/sass/check.py requires.
    - `functions` are shared with other places. Without them, `share` writes all code in place.
    """

    def __init__(
        self,
        prefix: str,
        redux: bool = False,
        known: Mapping[str, int] | None = None,
        meets: bool = False,
        functions: Functions | None = None,
    ) -> None:
        self.prefix, self.redux, self.known, self.meets = prefix, redux, known or {}, meets
        self.functions = functions
        self.lines: list[str] = []
        self.addresses: dict[str, str] = {}  # computed at the kernel's entry; by the parameter of the map
        self._counts: Counter[str] = Counter()
        self._made: dict[tuple[object, ...], str] = {}

    def take(self) -> list[str]:
        """Return the lines collected so far, and remove them."""
        lines, self.lines = self.lines, []
        return lines

    def new(self, type_: str) -> str:
        """Allocate a register of type pred, b16, b32 or b64."""
        self._counts[type_] += 1
        return f"%{self.prefix}{type_}_{self._counts[type_] - 1}"

    def declarations(self) -> list[str]:
        """Return the declarations of all allocated registers."""
        return [f".reg .{type_} %{self.prefix}{type_}_<{count}>;" for type_, count in sorted(self._counts.items())]

    def put(self, text: str, condition: Condition | None = None) -> None:
        """Add an instruction, given without its semicolon."""
        self.lines.append(f"{condition or ''}{text};")

    def make(self, type_: str, opcode: str, *operands: object) -> str:
        """Add an instruction, and return a new register for its result."""
        result = self.new(type_)
        self.put(f"{opcode} {', '.join(map(str, (result, *operands)))}")
        return result

    def halves(self, register: str) -> list[str]:
        """Split a 64-bit register into its lower and upper half."""
        low, high = self.new("b32"), self.new("b32")
        self.put(f"mov.b64 {{{low}, {high}}}, {register}")
        return [low, high]

    def once(self, type_: str, opcode: str, *operands: object) -> str:
        """Like `make`, but if the same instruction was added before, return its register. The operands must never
        change.
        """
        key = (opcode, *operands)
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = self.make(type_, opcode, *operands)
        return found

    def forget(self, known: Mapping[tuple[object, ...], str] = MappingProxyType({})) -> None:
        """Forget which values have been computed, except those in `known`. Call this where control may have skipped the
        code that computes the others.
        """
        self._made = dict(known)

    def known_values(self) -> dict[tuple[object, ...], str]:
        """Return the values computed so far, for a later call of `forget`."""
        return dict(self._made)

    def positive(self, condition: Condition | None) -> str:
        """Return a predicate that's true if, and only if, the condition holds."""
        if condition is None:
            return self.make("pred", "setp.eq.u32", 0, 0)
        return self.make("pred", "not.pred", condition.register) if condition.negated else condition.register

    def both(self, one: Condition | None, other: Condition | None) -> Condition | None:
        """Return the condition that both conditions hold."""
        if one is None or other is None or one == other:
            return one or other
        return Condition(self.make("pred", "and.pred", self.positive(one), self.positive(other)))

    def jump(self, label: str, condition: Condition) -> None:
        """Branch to a label if the condition holds. It must have the same value in all lanes that get here."""
        self.branch(label, condition, "bra.uni")

    def branch(self, label: str, condition: Condition | None, name: str = "bra") -> None:
        """Branch to a label in the lanes in which the condition holds."""
        if self.meets and condition:
            never = self.make("pred", "setp.eq.u32", self.once("b32", "mov.u32", "%lanemask_lt"), -1)
            condition = Condition(self.make("pred", "or.pred", self.positive(condition), never))  # as in `hide`
        self.put(f"{'bra' if self.meets else name} {label}", condition)

    def hide(self, condition: Condition) -> Condition:
        """Return a condition that always has the same value, but ptxas can't know if that's the same in all lanes."""
        lanes = self.once("b32", "mov.u32", "%lanemask_lt")  # never -1
        return Condition(self.make("pred", "setp.ne.and.u32", lanes, -1, self.positive(condition)))

    def share(
        self, name: str, given: list[Value], changed: list[Value], body: Callable[[Emitter, list[str], list[str]], None]
    ) -> None:
        """Call `body` to write code that reads the registers in `given` and changes the registers in `changed`. The
        code is either written in place, or becomes a function, which is shared by all places that use the same name.
        `body` gets an Emitter, and the registers that it must use for the two lists.
        """
        if self.functions is None:
            known = self.known_values()
            body(self, [one.register for one in given], [one.register for one in changed])
            self.forget(known)
            return
        functions = self.functions
        name = f"{functions.prefix}{name}"
        if name not in functions.texts:
            inner = Emitter(f"{functions.prefix}v_", self.redux, self.known, functions=functions)
            functions.texts[name] = _write_function(inner, name, given, changed, body)
        every = [*given, *changed]
        lines = [
            "{",
            *(f".param .{one.type} in{n};" for n, one in enumerate(every)),
            *(f"{one};" for one in _results(changed, "out")),
        ]
        lines += [f"st.param.{one.type} [in{n}], {one.register};" for n, one in enumerate(every)]
        arguments = ", ".join(f"in{n}" for n in range(len(every)))
        lines.append(f"call.uni {'(out), ' if changed else ''}{name}, ({arguments});")
        lines += [f"ld.param.{one.type} {one.register}, [out+{8 * n}];" for n, one in enumerate(changed)]
        self.lines += [*lines, "}"]

    def group(self, condition: Condition | None) -> tuple[str, str]:
        """Return two masks: the active lanes, and the active lanes in which the condition holds."""
        here = self.once("b32", "activemask.b32")
        if condition is None:
            return here, here
        return here, self.make("b32", "vote.sync.ballot.b32", self.positive(condition), here)

    def below(self, group: str) -> str:
        """Return the lanes of a group whose numbers are lower than this lane's."""
        return self.once("b32", "and.b32", group, self.once("b32", "mov.u32", "%lanemask_lt"))

    def first(self, group: str) -> Condition:
        """Return the condition that this is the lowest lane of a group."""
        settled = self._made.get(SETTLED)
        if settled:
            return Condition(self.once("pred", "setp.eq.and.u32", self.below(group), 0, settled))
        return Condition(self.once("pred", "setp.eq.u32", self.below(group), 0))

    def settle(self) -> None:
        """Keep ptxas from moving the program's last stores behind the code that follows. ptxas keeps stores before an
        instruction that reads the clock, if its result is used: `first` compares it with a number that it never is.
        """
        if SETTLED not in self._made:
            self._made[SETTLED] = self.make("pred", "setp.ne.u32", self.make("b32", "mov.u32", "%clock_hi"), -1)

    def one(self) -> str:
        """Return a 64-bit 1 that ptxas doesn't recognize as a constant. When a constant is added atomically, ptxas
        first computes the sum over the lanes, which is slow if only one lane adds.
        """
        return self.once("b64", "cvt.u64.u32", self.once("b32", "popc.b32", self.special("%lanemask_eq")))

    def spread(self, value: str, group: str) -> str:
        """Return a register that holds a 64-bit value in the saving lane of a group, and other values in other lanes.
        When a value that's the same in all lanes is added atomically, ptxas first computes the sum over the lanes,
        which takes ten instructions.
        """
        return self.make("b64", "or.b64", value, self.once("b64", "cvt.u64.u32", self.below(group)))

    # Position in the grid

    def special(self, name: str) -> str:
        """Read a 32-bit special register that doesn't change, or return its value if it's known."""
        return self.once("b32", "mov.u32", self.known.get(name, name))

    def thread(self) -> str:
        """Compute the index of this thread in its block."""
        x, y, z, width, height = map(self.special, ("%tid.x", "%tid.y", "%tid.z", "%ntid.x", "%ntid.y"))
        row = self.once("b32", "mad.lo.u32", z, height, y)
        return self.once("b32", "mad.lo.u32", row, width, x)

    def block(self) -> str:
        """Compute the 64-bit index of this block in the grid; y and z are below 65536."""
        x, y, z, width, height = map(self.special, ("%ctaid.x", "%ctaid.y", "%ctaid.z", "%nctaid.x", "%nctaid.y"))
        row = self.once("b32", "mad.lo.u32", z, height, y)
        wide = self.once("b64", "cvt.u64.u32", x)
        return self.once("b64", "mad.wide.u32", row, width, wide)

    def threads(self) -> str | int:
        """Compute the number of threads per block. If it's the same in all launches, return it as a number."""
        x, y, z = ("%ntid.x", "%ntid.y", "%ntid.z")
        if x in self.known and y in self.known and z in self.known:
            return self.known[x] * self.known[y] * self.known[z]
        row = self.once("b32", "mul.lo.u32", self.special(x), self.special(y))
        return self.once("b32", "mul.lo.u32", row, self.special(z))

    def unit(self, level: str) -> str:
        """Compute the 64-bit index of this thread, warp or block in the grid."""
        block = self.block()
        if level == "block":
            return block
        threads = self.threads()
        count = self.once("b32", "mov.u32", threads) if isinstance(threads, int) else threads
        number = self.thread()
        if level == "warp":
            number = self.warp()
            count = self.once("b32", "shr.u32", self.once("b32", "add.u32", count, 31), 5)
        wide = self.once("b64", "cvt.u64.u32", number)
        return self.once("b64", "mad.lo.u64", block, self.once("b64", "cvt.u64.u32", count), wide)

    def sampled(self, level: str, every: int) -> Condition:
        """Return the condition that the probe runs in this block or warp, if it runs in one of `every`."""
        return Condition(self.make("pred", "setp.eq.u64", self.remainder(self.unit(level), every), 0))

    def remainder(self, value: str, divisor: int) -> str:
        """Compute a 64-bit value modulo a constant. For `rem.u64`, ptxas calls a function of 60 instructions, even if
        the divisor is a constant, and machine code can't contain a call. So we multiply by the 65-bit reciprocal
        instead: Granlund and Montgomery, Division by Invariant Integers using Multiplication, figure 4.1.
        """
        bits = (divisor - 1).bit_length()
        if divisor == 1 << bits:
            return self.make("b64", "and.b64", value, divisor - 1)
        reciprocal = (1 << 64) * ((1 << bits) - divisor) // divisor + 1  # without its highest bit
        high = self.make("b64", "mul.hi.u64", value, reciprocal)
        half = self.make("b64", "shr.u64", self.make("b64", "sub.u64", value, high), 1)
        quotient = self.make("b64", "shr.u64", self.make("b64", "add.u64", high, half), bits - 1)
        return self.make("b64", "sub.u64", value, self.make("b64", "mul.lo.u64", quotient, divisor))

    def element(self, level: str, size: int, base: str) -> str:
        """Compute the address of this thread's, warp's or block's element in an array of elements with `size` bytes."""
        return self.once("b64", "mad.lo.u64", self.unit(level), size, base)

    def warp(self) -> str:
        """Compute the index of this warp in its block."""
        return self.once("b32", "shr.u32", self.thread(), 5)


def _write_function(
    code: Emitter,
    name: str,
    given: list[Value],
    changed: list[Value],
    body: Callable[[Emitter, list[str], list[str]], None],
) -> list[str]:
    """Return the text of a function that has parameters for both lists of values, and returns those in `changed`."""
    registers = [code.new(one.type) for one in [*given, *changed]]
    for number, (one, register) in enumerate(zip([*given, *changed], registers, strict=True)):
        code.put(f"ld.param.{one.type} {register}, [given{number}]")
    body(code, registers[: len(given)], registers[len(given) :])
    for number, (one, register) in enumerate(zip(changed, registers[len(given) :], strict=True)):
        code.put(f"st.param.{one.type} [changed+{8 * number}], {register}")
    taken = ", ".join(f".param .{one.type} given{number}" for number, one in enumerate([*given, *changed]))
    results = ", ".join(_results(changed, "changed"))
    return [
        f".func {f'({results}) ' if results else ''}{name}({taken})",
        "{",
        *code.declarations(),
        *code.take(),
        "ret;",
        "}",
    ]


def _results(changed: list[Value], name: str) -> list[str]:
    """Declare what a function returns: 8 bytes for each value. PTX functions can't return several parameters."""
    return [f".param .align 8 .b8 {name}[{8 * len(changed)}]"] if changed else []
