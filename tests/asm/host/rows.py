"""Single instructions at the boundaries of their operands, to compare the simulated device with a GPU.

A row is an instruction with the types of its result and operands. Each row is one kernel of a module; it reads operands
from memory and stores the result, 64 bits each. `program` writes the PTX, `inputs` the operands.
"""

from __future__ import annotations

import itertools
import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass

INTEGERS = ["u16", "s16", "u32", "s32", "u64", "s64"]
BITS = {"u8": 8, "s8": 8, "u16": 16, "s16": 16, "u32": 32, "s32": 32, "u64": 64, "s64": 64, "b16": 16, "b32": 32}
BITS |= {
    "b64": 64,
    "f16": 16,
    "bf16": 16,
    "f32": 32,
    "f64": 64,
    "f16x2": 32,
    "bf16x2": 32,
    "pred": 1,
    "e4m3x2": 16,
    "e5m2x2": 16,
}
BITS |= {"tf32": 32}


@dataclass(frozen=True)
class Row:
    """`text` is the opcode with its specifiers."""

    text: str
    result: str
    operands: tuple[str, ...]
    target: int = 80  # the first architecture with the instruction
    exact: bool = True  # True if PTX defines the bits of the result


def rows() -> list[Row]:
    """Return all rows, in a fixed order."""
    return [*_integers(), *_logic(), *_floats(), *_halves(), *_conversions(), *_comparisons()]


def _integers() -> Iterator[Row]:
    for t in INTEGERS:
        wide = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}.get(t)
        for op in ("add", "sub", "mul.lo", "mul.hi", "div", "rem", "min", "max"):
            yield Row(f"{op}.{t}", t, (t, t))
        yield Row(f"mad.lo.{t}", t, (t, t, t))
        yield Row(f"mad.hi.{t}", t, (t, t, t))
        yield Row(f"sad.{t}", t, (t, t, t))
        yield Row(f"shr.{t}", t, (t, "u32"))
        if wide:
            yield Row(f"mul.wide.{t}", wide, (t, t))
            yield Row(f"mad.wide.{t}", wide, (t, t, wide))
        if t[0] == "s":
            yield Row(f"abs.{t}", t, (t,))
            yield Row(f"neg.{t}", t, (t,))
        if BITS[t] > 16:
            yield Row(f"bfe.{t}", t, (t, "u32", "u32"))
            yield Row(f"bfind.{t}", "u32", (t,))
            yield Row(f"bfind.shiftamt.{t}", "u32", (t,))
    for t in ("u32", "s32"):
        for op in ("mul24.lo", "mul24.hi"):
            yield Row(f"{op}.{t}", t, (t, t))
        for op in ("mad24.lo", "mad24.hi"):
            yield Row(f"{op}.{t}", t, (t, t, t))
    for op in ("add.sat.s32", "sub.sat.s32"):
        yield Row(op, "s32", ("s32", "s32"))
    yield Row("mad.hi.sat.s32", "s32", ("s32", "s32", "s32"))
    yield Row("mad24.hi.sat.s32", "s32", ("s32", "s32", "s32"))
    for a, b in itertools.product(("u32", "s32"), repeat=2):
        result = "s32" if "s32" in (a, b) else "u32"
        yield Row(f"dp4a.{a}.{b}", result, (a, b, result))
        yield Row(f"dp2a.lo.{a}.{b}", result, (a, b, result))
        yield Row(f"dp2a.hi.{a}.{b}", result, (a, b, result))
    for op in ("vadd", "vsub", "vabsdiff", "vmin", "vmax"):
        yield Row(f"{op}.s32.u32.s32", "s32", ("u32", "s32"))
        yield Row(f"{op}.u32.s32.s32.sat", "u32", ("s32", "s32"))
    yield Row("vshl.u32.u32.u32.clamp", "u32", ("u32", "u32"))
    yield Row("vshr.s32.s32.u32.wrap", "s32", ("s32", "u32"))
    for t in ("u16x2", "s16x2"):
        for op in ("add", "min", "max"):
            yield Row(f"{op}.{t}", "b32", ("b32", "b32"), 90)


