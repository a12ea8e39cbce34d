"""Probes in machine code on the interpreter: the kernel's memory doesn't change, and buffers are right."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpt.formats.cubin_edit import CubinEditor
from gpt.formats.kernel_edit import KernelEditor
from gpt.formats.kernel_params import list_parameters
from gpt.probe.plan.left_alone import LeftAlone
from gpt.probe.sass import given, glue
from gpt.probe.sass.weave import weave
from gpt.sass.kernels import read_kernel
from gpt.sass.masks import unpack
from gpt.sass.tables import table_of
from gpt.sass.words import parse_words, with_bits
from tests.probe.sass import running
from tests.probe.sass.compared import check, sites
from tests.runtime import probing
from tests.sass.interp.cases import CASES, inputs
from tests.tiers import first, full

CASE = {case.name: case for case in CASES}
LAUNCHES = ["reduction-2x256-5", "stack-2x33-5", "leaving-2x33-5", "widths-2x64-5"]
SCHED = str(Path(__file__).with_name("sched.toml"))


@pytest.mark.parametrize("name", first(*LAUNCHES[::-1]))
def test_each_warp_has_a_begin_and_an_end(name):
    """Some kernels have several exits. Some have registers to spare, and others keep the start time on the stack."""
    made, (found,) = check(name, SCHED)
    assert len(found) == running.units(CASE[name], "warp")
    for count, ((record),) in found:
        assert count == 1
        assert record["end"] > 1 << 40
        assert record["elapsed"] > 0
        assert record["sm"] == 3
    assert all(matched == woven for matched, woven in sites(made).values())


@pytest.mark.parametrize("name", first(*LAUNCHES[1:], LAUNCHES[0]))
def test_each_block_has_a_begin_and_an_end(name):
    """A warp stores its own clocks. The block's start is its first warp's, and its end the latest of its warps'."""
    made, (warps, blocks) = check(name, SCHED, "block_sched")
    each = len(warps) // len(blocks)
    assert len(blocks) == running.units(CASE[name], "block")
    for number, (count, ((block),)) in enumerate(blocks):
        mine = [record for _, (record,) in warps[each * number : each * (number + 1)]]
        assert count is None
        assert abs(block["start"] - mine[0]["start"]) < 200
        assert block["stop"] >= max(record["start"] + record["elapsed"] for record in mine)
        assert 0 < block["elapsed"] <= block["stop"] - block["start"]
        assert block["end"] > 1 << 40
        assert block["sm"] == 3
    assert all(matched == woven for matched, woven in sites(made).values())


@pytest.mark.parametrize("name", [full("reduction-2x256-5"), "groups-2x50-5", full("products-2x64-5")])
def test_repeated_launch_adds_to_existing_values(name):
    """Bytes double, and a block's last clock comes from the later run."""
    case = CASE[name]
    made, _ = check(name, "block_sched", "gmem_bytes")
    first = running.run(case, made)
    second = running.run(case, made, before=first)
    assert (second.out == running.run(case).out).all()
    for placed, once, twice in zip(made.maps, first.buffers, second.buffers, strict=True):
        for (_, (before,)), (_, (after,)) in zip(
            running.records(case, placed, once), running.records(case, placed, twice), strict=True
        ):
            if placed.map.name == "gmem_bytes":
                assert after == {key: 2 * value for key, value in before.items()}
            else:
                assert after["stop"] >= before["stop"]


SAMPLED = """[map.threads]
type = "total"
level = "thread"
data = {thread = "u64", bits = "u64"}

[probe.all]
position = "kernel"
level = "thread"
sample = "SAMPLE"
before = '''.reg .u32 %thread;
.reg .f64 %wide;
.reg .u16 %short;
mov.u32 %thread, %tid.x;
cvt.rn.f64.u32 %wide, %thread;
cvt.u16.u32 %short, %thread;'''
after = '''.reg .u64 %one;
.reg .u64 %other;
cvt.rzi.u64.f64 %one, %wide;
cvt.u64.u16 %other, %short;
SAVE [threads] {%one, %other};'''
"""


