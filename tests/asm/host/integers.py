"""Integer instructions, computed with Python's exact arithmetic. PTX leaves some results undefined, as for a division
by zero. gpt/asm/host/integer.py says which results are expected.
"""

from __future__ import annotations

import operator
from functools import partial
from itertools import product

from tests.asm.host.rows import holds as holds_all


def bits(type_: str) -> int:
    return int(type_[1:])


def cast(value: int, type_: str) -> int:
    """Return a value as a type holds it."""
    value &= (1 << bits(type_)) - 1
    return value - (1 << bits(type_)) if type_[0] == "s" and value >> bits(type_) - 1 else value


def divide(a: int, b: int) -> int:
    return -1 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def remainder(a: int, b: int) -> int:
    return -1 if b == 0 else abs(a) % abs(b) * (-1 if a < 0 else 1)


def saturated(value: int, type_: str) -> int:
    least = -(1 << bits(type_) - 1) if type_[0] == "s" else 0
    return max(least, min(value, least + (1 << bits(type_)) - 1))


def shift_right(a: int, b: int) -> int:
    return a >> min(b, 200)


def extract(a: int, b: int, c: int, type_: str) -> int:
    """Compute bfe as in the PTX manual and on an H200: numbers in 64-bit fields aren't cut to 8 bits."""
    last = bits(type_) - 1
    position, length = (b & 255, c & 255) if last == 31 else (min(b, 255), min(c, 255))
    sign = type_[0] == "s" and length > 0 and (a >> min(position + length - 1, last)) & 1
    found = 0
    for i in range(last + 1):
        bit = (a >> (position + i)) & 1 if i < length and position + i <= last else sign
        found |= bit << i
    return found


def insert(a: int, b: int, c: int, d: int, size: int) -> int:
    """Compute bfi in the same way."""
    for i in range(d & 255):
        at = (c & 255 if size == 32 else c) + i
        if at < size:
            b = b & ~(1 << at) | (a >> i & 1) << at
    return b


def select_bytes(a: int, b: int, selector: int) -> int:
    all_ = (b << 32 | a).to_bytes(8, "little")
    found = 0
    for i in range(4):
        nibble = selector >> 4 * i & 15
        byte = all_[nibble & 7]
        found |= (byte if nibble < 8 else 255 * (byte >> 7)) << 8 * i
    return found


MODES = {
    "f4e": ("3210", "4321", "5432", "6543"),
    "b4e": ("5670", "6701", "7012", "0123"),
    "rc8": ("0000", "1111", "2222", "3333"),
    "ecl": ("3210", "3211", "3222", "3333"),
    "ecr": ("0000", "1110", "2210", "3210"),
    "rc16": ("1010", "3232", "1010", "3232"),
}


def highest(a: int) -> int:
    """Compute bfind: the highest bit that differs from the sign."""
    return (a if a >= 0 else ~a).bit_length() - 1


def find_nth(mask: int, base: int, offset: int) -> int:
    if offset == 0:
        return base if base < 32 and mask >> base & 1 else -1
    if offset == -(1 << 31):  # an H200's result
        return 0
    found = range(base, 32) if offset > 0 else range(min(base, 31), -1, -1) if base < 32 else ()
    set_ = [i for i in found if mask >> i & 1]
    return set_[abs(offset) - 1] if len(set_) >= abs(offset) else -1


def mask_of(a: int, b: int, clamp: bool) -> int:
    """Compute bmsk as in the PTX manual."""
    first, size = -1 << (a & 31), b & 31
    if clamp and a >= 32:
        first = 0
    over = (a & 31) + size >= 32 or (clamp and (a >= 32 or b >= 32))
    return first & (-1 if over else ~(-1 << (a & 31) + size))


def extended(a: int, b: int, type_: str, clamp: bool) -> int:
    """Compute szext as in the PTX manual."""
    if clamp and b >= 32:
        return a
    size = b & 31
    low = a & ((1 << size) - 1)
    return low - (1 << size) if type_ == "s32" and size and low >> size - 1 else low


def halves(a: int, type_: str) -> list[int]:
    return [cast(a >> 16 * i, type_[:3]) for i in range(2)]


def both(values: list[int]) -> int:
    return (values[0] & 0xFFFF) | (values[1] & 0xFFFF) << 16


