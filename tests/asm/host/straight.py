"""Random straight-line programs, and their results in exact arithmetic.

A program is a list of steps, each an opcode and choices of registers, a guard and a constant. Any list of steps is a
valid program. Opcodes and their results come from integers.py and floats.py; moves, predicates, carries, local memory,
and lane operations are defined here. There are registers of every size and type. If PTX doesn't define the bits of a
NaN, it's made canonical right after it's computed. The result is the final registers and local memory.
"""

from __future__ import annotations

import itertools
import random
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import NamedTuple

from tests.asm.host import floats, integers
from tests.asm.host.exact import BF16, F16, F32, F64, FORMATS, Format
from tests.asm.host.integers import cast
from tests.asm.host.jobs import Job
from tests.asm.host.rows import holds

HEAD = ".version 8.3\n.target sm_90\n.address_size 64\n"
LANES = 32  # threads of a program: one warp
ROOM = 64  # bytes of local memory
KINDS = {16: "bbbus", 32: "bbbbusff", 64: "bbbbusff", 1: "pppp"}  # size -> declared kinds of the registers
REGISTERS = [(size, kind, f"%{kind}{size}_{i}") for size, kinds in KINDS.items() for i, kind in enumerate(kinds)]
NAMES = [name for _, _, name in REGISTERS]
RESULT = 8 * len(REGISTERS) + ROOM  # bytes of a thread's result
Step = tuple[int, int, tuple[int, int, int, int, int], int, int]  # family, opcode, registers, guard, constant


class Opcode(NamedTuple):
    """`form` has {} for results, then for operands, and {c} for the step's constant; it may be a list of instructions.

    `results` and `operands` are pairs of a size and the allowed kinds of registers. `does` takes bits and returns the
    bits of each result: for all lanes at once if `meets` is set, and with the thread's memory as the first argument if
    `remembers` is set.
    """

    form: str
    results: tuple[tuple[int, str], ...]
    operands: tuple[tuple[int, str], ...]
    does: Callable[..., object]
    meets: bool = False
    remembers: bool = False

    def text(self, registers: Iterable[str], constant: int) -> str:
        """Return the text of the instructions."""
        number = itertools.count()
        form = re.sub(r"(?<!\{)\{\}(?!\})|(?<=\{\{)\{\}|\{\}(?=\}\})", lambda _: f"{{{next(number)}}}", self.form)
        return form.format(*registers, c=constant)


def _place(type_: str) -> tuple[int, str]:
    """Return the register for an operand of a type."""
    if type_ == "pred":
        return 1, "p"
    sizes = {"x2": 16 if re.match("e[0-9]", type_) else 32, "f16": 16, "bf16": 16, "tf32": 32}
    size = sizes["x2"] if type_.endswith("x2") else sizes.get(type_) or max(16, int(type_[1:]))
    kinds = "bus" if re.fullmatch("[usb][0-9]+", type_) else "bf" if type_ in ("f32", "f64") else "b"
    return size, kinds


def _slots(count: int) -> str:
    return ", ".join(["{}"] * count)


def _integers() -> Iterator[Opcode]:
    for text, to, of, does in integers.instructions():
        if not does or (text.startswith("cvt.sat") and holds(to, of[0])):  # ptxas rejects a .sat that has no effect
            continue
        form = text if "{}" in text else f"{text} {_slots(1 + len(of))}"

        def result(*given: int, to=to, of=of, does=does) -> tuple[int]:
            found = cast(does(*(cast(value, type_) for value, type_ in zip(given, of, strict=True))), to)
            return (cast(found, f"u{_place(to)[0]}"),)

        places = [_place(type_) for type_ in (to, *of)]
        if "x2" in text:
            places = [(size, "b") for size, _ in places]
        yield Opcode(form, (places[0],), tuple(places[1:]), result)


