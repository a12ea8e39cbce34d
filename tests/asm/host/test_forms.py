"""The simulated device accepts and rejects the same instructions as the installed ptxas. forms.py makes them.

Known differences are listed in KNOWN, each with its reason.
"""

import itertools
import os
import re
from pathlib import Path

import pytest

from gpt.asm.host.names import SPECIAL
from tests import cuda
from tests.asm.host import forms
from tests.tiers import FULL, full, share

SHOWN = 20  # differences in a message
KNOWN = (  # instructions that ptxas takes and the simulated device refuses, and why
    (r"(v\w+|createpolicy)\.\S* -?\d", "a constant as a result, which ptxas takes and drops"),
    (r"\S*bf16x2.*\{", "a vector as one register of .bf16x2: no page says so"),
    (r"mov\.v\d\.", "parts of a vector that are one register: no page says so"),
    (r"st\.v\d\S* \[\S+\], [^{]", "parts of a vector that are one register: no page says so"),
    (r"\S*\.pred %f", "a type too many, which ptxas drops"),
    (r"testp\.f", "no test at all: no page says what that is"),
    (r"(addc|subc|madc)\.\S*(16|sat)", "carries of 16 bits, and .sat: no page says so"),
    (r"prmt\.[a-z0-9]+\.b32|mma\.(?!sync)|fence\.(mbarrier_init|sync_restrict)", "words in another order"),
    (r"atom\.(?!\S*cache_hint)\S+ \S+, \[\S+\], [^,]+, .*;", "a policy without .L2::cache_hint"),
    (r"st\.(async\S*|u16|s16)|red\.async", "no mbarrier: no page says so"),
    (r"cvta\.\w+\.u32", "addresses of 32 bits"),
    (r"movmatrix\S* (.*%p|\S+ (0f|0d|1\.5))", "predicates and floats as pieces of a matrix: no page says so"),
    (r"barrier\.sync 1, (0|-32)", "no threads at a barrier: no page says so"),
    (r"(st|add|isspacep)\S*64.* %[bus]32_\d\+|isspacep\S* .*32_\d\+", "a sum without an upper half"),
    (r"(ld\S* %b32_1, \[%[bus](16|32)_|cp\.async\.mbarrier\.\S* \[global_)", "addresses that can't be right"),
    (r"cp\.reduce\.async\.bulk\S* .*, %[us]64_\d;", "an address without brackets: no page says so"),
    (r"(set|cvt)\.\S*bf16x2\.bf16x2 |cvt\.\S*ue8m0x2\.bf16x2 ", "any 32 bits as a pair of .bf16: no page says so"),
    (r"set\.\S*\.bf16\.\w+ %[us]16_", "a .bf16 in a register of .u16 or .s16: no page says so"),
    (r"setp?\.eq\.(u32\.)?bf16x2 .*, %p\d;", "a predicate as a pair of .bf16: no page says so"),
    (r"setp\S*\.b?f16 %p\d\|_", "a second result of halves, if it's dropped"),
    (r"(add|sub|fma)\.\S*f32\.bf16 .*, (0x)?\d", "an integer as a .bf16: no page says so"),
    (r"cvt\.pack\S* .*, %f64_\d;", "a register of .f64 as 32 bits: no page says so"),
    (r"fma\.(\S*\.)?r[zmp]\.\S*bf16", "a mode the manual lacks, for which ptxas makes wrong code"),
    (r"createpolicy\.fractional\S* %\w+, \{", "a vector where .f32 is expected, which ptxas takes"),
)  # fmt: skip


def is_known(line: str, taken: bool) -> bool:
    """Return whether a difference is a known one. The simulated device must not accept anything that ptxas rejects."""
    return not taken and any(re.match(pattern, line) for pattern, _ in KNOWN)


@pytest.fixture(scope="module")
def ptxas():
    try:
        return str(cuda.tool("ptxas"))
    except FileNotFoundError as error:
        pytest.skip(str(error))


