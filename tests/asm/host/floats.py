"""Floating-point instructions, computed with exact rationals (exact.py): every rounding mode and modifier."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import product
from typing import NamedTuple

from tests.asm.host import exact
from tests.asm.host.exact import BF16, F16, F32, F64, FORMATS, INFINITY, NAN, TF32, Format, Fraction, Value
from tests.asm.host.integers import COMPARE

MODES = ("rn", "rz", "rm", "rp")
OPERATIONS: dict[str, tuple[int, Callable[..., tuple[bool, Value]]]] = {
    "add": (2, exact.add),
    "sub": (2, lambda a, b, mode: exact.add(a, (not b[0], b[1]), mode)),
    "mul": (2, lambda a, b, mode: exact.multiply(a, b)),
    "div": (2, lambda a, b, mode: exact.divide(a, b)),
    "fma": (3, lambda a, b, c, mode: exact.add(exact.multiply(a, b), c, mode)),
    "mad": (3, lambda a, b, c, mode: exact.add(exact.multiply(a, b), c, mode)),
    "rcp": (1, lambda a, mode: exact.divide((False, Fraction(1)), a)),
    "sqrt": (1, lambda a, mode: exact.root(a)),
}
TWOS = {"f16x2": F16, "bf16x2": BF16}
WHOLE = {f"{sign}{size}": (sign == "s", size) for sign in "us" for size in (8, 16, 32, 64)}


class Case(NamedTuple):
    """An instruction, the formats of its result and operands, and a function that computes its bits."""

    text: str
    result: int
    operands: tuple[int, ...]
    does: Callable[..., int]
    nan: Format | None = None  # any NaN of this format is right


def clamped(form: Format, negative: bool, value: Value, mode: str, words: str) -> int:
    """Apply modifiers to a result."""
    if value == NAN:
        return 0 if "sat." in words else form.nan
    if negative and ("sat." in words or "relu" in words):
        return 0
    if "sat." in words and (value == INFINITY or value > 1):
        value = Fraction(1)
    return form.encode(negative, value, mode, "ftz" in words, "satfinite" in words)


def arithmetic(form: Format) -> Iterator[Case]:
    """Yield the operations that are rounded once."""
    half = form in (F16, BF16)
    clamps = {"f64": [""], "f32": ["", "sat."], "bf16": ["", "relu."]}.get(form.name, ["", "sat.", "relu."])
    for name, (count, operation) in OPERATIONS.items():
        if half and name not in ("add", "sub", "mul", "fma"):
            continue
        for mode, ftz, clamp in product(
            MODES[: 1 if half else 4], ("", "ftz.") if form in (F16, F32) else ("",), clamps
        ):
            words = f"{mode}.{ftz}{clamp}"
            if ("sat" in clamp and name in ("div", "rcp", "sqrt")) or ("relu" in clamp and name != "fma"):
                continue

            def does(*given: int, mode=mode, words=words, operation=operation) -> int:
                operands = map(form.flush, given) if "ftz" in words else given
                return clamped(form, *operation(*map(form.decode, operands), mode), mode, words)

            any_nan = form if form == F64 else None
            yield Case(f"{name}.{words}{form.name}", form.size, (form.size,) * count, does, any_nan)
            if half:
                yield Case(f"{name}.{words}{form.name}x2", 32, (32,) * count, paired(does))


def paired(does: Callable[..., int]) -> Callable[..., int]:
    """Apply an instruction to each half."""
    return lambda *given: does(*(a & 0xFFFF for a in given)) | does(*(a >> 16 for a in given)) << 16


def times(factor: int, does: Callable[..., int]) -> Callable[..., int]:
    """Return the result of set for a comparison."""
    return lambda *given: factor * does(*given)


def signs(form: Format) -> Iterator[Case]:
    """List the instructions that only look at encodings: signs, extremes, classes, comparisons."""
    sign, size, name = form.sign, form.size, form.name

    def canonical(bits: int) -> int:
        return form.nan if form.is_nan(bits) else bits

    def extreme(greatest: bool, words: str) -> Callable[[int, int], int]:
        def does(a: int, b: int) -> int:
            product_ = (a ^ b) & sign
            a, b = (form.flush(a), form.flush(b)) if "ftz" in words else (a, b)
            numbers = [bits for bits in (a, b) if not form.is_nan(bits)]
            if not numbers or ("NaN" in words and len(numbers) == 1):
                return form.nan
            if "xorsign" in words:
                return (max if greatest else min)(bits & ~sign for bits in numbers) | product_
            place = lambda bits: ~(bits & ~sign) if bits & sign else bits  # noqa: E731
            return (max if greatest else min)(numbers, key=place)

        return does

    def compares(how: str) -> Callable[[int, int], int]:
        def does(a: int, b: int) -> int:
            none = form.is_nan(a) or form.is_nan(b)
            if how in ("num", "nan"):
                return int(none == (how == "nan"))
            if none:
                return int(len(how) == 3)
            x, y = (number if isinstance(number := form.decode(bits)[1], Fraction) else math.inf for bits in (a, b))
            return int(COMPARE[how[:2]](-x if a & sign else x, -y if b & sign else y))

        return does

    half = form in (F16, BF16)
    variants = [words for words in ("", "NaN.", "xorsign.abs.", "NaN.xorsign.abs.") if form != F64 or not words]
    variants += ["ftz.", "ftz.NaN.xorsign.abs."] if form in (F16, F32) else []
    for greatest, words in product((False, True), variants):
        text, does = f"{'max' if greatest else 'min'}.{words}{name}", extreme(greatest, words)
        yield Case(text, size, (size, size), does, form if form == F64 else None)
        if half:
            yield Case(f"{text}x2", 32, (32, 32), paired(does))
    yield Case(f"abs.{name}", size, (size,), lambda a: canonical(a & ~sign), form)
    yield Case(f"neg.{name}", size, (size,), lambda a: canonical(a ^ sign), form)
    for how in [*COMPARE, *(f"{how}u" for how in COMPARE), "num", "nan"]:
        does = compares(how)
        yield Case(f"setp.{how}.{name}", 1, (size, size), does)
        yield Case(f"set.{how}.u32.{name}", 32, (size, size), times(0xFFFFFFFF, does))
        if half:
            one = form.encode(False, Fraction(1))
            yield Case(f"set.{how}.{name}x2.{name}x2", 32, (32, 32), paired(times(one, does)))
        else:
            yield Case(f"set.{how}.f32.{name}", 32, (size, size), times(0x3F800000, does))
    if half:
        return
    yield Case(f"copysign.{name}", size, (size, size), lambda a, b: a & sign | b & ~sign)
    normal = 1 << form.fraction
    for kind, test in {
        "finite": lambda m: m <= form.greatest,
        "infinite": lambda m: m == form.greatest + 1,
        "number": lambda m: m <= form.greatest + 1,
        "notanumber": lambda m: m > form.greatest + 1,
        "normal": lambda m: m == 0 or normal <= m <= form.greatest,
        "subnormal": lambda m: 0 < m < normal,
    }.items():
        yield Case(f"testp.{kind}.{name}", 1, (size,), lambda a, test=test: int(test(a & ~sign)))


def whole(value: Fraction, mode: str) -> int:
    """Return the nearest integer."""
    low = math.floor(value)
    rest = value - low
    up = {"rn": rest > Fraction(1, 2) or (rest == Fraction(1, 2) and low % 2), "rz": value < 0, "rm": False, "rp": True}
    return low + (rest > 0 and bool(up[mode]))


def conversions(form: Format) -> Iterator[Case]:
    """Yield the forms of cvt from a float type."""
    size, name = form.size, form.name
    for (to, (signed, bits)), mode in product(WHOLE.items(), MODES):
        if (form, bits) == (BF16, 8):  # ptxas doesn't have this form
            continue
        least, greatest = -(1 << bits - 1) if signed else 0, (1 << bits - signed) - 1

        def does(a: int, mode=mode, bits=bits, least=least, greatest=greatest) -> int:
            negative, value = form.decode(a)
            if value == NAN:  # "cvt"
                return 1 << bits - 1 if form == F64 or bits == 64 else 0
            if value == INFINITY:
                found = least if negative else greatest
            else:
                found = max(least, min(greatest, whole(form.number(a), mode)))
            return found & (1 << bits) - 1

        yield Case(f"cvt.{mode}i.{to}.{name}", bits, (size,), does)
    for to, mode in product((F16, BF16, F32, F64), MODES):
        if to.size <= size and to != form:
            clamps = ["", "relu.", "satfinite.", "relu.satfinite."] if form == F32 and mode in ("rn", "rz") else [""]
            clamps += ["sat."] if BF16 not in (to, form) else []
            clamps += ["ftz."] if (to, form) == (F32, F64) else []
            for words in clamps:

                def narrow(a: int, to=to, mode=mode, words=words) -> int:
                    return clamped(to, *form.decode(a), mode, words)

                yield Case(f"cvt.{mode}.{words}{to.name}.{name}", to.size, (size,), narrow, to)
        elif to == form:

            def integral(a: int, mode=mode) -> int:
                negative, value = form.decode(a)
                if isinstance(value, str):
                    return form.nan if value == NAN else a
                return form.encode(negative, Fraction(abs(whole(form.number(a), mode))))

            yield Case(f"cvt.{mode}i.{name}.{name}", size, (size,), integral, form)
        elif mode == "rn":
            yield Case(f"cvt.{to.name}.{name}", to.size, (size,), lambda a, to=to: to.encode(*form.decode(a)), to)
    if form != F32:
        return
    for mode in ("rn", "rz", "rna"):

        def tensor(a: int, mode=mode) -> int:
            if mode == "rna" and form.is_nan(a):  # an H200 truncates it
                return a & 0xFFFFE000
            return TF32.encode(*form.decode(a), mode) << 13

        yield Case(f"cvt.{mode}.tf32.f32", 32, (32,), tensor)
    for to in (F16, BF16):
        pair = lambda a, b, to=to: to.encode(*form.decode(a)) << 16 | to.encode(*form.decode(b))  # noqa: E731
        yield Case(f"cvt.rn.{to.name}x2.f32", 32, (32, 32), pair)
    for small in ("e4m3", "e5m2", "e3m2", "e2m3"):
        for words in ("satfinite.", "satfinite.relu."):

            def two(a: int, b: int, to=FORMATS[small], words=words) -> int:
                return clamped(to, *form.decode(a), "rn", words) << 8 | clamped(to, *form.decode(b), "rn", words)

            yield Case(f"cvt.rn.{words}{small}x2.f32", 16, (32, 32), two)


def cases_of(form: Format) -> list[Case]:
    """Return all instructions on a type."""
    return [*arithmetic(form), *signs(form), *conversions(form)]
