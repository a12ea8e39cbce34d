"""Integer arithmetic, logic, comparison and conversion.

In PTX, the result of a division by zero is undefined. Here, all bits of the quotient and the remainder are 1, whatever
the type, as in the code that ptxas 13.0 generates for sm_90.
"""

from __future__ import annotations

from typing import NamedTuple

from gpt.asm.host.names import Unsupported, evaluate
from gpt.asm.host.table import TYPES, PtxType, Row
from gpt.asm.host.use import InstructionUse
from gpt.ptx import tree

SMALL = "u16 s16 u32 s32"
INTEGERS = f"{SMALL} u64 s64"
BYTES = f"u8 s8 {INTEGERS}"
PLAIN = "b16 b32 b64"
LOGICAL = f"{PLAIN} pred"
EQUAL = {"eq": "==", "ne": "!="}
COMPARE = EQUAL | {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "lo": "<", "ls": "<=", "hi": ">", "hs": ">="}
SET = "u32 s32 f32 f16 bf16"  # result types of set
_ORDER = (
    "lt le gt ge: !T=b16; lt le gt ge: !T=b32; lt le gt ge: !T=b64; lo ls hi hs: T=u16 T=u32 T=u64; D=bf16: sm_90;"
    "D=f16: sm_53"
)
BOOLEAN = {"and": "&", "or": "|", "xor": "^"}

# Functions of two bits b and c, by their truth table (bit 2b+c). The first operand of lop3 selects one of two such
# functions.
_OF_TWO = (
    *("0u", "~({b} | {c})", "(~{b} & {c})", "~{b}", "({b} & ~{c})", "~{c}", "({b} ^ {c})", "~({b} & {c})"),
    *("({b} & {c})", "~({b} ^ {c})", "{c}", "(~{b} | {c})", "{b}", "({b} | ~{c})", "({b} | {c})", "~0u"),
)


def _lop3_value(use: InstructionUse, operands: tuple[tree.Operand, ...]) -> str:
    """Return lop3 of three operands in C. Each bit of the result is taken from the truth table, which has eight
    bits.
    """
    a, b, c = (use.value(operand, TYPES["b32"]) for operand in operands[:3])
    table = evaluate(operands[3]) & 255
    low, high = (_OF_TWO[bits].format(b=b, c=c) for bits in (table & 15, table >> 4))
    return low if low == high else f"(({a} & {high}) | (~{a} & {low}))"


def _lop3(use: InstructionUse) -> str:
    return use.assign(use.operands[0], TYPES["b32"], _lop3_value(use, use.operands[1:]))


def _lop3_predicate(use: InstructionUse) -> str:
    results, *rest = use.operands
    if not isinstance(results, tree.Expression) or len(results.operands) != 2:
        raise Unsupported("lop3 with a boolean operation has two results")
    value, predicate = results.operands
    second = use.value(rest[4], TYPES["pred"])
    return (
        f"{{ uint32_t d_ = {_lop3_value(use, tuple(rest))}; bool p_ = (d_ != 0) {use.words['B']} {second}; "
        f"{use.assign(value, TYPES['b32'], 'd_')} {use.assign(predicate, TYPES['pred'], 'p_')} }}"
    )