def _floats(form: Format) -> Iterator[Opcode]:
    for case in floats.cases_of(form):
        words = re.split(r"[. ]", case.text)
        if any(re.match("e[23]m[123]x2", word) for word in words):  # these need sm_100
            continue
        types = [words[-1]] * len(case.operands)
        to = words[-2] if words[0] in ("cvt", "set") else "pred" if case.result == 1 else words[-1]
        wide = _place(to)[0]
        # For the minimum of a value and itself, ptxas uses the value, even if it's a NaN.
        nan = form if words[0] in ("min", "max") and case.result == form.size else case.nan

        def result(*given: int, case=case, to=to, wide=wide, nan=nan) -> tuple[int]:
            found = case.does(*(value & (1 << bits) - 1 for value, bits in zip(given, case.operands, strict=True)))
            if nan and nan.is_nan(found):
                found = nan.nan
            return (cast(cast(found, f"{to[0]}{case.result}"), f"u{wide}") if case.result < wide else found,)

        text = f"{case.text} {_slots(1 + len(types))}"
        if nan:
            text += f"; setp.nan.{nan.name} %nan, {{0}}, {{0}}; selp.b{wide} {{0}}, {nan.nan:#x}, {{0}}, %nan"
        yield Opcode(text, (_place(to),), tuple(map(_place, types)), result)


def _moves() -> Iterator[Opcode]:
    any_ = {16: (16, "bus"), 32: (32, "busf"), 64: (64, "busf")}
    p, whole = (1, "p"), {16: (16, "bus"), 32: (32, "bus"), 64: (64, "bus")}
    for n in (16, 32, 64):
        yield Opcode(f"mov.b{n} {{}}, {{}}", (any_[n],), (any_[n],), lambda a: (a,))
        yield Opcode(f"selp.b{n} {_slots(4)}", (any_[n],), (any_[n], any_[n], p), lambda a, b, c: (a if c else b,))
        for value in CONSTANTS[n]:
            yield Opcode(f"mov.b{n} {{}}, {value:#x}", (any_[n],), (), lambda value=value: (value,))
    b16, b32, b64 = (16, "b"), (32, "b"), (64, "b")
    yield Opcode("mov.b32 {}, {{{}, {}}}", (b32,), (b16, b16), lambda a, b: (a | b << 16,))
    yield Opcode("mov.b64 {}, {{{}, {}}}", (b64,), (b32, b32), lambda a, b: (a | b << 32,))
    yield Opcode("mov.b64 {{{}, {}}}, {}", (b32, b32), (b64,), lambda a: (a & 0xFFFFFFFF, a >> 32))
    yield Opcode("mov.b32 {{_, {}}}, {}", (b16,), (b32,), lambda a: (a >> 16,))
    for name, does in {"and": int.__and__, "or": int.__or__, "xor": int.__xor__}.items():
        yield Opcode(f"{name}.pred {_slots(3)}", (p,), (p, p), lambda a, b, does=does: (does(a, b),))
        for how, compares in integers.COMPARE.items():
            for t in ("u16", "s32", "u64"):

                def both(a: int, b: int, c: int, does=does, compares=compares, t=t) -> tuple[int, int]:
                    found = int(compares(cast(a, t), cast(b, t)))
                    return does(found, c), does(1 - found, c)

                at = whole[int(t[1:])]
                yield Opcode(f"setp.{how}.{name}.{t} {{}}|{{}}, {{}}, {{}}, {{}}", (p, p), (at, at, p), both)
    yield Opcode("not.pred {}, {}", (p,), (p,), lambda a: (1 - a,))
    for n in (32, 64):
        at, mask = whole[n], (1 << n) - 1
        add = lambda a, b, c, d, n=n, mask=mask: (a + b & mask, c + d + (a + b >> n) & mask)  # noqa: E731
        sub = lambda a, b, c, d, mask=mask: (a - b & mask, c - d - (a < b) & mask)  # noqa: E731
        mad = lambda a, b, c, d, n=n, mask=mask: (  # noqa: E731
            a * b + c & mask, (a * b >> n) + d + ((a * b & mask) + c >> n) & mask
        )  # fmt: skip
        # The first result may also be an operand of the second instruction, so it goes through %low.
        low = f"%low{n}"
        for one, two, does in (("add.cc", "addc", add), ("sub.cc", "subc", sub)):
            form = f"{one}.u{n} {low}, {{2}}, {{3}}; {two}.u{n} {{1}}, {{4}}, {{5}}; mov.b{n} {{0}}, {low}"
            yield Opcode(form, (at, at), (at,) * 4, does)
        form = (
            f"mad.lo.cc.u{n} {low}, {{2}}, {{3}}, {{4}}; madc.hi.u{n} {{1}}, {{2}}, {{3}}, {{5}}; mov.b{n} {{0}}, {low}"
        )
        yield Opcode(form, (at, at), (at,) * 4, mad)


