"""Floating-point arithmetic, comparison and conversion. runtime/host/math.h says which operations are exact.

Functions there are named after the type: f32_add, bf16x2_add.
"""

from __future__ import annotations

from gpt.asm.host.table import Row

MODES = "rn rz rm rp"
INTEGRAL = "rni rzi rmi rpi"
HALVES = "f16 bf16"
PAIRS = "f16x2 bf16x2"
ALL = f"{HALVES} {PAIRS} f32 f64"
FLOATS = f"{HALVES} f32 f64"
INTEGERS = "u8 s8 u16 s16 u32 s32 u64 s64"
COMPARE = "eq ne lt le gt ge equ neu ltu leu gtu geu num nan"
BOOLEAN = {"and": "&", "or": "|", "xor": "^"}
SIGNED = {"xorsign.abs": "_xorsign"}
FAMILIES = ": sm_100a sm_110a sm_120a"
F8 = "e4m3x2 e5m2x2"
F6 = "e2m3x2 e3m2x2"

_FTZ = "ftz: f16 f16x2 f32; f16 f16x2: sm_53"  # the types with subnormal numbers, which this flushes to zero
_BF16 = "bf16 bf16x2: sm_90"

_CLAMPED = "FLAG{A} | FLAG{B}"  # .relu and .satfinite, in either order
_CLAMPS = {"A": "relu satfinite", "B": "relu satfinite"}