def _move(use: InstructionUse) -> str:
    """Write mov, which can also pack the elements of a vector, lowest first, or unpack them."""
    type_ = use.words["T"]
    assert isinstance(type_, PtxType)
    to, of = use.operands
    if isinstance(to, tree.Vector) != isinstance(of, tree.Vector) and type_.name[0] != "b" and not use.words["V"]:
        raise Unsupported(f"a vector where .{type_.name} is expected")
    if use.words["V"]:
        width = int(str(use.words["V"]))
        if width * type_.bits > 128:
            raise Unsupported(f"{width} elements of .{type_.name}: vectors have at most 128 bits")
        values = [use.value(one, type_) for one in use.vector(of, width)]
        lines = [use.assign(one, type_, f"e_[{n}]") for n, one in enumerate(use.vector(to, width))]
        return " ".join([f"{{ {type_} e_[] = {{{', '.join(values)}}};", *lines, "}"])
    if type_.name[0] != "b" and any(len(use.vector(one)) > 1 and isinstance(one, tree.Name) for one in (to, of)):
        raise Unsupported(f"a vector where .{type_.name} is expected")
    to, of = (tree.Vector(tuple(found)) if len(found := use.vector(one)) > 1 else one for one in (to, of))
    if isinstance(of, tree.Vector):
        part = _part(type_, len(of.items))
        parts = [f"(({type_.unsigned}){use.value(one, part)} << {part.bits * n})" for n, one in enumerate(of.items)]
        return use.assign(to, type_, " | ".join(parts))
    if not isinstance(to, tree.Vector):
        return use.assign(to, type_, use.value(of, type_))
    part = _part(type_, len(to.items))
    lines = [use.assign(one, part, f"({part})(m_ >> {part.bits * n})") for n, one in enumerate(to.items)]
    return " ".join([f"{{ {type_.unsigned} m_ = {use.value(of, type_.unsigned)};", *lines, "}"])


def _part(type_: PtxType, count: int) -> PtxType:
    """Return the type of an element, if a vector of `count` elements has the size of this type."""
    name = f"b{type_.bits // max(count, 1)}"
    if name not in TYPES or TYPES[name].bits * count != type_.bits:
        raise Unsupported(f"a vector of {count} as one of .{type_.name}")
    return TYPES[name]


def _holds(type_: PtxType, other: PtxType) -> bool:
    """Return whether an integer type can represent all values of another type, so that nothing has to be saturated."""
    return (
        type_.bits > other.bits
        if type_.is_signed > other.is_signed
        else (type_.is_signed == other.is_signed and type_.bits >= other.bits)
    )


class _Sum(NamedTuple):
    """An addition of two terms and a carry. Instructions that don't read the flag use the constant `carry`.

    Hardware has only one flag, the carry out. It subtracts by adding the complement and 1. So a flag that's set after
    `sub.cc` means that there was no borrow, and `addc` can follow `sub.cc`.
    """

    operands: str
    first: str
    second: str
    carry: int = 0

    def make(self, carry: str) -> str:
        """Return the sum in C, with this carry. It also sets the flag."""
        return (
            f"bool k_ = __builtin_add_overflow({self.first}, {self.second}, &{{d}}); "
            f"cc = k_ | __builtin_add_overflow({{d}}, ({{T.unsigned}}){carry}, &{{d}});"
        )


_LONG = "d:T.unsigned = a:T.unsigned b:T.unsigned"
_PRODUCTS = {
    ("add", "addc"): _Sum(_LONG, "{a}", "{b}"),
    ("sub", "subc"): _Sum(_LONG, "{a}", "~{b}", 1),
    ("mad.lo", "madc.lo"): _Sum(f"{_LONG} c:T.unsigned", "({T.unsigned})({a} * {b})", "{c}"),
    ("mad.hi", "madc.hi"): _Sum(
        "d:T.unsigned = a b c:T.unsigned", "({T.unsigned})(({T.wide}){a} * {b} >> {T.bits})", "{c}"
    ),
}
WORDS = "u32 s32 u64 s64"
_CLAMP = {"clamp": "1", "wrap": "0"}
_SIGNED = {"u32": "0", "s32": "1"}
_NARROW = "({D.unsigned})saturate({%s}, {D.bits}, {D.sign})"
_PACK = f"(uint32_t){_NARROW % 'a'} << {{D.bits}} | {_NARROW % 'b'}"

_CARRIES = "u64 s64: 4.3"
_DOTS = ": sm_61; : 5.0"