def _memory() -> Iterator[Opcode]:
    for space, base in (("local.", "%local"), ("", "%generic")):
        for n in (8, 16, 32, 64):
            at, size = (max(16, n), "bus"), n // 8
            # ptxas 13.0 turns st.b8 of a .b16 that a bf16 instruction produced into a conversion from f16 to u8.
            stored = (16, "us") if n == 8 else at

            def store(room: bytearray, c: int, a: int, size=size, n=n) -> tuple[()]:
                room[c : c + size] = (a & (1 << n) - 1).to_bytes(size, "little")
                return ()

            yield Opcode(f"st.{space}b{n} [{base}+{{c}}], {{}}", (), (stored,), store, remembers=True)
            for sign in "us":
                wide = max(16, n)

                def load(room: bytearray, c: int, size=size, n=n, sign=sign, wide=wide) -> tuple[int]:
                    found = int.from_bytes(room[c : c + size], "little")
                    return (cast(cast(found, f"{sign}{n}"), f"u{wide}"),)

                yield Opcode(f"ld.{space}{sign}{n} {{}}, [{base}+{{c}}]", (at,), (), load, remembers=True)

        def pair(room: bytearray, c: int, a: int, b: int) -> tuple[()]:
            room[c : c + 8] = struct.pack("<2I", a, b)
            return ()

        yield Opcode(f"st.{space}v2.b32 [{base}+{{c}}], {{{{{{}}, {{}}}}}}", (), ((32, "b"),) * 2, pair, remembers=True)


def _lanes() -> Iterator[Opcode]:
    at, p, every = (32, "b"), (1, "p"), "0xffffffff"
    sources: dict[str, Callable[[int, int], int]] = {
        "up": lambda lane, b: lane - b,
        "down": lambda lane, b: lane + b if lane + b < LANES else -1,
        "bfly": lambda lane, b: lane ^ b,
        "idx": lambda lane, b: b,
    }
    for mode, source in sources.items():

        def shuffle(values: list[int], lanes: list[int], source=source) -> tuple[list[int], list[int]]:
            froms = [source(lane, b & 31) for lane, b in enumerate(lanes)]
            found = [values[lane if there < 0 else there] for lane, there in enumerate(froms)]
            return found, [int(there >= 0) for there in froms]

        clamp = 0 if mode == "up" else 31
        form = f"shfl.sync.{mode}.b32 {{}}|{{}}, {{}}, {{}}, {clamp}, {every}"
        yield Opcode(form, (at, p), (at, at), shuffle, meets=True)
    votes: dict[str, Callable[[list[int]], int]] = {
        "all": lambda a: int(all(a)), "any": lambda a: int(any(a)), "uni": lambda a: int(len(set(a)) == 1)
    }  # fmt: skip
    for name, does in votes.items():
        each = lambda a, does=does: ([does(a)] * LANES,)  # noqa: E731
        yield Opcode(f"vote.sync.{name}.pred {{}}, {{}}, {every}", (p,), (p,), each, meets=True)
    ballot = lambda a: ([sum(bit << lane for lane, bit in enumerate(a))] * LANES,)  # noqa: E731
    yield Opcode(f"vote.sync.ballot.b32 {{}}, {{}}, {every}", (at,), (p,), ballot, meets=True)
    for name, type_, reduce in (
        ("add", "s32", sum), ("min", "s32", min), ("max", "u32", max), ("min", "u32", min), ("max", "s32", max)
    ):  # fmt: skip

        def whole(a: list[int], type_=type_, reduce=reduce) -> tuple[list[int]]:
            return ([cast(reduce(cast(one, type_) for one in a), "u32")] * LANES,)

        yield Opcode(f"redux.sync.{name}.{type_} {{}}, {{}}, {every}", (at,), (at,), whole, meets=True)
    same = lambda a: ([sum((b == one) << lane for lane, b in enumerate(a)) for one in a],)  # noqa: E731
    yield Opcode(f"match.any.sync.b32 {{}}, {{}}, {every}", (at,), (at,), same, meets=True)
    equal = lambda a: (([0xFFFFFFFF] if len(set(a)) == 1 else [0]) * LANES, [int(len(set(a)) == 1)] * LANES)  # noqa: E731
    yield Opcode(f"match.all.sync.b32 {{}}|{{}}, {{}}, {every}", (at, p), (at,), equal, meets=True)