_ARITHMETIC = [
    *(
        row
        for name in ("add", "sub", "mul")
        for row in (
            Row(
                f"{name}{{.R}}{{.ftz}}{{.sat}}.T",
                "d = a b",
                f"{{T.name}}_{name}({{a}}, {{b}}, ROUND{{R}}, FLAG{{ftz}} | FLAG{{sat}})",
                needs=f"rz rm rp: f32 f64; {_FTZ}; sat: f16 f16x2 f32; {_BF16}",
                R=MODES,
                T=ALL,
            ),
            Row(
                f"{name}{{.R}}{{.ftz}}.f32x2",
                "d:f32x2 = a:f32x2 b:f32x2",
                f"f32x2_{name}({{a}}, {{b}}, ROUND{{R}}, FLAG{{ftz}})",
                needs=": sm_100",
                R=MODES,
            ),
        )
    ),
    *(
        Row(
            f"{name}{{.R}}{{.sat}}.f32.T",
            "d:f32 = a b:f32",
            f"f32_{name}((float)read_{{T.name}}({{a}}, FLAG), {{b}}, ROUND{{R}}, FLAG{{sat}})",
            needs=": sm_100",
            R=MODES,
            T=HALVES,
        )
        for name in ("add", "sub")
    ),
    Row(
        "fma.R{.ftz}{.oob}{.M}.T",
        "d = a b c",
        "{T.name}_fma({a}, {b}, {c}, ROUND{R}, FLAG{ftz} | FLAG{oob} | FLAG{M})",
        needs="rz rm rp: f32 f64; ftz sat: f16 f16x2 f32; f16 f16x2: sm_53; ftz: !oob; oob relu: f16 f16x2 bf16 bf16x2;"
        "oob: sm_90; oob: 8.1; relu bf16 bf16x2: sm_80",
        R=MODES,
        M="sat relu",
        T=ALL,
    ),
    Row(
        "mad.R{.ftz}{.sat}.T",
        "d = a b c",
        "{T.name}_fma({a}, {b}, {c}, ROUND{R}, FLAG{ftz} | FLAG{sat})",
        needs="ftz sat: f32",
        R=MODES,
        T="f32 f64",
    ),
    # JIT compilers fuse this (the PTX manual, mad)
    Row(
        "mad{.sat}.f32",
        "d:f32 = a:f32 b:f32 c:f32",
        "f32_fma({a}, {b}, {c}, ROUND_rn, FLAG_ftz | FLAG{sat})",
        needs=": <sm_20 <3.2",
    ),
    Row(
        "fma.R{.ftz}.f32x2",
        "d:f32x2 = a:f32x2 b:f32x2 c:f32x2",
        "f32x2_fma({a}, {b}, {c}, ROUND{R}, FLAG{ftz})",
        needs=": sm_100",
        R=MODES,
    ),
    Row(
        "fma.R{.sat}.f32.T",
        "d:f32 = a b c:f32",
        "f32_fma((float)read_{T.name}({a}, FLAG), (float)read_{T.name}({b}, FLAG), {c}, ROUND{R}, FLAG{sat})",
        needs=": sm_100",
        R=MODES,
        T=HALVES,
    ),
    Row(
        "div.R{.ftz}.T",
        "d = a b",
        "{T.name}_div({a}, {b}, ROUND{R}, FLAG{ftz})",
        needs="ftz: f32",
        R=MODES,
        T="f32 f64",
    ),
    Row("div.approx{.ftz}.f32", "d:f32 = a:f32 b:f32", "f32_div_approx({a}, {b}, FLAG{ftz})"),
    Row("div.full{.ftz}.f32", "d:f32 = a:f32 b:f32", "f32_div({a}, {b}, ROUND, FLAG{ftz})"),
    *(
        Row(
            f"{name}.R{{.ftz}}.T",
            "d = a",
            f"{{T.name}}_{name}({{a}}, ROUND{{R}}, FLAG{{ftz}})",
            needs=needs,
            R=MODES,
            T="f32 f64",
        )
        for name, needs in (("rcp", ""), ("sqrt", "ftz: f32"))
    ),
    *(
        Row(f"{name}.approx{{.ftz}}.f32", "d:f32 = a:f32", f"f32_{name}_approx({{a}}, FLAG{{ftz}})")
        for name in ("rcp", "sqrt", "rsqrt", "sin", "cos", "lg2", "ex2")
    ),
    Row("tanh.approx.f32", "d:f32 = a:f32", "f32_tanh_approx({a}, FLAG)", needs=": sm_75; : 7.0"),
    Row("tanh.approx.T", "d = a", "{T.name}_tanh({a}, FLAG)", needs=f": sm_75; : 7.0; {_BF16}", T=f"{HALVES} {PAIRS}"),
    Row(
        "ex2.approx{.ftz}.T",
        "d = a",
        "{T.name}_ex2({a}, FLAG{ftz})",
        needs=f": sm_75; : 7.0; f16 f16x2: !ftz; bf16 bf16x2: ftz; {_BF16}",
        T=f"{HALVES} {PAIRS}",
    ),
    Row("rcp.approx.ftz.f64", "d:f64 = a:f64", "f64_rcp_approx({a})"),
    Row("rsqrt.approx{.ftz}.f64", "d:f64 = a:f64", "f64_rsqrt_approx({a}, FLAG{ftz})", needs="ftz: 4.0"),
    *(
        Row(
            f"{name}{{.ftz}}.T",
            "d = a",
            f"{{T.name}}_{name}({{a}}, FLAG{{ftz}})",
            needs=f"{_FTZ}; bf16 bf16x2: sm_80{since}",
            T=ALL,
        )
        for name, since in (("abs", "; f16 f16x2: 6.5"), ("neg", "; f16 f16x2: 6.0"))
    ),
    *(
        row
        for name in ("min", "max")
        for row in (
            Row(
                f"{name}{{.ftz}}{{.NaN}}{{.X}}.T",
                "d = a b",
                f"{{T.name}}_{name}({{a}}, {{b}}, FLAG{{ftz}} | FLAG{{NaN}} | FLAG{{X}})",
                needs=f"{_FTZ}; f64: !NaN; f64: !X=xorsign.abs; xorsign.abs: sm_86; xorsign.abs: 7.2;"
                "NaN f16 f16x2 bf16 bf16x2: sm_80",
                X=SIGNED,
                T=ALL,
            ),
            Row(
                f"{name}{{.ftz}}{{.NaN}}{{.abs}}.f32",
                "d:f32 = a:f32 b:f32 c:f32",
                f"f32_{name}_3({{a}}, {{b}}, {{c}}, FLAG{{ftz}} | FLAG{{NaN}} | FLAG{{abs}})",
                needs=": sm_100; : 8.8",
            ),
        )
    ),
    Row("copysign.T", "d = a b", "{T.name}_copysign({a}, {b})", T="f32 f64"),
]