def differences(lines: list[str], ptxas: str, target: str, version: str, folder) -> list[str]:
    """List the lines on which the two disagree, with the message of each."""
    found = []
    both = zip(
        lines, forms.theirs(lines, ptxas, target, version, folder), forms.ours(lines, target, version), strict=True
    )
    for line, theirs, ours in both:
        if theirs != forms.CRASH and bool(theirs) != bool(ours):
            found.append(f"{line} ptxas: '{theirs}', here: '{ours}'")
    return found


def assert_same(found: list[str]) -> None:
    assert not found, "mend the row:\n" + "\n".join(found[:SHOWN])


def assert_known(found: list[str]) -> None:
    new = [text for text in found if not is_known(text, text.endswith("here: ''"))]
    assert not new, "mend the row, or add a reason to KNOWN:\n" + "\n".join(new[:SHOWN])


@pytest.mark.parametrize(("target", "step"), [("sm_90", 17), full("sm_90", 1), full("sm_80", 1), full("sm_100a", 1)])
def test_conversions(ptxas, tmp_path, target, step):
    """Compare every pair of types with every rounding and the common modifiers; nothing may differ."""
    types = ["u8", "s32", "u16", "s64", "f16", "bf16", "f32", "f64", "tf32"]
    modes = ["", ".rn", ".rz", ".rm", ".rp", ".rni", ".rzi", ".rna"]
    words = ["", ".ftz", ".sat", ".relu", ".satfinite", ".ftz.sat"]
    lines = []
    for to, of, mode, word in itertools.product(types, types, modes, words):
        result, operand = (forms.REGISTERS.get(name, "%b32_" if name == "tf32" else "%b16_") for name in (to, of))
        lines.append(f"cvt{mode}{word}.{to}.{of} {result}1, {operand}2;")
    assert len(lines) == 3888
    assert_same(differences(lines[::step], ptxas, target, "8.6", tmp_path))


@pytest.mark.parametrize(
    ("target", "version", "step"), [("sm_90", "8.7", 7), full("sm_90", "8.7", 1), full("sm_75", "6.3", 1)]
)
def test_choices_and_packing(ptxas, tmp_path, target, version, step):
    """Compare setp, set, selp, slct and cvt.pack with each kind of register and constant in each place."""
    kinds = [f"{name}1" for name in forms.REGISTERS.values()]
    values = [*kinds, "1", "-1", "1.5", "0f3F800000", "_", "{%b32_1, %b32_2}", "shared_", "%tid.x", "WARP_SZ"]
    lines = [f"cvt.pack.sat.{to}.s32 {one}, %s32_2, %s32_3;" for to in ("u16", "s16") for one in kinds]
    for to in ("u8", "s8", "u4", "s4", "u2", "s2"):
        lines += [f"cvt.pack.sat.{to}.s32.b32 {one}, %s32_2, %s32_3, %b32_4;" for one in kinds]
        lines += [f"cvt.pack.sat.{to}.s32.b32 %b32_1, {one}, %s32_3, %b32_4;" for one in values]
        lines += [f"cvt.pack.sat.{to}.s32.b32 %b32_1, %s32_2, %s32_3, {one};" for one in values]
    names = {**forms.REGISTERS, "bf16": "%b16_", "bf16x2": "%b32_"}
    for type_, name in names.items():
        a, b = f"{name}2", f"{name}3"
        for one in values:
            lines += [
                f"setp.eq.{type_} {one}, {a}, {b};",
                f"setp.eq.{type_} %p1|{one}, {a}, {b};",
                f"setp.eq.{type_} %p1, {a}, {one};",
                f"setp.eq.and.{type_} %p1, {a}, {b}, {one};",
                f"set.eq.u32.{type_} %u32_1, {a}, {one};",
                f"set.eq.xor.s32.{type_} %s32_1, {a}, {b}, {one};",
                f"selp.{type_} {name}1, {one}, {a}, %p1;",
                f"selp.{type_} {name}1, {a}, {b}, {one};",
                f"slct.{type_}.s32 {name}1, {a}, {b}, {one};",
            ]
        for one, to in itertools.product(kinds, ("u16", "u32", "f16", "bf16", "f32", "f16x2", "bf16x2")):
            lines.append(f"set.lt.{to}.{type_} {one}, {a}, {b};")
        lines += [f"selp.{type_} {one}, {a}, {b}, %p1;" for one in kinds]
    found = differences(lines[::step], ptxas, target, version, tmp_path)
    assert_known(found)