def _logic() -> Iterator[Row]:
    for t in ("b16", "b32", "b64"):
        for op in ("and", "or", "xor"):
            yield Row(f"{op}.{t}", t, (t, t))
        yield Row(f"not.{t}", t, (t,))
        yield Row(f"cnot.{t}", t, (t,))
        yield Row(f"shl.{t}", t, (t, "u32"))
        yield Row(f"shr.{t}", t, (t, "u32"))
        if t != "b16":
            yield Row(f"popc.{t}", "u32", (t,))
            yield Row(f"clz.{t}", "u32", (t,))
            yield Row(f"brev.{t}", t, (t,))
            yield Row(f"bfi.{t}", t, (t, t, "u32", "u32"))
    yield Row("fns.b32", "b32", ("b32", "u32", "s32"))
    for t in ("u32", "s32"):
        yield Row(f"szext.wrap.{t}", t, (t, "u32"))
        yield Row(f"szext.clamp.{t}", t, (t, "u32"))
    yield Row("bmsk.clamp.b32", "b32", ("u32", "u32"))
    yield Row("bmsk.wrap.b32", "b32", ("u32", "u32"))
    for mode in ("", ".f4e", ".b4e", ".rc8", ".ecl", ".ecr", ".rc16"):
        yield Row(f"prmt.b32{mode}", "b32", ("b32", "b32", "b32"))
    for side, mode in itertools.product("lr", ("clamp", "wrap")):
        yield Row(f"shf.{side}.{mode}.b32", "b32", ("b32", "b32", "u32"))


def _floats() -> Iterator[Row]:
    for t in ("f32", "f64"):
        flush = ("", ".ftz") if t == "f32" else ("",)
        for mode, ftz in itertools.product(("rn", "rz", "rm", "rp"), flush):
            for op in ("add", "sub", "mul", "div"):
                yield Row(f"{op}.{mode}{ftz}.{t}", t, (t, t))
            yield Row(f"fma.{mode}{ftz}.{t}", t, (t, t, t))
            yield Row(f"sqrt.{mode}{ftz}.{t}", t, (t,))
            yield Row(f"rcp.{mode}{ftz}.{t}", t, (t,))
        for ftz in flush:
            for op in ("min", "max"):
                yield Row(f"{op}{ftz}.{t}", t, (t, t))
            yield Row(f"abs{ftz}.{t}", t, (t,))
            yield Row(f"neg{ftz}.{t}", t, (t,))
        yield Row(f"copysign.{t}", t, (t, t))
        for kind in ("finite", "infinite", "number", "notanumber", "normal", "subnormal"):
            yield Row(f"testp.{kind}.{t}", "pred", (t,))
    for op in ("add", "sub", "mul"):
        yield Row(f"{op}.rn.sat.f32", "f32", ("f32", "f32"))
        yield Row(f"{op}.rn.ftz.sat.f32", "f32", ("f32", "f32"))
    yield Row("fma.rn.sat.f32", "f32", ("f32", "f32", "f32"))
    for op in ("min", "max"):
        for kind in (".NaN", ".ftz.NaN", ".xorsign.abs", ".NaN.xorsign.abs"):
            yield Row(f"{op}{kind}.f32", "f32", ("f32", "f32"), 86 if "xorsign" in kind else 80)
    for op in ("rcp", "sqrt", "rsqrt", "sin", "cos", "lg2", "ex2"):
        for ftz in ("", ".ftz"):
            yield Row(f"{op}.approx{ftz}.f32", "f32", ("f32",), exact=False)
    yield Row("tanh.approx.f32", "f32", ("f32",), exact=False)
    yield Row("div.approx.f32", "f32", ("f32", "f32"), exact=False)
    yield Row("div.full.f32", "f32", ("f32", "f32"), exact=False)
    yield Row("rcp.approx.ftz.f64", "f64", ("f64",), exact=False)
    yield Row("rsqrt.approx.ftz.f64", "f64", ("f64",), exact=False)


