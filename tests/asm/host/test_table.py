"""The form of rows: which instruction fits one, and what its words become."""

from gpt.asm.host.table import TYPES, Row, Table


def test_a_row_fits_modifiers_and_operands():
    table = Table(
        [
            Row("add{.R}{.ftz}.T", "d = a b", "ADD({a}, {b}, ROUND{R}, FLAG{ftz})", R="rn rz", T="f32 f64"),
            Row("setp.C.L1::x.T", "p:pred q:pred = a b", "{p} = {a} {C} {b}; {q} = !{p};", C={"lt": "<"}, T="s32"),
        ]
    )
    found = table.find("add", (".rz", ".f32"), 3)
    assert found and found.words == {"R": "_rz", "ftz": "", "T": TYPES["f32"]}
    assert found.type_of(found.row.read[0]).name == "f32"
    assert table.find("add", (".ftz", ".f64"), 3).words == {"R": "", "ftz": "_ftz", "T": TYPES["f64"]}
    assert table.find("setp", (".s32", ".L1::x", ".lt"), 3).words == {"C": "<", "T": TYPES["s32"]}
    for other in (
        ("add", (".rz", ".f16"), 3),
        ("add", (".rz", ".rn", ".f32"), 3),
        ("add", (".f32",), 2),
        ("sub", (".f32",), 3),
    ):
        assert table.find(*other) is None


def test_the_order_of_types_alone_matters():
    table = Table(
        [
            Row("cvt.R.f32.T", "d:f32 = a", "1", R="rn", T="f16 s32"),
            Row("cvt.R.D.f32", "d:D = a:f32", "2", R="rn", D="f16"),
        ]
    )
    assert table.find("cvt", (".rn", ".f16", ".f32"), 2).row.code == "2"
    assert table.find("cvt", (".f32", ".f16", ".rn"), 2).row.code == "1"


def test_types():
    assert str(TYPES["s32"].wide) == "int64_t" and str(TYPES["f16x2"]) == "uint32_t" and str(TYPES["pred"]) == "bool"
    assert TYPES["f32"].unsigned.name == "u32" and TYPES["u64"].wide.bits == 128