@pytest.mark.parametrize("target", ["sm_100a", full("sm_120a")])
def test_narrow_floats(ptxas, tmp_path, target):
    """Compare conversions to pairs of 8 and 6 bits, from each type that has them in some version."""
    lines = [
        f"cvt.rn.satfinite{word}.{to}.{of} %b16_1, {operands};"
        for word in ("", ".relu")
        for to in ("e4m3x2", "e5m2x2", "e2m3x2", "e3m2x2")
        for of, operands in (("f16x2", "%f16x2_2"), ("bf16x2", "%b32_2"), ("f32", "%f32_2, %f32_3"))
    ]
    assert_same(differences(lines, ptxas, target, "9.0", tmp_path))


@pytest.mark.parametrize(("target", "version"), [("sm_80", "8.0"), ("sm_75", "7.0"), ("sm_90", "8.7")])
def test_special_registers(ptxas, tmp_path, target, version):
    """Compare moves of each kind of value to each kind of register."""
    lines = [
        f"mov.{type_} {register}1, {name};"
        for name in SPECIAL
        for type_, register in forms.REGISTERS.items()
        if type_[0] in "busp" and type_ != "b128"
    ]
    assert_same(differences(lines, ptxas, target, version, tmp_path))


@pytest.mark.parametrize("target", ["sm_90", full("sm_75")])
def test_elements_of_vectors(ptxas, tmp_path, target):
    """Compare every pair of elements in loads, stores and moves of several types."""
    elements = [f"{name}1" for type_, name in forms.REGISTERS.items() if type_ not in ("b128", "pred")]
    lines = []
    for first, second in itertools.product(elements, repeat=2):
        pair = f"{{{first}, {second}}}"
        for type_ in ("u8", "b16", "s32", "b32", "u64", "b64", "f64"):
            lines += [f"ld.global.v2.{type_} {pair}, [%b64_1];", f"st.global.v2.{type_} [%b64_1], {pair};"]
        lines += [f"mov.b64 {pair}, %b64_1;", f"mov.b32 %b32_1, {pair};", f"mov.v2.f32 {pair}, {{%f32_1, %f32_2}};"]
    assert_same(differences(lines, ptxas, target, "8.6", tmp_path))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("cvt.f16.f32 %f16_1, %f32_1;", "needs one of .rn .rz .rm .rp"),
        ("min.f32 %f32_1, %f32_2, %f32_3, %f32_4;", "needs .target sm_100 or later"),
        ("add.f32.bf16 %f32_1, %b16_2, %f32_3;", "needs .target sm_100 or later"),
        ("add.f32 %f32_1, %u32_2, %f32_3;", "'%u32_2' is a register of .u32 where .f32 is expected"),
        ("add.s32 %s32_1, %tid.x, 1;", "'mov' it to a register first"),
        ("cvt.rn.f32.u32 %f32_1, %laneid;", "is converted to a float: 'mov' it to a register first"),
        ("add.f32 %f32_1, %f32_2, 1;", "'1' where .f32 is expected"),
        ("bfe.u32 %u32_1, %u32_2, 256, 1;", "'256' is not from 0 to 255"),
        ("ld.relaxed.global.u32 %u32_1, [%b64_1];", "goes with .cta or .cluster or .gpu or .sys only"),
        ("bar.sync 16;", "a barrier, 0 to 15"),
        ("mbarrier.arrive.noComplete.release.cluster.b64 %b64_1, [%b64_2], 1;", "doesn't go with '.noComplete'"),
        ("pmevent 16;", "'16' is not from 0 to 15"),
        ("mov.f32 %f32_1, global_;", "'global_' is a variable, whose address is no .f32"),
        ("mbarrier.arrive.b64 %f64_3, [%b64_1];", "'%f64_3' is a register of .f64"),
        ("mbarrier.test_wait.b64 %p1, [%b64_1], 1.5;", "'1.5' where .u64 is expected"),
        ("ld.volatile.local.u32 %u32_1, [%b64_1];", "'.volatile' doesn't go with '.local'"),
        ("ld.relaxed.cta.ca.u32 %u32_1, [%b64_1];", "'.ca' doesn't go with '.relaxed'"),
        ("alloca.u64 %u64_1, %u64_2, 3;", "alignment 3 is not a power of two"),
        ("cvta.shared.u64 %u64_1, global_;", "'global_' is in .global, not .shared"),
        ("cvta.to.shared.u64 %u64_1, shared_;", "'shared_' where a register is expected"),
        ("redux.sync.and.b32 %b32_1, %f32_2, %u32_3;", "'%f32_2' is a register of .f32"),
        ("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%b64_1, %b64_2}, [%b64_1];", "has elements of .b64"),
        ("shfl.up.b32 %b32_1, %b32_2, 1, 0;", "needs .target or .version before"),
        ("ld.global.b32 {%b16_1}, [%b64_1];", "'{%b16_1}' has elements of .b16 where .b32 is expected"),
        ("ld.global.v2.b32 {%b32_1, %b16_1}, [%b64_1];", "'{%b32_1, %b16_1}' has elements of several sizes"),
        ("st.global.b32 [%b64_1], {1.5};", "'1.5' where .b32 is expected"),
        ("ld.global.b32 {%b32_1, %b32_2}, [%b64_1];", "a vector of 2, not 1"),
        ("ld.global.v2.b32 {_, _}, [%b64_1];", "'{_, _}' has no element that is a register"),
        ("add.u32 {%u32_1}, %u32_2, %u32_3;", "'{%u32_1}' where one register is expected"),
        ("add.u32 _, %u32_2, %u32_3;", "'_' where a register is expected"),
        ("ld.global.b32 _, [%b64_1];", "'_' where a register is expected"),
        ("shfl.sync.idx.b32 _|%p1, %b32_1, 0, 31, -1;", "'_' where a register is expected"),
    ],
)
def test_forms_that_ptxas_refuses_are_refused_with_a_reason(ptxas, tmp_path, line, reason):
    assert forms.theirs([line], ptxas, "sm_90a", "8.6", tmp_path) != [""]
    assert reason in forms.ours([line], "sm_90a", "8.6")[0]