def _halves() -> Iterator[Row]:
    for t in ("f16", "f16x2", "bf16", "bf16x2"):
        half = t.startswith("f")
        since = 80 if half else 90
        for op in ("add", "sub", "mul"):
            yield Row(f"{op}.rn.{t}" if not half else f"{op}.{t}", t, (t, t), since)
            if half:
                yield Row(f"{op}.rn.ftz.sat.{t}", t, (t, t))
        yield Row(f"fma.rn.{t}", t, (t, t, t))
        yield Row(f"fma.rn.relu.{t}", t, (t, t, t))
        if half:
            yield Row(f"fma.rn.ftz.sat.{t}", t, (t, t, t))
        for op in ("min", "max"):
            for kind in ("", ".NaN", ".xorsign.abs"):
                yield Row(f"{op}{kind}.{t}", t, (t, t), 86 if "xorsign" in kind else 80)
        yield Row(f"neg.{t}", t, (t,))
        yield Row(f"abs.{t}", t, (t,))
        yield Row(f"tanh.approx.{t}", t, (t,), 80 if half else 90, exact=False)
        yield Row(f"ex2.approx.{t}" if half else f"ex2.approx.ftz.{t}", t, (t,), 80 if half else 90, exact=False)


def holds(t: str, other: str) -> bool:
    """Return whether an integer type has all values of another."""
    if t[0] == other[0]:
        return BITS[t] >= BITS[other]
    return t[0] == "s" and BITS[t] > BITS[other]


def _conversions() -> Iterator[Row]:
    whole = ["u8", "s8", *INTEGERS]
    for to, source in itertools.product(whole, whole):
        yield Row(f"cvt.{to}.{source}", to, (source,))
        if not holds(to, source):
            yield Row(f"cvt.sat.{to}.{source}", to, (source,))
    for t, source in itertools.product(whole, ("f16", "f32", "f64")):
        for mode in ("rni", "rzi", "rmi", "rpi"):
            yield Row(f"cvt.{mode}.{t}.{source}", t, (source,))
    for t in whole:
        yield Row(f"cvt.rzi.ftz.{t}.f32", t, ("f32",))
        yield Row(f"cvt.rzi.sat.{t}.f32", t, ("f32",))
    for t, source in itertools.product(("f16", "f32", "f64"), whole):
        for mode in ("rn", "rz", "rm", "rp"):
            yield Row(f"cvt.{mode}.{t}.{source}", t, (source,))
    for mode in ("rn", "rz", "rm", "rp"):
        yield Row(f"cvt.{mode}.f32.f64", "f32", ("f64",))
        yield Row(f"cvt.{mode}.ftz.f32.f64", "f32", ("f64",))
        yield Row(f"cvt.{mode}.sat.f32.f64", "f32", ("f64",))
        yield Row(f"cvt.{mode}.f16.f32", "f16", ("f32",))
        yield Row(f"cvt.{mode}.f16.f64", "f16", ("f64",))
    for mode in ("rni", "rzi", "rmi", "rpi"):
        for t in ("f16", "f32", "f64"):
            yield Row(f"cvt.{mode}.{t}.{t}", t, (t,))
        yield Row(f"cvt.{mode}.ftz.f32.f32", "f32", ("f32",))
        yield Row(f"cvt.{mode}.sat.f32.f32", "f32", ("f32",))
    yield Row("cvt.f32.f16", "f32", ("f16",))
    yield Row("cvt.f64.f16", "f64", ("f16",))
    yield Row("cvt.f64.f32", "f64", ("f32",))
    yield Row("cvt.ftz.f64.f32", "f64", ("f32",))
    yield Row("cvt.sat.f32.f32", "f32", ("f32",))
    yield Row("cvt.ftz.f32.f32", "f32", ("f32",))
    yield Row("cvt.f32.bf16", "f32", ("bf16",), 90)
    for mode in ("rn", "rz", "rn.relu", "rz.relu"):
        yield Row(f"cvt.{mode}.bf16.f32", "bf16", ("f32",))
        yield Row(f"cvt.{mode}.f16x2.f32", "f16x2", ("f32", "f32"))
        yield Row(f"cvt.{mode}.bf16x2.f32", "bf16x2", ("f32", "f32"))
    yield Row("cvt.rna.tf32.f32", "b32", ("f32",))
    yield Row("cvt.rn.tf32.f32", "b32", ("f32",), 90)
    yield Row("cvt.rz.tf32.f32", "b32", ("f32",), 90)
    for t in ("e4m3x2", "e5m2x2"):
        yield Row(f"cvt.rn.satfinite.{t}.f32", "b16", ("f32", "f32"), 89)
        yield Row(f"cvt.rn.satfinite.relu.{t}.f32", "b16", ("f32", "f32"), 89)
        yield Row(f"cvt.rn.satfinite.{t}.f16x2", "b16", ("f16x2",), 89)
        yield Row(f"cvt.rn.f16x2.{t}", "f16x2", ("b16",), 89)
        yield Row(f"cvt.rn.relu.f16x2.{t}", "f16x2", ("b16",), 89)
    for t in ("u16", "s16"):
        yield Row(f"cvt.pack.sat.{t}.s32", "b32", ("s32", "s32"))
    for t in ("u8", "s8", "u4", "s4", "u2", "s2"):
        yield Row(f"cvt.pack.sat.{t}.s32.b32", "b32", ("s32", "s32", "b32"))