@pytest.mark.parametrize("sample", ["block/2", full("warp/2")])
def test_only_sampled_threads_save_at_exits(sample, tmp_path):
    """The other threads jump over the snippets, and so use neither the buffer's address nor what the entry sets."""
    (tmp_path / "sampled.toml").write_text(SAMPLED.replace("SAMPLE", sample))
    case = CASE["leaving-2x33-5"]
    _, (found,) = check(case.name, str(tmp_path / "sampled.toml"))
    saved = {number: record for number, (count, record) in enumerate(found) if count}
    assert 0 < len(saved) < len(found)
    units = {number // 33 if sample == "block/2" else (number // 33, number % 33 // 32) for number in saved}
    assert len(saved) == sum(33 if sample == "block/2" else (32, 1)[unit[1]] for unit in units)
    assert all(record == [{"thread": n % 33, "bits": n % 33}] for n, record in saved.items())


SOMETIMES = """[map.threads]
type = "total"
level = "thread"
data = {value = "u64"}

[probe.some]
position = "kernel"
level = "thread"
SAMPLE
before = '''.reg .u64 %value;
BEFORE'''

[probe.all]
position = "kernel"
level = "thread"
after = '''.reg .u64 %more;
add.u64 %more, %value, 1;
SAVE [threads] {%more};'''
"""
JUMP = """.reg .pred %is_odd;
.reg .u32 %part;
mov.u32 %part, %tid.x;
and.b32 %part, %part, 1;
setp.eq.u32 %is_odd, %part, 1;
@%is_odd bra $Lodd;
mov.u64 %value, 5;
$Lodd:"""


@pytest.mark.parametrize("sample, before", [('sample = "block/2"', "mov.u64 %value, 5;"), ("", JUMP)])
def test_a_register_that_the_entry_sets_in_some_threads_is_no_constant(sample, before, tmp_path):
    (tmp_path / "some.toml").write_text(SOMETIMES.replace("SAMPLE", sample).replace("BEFORE", before))
    case = CASE["leaving-2x33-5"]
    _, (found,) = check(case.name, str(tmp_path / "some.toml"))
    values = [record["value"] for _, (record,) in found]
    if sample:
        assert sorted(values) == [1] * 33 + [6] * 33
    else:
        assert values == [1 if number % 33 % 2 else 6 for number in range(66)]


FLOATS = """[map.floats]
type = "total"
level = "warp"
data = {sum = "f32", wide = "f64"}

[probe.end]
position = "kernel"
level = "warp"
after = '''.reg .u32 %thread;
.reg .f32 %number;
.reg .f64 %wide;
mov.u32 %thread, %tid.x;
cvt.rn.f32.u32 %number, %thread;
cvt.rn.f64.u32 %wide, %thread;
SAVE [floats] {%number, %wide};'''
"""


def test_repeated_launch_adds_floats(tmp_path):
    """The lowest bit of the buffer's address, which says that the launch is repeated, isn't part of any address."""
    (tmp_path / "floats.toml").write_text(FLOATS)
    case = CASE["groups-2x50-5"]
    made, (found,) = check(case.name, str(tmp_path / "floats.toml"))
    assert made.maps[0].keeps == "sum"
    sums = [sum(range(32)), sum(range(32, 50))] * 2
    assert found == [(count, [{"sum": n, "wide": n}]) for count, n in zip([32, 18] * 2, sums, strict=True)]
    twice = running.run(case, made, before=running.run(case, made))
    found = running.records(case, made.maps[0], twice.buffers[0])
    assert found == [(2 * count, [{"sum": 2 * n, "wide": 2 * n}]) for count, n in zip([32, 18] * 2, sums, strict=True)]


def test_where_registers_are_short_the_stack_holds_values():
    made, _ = check("stack-2x33-5", "warp_sched")
    assert made.needs["stack"] > made.needs["stack_before"]


def test_lanes_that_a_guard_leaves_out_keep_their_value_on_the_stack(monkeypatch):
    """`blockwide` has barriers under guards, and the clock that sync_wait reads before them has no register."""
    monkeypatch.setattr(given, "usable", lambda kernel: 0)
    made, _ = check("blockwide-2x160-5", "sync_wait")
    assert made.needs["stack"] > made.needs["stack_before"]
    assert all(matched == woven for matched, woven in sites(made).values())


def name_uniform(case, is_variable):
    """Return the uniform registers that occur in instructions of fixed and of variable latency."""
    kernel = read_kernel(CubinEditor(running.image(case.file)), case.kernel, table_of("sm_90"))
    found = 0
    for one in kernel.code:
        if one.variable == is_variable:
            found |= (one.reads | one.writes).UR
    return found, unpack(kernel.steady).UR


@pytest.mark.full
def test_where_uniform_registers_are_short_others_hold_them():
    """`crowded` uses 57 of 63 uniform registers, and lanes in its loop need all of them after others have left."""
    check("crowded-2x96-5", "block_sched")
    check("crowded-2x33-5", "warp_sched", "gmem_bytes")
    late, steady = name_uniform(CASE["crowded-2x96-5"], True)
    early, _ = name_uniform(CASE["crowded-2x96-5"], False)
    assert late and steady == early & ~late


@pytest.mark.parametrize("change", ["is left out", "is another's", "comes from elsewhere"])
def test_unrestored_uniform_register_is_found(change, monkeypatch):
    restore = glue.restore_uniform

    def spoil(uniform, source):
        word = restore(uniform, source)
        return {
            "is left out": glue.save_uniform(source, uniform),
            "is another's": restore(uniform + 1, source),
            "comes from elsewhere": with_bits(word, 24, 8, 255),
        }[change]

    monkeypatch.setattr(glue, "restore_uniform", spoil)
    with pytest.raises(LeftAlone) as error:
        running.woven(CASE["crowded-2x96-5"], "gmem_bytes")
    assert error.value.reason.code == "unproven"


def test_bytes_of_global_memory():
    """The kernels are `widths` and `generic`: 1 to 16 bytes per lane; generic accesses count if they're global."""
    _, (found,) = check("widths-2x64-5", "gmem_bytes")
    assert found == [(None, [{"read": 2432, "written": 1984}])] * 2, "no field without a use in the kernel"
    _, (found,) = check("copies-2x128-5", "gmem_bytes")
    assert sum(record["async"] for _, (record,) in found) > 0
    _, (found,) = check("generic-2x96-5", "gmem_bytes")  # the counters come right after the program's constants
    assert found[0] == (None, [{"read": 996, "written": 1256}])


@pytest.mark.full
def test_bulk_copies():
    """The kernel is `bulk`: it copies 80 and 64 bytes in, which its mbarrier expects, and 128 out."""
    made, (found,) = check("bulk-2x256-5", "gmem_bytes")
    assert found == [(None, [{"written": 1024, "bulk": 80 + 64 + 128, "expected": 80 + 64}])] * 2
    assert all(matched == woven for matched, woven in sites(made).values())


def test_guard_counts_lanes_where_it_is_true():
    """The last warp of `groups` with 50 threads has 18 lanes."""
    _, (found,) = check("groups-2x50-5", probing.by_warp())
    assert [(count, record["read"]) for count, (record,) in found] == [(32, 128), (18, 72)] * 2


def test_tensor_operations():
    made, (found,) = check("products-2x64-5", "tensorop_count")
    total = sum(matched for (probe, _), (matched, _) in sites(made).items() if probe == "warp")
    assert {record["operations"] for _, (record,) in found} == {total}
    assert all(record["flops"] > 0 for _, (record,) in found)


def test_waits_at_barriers():
    _, (found,) = check("reduction-2x256-5", "sync_wait")
    assert all(record["waits"] > 0 and record["clocks"] > 0 for _, (record,) in found)


def test_two_probes_at_once():
    made, (sched, bytes_) = check("reduction-2x256-5", "block_sched", "gmem_bytes")
    assert len(made.added) == len(made.maps) == 2
    assert len(sched) == len(bytes_) == 2
    assert [record["read"] for _, (record,) in bytes_] == [8 * 512] * 2


@pytest.mark.parametrize("name", [full("tiles-2x128-5"), "leaving-2x33-5"])
def test_addresses_of_each_access(name):
    """dmat claims rooms with an atomic, in every lane and at every place, with registers saved on the stack."""
    case = CASE[name]
    made, (bytes_,) = check(name, "gmem_bytes", "dmat")
    assert all(matched == woven for matched, woven in sites(made).values())
    probed = running.run(case, made)
    found = running.entries(case, made.maps[1], probed.buffers[1])
    assert all(row["address"] >> 40 == 0x7F and row["sm"] == 3 for row in found)
    for block, (_, (record,)) in enumerate(bytes_):
        mine = sum(row["bytes"] for row in found if row["unit"] // case.block == block)
        assert mine == record["read"] + record["written"] > 0
    clocks = [(row["unit"] // case.block, row["unit"] % case.block // 32, row["clock"]) for row in found]
    assert clocks == sorted(clocks)


STORES = """[map.stores]
type = "array"
level = "thread"
cap = 24
data = {address = "u64"}

[probe.stores]
position = "st.local"
level = "thread"
before = "SAVE [stores] {ADDR};"
"""


@pytest.mark.full
def test_addresses_on_the_stack(tmp_path):
    """`stack` fills arrays of 24 words and 16 bytes, four words at a time, then adds to words that `in` chooses. The
    stack pointer itself is the base of its first stores.
    """
    (tmp_path / "stores.toml").write_text(STORES)
    made, (found,) = check("stack-2x33-5", str(tmp_path / "stores.toml"))
    assert all(matched == woven for matched, woven in sites(made).values())
    assert len(found) == 66
    for number, (count, records) in zip(inputs(CASE["stack-2x33-5"])[0].tolist(), found, strict=False):
        places = [record["address"] for record in records[:count]]
        first = min(places)
        assert sorted(places[:7]) == list(range(first, first + 112, 16))
        assert places[7:] == [first + 4 * ((number >> k) % 24) for k in range(8)]


def test_the_kernel_gets_another_parameter_and_only_places_change():
    case = CASE["widths-2x64-5"]
    made, _ = check(case.name, "block_sched")
    before = KernelEditor(CubinEditor(running.image(case.file)), case.kernel)
    after = KernelEditor(CubinEditor(made.data), case.kernel)
    assert [(p.offset, p.size) for p in list_parameters(after)] == [(0, 8), (8, 8), (16, 4), (24, 8)]
    assert [p.offset for p in made.added] == [24]
    old, new = parse_words(bytes(before.code)), parse_words(bytes(after.code))
    changed = [index for index, word in enumerate(old) if word != new[index]]
    assert len(changed) <= 3  # the entry, the exit, and the store before it


def test_kernels_left_alone_have_a_reason():
    with pytest.raises(LeftAlone) as error:
        running.woven(CASE["votes-2x96-5"], "tensorop_count")
    assert error.value.reason.code == "no_place"
    with pytest.raises(LeftAlone) as error:
        running.woven(CASE["pointers-2x96-5"], "block_sched")
    assert error.value.reason.code == "no_registers"  # the kernel calls through pointers
    with pytest.raises(LeftAlone) as error:
        weave(b"", "k", "sm_80", [running.probe("block_sched")], running.compiler())
    assert error.value.reason.code == "not_proven"


WEAVE = """
import hashlib
from tests.probe.sass import running
from tests.sass.interp.cases import CASES
case = next(case for case in CASES if case.name == "stack-2x33-5")
print(hashlib.sha256(running.woven(case, "block_sched", "gmem_bytes", "dmat").data).hexdigest())
"""


@pytest.mark.full
def test_weaving_depends_on_its_inputs_only():
    """Results are cached by their inputs, so two runs must give the same result, although Python's sets have a random
    order.
    """
    check("stack-2x33-5", "block_sched")
    found = {
        subprocess.run(
            [sys.executable, "-c", WEAVE], env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1