def test_braces_around_one_register_and_discarded_results(ptxas, tmp_path):
    """Triton writes loads under a mask as `ld.global.b16 { %rs1 }`."""
    lines = [
        "ld.global.b16 {%b16_1}, [%b64_1];",
        "ld.global.b8 {%b32_1}, [%b64_1];",
        "ld.acquire.gpu.global.b32 {%b32_1}, [%b64_1];",
        "ld.global.L1::evict_last.L2::cache_hint.b32 {%b32_1}, [%b64_1+4], %b64_2;",
        "ld.param.u64 {%b64_1}, [parameter_];",
        "ld.global.v2.b32 {_, %b32_1}, [%b64_1];",
        "ldu.global.f32 {%f32_1}, [%b64_1];",
        "st.shared.b32 [%b32_1], {%b32_2};",
        "st.global.f32 [%b64_1], {1.5};",
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%b32_1], {%b32_2}, [%b32_3];",
        "mov.b32 {%b32_1}, %b32_2;",
        "setp.eq.u32 _|%p1, %u32_1, %u32_2;",
        "atom.global.add.u32 _, [%b64_1], %u32_2;",
        "match.all.sync.b32 _|%p1, %b32_1, -1;",
        "lop3.b32 _, %b32_1, %b32_2, %b32_3, 1;",
        "elect.sync _|%p1, -1;",
        "mbarrier.arrive.shared.b64 _, [%b64_1];",
        "shfl.sync.idx.b32 %b32_1|_, %b32_1, 0, 31, -1;",
    ]
    assert forms.theirs(lines, ptxas, "sm_90", "8.6", tmp_path) == [""] * len(lines)
    assert forms.ours(lines, "sm_90", "8.6") == [""] * len(lines)