def _comparisons() -> Iterator[Row]:
    for t in INTEGERS:
        for op in ("eq", "ne", "lt", "le", "gt", "ge", *(("lo", "ls", "hi", "hs") if t[0] == "u" else ())):
            yield Row(f"setp.{op}.{t}", "pred", (t, t))
    ordered = ("eq", "ne", "lt", "le", "gt", "ge")
    for t in ("f16", "bf16", "f32", "f64"):
        for op in (*ordered, *(f"{op}u" for op in ordered), "num", "nan"):
            yield Row(f"setp.{op}.{t}", "pred", (t, t), 90 if t == "bf16" else 80)
    yield Row("setp.lt.ftz.f32", "pred", ("f32", "f32"))
    for t in ("f32", "s32", "u64"):
        yield Row(f"set.ge.u32.{t}", "u32", (t, t))
        yield Row(f"set.le.f32.{t}", "f32", (t, t))
    yield Row("set.gtu.f16x2.f16x2", "f16x2", ("f16x2", "f16x2"))
    for t in ("u32", "s32", "f32", "u64", "f64", "b16"):
        yield Row(f"slct.{t}.s32", t, (t, t, "s32"))
        yield Row(f"slct.{t}.f32", t, (t, t, "f32"))


def _register(t: str) -> str:
    return {8: "b16", 16: "b16", 32: "b32", 64: "b64"}[BITS[t]] if t[0] not in "fus" or BITS[t] < 32 or "x2" in t else t