_COMPARISON = [
    Row(
        "testp.C.T",
        "p:pred = a",
        "host_is(IS{C}, FORMAT_{T.name}, bits_{T.name}({a}))",
        C="finite infinite number notanumber normal subnormal",
        T="f32 f64",
    ),
]
_COMPARED = f"ftz: T=f16 T=f16x2 T=f32; T=f16 T=f16x2: sm_53; {_BF16}"
_SET_HALF = "T=f16 T=f16x2: 6.5 D=f16 D=f16x2 D=bf16"  # halves with an integer result were added later
_TEST = "{T.name}_compare(COMPARE{C}, {a}, {b}, FLAG{ftz})"
_LOW, _HIGH = (f"{{T.name}}_{part}_compare(COMPARE{{C}}, {{a}}, {{b}}, FLAG{{ftz}})" for part in ("low", "high"))
for _b, _c, _with in ("", "", ""), (".B", " c:pred", " {B} {c}"):  # without and with a predicate
    _setp = f"setp.C{_b}{{.ftz}}.T", f"p:pred q:pred = a b{_c}"
    _set = f"set.C{_b}{{.ftz}}.D.T", f"d:D = a b{_c}"
    _halves = f"PAIR({_LOW}{_with} ? HALF_{{D.name}} : 0, {_HIGH}{_with} ? HALF_{{D.name}} : 0)"
    _COMPARISON += [
        Row(
            *_setp,
            f"bool r_ = {_TEST}; p_ = r_{_with}; q_ = !r_{_with};",
            needs=_COMPARED,
            C=COMPARE,
            B=BOOLEAN,
            T="f32 f64",
        ),
        Row(  # ptxas rejects a second predicate if the operands are halves
            _setp[0], f"p:pred = a b{_c}", f"{_TEST}{_with}", needs=_COMPARED, C=COMPARE, B=BOOLEAN, T="f16 bf16"
        ),
        Row(*_setp, f"p_ = {_LOW}{_with}; q_ = {_HIGH}{_with};", needs=_COMPARED, C=COMPARE, B=BOOLEAN, T=PAIRS),
        Row(
            *_set,
            f"{_TEST}{_with} ? TRUE_{{D.name}} : 0",
            needs=f"ftz: !D=bf16; {_COMPARED}; D=u16 D=s16: T=f16 T=bf16; D=f32: T=f32 T=f64; D=f16: !T=bf16;"
            f"D=f16: sm_53; {_SET_HALF}",
            C=COMPARE,
            B=BOOLEAN,
            D="u16 s16 u32 s32 f16 bf16 f32",
            T=FLOATS,
        ),
        Row(
            *_set,
            _halves,
            needs=f"{_COMPARED}; D=f16x2: T=f16x2; D=bf16x2: T=bf16x2; {_SET_HALF}",
            C=COMPARE,
            B=BOOLEAN,
            D=f"u32 s32 {PAIRS}",
            T=PAIRS,
        ),
    ]

_BETWEEN_FLOATS = (  # words before the types; the types; what they need
    ("{.sat}", "f16.f16", ""),
    ("", "bf16.bf16", ": sm_90"),
    ("{.ftz}{.sat}", "f32.f32", ": ftz sat"),
    ("{.sat}", "f64.f64", ""),
    ("{.R}", "f16.bf16", ": sm_90"),
    ("{.R}", "bf16.f16", ": sm_90"),
    (".R{.ftz}{.sat}", "f16.f32", ""),
    (".R{.ftz}", "bf16.f32", ": sm_80"),
    (".R{.sat}", "f16.f64", ""),
    (".R", "bf16.f64", ": sm_90"),
    (".R{.ftz}{.sat}", "f32.f64", ""),
    ("{.ftz}{.sat}", "f32.f16", ""),
    ("{.R}{.ftz}", "f32.bf16", ": ftz; : sm_80; : 7.1; ftz: sm_90"),
    ("{.sat}", "f64.f16", ""),
    ("{.R}", "f64.bf16", ": sm_90"),
    ("{.ftz}{.sat}", "f64.f32", ""),
)


def _flags(words: str) -> tuple[str, str]:
    """Return the arguments in C for the rounding mode and the other modifiers."""
    others = [f"FLAG{{{word}}}" for word in ("ftz", "sat") if word in words]
    return "ROUND{R}" if "R" in words else "ROUND", " | ".join(others) or "FLAG"