@pytest.mark.parametrize("version", ["8.6", "9.0"])
def test_operands_of_later_instructions(ptxas, tmp_path, version):
    """Compare instructions that sm_90 doesn't have: st.bulk, and stores of 256 bits with an eviction priority."""
    lines = ["st.bulk [%b64_1], %b64_2, 0;", "st.bulk.shared::cta.weak [%b32_1], %b64_2, 0;"]
    for address in ("[%b64_1]", "[%b64_1+8]", "[shared_]", "[global_]", "[%u32_1]", "[%b16_1]", "shared_"):
        lines += [f"st.bulk{words} {address}, %b64_2, 0;" for words in ("", ".weak", ".weak.shared::cta")]
    lines.remove("st.bulk.weak.shared::cta [shared_], %b64_2, 0;")  # ptxas fails: "instruction 'add': must be register"
    sizes = [*(f"{name}2" for name in forms.REGISTERS.values()), "0", "12", "-8", "1.5", "16777216", "16777224"]
    for size in sizes:
        lines.append(f"st.bulk.weak.shared::cta [%b64_1], {size}, 0;")
    lines += [f"st.bulk.weak [%b64_1], %b64_2{rest};" for rest in ("", ", 1", ", %b64_3", ", 0, 0")]
    for words in (".shared", ".shared::cluster", ".global", ".relaxed", ".weak.b64", ".weak.cta"):
        lines.append(f"st.bulk{words} [%b64_1], %b64_2, 0;")
    lines.append("st.weak.bulk [%b64_1], %b64_2, 0;")
    for type_ in ("b8", "u16", "b32", "f32", "b64"):
        eight = ", ".join(f"{forms.REGISTERS.get(type_, '%b16_')}{number}" for number in range(8))
        lines += [f"st.global.L2::evict_first.v8.{type_} [%b64_1], {{{eight}}};"]
        lines += [f"ld.global.L2::evict_last.v8.{type_} {{{eight}}}, [%b64_1];"]
    assert_same(differences(lines, ptxas, "sm_100", version, tmp_path))


def test_operands(ptxas, tmp_path):
    """Compare constants out of range, registers of other widths, words in other orders and other forms of addresses."""
    lines = Path(__file__).with_name("operands.txt").read_text().splitlines()
    found = differences(lines, ptxas, "sm_90a", "8.7", tmp_path)
    assert_known(found)


def test_operands_of_macros(ptxas, tmp_path):
    """Compare instructions that ptxas expands first: it rejects their operands only if nothing else is wrong."""
    d, a, b = (
        f"{{{', '.join(f'%{name}_{n}' for n in range(of))}}}" for name, of in (("f32", 4), ("b32", 4), ("b32", 2))
    )
    narrow = "mma.sync.aligned.m16n8k32.row.col"
    lines = [
        f"{narrow}.f32.e4m3.e4m3.f32 {d}, {{1.5, %b32_2, %b32_3, %b32_4}}, {b}, {d};",
        f"{narrow}.f32.e4m3.e5m2.f32 {d}, {a}, {{%b32_5, 0d3FF0000000000000}}, {d};",
        f"{narrow}.f32.e4m3.e4m3.f32 {{_, %f32_2, %f32_3, %f32_4}}, {a}, {b}, {d};",
        f"{narrow}.f16.e4m3.e4m3.f16 {{%s32_1, %b32_2}}, {a}, {b}, {b};",
        f"{narrow}.f32.e4m3.e4m3.f32 {d}, {a}, {b}, {d};",
        "wmma.load.a.sync.aligned.col.m16n16k16.global.bf16 {%b32_0, %b32_1, %b32_2, %b32_3}, [%b64_1];",
        "wmma.load.a.sync.aligned.col.m16n16k16.global.bf16 {%b32_0, %b32_1, %b32_2, %b32_3}, [%b16_1];",
        "wmma.store.d.sync.aligned.row.m16n16k16.f16 [%b16_1], {%b32_1, %b32_2, %b32_3, %b32_4};",
        "ldmatrix.sync.aligned.m8n8.x1.b16 {%b32_1}, [%b16_1];",
        "mma.sync.aligned.m8n8k16.row.col.s32.s8.u8.s32 {%b32_1, %b32_2}, {%f32_4}, {%b32_3}, {%b32_5, %b32_6};",
    ]
    for line in lines:
        assert_same(differences([line], ptxas, "sm_90a", "8.7", tmp_path))


