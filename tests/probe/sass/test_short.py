"""Snippets get the values that they're given, even if registers are short."""

from gpt.formats.cubin_edit import CubinEditor
from gpt.formats.kernel_edit import KernelEditor
from gpt.formats.kernel_params import MIN_STACK_SIZE, UNKNOWN_STACK
from gpt.probe.sass.weave import weave
from tests.probe.sass import running
from tests.probe.sass.compared import check, sites
from tests.sass.interp.cases import CASES

KEPT = """[map.kept]
type = "total"
level = "thread"
data = {sum = "u64", bytes = "u32", odd = "u32", count = "u64"}

[probe.all]
position = "kernel"
level = "thread"
before = '''.reg .u64 %sum;
.reg .u32 %bytes;
.reg .pred %odd;
.reg .u16 %count;
mov.u64 %sum, 5;
mov.u32 %bytes, 3;
mov.u16 %count, 9;
setp.eq.u32 %odd, %bytes, 3;'''
after = '''.reg .u32 %one;
.reg .u64 %wide;
selp.u32 %one, 1, 2, %odd;
cvt.u64.u16 %wide, %count;
SAVE [kept] {%sum, %bytes, %one, %wide};'''

[probe.each]
position = "ld.global:st.global"
level = "thread"
before = '''.reg .u32 %low;
.reg .u64 %times;
mul.lo.u64 %times, ADDR, 7;
add.u64 %sum, %sum, %times;
add.u32 %bytes, %bytes, BYTES;
add.u16 %count, %count, 3;
cvt.u32.u64 %low, %sum;
and.b32 %low, %low, 64;
setp.ne.u32 %odd, %low, 0;'''
"""
EACH = """[map.each]
type = "total"
level = "thread"
data = {address = "u64", bytes = "u32"}

[probe.each]
position = "ld.global:st.global"
level = "thread"
before = "SAVE [each] {ADDR, BYTES};"
"""


def test_an_address_is_passed_before_its_registers_are_overwritten(tmp_path):
    """The address is the sum of a register pair and an offset. Where other registers are saved on the stack, the
    snippet doesn't get this pair to compute the sum in.
    """
    for name, text in (("kept", KEPT), ("each", EACH)):
        (tmp_path / f"{name}.toml").write_text(text)
    made, (kept, each) = check("widths-2x64-5", str(tmp_path / "kept.toml"), str(tmp_path / "each.toml"))
    assert made.needs["stack"] > made.needs["stack_before"]
    assert all(matched == woven for matched, woven in sites(made).values())
    assert len(kept) == len(each) == 128
    for (_, (record,)), (count, (summed,)) in zip(kept, each, strict=True):
        total = 5 + 7 * summed["address"]
        assert record["sum"] == total % (1 << 64)
        assert record["bytes"] == 3 + summed["bytes"]
        assert record["odd"] == (1 if total & 64 else 2)
        assert record["count"] == 9 + 3 * count


def test_a_stack_of_unknown_size_isnt_used(tmp_path):
    """That's the stack of a kernel that recurses. Registers can't be saved there."""
    (tmp_path / "each.toml").write_text(EACH)
    case = next(case for case in CASES if case.kernel == "widths")
    made = running.woven(case, str(tmp_path / "each.toml"))
    assert made.needs["stack"] > made.needs["stack_before"] == 0
    cubin = CubinEditor(running.image(case.file))
    cubin.write_pair(MIN_STACK_SIZE, KernelEditor(cubin, case.kernel).symbol, UNKNOWN_STACK)
    probe = running.probe(str(tmp_path / "each.toml"))
    other = weave(cubin.build(), case.kernel, "sm_90", [probe], running.compiler())
    assert other.needs["stack"] == other.needs["stack_before"] == UNKNOWN_STACK
    assert all(matched == woven for matched, woven in sites(other).values())
