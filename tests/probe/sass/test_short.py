"""Snippets get the values that they're given, even if registers are short."""

import pytest

from gpt.formats.cubin_edit import CubinEditor
from gpt.formats.kernel_edit import KernelEditor
from gpt.formats.kernel_params import MIN_STACK_SIZE, UNKNOWN_STACK
from gpt.probe.plan.left_alone import LeftAlone
from gpt.probe.sass import given, registers
from gpt.probe.sass.weave import weave
from tests import cuda
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


SOMETIMES = """[map.kept]
type = "total"
level = "thread"
data = {kept = "u32", wide = "u64"}

[probe.all]
position = "kernel"
level = "thread"
before = '''.reg .u32 %kept, %thread;
.reg .u64 %wide;
mov.u32 %thread, %tid.x;
BEGIN'''
after = "SAVE [kept] {%kept, %wide};"

[probe.each]
position = "ld.global"
level = "thread"
before = '''.reg .pred %even;
.reg .u32 %bits;
mov.u32 %bits, LANEID;
and.b32 %bits, %bits, 1;
setp.eq.u32 %even, %bits, 0;
@%even bra OVER;
mov.u32 %kept, 777;
mov.u64 %wide, 88888888888;
mad.lo.u32 %bits, %kept, %kept, 5;
mad.lo.u32 %bits, %bits, %bits, %kept;
mad.lo.u32 %bits, %bits, %bits, %kept;
mad.lo.u32 %bits, %bits, %bits, %kept;
mad.lo.u32 %bits, %bits, %bits, %kept;
sub.u32 %kept, %kept, %bits;
add.u32 %kept, %kept, %bits;
OVER: add.u32 %bits, %bits, 1;'''
"""
SET = "mov.u32 %kept, %thread;\nmul.wide.u32 %wide, %thread, 1000000007;"
ADDED = "add.u32 %kept, %kept, %thread;\nmad.wide.u32 %wide, %thread, 1000000007, %wide;"  # to 0


@pytest.mark.parametrize("begin", [SET, ADDED])
@pytest.mark.parametrize("is_short", [True, False])
def test_lanes_that_jump_over_a_change_keep_their_value(tmp_path, monkeypatch, begin, is_short):
    """On the stack, too: what a snippet returns has to be loaded first, even if the snippet never reads it."""
    if is_short:
        monkeypatch.setattr(given, "usable", lambda kernel: 0)
    (tmp_path / "some.toml").write_text(SOMETIMES.replace("BEGIN", begin))
    made, (found,) = check("leaving-2x33-5", str(tmp_path / "some.toml"))
    assert (made.needs["stack"] > made.needs["stack_before"]) == is_short
    for number, (_, (record,)) in enumerate(found):
        thread = number % 33
        changed = thread % 32 % 2
        assert record == {
            "kept": 777 if changed else thread,
            "wide": 88888888888 if changed else thread * 1000000007,
        }


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


TIMED = """[map.kept]
type = "total"
level = "thread"
data = {kept = "u32"}

[probe.all]
position = "kernel"
level = "thread"
before = '''.reg .u32 %kept;
mov.u32 %kept, %tid.x;'''
after = "SAVE [kept] {%kept};"

[probe.each]
position = "st.shared"
level = "thread"
before = '''.reg .u64 %now;
mov.u64 %now, CLOCK;
cvt.u32.u64 %kept, %now;'''
"""


def test_lanes_that_a_guard_leaves_out_keep_a_value_that_was_copied(monkeypatch, tmp_path):
    """The snippet has the guard of the store, which the first 64 threads execute. If it can't write to the register
    that keeps the value, it gets a copy.
    """
    monkeypatch.setattr(registers, "_find_delta", lambda *_: None)
    (tmp_path / "timed.toml").write_text(TIMED)
    _, (found,) = check("generic-2x96-5", str(tmp_path / "timed.toml"))
    for number, (_, (record,)) in enumerate(found):
        thread = number % 96
        assert (record["kept"] == thread) == (thread >= 64)


@pytest.mark.parametrize(("size", "fits"), [(4352, True), (32752, True), (32753, False), (32764, False)])
def test_a_kernel_with_too_many_parameters_says_so(size, fits):
    source = f"""struct Big {{ char bytes[{size}]; }};
    extern "C" __global__ void big(const __grid_constant__ Big all) {{ __shared__ char kept[64];
    kept[threadIdx.x] = all.bytes[threadIdx.x]; __syncthreads(); if (kept[0] == 3) __trap(); }}"""
    try:
        cubin = cuda.nvrtc_compile(source, running.ARCH)
    except FileNotFoundError as error:
        pytest.skip(str(error))
    try:
        made = weave(cubin, "big", running.ARCH, [running.probe("block_sched")], running.compiler())
    except LeftAlone as error:
        assert not fits
        assert error.reason.code == "too_large"
        assert error.reason.detail.startswith("327")
    else:
        assert fits
        assert made.added[0].offset == size + -size % 8