@pytest.mark.parametrize(
    ("limit", "target", "version"),
    [
        # test_rows.py, which `make test` runs, covers each row of the table, and the operands and conversions above.
        full(6, "sm_90", "8.7"),
        *(full(150, *case) for case in (("sm_75", "7.0"), ("sm_80", "7.8"), ("sm_90a", "8.7"), ("sm_100a", "9.0"))),
        *(full(60, target, "9.0") for target in ("sm_120a", "sm_103f", "sm_110a", "sm_121f")),
    ],
)
def test_every_form(ptxas, tmp_path, limit, target, version):
    """With OPCODES=add,mad in the environment, only these opcodes' rows are tested, but with many more forms each."""
    only = os.environ.get("OPCODES", "")
    found = differences(share(forms.forms(500 if only else limit, only)), ptxas, target, version, tmp_path)
    assert_known(found)


@pytest.mark.parametrize(
    ("target", "version"),
    [
        ("sm_50", "4.0"),
        full("sm_90", "7.8"),
        *(full("sm_90", version) for version in ("8.0", "8.1", "8.3", "8.5", "8.6", "8.8")),
        *(full("sm_80", version) for version in ("7.0", "7.1", "7.3", "7.4", "7.6", "8.0")),
        *(full("sm_75", version) for version in ("6.3", "6.4", "6.5", "7.0", "7.8")),
        *(
            full(*case)
            for case in (("sm_86", "7.1"), ("sm_89", "7.8"), ("sm_89", "8.4"), ("sm_100a", "8.6"), ("sm_120a", "8.7"))
        ),
        *(full(*case) for case in (("sm_70", "6.0"), ("sm_60", "5.0"), ("sm_53", "6.5"), ("sm_61", "7.0"))),
        *(full(*case) for case in (("sm_35", "3.1"), ("sm_30", "3.0"), ("sm_30", "6.5"), ("sm_20", "3.2"))),
    ],
)
def test_every_row_in_old_versions(ptxas, tmp_path, target, version):
    """Compare each word of each row in modules older than the word, or for older GPUs."""
    lines = forms.forms_of_all(6 if FULL else 1)
    found = differences(lines if FULL else lines[::5], ptxas, target, version, tmp_path)
    assert_known(found)


def test_modes_that_ptxas_gets_wrong():
    """ptxas turns the first instruction into an .f16 fma, and rounds the second to nearest. The manual only has .rn."""
    lines = ["fma.rm.bf16 %b16_1, %b16_2, %b16_3, %b16_4;", "fma.rz.relu.bf16x2 %b32_1, %b32_2, %b32_3, %b32_4;"]
    for said in forms.ours(lines, "sm_90", "8.6"):
        assert "goes with .f32 or .f64 only" in said


def test_pieces_of_a_register_have_its_size_together(ptxas, tmp_path):
    """Compare 16-bit and 8-bit operands in registers that are too large. Registers of .b8 are rare: most instructions
    take other types.
    """
    lines = [
        f"mov.{line};"
        for type_ in ("b16", "u16", "b32", "b64", "f32", "f16")
        for one in (f"%{type_}_1",)
        for line in (
            f"b16 %b16_3, {{{one}, {one}}}",
            f"b16 {{{one}, _}}, %b16_3",
            f"b32 %b32_3, {{{one}, {one}, {one}, {one}}}",
            f"b32 %b32_3, {{{one}, {one}}}",
            f"b64 {{{one}, _, _, _}}, %b64_3",
        )
    ]
    assert_same(differences(lines, ptxas, "sm_90", "8.7", tmp_path))