def dot(a: int, b: int, c: int, types: tuple[str, str], sizes: tuple[int, int], shift: int = 0) -> int:
    for i in range(32 // max(sizes)):
        c += cast(a >> sizes[0] * i, f"{types[0][0]}{sizes[0]}") * cast(b >> shift + 8 * i, f"{types[1][0]}{sizes[1]}")
    return c


COMPARE = {name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")}
WORDS = ("s16", "u16", "s32", "u32", "s64", "u64")


def piece(word: int, part: str, type_: str) -> int:
    """Return a word, or the part of it that `.b2` or `.h1` names, as a signed or unsigned type."""
    size = {"": 32, "b": 8, "h": 16}[part[:1]]
    return cast(word >> size * int(part[1:] or 0), f"{type_[0]}{size}")


VIDEO = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "absdiff": lambda x, y: abs(x - y),
    "min": min,
    "max": max,
    "avrg": lambda x, y: (x + y + (x + y >= 0)) >> 1,
    **{f"set.{name}": holds for name, holds in COMPARE.items()},
}
LANES = ((2, "10", "10", "32"), (2, "1", "03", "21"), (4, "3210", "3210", "7654"), (4, "31", "7054", "1236"))
SCALAR = (  # parts of the result and of two operands, and the second operation
    ("b2", "b1", "h1", ""),
    ("h1", "", "b3", ""),
    ("h0", "", "", ""),
    ("", "h0", "b0", "min"),
    ("", "", "", "min"),
    ("", "", "", "max"),
)
SECOND = {"add": lambda x, c: x + c, "min": min, "max": max}


def scalar_video(does, opcode: str, d: str, a: str, b: str, saturates: bool, parts: str, then: str):
    """Return the result of ptxas's code for a scalar video instruction. `parts` names parts of the result and of two
    operands: `b1 h0 `.
    """
    shifts, long = opcode[:3] == "vsh", (1 << 64) - 1

    def made(x: int, y: int, c: int = 0) -> int:
        to, of_x, of_y = parts.split(" ")
        value = does(piece(x, of_x, a), piece(y, of_y, b))
        if saturates and opcode == "vshl":
            value = cast(value, "s34")
        if to:
            size = {"b": 8, "h": 16}[to[0]]
            if saturates:
                value = saturated(value, d) if shifts else min(value & long, (1 << size - (d == "s32")) - 1)
            shift = size * int(to[1])
            return c & ~((1 << size) - 1 << shift) | ((value >> 16 if to == "h1" else value) & (1 << size) - 1) << shift
        if saturates:
            value = saturated(value, d) if d == "s32" or opcode == "vshl" else max(value, 0)
        if opcode in ("vadd", "vsub") or (saturates and shifts):
            value = cast(value, "s32")
        if not then:
            return value
        mask = -1 if d == "s32" else long
        return SECOND[then](value & mask, cast(c, d) & mask)

    return made


def shift_video(left: bool, clamp: bool):
    """Return the result of vshl or vshr for two operands, in 64 bits."""

    def made(x: int, y: int) -> int:
        count = min(y, 32) if clamp else y & 31
        return cast(x << count if left else x >> count, "s64")

    return made


def mad_video(a: str, b: str, minus: str, more: int, saturates: bool, shift: int, parts: tuple[str, str]):
    """Return the result of ptxas's code for vmad: `minus` says which operands are negated."""

    def made(x: int, y: int, c: int) -> int:
        signed = "s32" in (a, b) or bool(minus)
        product = cast(piece(x, parts[0], a), "s32") * cast(piece(y, parts[1], b), "s32")
        value = product * (-1 if minus == "a" else 1) + cast(c, "s32") * (-1 if minus == "c" else 1) + more
        value = (value if signed else value & (1 << 64) - 1) >> shift if shift else value
        return saturated(value, "s32" if signed else "u32") if saturates else value

    return made


def lanes_video(does, types: str, count: int, saturates: bool, sums: bool, to: str, of_x: str, of_y: str):
    """Select parts of both operands for two or four lanes; the highest lane is named first."""

    def made(x: int, y: int, c: int) -> int:
        d, a, b = types.split()
        size, letter, total = 32 // count, "bh"[count == 2], c
        for lane in range(count):
            first, second = (
                piece((y << 32 | x), letter + chosen[::-1][lane], type_) for chosen, type_ in ((of_x, a), (of_y, b))
            )
            value = does(first, second)
            value = saturated(value, f"{d[0]}{size}") if saturates else value
            if str(lane) in to:
                rest = total & ~((1 << size) - 1 << size * lane)
                total = total + value if sums else rest | (value & (1 << size) - 1) << size * lane
        return total

    return made


def video():
    """Yield the video instructions, with most of their options."""
    three = ("u32", "u32", "u32")
    for name, does in VIDEO.items():
        compares = name.startswith("set")
        for d, a, b in product(("u32",) if compares else ("u32", "s32"), ("u32", "s32"), ("u32", "s32")):
            types, tail = (f"{a}.{b}", name[3:]) if compares else (f"{d}.{a}.{b}", "")
            for saturates in (False,) if compares else (False, True):
                more = tail + ".sat" * saturates
                head = f"v{'set' if compares else name}"
                if name != "avrg":
                    compared = a if compares else d
                    made = partial(scalar_video, does, head, compared, a, b, saturates)
                    yield f"{head}.{types}{more}", d, three[:2], made("  ", "")
                    for to, x, y, then in SCALAR:
                        text = f"{head}.{types}{more}{'.' * bool(then)}{then} {{}}{'.' * bool(to)}{to}, "
                        text += f"{{}}{'.' * bool(x)}{x}, {{}}{'.' * bool(y)}{y}, {{}}"
                        yield text, d, three, made(f"{to} {x} {y}", then)
                for count, to, x, y in LANES:
                    letter = "bh"[count == 2]
                    text = f"{head}{count}.{types}{more} {{}}.{letter}{to}, {{}}.{letter}{x}, {{}}.{letter}{y}, {{}}"
                    yield text, d, three, lanes_video(does, f"{d} {a} {b}", count, saturates, False, to, x, y)
                    if not saturates:
                        text = f"{head}{count}.{types}{more}.add"
                        default = (2, "10", "10", "32") if count == 2 else (4, "3210", "3210", "7654")
                        yield text, d, three, lanes_video(does, f"{d} {a} {b}", default[0], False, True, *default[1:])
    for d, a, left, clamp, saturates in product(("u32", "s32"), ("u32", "s32"), *([(False, True)] * 3)):
        head, does = ("vshr", "vshl")[left], shift_video(left, clamp)
        text = f"{head}.{d}.{a}.u32{'.sat' * saturates}.{('wrap', 'clamp')[clamp]}"
        made = partial(scalar_video, does, head, d, a, "u32", saturates)
        yield text, d, three[:2], made("  ", "")
        for to, x, y, then in SCALAR:
            form = f"{text}{'.' * bool(then)}{then} {{}}{'.' * bool(to)}{to}, "
            form += f"{{}}{'.' * bool(x)}{x}, {{}}{'.' * bool(y)}{y}, {{}}"
            yield form, d, three, made(f"{to} {x} {y}", then)
    for a, b in product(("u32", "s32"), repeat=2):
        d = "u32" if a == b == "u32" else "s32"
        for minus, more, shift in (("", 0, 0), ("", 1, 7), ("", 0, 15), ("a", 0, 7), ("c", 0, 0)):
            for saturates, (x, y) in product((False, True), (("", ""), ("b3", "h1"))):
                more_words = ".po" * more + ".sat" * saturates + f".shr{shift}" * bool(shift)
                text = f"vmad.{'s32' if minus else d}.{a}.{b}{more_words} {{}}, "
                text += (
                    f"{'-' * (minus == 'a')}{{}}{'.' * bool(x)}{x}, {{}}{'.' * bool(y)}{y}, {'-' * (minus == 'c')}{{}}"
                )
                yield text, "u32", three, mad_video(a, b, minus, more, saturates, shift, (x, y))
        for words in ("", ".sat"):  # a negative constant doesn't make the result signed, as a minus sign does
            made = mad_video(a, b, "", 0, bool(words), 0, ("", ""))
            yield (
                f"vmad.{d}.{a}.{b}{words} {{}}, {{}}, -3, {{}}",
                "u32",
                ("u32", "u32"),
                lambda x, c, m=made: m(x, -3, c),
            )
            yield (
                f"vmad.{d}.{a}.{b}{words} {{}}, {{}}, {{}}, -3",
                "u32",
                ("u32", "u32"),
                lambda x, y, m=made: m(x, y, -3),
            )


def instructions():
    """Yield (instruction, type of the result, types of the operands, function)."""
    for t in WORDS:
        n = bits(t)
        two, three = (t, t), (t, t, t)
        yield f"add.{t}", t, two, lambda a, b: a + b
        yield f"sub.{t}", t, two, lambda a, b: a - b
        yield f"mul.lo.{t}", t, two, lambda a, b: a * b
        yield f"mul.hi.{t}", t, two, lambda a, b, n=n: a * b >> n
        yield f"mad.lo.{t}", t, three, lambda a, b, c: a * b + c
        yield f"mad.hi.{t}", t, three, lambda a, b, c, n=n: (a * b >> n) + c
        yield f"div.{t}", t, two, divide
        yield f"rem.{t}", t, two, remainder
        yield f"min.{t}", t, two, min
        yield f"max.{t}", t, two, max
        yield f"sad.{t}", t, three, lambda a, b, c: c + abs(a - b)
        yield f"shr.{t}", t, (t, "u32"), shift_right
        for name, holds in COMPARE.items():
            yield f"set.{name}.u32.{t}", "u32", two, lambda a, b, holds=holds: -holds(a, b)
        yield f"selp.{t}", t, ("t", t, t), None
        yield f"slct.{t}.s32", t, (t, t, "s32"), lambda a, b, c: a if c >= 0 else b
        if n < 64:
            wide = f"{t[0]}{2 * n}"
            yield f"mul.wide.{t}", wide, two, lambda a, b: a * b
            yield f"mad.wide.{t}", wide, (t, t, wide), lambda a, b, c: a * b + c
        if t[0] == "s":
            yield f"abs.{t}", t, (t,), abs
            yield f"neg.{t}", t, (t,), lambda a: -a
        for to in ("s8", "u8", *WORDS):
            for of in {t, f"{t[0]}8"}:
                yield f"cvt.{to}.{of}", to, (of,), lambda a: a
                if not holds_all(to, of):  # PTX has no .sat where nothing can be out of range
                    yield f"cvt.sat.{to}.{of}", to, (of,), lambda a, to=to: saturated(a, to)
        if n >= 32:
            yield f"bfe.{t}", t, (t, "u32", "u32"), lambda a, b, c, t=t: extract(a, b, c, t)
            yield f"bfind.{t}", "u32", (t,), highest
            yield (
                f"bfind.shiftamt.{t}",
                "u32",
                (t,),
                lambda a, n=n: n - 1 - highest(a) if highest(a) >= 0 else -1,
            )
    for n in (16, 32, 64):
        t, u = f"b{n}", f"u{n}"
        yield f"and.{t}", u, (u, u), lambda a, b: a & b
        yield f"or.{t}", u, (u, u), lambda a, b: a | b
        yield f"xor.{t}", u, (u, u), lambda a, b: a ^ b
        yield f"not.{t}", u, (u,), lambda a: ~a
        yield f"cnot.{t}", u, (u,), lambda a: int(a == 0)
        yield f"shl.{t}", u, (u, "u32"), lambda a, b, n=n: a << b if b < n else 0
        if n > 16:
            yield f"popc.{t}", "u32", (u,), int.bit_count
            yield f"clz.{t}", "u32", (u,), lambda a, n=n: n - a.bit_length()
            yield f"brev.{t}", u, (u,), lambda a, n=n: int(f"{a:0{n}b}"[::-1], 2)
            for length in (0, 1, 5, 32, 63, 64, 255):
                yield (
                    f"bfi.{t} {{}}, {{}}, {{}}, {{}}, {length}",
                    u,
                    (u, u, "u32"),
                    lambda a, b, c, n=n, length=length: insert(a, b, c, length, n),
                )
    u32, s32 = ("u32",) * 3, ("s32",) * 3
    yield "add.sat.s32", "s32", s32[:2], lambda a, b: saturated(a + b, "s32")
    yield "sub.sat.s32", "s32", s32[:2], lambda a, b: saturated(a - b, "s32")
    yield "mad.hi.sat.s32", "s32", s32, lambda a, b, c: saturated((a * b >> 32) + c, "s32")
    yield "min.relu.s32", "s32", s32[:2], lambda a, b: max(min(a, b), 0)
    yield "max.relu.s32", "s32", s32[:2], lambda a, b: max(a, b, 0)
    for t in ("u32", "s32"):
        k = f"{t[0]}24"
        yield f"mul24.lo.{t}", t, (t, t), lambda a, b, k=k: cast(a, k) * cast(b, k)
        yield f"mul24.hi.{t}", t, (t, t), lambda a, b, k=k: cast(a, k) * cast(b, k) >> 16
        yield f"mad24.lo.{t}", t, (t, t, t), lambda a, b, c, k=k: cast(a, k) * cast(b, k) + c
        yield f"mad24.hi.{t}", t, (t, t, t), lambda a, b, c, k=k: (cast(a, k) * cast(b, k) >> 16) + c
        for mode in ("clamp", "wrap"):
            yield f"szext.{mode}.{t}", t, (t, "u32"), lambda a, b, t=t, m=mode: extended(a, b, t, m == "clamp")
        for other in ("u32", "s32"):
            ab = (t, other)
            yield f"dp4a.{t}.{other}", "u32", u32, lambda a, b, c, ab=ab: dot(a, b, c, ab, (8, 8))
            yield f"dp2a.lo.{t}.{other}", "u32", u32, lambda a, b, c, ab=ab: dot(a, b, c, ab, (16, 8))
            yield f"dp2a.hi.{t}.{other}", "u32", u32, lambda a, b, c, ab=ab: dot(a, b, c, ab, (16, 8), 16)
    yield "mad24.hi.sat.s32", "s32", s32, lambda a, b, c: saturated((cast(a, "s24") * cast(b, "s24") >> 16) + c, "s32")
    for mode in ("clamp", "wrap"):
        count = (lambda c: min(c, 32)) if mode == "clamp" else (lambda c: c & 31)
        yield f"shf.l.{mode}.b32", "u32", u32, lambda a, b, c, count=count: (b << 32 | a) << count(c) >> 32
        yield f"shf.r.{mode}.b32", "u32", u32, lambda a, b, c, count=count: (b << 32 | a) >> count(c)
        yield f"bmsk.{mode}.b32", "u32", u32[:2], lambda a, b, m=mode: mask_of(a, b, m == "clamp")
    yield "prmt.b32", "u32", u32, select_bytes
    for mode, rows in MODES.items():
        yield f"prmt.b32.{mode}", "u32", u32, lambda a, b, c, rows=rows: select_bytes(a, b, int(rows[c & 3], 16))
    for table in (0, 1, 0x80, 0x96, 0xE8, 0xCA, 0x1E, 0xFF, 0x2D, 0x47):
        yield (
            f"lop3.b32 {{}}, {{}}, {{}}, {{}}, {table}",
            "u32",
            u32,
            lambda a, b, c, table=table: sum(
                (table >> (a >> i & 1) * 4 + (b >> i & 1) * 2 + (c >> i & 1) & 1) << i for i in range(32)
            ),
        )
    yield "fns.b32", "u32", ("u32", "u32", "s32"), find_nth
    for t in ("u16x2", "s16x2"):
        for name, choose in (("min", min), ("max", max), ("add", lambda x, y: x + y)):
            yield (
                f"{name}.{t}",
                "u32",
                u32[:2],
                lambda a, b, t=t, choose=choose: both(list(map(choose, halves(a, t), halves(b, t)))),
            )
    for t in ("u16", "s16"):
        yield (
            f"cvt.pack.sat.{t}.s32",
            "u32",
            s32[:2],
            lambda a, b, t=t: both([saturated(b, t), saturated(a, t)]),
        )
    for t in ("u8", "s8", "u4", "s4", "u2", "s2"):
        n = bits(t)
        yield (
            f"cvt.pack.sat.{t}.s32.b32",
            "u32",
            ("s32", "s32", "u32"),
            lambda a, b, c, t=t, n=n: c << 2 * n | cast(saturated(a, t), f"u{n}") << n | cast(saturated(b, t), f"u{n}"),
        )