def program(wanted: list[Row], target: str, version: str = "8.3") -> str:
    """Return the module: kernel `rN` is the N-th row; its parameters are the addresses of the operands and of the
    results.

    A thread reads four operands of 64 bits, and stores the result, with zeros above it.
    """
    text = f".version {version}\n.target {target}\n.address_size 64\n"
    for number, row in enumerate(wanted):
        lines = []
        names = []
        for i, t in enumerate(row.operands):
            kind = _register(t)
            bits = BITS[t]
            lines.append(f".reg .{kind} %i{i};")
            load = "b8" if bits == 8 else f"b{bits}"
            lines.append(f"ld.global.{load} {'%i' + str(i)}, [%rd1+{8 * i}];")
            if t == "s8":
                lines.append(f"cvt.s16.s8 %i{i}, %i{i};")
            names.append(f"%i{i}")
        if row.result == "pred":
            lines += [".reg .pred %o;", f"{row.text} %o, {', '.join(names)};", "selp.b64 %rd3, 1, 0, %o;"]
        else:
            kind, bits = _register(row.result), BITS[row.result]
            lines += [f".reg .{kind} %o;", f"{row.text} %o, {', '.join(names)};"]
            lines += ["mov.b64 %rd3, 0;", "st.global.b64 [%rd2], %rd3;", f"st.global.b{bits} [%rd2], %o;"]
            lines += ["ld.global.b64 %rd3, [%rd2];"]
        body = "\n    ".join(lines)
        text += f"""
.visible .entry r{number}(.param .u64 in, .param .u64 out, .param .u32 count) {{
    .reg .b64 %rd<4>; .reg .b32 %r<5>; .reg .pred %p;
    mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mad.lo.u32 %r1, %r2, %r3, %r1;
    ld.param.u32 %r4, [count]; setp.ge.u32 %p, %r1, %r4; @%p ret;
    ld.param.u64 %rd1, [in]; ld.param.u64 %rd2, [out];
    mad.wide.u32 %rd1, %r1, 32, %rd1; mad.wide.u32 %rd2, %r1, 8, %rd2;
    {body}
    st.global.b64 [%rd2], %rd3;
}}
"""
    return text


def _float_bits(mantissa: int, exponent: int) -> list[int]:
    """Return zeros, ones, halves, the ends of normal and subnormal numbers, infinities and NaNs of a format."""
    top = 1 << (mantissa + exponent)
    bias = (1 << (exponent - 1)) - 1
    one = bias << mantissa
    infinite = ((1 << exponent) - 1) << mantissa
    half = 1 << (mantissa - 1)
    made = [
        0,
        1,
        (1 << mantissa) - 1,
        1 << mantissa,
        one,
        one | half,
        (one + (1 << mantissa)) | half >> 1,
        one - (1 << mantissa),
    ]
    made += [one | 1, infinite - 1, infinite, infinite | half | 5 % (1 << mantissa), infinite | 3]
    made += [min(bias + power, 2 * bias) << mantissa for power in (7, 8, 15, 16, 31, 32, 63, 64)]
    return [*made, *(value | top for value in made)]


def values(t: str) -> list[int]:
    """Return the bits of a type's boundaries."""
    if t in ("f16", "bf16", "f32", "f64", "tf32"):
        return _float_bits(*{"f16": (10, 5), "bf16": (7, 8), "f32": (23, 8), "f64": (52, 11), "tf32": (23, 8)}[t])
    if t in ("f16x2", "bf16x2"):
        one = values(t[:-2])
        return [low | one[(i * 7 + 3) % len(one)] << 16 for i, low in enumerate(one)]
    bits = BITS[t]
    top = 1 << bits
    small = [0, 1, 2, 3, 7, 8, 15, 16, 31, 32, 33, 63, 64, 65, 127, 128, 255, 256]
    made = [
        *small,
        32767,
        32768,
        65535,
        65536,
        top // 2 - 1,
        top // 2,
        top // 2 + 1,
        top - 1,
        top - 2,
        0x5A5A3C3C96960F0F,
        1 << 31,
    ]
    made += [(1 << 53) + 1, (1 << 24) + 1, 0x0123456789ABCDEF, (1 << 32) - 1]
    return sorted({value % top for value in made})


def inputs(row: Row, limit: int = 256) -> list[tuple[int, ...]]:
    """Return operands for a row: all combinations of its boundaries, or the same `limit` of them each time."""
    choice = random.Random(row.text)
    lists = [values(t) for t in row.operands]
    total = 1
    for one in lists:
        total *= len(one)
    if total <= limit:
        return list(itertools.product(*lists))
    made = []
    for number in range(limit):
        if number % 4 == 3:  # any bits
            made.append(tuple(choice.getrandbits(BITS[t]) for t in row.operands))
        else:
            made.append(tuple(choice.choice(one) for one in lists))
    return made


def packed(operands: list[tuple[int, ...]]) -> bytes:
    """Pack operands in the kernels' layout."""
    return b"".join(struct.pack("<4Q", *one, *[0] * (4 - len(one))) for one in operands)