def _constants() -> dict[int, list[int]]:
    """Return constants of a size: bounds of integers, floats of every format."""
    found = {}
    for n, forms in {16: (F16, BF16), 32: (F32,), 64: (F64,)}.items():
        one = [0, 1, 31, n, (1 << n) - 1, 1 << n - 1, (1 << n - 1) - 1]
        for form in forms:
            bias = form.bias << form.fraction
            one += [bias, bias | form.sign, bias + (3 << form.fraction - 1), form.greatest, form.greatest + 1, form.nan]
        found[n] = one
    found[32] += [0x3C00C000, 0x3F80BF80]
    return found


CONSTANTS = _constants()


@cache
def opcodes() -> tuple[tuple[Opcode, ...], ...]:
    """Return the opcodes by family; each family is equally likely."""
    families = [_integers(), *(_floats(FORMATS[name]) for name in ("f16", "bf16", "f32", "f64"))]
    return (*map(tuple, families), tuple(_moves()), tuple(_memory()), tuple(_integers()), tuple(_lanes()))


class Program:
    """Return the program that a list of steps stands for."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = [self._resolve(*step) for step in steps]

    @staticmethod
    def _resolve(
        family: int, number: int, choices: tuple[int, ...], guard: int, constant: int
    ) -> tuple[Opcode, list[int], list[int], int, int]:
        """Return the opcode, the register numbers of results and operands, a guard or -1, and a constant."""
        of = opcodes()[family % len(opcodes())]
        opcode = of[number % len(of)]
        places: list[int] = []
        for at, (size, kinds) in enumerate((*opcode.results, *opcode.operands)):
            allowed = [i for i, (s, k, _) in enumerate(REGISTERS) if s == size and k in kinds]
            # Results must be different registers.
            allowed = [i for i in allowed if at >= len(opcode.results) or i not in places]
            places.append(allowed[choices[at % len(choices)] * (1 + at // len(choices)) % len(allowed)])
        preds = [i for i, (size, _, _) in enumerate(REGISTERS) if size == 1]
        # In code from ptxas 13.0, a guarded `set` or `testp` changes its result even if its guard is false.
        never = opcode.meets or opcode.form.startswith(("set.", "testp."))
        guard = -1 if never or guard % 8 >= 2 * len(preds) or guard % 3 else guard % 8
        size = int(found[1]) // 8 if (found := re.search(r"[busv](\d+) ", opcode.form)) else 8
        aligned = 8 if ".v2." in opcode.form else size
        constant = constant % (ROOM // aligned) * aligned
        return opcode, places[: len(opcode.results)], places[len(opcode.results) :], guard, constant

    def text(self, name: str) -> str:
        """Return the kernel's text. It takes the addresses of the operands and of the results, 8 bytes per register."""
        lines = []
        for opcode, results, operands, guard, constant in self._steps:
            code = opcode.text((NAMES[i] for i in (*results, *operands)), constant)
            before = ""
            if guard >= 0:
                before = f"@{'!' * (guard & 1)}{NAMES[self._preds()[guard // 2]]} "
            lines += [f"{before}{one.strip()};" for one in code.split(";")]
        declared = "".join(f".reg .{'pred' if k == 'p' else f'{k}{s}'} {n}; " for s, k, n in REGISTERS)
        loads, stores = [], []
        for i, (size, _, register) in enumerate(REGISTERS):
            if size == 1:
                loads.append(f"ld.global.u32 %low32, [%in+{8 * i}]; setp.ne.u32 {register}, %low32, 0;")
                stores.append(f"selp.u64 %low64, 1, 0, {register}; st.global.u64 [%out+{8 * i}], %low64;")
            else:
                loads.append(f"ld.global.b{size} {register}, [%in+{8 * i}];")
                stores.append(f"st.global.b{size} [%out+{8 * i}], {register};")
        for at in range(0, ROOM, 8):
            loads.append(f"st.local.u64 [%local+{at}], 0;")
            stores.append(
                f"ld.local.u64 %low64, [%local+{at}]; st.global.u64 [%out+{8 * len(REGISTERS) + at}], %low64;"
            )
        newline = "\n    "
        return f""".visible .entry {name}(.param .u64 given, .param .u64 made) {{
    {declared}
    .reg .b64 %in, %out, %local, %generic, %low64; .reg .b32 %low32, %lane; .reg .pred %nan;
    .local .align 8 .b8 room[{ROOM}];
    ld.param.u64 %in, [given]; ld.param.u64 %out, [made]; mov.u32 %lane, %tid.x;
    mad.wide.u32 %in, %lane, {8 * len(REGISTERS)}, %in; mad.wide.u32 %out, %lane, {RESULT}, %out;
    mov.u64 %local, room; cvta.local.u64 %generic, %local;
    {newline.join(loads)}
    {newline.join(lines)}
    {newline.join(stores)}
    ret;
}}
"""

    @staticmethod
    def _preds() -> list[int]:
        return [i for i, (size, _, _) in enumerate(REGISTERS) if size == 1]

    def compute(self, inputs: list[list[int]]) -> bytes:
        """Return what the kernel stores, computed with exact arithmetic."""
        threads = [list(one) for one in inputs]
        rooms = [bytearray(ROOM) for _ in threads]
        for opcode, results, operands, guard, constant in self._steps:
            if opcode.meets:
                columns = opcode.does(*([thread[i] for thread in threads] for i in operands))
                for at, column in zip(results, columns, strict=True):  # type: ignore[call-overload]
                    for thread, value in zip(threads, column, strict=True):
                        thread[at] = value
                continue
            for thread, room in zip(threads, rooms, strict=True):
                if guard >= 0 and thread[self._preds()[guard // 2]] == guard & 1:
                    continue
                given = [thread[i] for i in operands]
                found = opcode.does(room, constant, *given) if opcode.remembers else opcode.does(*given)
                for at, value in zip(results, found, strict=True):  # type: ignore[call-overload]
                    thread[at] = value
        return b"".join(
            struct.pack(f"<{len(thread)}Q", *thread) + room for thread, room in zip(threads, rooms, strict=True)
        )

    def differs(self, found: bytes, wanted: bytes) -> str:
        """Return the first difference between two results and the last step that wrote there, or "" if they're
        equal.
        """
        at = next((i for i, (a, b) in enumerate(zip(found, wanted, strict=True)) if a != b), None)
        if at is None:
            return ""
        lane, slot = at // RESULT, at % RESULT // 8
        if slot >= len(REGISTERS):
            return f"lane {lane}: local memory +{at % RESULT - 8 * len(REGISTERS)}"
        begin = lane * RESULT + 8 * slot
        a, b = (int.from_bytes(one[begin : begin + 8], "little") for one in (found, wanted))
        writers = [op.text((NAMES[i] for i in (*to, *of)), c) for op, to, of, _, c in self._steps if slot in to]
        return f"lane {lane}: {NAMES[slot]} is {a:#x}, not {b:#x}, after {(writers or ['nothing'])[-1]}"


def random_steps(seed: int) -> list[Step]:
    """Return a program of 20 to 60 steps."""
    source = random.Random(f"straight {seed}")
    pick = lambda: source.getrandbits(16)  # noqa: E731
    return [
        (pick(), pick(), (pick(), pick(), pick(), pick(), pick()), pick(), pick())
        for _ in range(source.randint(20, 60))
    ]


def random_inputs(seed: int) -> list[list[int]]:
    """Return each lane's initial registers."""
    source = random.Random(f"inputs {seed}")
    columns = []
    for size, _, _ in REGISTERS:
        forms = {16: (F16, BF16), 32: (F32, F32), 64: (F64, F64)}.get(size)
        if not forms:
            columns.append([source.getrandbits(1) for _ in range(LANES)])
            continue
        values = forms[0].samples(LANES, source)[: LANES // 2] + forms[1].samples(LANES, source)[: LANES // 4]
        values += [source.choice(CONSTANTS[size]) for _ in range(LANES // 8)]
        values += [source.getrandbits(source.randint(1, size)) for _ in range(LANES - len(values))]
        source.shuffle(values)
        columns.append(values)
    return [list(one) for one in zip(*columns, strict=True)]


def packed(inputs: list[list[int]]) -> bytes:
    """Pack inputs in the kernels' layout."""
    return b"".join(struct.pack(f"<{len(one)}Q", *one) for one in inputs)


def jobs(programs: Sequence[tuple[Sequence[Step], int]], make: Callable[[bytes], bytes]) -> list[Job]:
    """Return launches of programs, given with the seeds of their inputs. They're the kernels of one module, assembled
    by `make`.
    """
    text = HEAD + "".join(Program(steps).text(f"p{number}") for number, (steps, _) in enumerate(programs))
    image = make(text.encode())
    results = bytearray(LANES * RESULT)
    return [
        Job(image, f"p{number}", (1, 1, 1), (LANES, 1, 1), (bytearray(packed(random_inputs(seed))), results))
        for number, (_, seed) in enumerate(programs)
    ]
