"""The format of the table's rows: which instructions they match, and the C code that their words stand for."""

from gpt.asm.host.needs import Dialect
from gpt.asm.host.table import TYPES, InstructionTable, Row

H100 = Dialect(90, (8, 0))


def test_a_row_fits_modifiers_and_operands():
    table = InstructionTable(
        [
            Row("add{.R}{.ftz}.T", "d = a b", "ADD({a}, {b}, ROUND{R}, FLAG{ftz})", R="rn rz", T="f32 f64"),
            Row("setp.C.L1::x.T", "p:pred q:pred = a b", "{p} = {a} {C} {b}; {q} = !{p};", C={"lt": "<"}, T="s32"),
        ]
    )
    found = table.find("add", (".rz", ".f32"), 3, H100)
    assert found and found.words == {"R": "_rz", "ftz": "", "T": TYPES["f32"]}
    assert found.type_of(found.row.read[0]).name == "f32"
    assert table.find("add", (".ftz", ".f64"), 3, H100).words == {"R": "", "ftz": "_ftz", "T": TYPES["f64"]}
    assert table.find("setp", (".s32", ".L1::x", ".lt"), 3, H100).words == {"C": "<", "T": TYPES["s32"]}
    for other in (
        ("add", (".rz", ".f16"), 3),
        ("add", (".rz", ".rn", ".f32"), 3),
        ("add", (".f32",), 2),
        ("sub", (".f32",), 3),
    ):
        assert isinstance(table.find(*other, H100), str)


def test_the_order_of_types_alone_matters():
    table = InstructionTable(
        [
            Row("cvt.R.f32.T", "d:f32 = a", "1", R="rn", T="f16 s32"),
            Row("cvt.R.D.f32", "d:D = a:f32", "2", R="rn", D="f16"),
        ]
    )
    assert table.find("cvt", (".rn", ".f16", ".f32"), 2, H100).row.code == "2"
    assert table.find("cvt", (".f32", ".f16", ".rn"), 2, H100).row.code == "1"


def test_words_need_others_a_target_or_a_version():
    needs = "ftz: f32; bf16: sm_90; f32x2: sm_100; relu: !sat; abs: 8.6; oob: sm_100a sm_120a; old: <sm_20 <1.4"
    row = Row("x{.ftz}{.relu}{.sat}{.abs}{.oob}{.old}.T", "d = a", "{a}", needs=needs, T="f32 f64 bf16 f32x2")
    table = InstructionTable([row])

    def reason(text: str, dialect: Dialect = H100) -> str:
        found = table.find("x", tuple(f".{word}" for word in text.split(".")), 2, dialect)
        return found if isinstance(found, str) else ""

    assert not reason("ftz.f32") and reason("ftz.f64") == "'.ftz' goes with .f32 only"
    assert not reason("bf16") and reason("bf16", Dialect(80, (9, 0))) == "'.bf16' needs .target sm_90 or later"
    assert reason("f32x2") and not reason("f32x2", Dialect(120, (9, 0)))
    assert reason("relu.sat.f32") == "'.relu' doesn't go with '.sat'"
    assert reason("abs.f32") == "'.abs' needs .version 8.6 or later" and not reason("abs.f32", Dialect(80, (8, 6)))
    assert reason("oob.f32", Dialect(100, (9, 0))) == "'.oob' needs .target sm_100a or sm_120a"
    for target in (100, 103, 121):
        assert not reason("oob.f32", Dialect(target, (9, 0), family=True))
    assert (
        reason("old.f32") and not reason("old.f32", Dialect(13, (9, 0))) and not reason("old.f32", Dialect(90, (1, 0)))
    )


def test_a_refusal_says_what_is_wrong():
    table = InstructionTable(
        [Row("cvt.R{.sat}.f16.f32", "d = a", "{a}", R="rn rz"), Row("cvt.f32.f16", "d = a", "{a}")]
    )
    assert table.find("cvt", (".f16", ".f32"), 2, H100) == "needs one of .rn .rz"
    assert table.find("cvt", (".rn", ".f32", ".f16"), 2, H100) == "'.rn' doesn't go with the rest"
    assert table.find("cvt", (".f32", ".f16"), 3, H100) == "3 operands, not 2"
    assert table.find("cvt", (".f32", ".s4"), 2, H100) == "'.s4' of 'cvt' isn't supported"
    assert table.find("tex", (".2d",), 2, H100) == "not supported"


def test_types():
    assert str(TYPES["s32"].wide) == "int64_t" and str(TYPES["f16x2"]) == "uint32_t" and str(TYPES["pred"]) == "bool"
    assert TYPES["f32"].unsigned.name == "u32" and TYPES["u64"].wide.bits == 128