ROWS = [
    Row(
        "mov{.V}.T",
        "d = a",
        _move,
        V={"v2": "2", "v4": "4"},
        T=f"{INTEGERS} {PLAIN} b128 f32 f64 pred",
    ),
    # Arithmetic
    Row("add.T", "d = a b", "{a} + {b}", T=INTEGERS),
    Row("add.sat.s32", "d:s32 = a:s32 b:s32", "saturate_s32((int64_t){a} + {b})"),
    Row("sub.T", "d = a b", "{a} - {b}", T=INTEGERS),
    Row("sub.sat.s32", "d:s32 = a:s32 b:s32", "saturate_s32((int64_t){a} - {b})"),
    Row("add.T", "d = a b", "each_16({a}, {b}, ADD)", needs=": sm_90; : 8.0", T="u16x2 s16x2"),
    Row("mul.lo.T", "d = a b", "({T.unsigned.wide}){a} * {b}", T=SMALL),
    Row("mul.lo.T", "d = a b", "{a} * {b}", T="u64 s64"),
    Row("mul.hi.T", "d = a b", "({T.wide}){a} * {b} >> {T.bits}", T=INTEGERS),
    Row("mul.wide.T", "d:T.wide = a b", "({T.wide}){a} * {b}", T=SMALL),
    Row("mad.lo.T", "d = a b c", "({T.unsigned.wide}){a} * {b} + {c}", T=SMALL),
    Row("mad.lo.T", "d = a b c", "{a} * {b} + {c}", T="u64 s64"),
    Row("mad.hi.T", "d = a b c", "({T})(({T.wide}){a} * {b} >> {T.bits}) + {c}", T=INTEGERS),
    Row("mad.hi.sat.s32", "d:s32 = a:s32 b:s32 c:s32", "saturate_s32(((int64_t){a} * {b} >> 32) + {c})"),
    Row("mad.wide.T", "d:T.wide = a b c:T.wide", "({T.wide}){a} * {b} + {c}", T=SMALL),
    Row("mul24.lo.T", "d = a b", "low24_{T.name}({a}) * low24_{T.name}({b})", T="u32 s32"),
    Row("mul24.hi.T", "d = a b", "low24_{T.name}({a}) * low24_{T.name}({b}) >> 16", T="u32 s32"),
    Row("mad24.lo.T", "d = a b c", "low24_{T.name}({a}) * low24_{T.name}({b}) + {c}", T="u32 s32"),
    Row("mad24.hi.T", "d = a b c", "(low24_{T.name}({a}) * low24_{T.name}({b}) >> 16) + {c}", T="u32 s32"),
    Row(
        "mad24.hi.sat.s32",
        "d:s32 = a:s32 b:s32 c:s32",
        "saturate_s32((int64_t)(int32_t)(low24_s32({a}) * low24_s32({b}) >> 16) + {c})",
    ),
    Row("div.T", "d = a b", "div_{T.name}({a}, {b})", T=INTEGERS),
    Row("rem.T", "d = a b", "rem_{T.name}({a}, {b})", T=INTEGERS),
    Row("sad.T", "d = a b c", "{c} + ({a} < {b} ? {b} - {a} : {a} - {b})", T=INTEGERS),
    Row("abs.T", "d = a", "{a} < 0 ? -{a} : {a}", T="s16 s32 s64"),
    Row("neg.T", "d = a", "-{a}", T="s16 s32 s64"),
    Row("min.T", "d = a b", "{a} < {b} ? {a} : {b}", T=INTEGERS),
    Row("max.T", "d = a b", "{a} > {b} ? {a} : {b}", T=INTEGERS),
    Row("min.relu.s32", "d:s32 = a:s32 b:s32", "relu_s32({a} < {b} ? {a} : {b})", needs=": sm_90; : 8.0"),
    Row("max.relu.s32", "d:s32 = a:s32 b:s32", "relu_s32({a} > {b} ? {a} : {b})", needs=": sm_90; : 8.0"),
    Row("min.T", "d = a b", "each_{T.name}({a}, {b}, MIN, 0)", needs=": sm_90; : 8.0", T="u16x2 s16x2"),
    Row("max.T", "d = a b", "each_{T.name}({a}, {b}, MAX, 0)", needs=": sm_90; : 8.0", T="u16x2 s16x2"),
    Row("min.relu.s16x2", "d:s16x2 = a:s16x2 b:s16x2", "each_s16x2({a}, {b}, MIN, 1)", needs=": sm_90; : 8.0"),
    Row("max.relu.s16x2", "d:s16x2 = a:s16x2 b:s16x2", "each_s16x2({a}, {b}, MAX, 1)", needs=": sm_90; : 8.0"),
    Row("dp4a.A.B", "d:u32 = a:u32 b:u32 c:u32", "dp4a({a}, {b}, {c}, {A}, {B})", needs=_DOTS, A=_SIGNED, B=_SIGNED),
    Row(
        "dp2a.H.A.B",
        "d:u32 = a:u32 b:u32 c:u32",
        "dp2a({a}, {b}, {c}, {H}, {A}, {B})",
        needs=_DOTS,
        H={"lo": "0", "hi": "16"},
        A=_SIGNED,
        B=_SIGNED,
    ),
    # Multi-word numbers
    *(
        row
        for name, of in _PRODUCTS.items()
        for row in (
            Row(f"{name[0]}.cc.T", of.operands, of.make(str(of.carry)), needs=_CARRIES, T=WORDS),
            Row(f"{name[1]}.T", of.operands, f"{{d}} = {of.first} + {of.second} + cc;", T=WORDS),
            Row(f"{name[1]}.cc.T", of.operands, of.make("cc"), needs=_CARRIES, T=WORDS),
        )
    ),
    # Bits
    *(Row(f"{name}.T", "d = a b", f"{{a}} {sign} {{b}}", T=LOGICAL) for name, sign in BOOLEAN.items()),
    Row("not.T", "d = a", "~{a}", T=PLAIN),
    Row("not.pred", "d:pred = a:pred", "!{a}"),
    Row("cnot.T", "d = a", "!{a}", T=PLAIN),
    Row("lop3.b32", "d:b32 = a:b32 b:b32 c:b32 table", _lop3),
    Row("lop3.B.b32", "d:b32 p:pred = a:b32 b:b32 c:b32 table q:pred", _lop3_predicate, B=BOOLEAN),
    Row("shl.T", "d = a b:u32", "{b} < {T.bits} ? {a} << {b} : 0", T=PLAIN),
    Row("shr.T", "d = a b:u32", "{b} < {T.bits} ? {a} >> {b} : 0", T=f"{PLAIN} u16 u32 u64"),
    Row("shr.T", "d = a b:u32", "{a} >> ({b} < {T.bits} ? {b} : {T.bits} - 1)", T="s16 s32 s64"),
    Row(
        "shf.l.M.b32",
        "d:b32 = a:b32 b:b32 c:u32",
        "((uint64_t){b} << 32 | {a}) << funnel{M}({c}) >> 32",
        needs=": sm_32",
        M="wrap clamp",
    ),
    Row(
        "shf.r.M.b32",
        "d:b32 = a:b32 b:b32 c:u32",
        "((uint64_t){b} << 32 | {a}) >> funnel{M}({c})",
        needs=": sm_32",
        M="wrap clamp",
    ),
    Row("prmt.b32", "d:b32 = a:b32 b:b32 c:b32", "prmt({a}, {b}, {c})"),
    Row("prmt.b32.M", "d:b32 = a:b32 b:b32 c:b32", "prmt({a}, {b}, prmt{M}({c} & 3))", M="f4e b4e rc8 ecl ecr rc16"),
    Row("popc.T", "d:u32 = a", "__builtin_popcountll({a})", T="b32 b64"),
    Row("clz.T", "d:u32 = a", "{a} ? __builtin_clzll({a}) - (64 - {T.bits}) : {T.bits}", T="b32 b64"),
    Row("brev.T", "d = a", "brev({a}) >> (64 - {T.bits})", T="b32 b64"),
    Row("bfind.T", "d:u32 = a", "bfind({a} ^ {a} >> {T.bits} - 1)", T="s32 s64"),
    Row("bfind.T", "d:u32 = a", "bfind({a})", T="u32 u64"),
    Row(
        "bfind.shiftamt.T", "d:u32 = a", "bfind_shift(({T.unsigned})({a} ^ {a} >> {T.bits} - 1), {T.bits})", T="s32 s64"
    ),
    Row("bfind.shiftamt.T", "d:u32 = a", "bfind_shift({a}, {T.bits})", T="u32 u64"),
    Row("fns.b32", "d:b32 = a:b32 b:b32 c:b32", "fns({a}, {b}, {c})", needs=": 6.0"),
    Row("bfe.T", "d = a b:u32 c:u32", "bfe({a}, {b}, {c}, {T.bits})", T="u32 u64"),
    Row("bfe.T", "d = a b:u32 c:u32", "bfe_signed({a}, {b}, {c}, {T.bits})", T="s32 s64"),
    Row("bfi.T", "d = a b c:u32 e:u32", "bfi({a}, {b}, {c}, {e}, {T.bits})", T="b32 b64"),
    Row(
        "szext.M.T",
        "d = a b:u32",
        "szext_{T.name}({a}, {b}, {M})",
        needs=": 7.6",
        M=_CLAMP,
        T="u32 s32",
    ),
    Row("bmsk.M.b32", "d:u32 = a:u32 b:u32", "bmsk({a}, {b}, {M})", needs=": 7.6", M=_CLAMP),
    # Choices
    Row("selp.T", "d = a b c:pred", "{c} ? {a} : {b}", T=f"{INTEGERS} {PLAIN} f32 f64"),
    Row("slct.T.s32", "d = a b c:s32", "{c} >= 0 ? {a} : {b}", T=f"{INTEGERS} {PLAIN} f32 f64"),
    Row("slct.T.f32", "d = a b c:f32", "{c} >= 0 ? {a} : {b}", T=f"{INTEGERS} {PLAIN} f32 f64"),
    Row("slct.ftz.T.f32", "d = a b c:f32", "{c} > -0x1p-126f ? {a} : {b}", T=f"{INTEGERS} {PLAIN} f32 f64"),
    Row(
        "setp.C.T",
        "p:pred q:pred = a b",
        "{p} = {a} {C} {b}; {q} = !{p};",
        needs=_ORDER,
        C=COMPARE,
        T=f"{INTEGERS} {PLAIN}",
    ),
    Row(
        "setp.C.B.T",
        "p:pred q:pred = a b c:pred",
        "{p} = ({a} {C} {b}) {B} {c}; {q} = !({a} {C} {b}) {B} {c};",
        needs=_ORDER,
        C=COMPARE,
        B=BOOLEAN,
        T=f"{INTEGERS} {PLAIN}",
    ),
    Row(
        "set.C.D.T",
        "d:D = a b",
        "{a} {C} {b} ? TRUE_{D.name} : 0",
        needs=_ORDER,
        C=COMPARE,
        D=SET,
        T=f"{INTEGERS} {PLAIN}",
    ),
    Row(
        "set.C.B.D.T",
        "d:D = a b c:pred",
        "({a} {C} {b}) {B} {c} ? TRUE_{D.name} : 0",
        needs=_ORDER,
        C=COMPARE,
        B=BOOLEAN,
        D=SET,
        T=f"{INTEGERS} {PLAIN}",
    ),
    # Integer to integer conversion
    Row("cvt.D.T", "d:D = a", "({D}){a}", D=BYTES, T=BYTES),
    *(
        Row("cvt.sat.D.T", "d:D = a", "saturate({a}, {D.bits}, {D.sign})", D=to, T=" ".join(of))
        for to in BYTES.split()
        if (of := [type_ for type_ in BYTES.split() if not _holds(TYPES[to], TYPES[type_])])
    ),
    Row("cvt.pack.sat.D.s32", "d:u32 = a:s32 b:s32", _PACK, needs=": sm_72; : 6.5", D="u16 s16"),
    Row(
        "cvt.pack.sat.D.s32.b32",
        "d:u32 = a:s32 b:s32 c:b32",
        f"{_PACK} | {{c}} << 2 * {{D.bits}}",
        needs=": sm_72; : 6.5",
        D="u8 s8",
    ),
    Row(
        "cvt.pack.sat.M.s32.b32",
        "d:u32 = a:s32 b:s32 c:b32",
        "pack_{M}({a}, {b}, {c})",
        needs=": sm_75; : 6.5",
        M="u4 s4 u2 s2",
    ),
]