_CONVERSION = [
    Row(
        "cvt.R{.ftz}{.sat}.D.T",
        "d:D = a",
        "({D})host_to_integer(read_{T.name}({a}, FLAG{ftz}), ROUND{R},"
        " {D.bits}, IS_SIGNED({D}), NAN_INTEGER({D}, {T}))",
        needs="ftz: f32; bf16: !sat; bf16: sm_90",
        R=INTEGRAL,
        D=INTEGERS,
        T=FLOATS,
    ),
    Row(
        "cvt.R{.ftz}{.sat}.D.T",
        "d:D = a",
        "integer_{D.name}((uint64_t){a}, IS_SIGNED({T}), ROUND{R}, FLAG{sat})",
        needs="ftz: f32; bf16: !sat; bf16: sm_90",
        R=MODES,
        D=FLOATS,
        T=INTEGERS,
    ),
    *(  # rounding to an integer
        Row(
            f"cvt.R{words}.{name}.{name}",
            f"d:{name} = a:{name}",
            f"write_{name}(host_integral(read_{name}({{a}}, {flags}), ROUND{{R}}), ROUND, {flags})",
            needs=needs,
            R=INTEGRAL,
        )
        for words, name, needs in (
            ("{.sat}", "f16", ""),
            ("", "bf16", ": sm_90"),
            ("{.ftz}{.sat}", "f32", ""),
            ("{.sat}", "f64", ""),
        )
        for flags in _flags(words)[1:]
    ),
    Row("cvt.f32.f32", "d:f32 = a:f32", "{a}"),  # a NaN keeps its bits, as on an H200
    Row("cvt{.R}.f32.bf16", "d:f32 = a:bf16", "as_f32((uint32_t){a} << 16)", needs=": sm_80; : 7.1", R=MODES),
    *(
        Row(
            f"cvt{words}.{types}",
            f"d:{to} = a:{of}",
            f"write_{to}(read_{of}({{a}}, {flags}), {mode}, KEEP_{of} | {flags})",
            needs=needs,
            R=MODES,
        )
        for words, types, needs in _BETWEEN_FLOATS
        for to, of in [types.split(".")]
        # F2F and F2FP have no .FTZ for f16: subnormal numbers are rounded like all others
        for mode, flags in [_flags(words.replace("{.ftz}", "") if types == "f16.f32" else words)]
    ),
    Row(
        "cvt.R{.A}{.B}.D.f32",
        "d:D = a:f32",
        f"write_{{D.name}}(read_f32({{a}}, FLAG), ROUND{{R}}, KEEP_f32 | {_CLAMPED})",
        needs="relu bf16: sm_80; relu: 7.0; satfinite: 8.1",
        R="rn rz",
        D=HALVES,
        **_CLAMPS,
    ),
    Row(
        "cvt.R{.A}{.B}.tf32.f32",
        "d:tf32 = a:f32",
        f"write_tf32({{a}}, ROUND{{R}}, {_CLAMPED})",
        needs="rna: !relu; : sm_80; satfinite: 8.1; rn rz: sm_90; rn+satfinite rz+satfinite: sm_100",
        R="rn rz rna",
        **_CLAMPS,
    ),
    Row(
        "cvt.R{.A}{.B}.D.f32",
        "d:D = a:f32 b:f32",
        f"PAIR(write_{{D.name}}((double){{b}}, ROUND{{R}}, {_CLAMPED}),"
        f" write_{{D.name}}((double){{a}}, ROUND{{R}}, {_CLAMPED}))",
        needs=": sm_80; satfinite: 8.1",
        R="rn rz",
        D=PAIRS,
        **_CLAMPS,
    ),
    *(
        row
        for formats, width, needs in ((F8, 8, ": sm_89; : sm_90 8.1"), (F6, 8, FAMILIES), ("e2m1x2", 4, FAMILIES))
        for row in (
            Row(
                "cvt.rn{.A}{.B}.D.f32",
                "d:D = a:f32 b:f32",
                f"narrow_two(FORMAT_{{D.name}}, {width}, (double){{a}}, (double){{b}}, {_CLAMPED})",
                needs=f"{needs}; : satfinite",
                D=formats,
                **_CLAMPS,
            ),
            Row(
                "cvt.rn{.A}{.B}.D.f16x2",
                "d:D = a:f16x2",
                f"narrow_two(FORMAT_{{D.name}}, {width}, HIGH_f16x2({{a}}, FLAG), LOW_f16x2({{a}}, FLAG), {_CLAMPED})",
                needs=f"{needs}; : satfinite; D=e2m3x2 D=e3m2x2: 9.1",
                D=formats,
                **_CLAMPS,
            ),
            Row(
                "cvt.rn{.relu}.f16x2.T",
                "d:f16x2 = a",
                f"widen_two(FORMAT_{{T.name}}, {width}, {{a}}, FLAG{{relu}})",
                needs=needs,
                T=formats,
            ),
        )
    ),
    Row(
        "cvt.R{.satfinite}.ue8m0x2.f32",
        "d:ue8m0x2 = a:f32 b:f32",
        "host_ue8m0((double){a}, ROUND{R}, FLAG{satfinite}) << 8 | host_ue8m0((double){b}, ROUND{R}, FLAG{satfinite})",
        needs=FAMILIES,
        R="rz rp",
    ),
    Row(
        "cvt.R{.satfinite}.ue8m0x2.bf16x2",
        "d:ue8m0x2 = a:bf16x2",
        "host_ue8m0(HIGH_bf16x2({a}, FLAG), ROUND{R}, FLAG{satfinite}) << 8"
        " | host_ue8m0(LOW_bf16x2({a}, FLAG), ROUND{R}, FLAG{satfinite})",
        needs=FAMILIES,
        R="rz rp",
    ),
    Row(
        "cvt.rn.bf16x2.ue8m0x2",
        "d:bf16x2 = a:ue8m0x2",
        "PAIR(bf16_of_ue8m0({a} & 0xff), bf16_of_ue8m0({a} >> 8))",
        needs=FAMILIES,
    ),
]
ROWS = [*_ARITHMETIC, *_COMPARISON, *_CONVERSION]
