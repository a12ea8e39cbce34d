"""Constants are added once for all instructions that run one after the other, and the records stay the same."""

from types import SimpleNamespace

import pytest

from gpt.probe.model import Position
from gpt.probe.plan.function import Key, PlacedSnippet, Site
from gpt.probe.plan.left_alone import LeftAlone
from gpt.probe.sass import weave
from gpt.probe.sass.body import ADDEND, Body
from gpt.probe.sass.lowering import Lowered
from gpt.probe.sass.sums import Sum, find_sums
from gpt.sass.graph import make_graph
from gpt.sass.masks import STARTS
from tests.probe.sass.compared import CASE, check, sites
from tests.sass.assembly import program
from tests.tiers import every

AT = Position("opcode", ("ld", "global"))


def use(number, *, adds=(4,), kept=("n",), kind="instruction", text="add"):
    """Return a snippet at an instruction, and its lowered body."""
    site = Site(AT, kind, number, number)
    placed = PlacedSnippet(0, None, "before", None, Key("p", "ld.global"), site, None, [])
    return placed, Lowered(Body(text, (), addends=adds), set(kept), None)


def groups(code, *lowered):
    """Return the instructions that share each addition, and its constants."""
    found = find_sums(SimpleNamespace(code=code, graph=make_graph(code)), lowered)
    assert found.keys() == {id(placed) for placed, _ in lowered}
    distinct = {id(one): one for one in found.values()}.values()
    return sorted(([member.site.first for member in one.members], one.addends) for one in distinct)


def test_additions_in_a_block_are_one():
    code = program("LDG 1 4", "LDG 2 4", "@0 BRA end", "LDG 3 4", "LDG 4 4", "end: LDG 5 4", "EXIT")
    loads = [use(number, adds=(number + 1,)) for number in (5, 4, 1, 0, 3)]
    assert groups(code, *loads) == [([0, 1], (3,)), ([3, 4], (9,)), ([5], (6,))]


def test_additions_with_different_guards_are_apart():
    code = program("@0 LDG 1 4", "LDG 2 4", "@!0 LDG 3 4", "@0 LDG 4 4", "@1 LDG 5 4", "EXIT")
    assert groups(code, *map(use, range(5))) == [([0, 3], (8,)), ([1], (4,)), ([2], (4,)), ([4], (4,))]


def test_a_guard_that_is_written_ends_a_sum():
    code = program("@0 LDG 1 4", "@0 LDG 2 4", "MOV 9 9", "@0 LDG 3 4", "@0 LDG 4 4", "EXIT")
    code.masks[2] = code.masks[2]._replace(writes=1 << STARTS.P)
    assert groups(code, *map(use, (0, 1, 3, 4))) == [([0, 1], (8,)), ([3, 4], (8,))]


def test_other_code_that_uses_the_register_ends_a_sum():
    code = program("LDG 1 4", "STG 4 1", "LDG 2 4", "STG 4 1", "LDG 3 4", "EXIT")
    loads = [use(0), use(2), use(4)]
    assert groups(code, *loads, use(1, adds=()), use(3, adds=(), kept="m"))[0] == ([0], (4,))
    assert ([2, 4], (8,)) in groups(code, *loads, use(1, adds=()), use(3, adds=(), kept="m"))
    assert ([0, 2, 4], (12,)) in groups(code, *loads, use(1, text="another"), use(3, adds=(), kept="m"))
    assert ([0, 2, 4], (12,)) in groups(code, *loads, use(5, adds=(), kind="exit"))


def test_a_sum_fits_in_an_instruction():
    code = program("LDG 1 4", "LDG 1 4", "LDG 1 4", "EXIT")
    assert groups(code, use(0, adds=(1, 1 << 30)), use(1, adds=(2, 1 << 30)), use(2, adds=(3, 1))) == [
        ([0], (1, 1 << 30)),
        ([1, 2], (5, (1 << 30) + 1)),
    ]


def test_a_sum_can_be_woven_at_any_member():
    one = Sum([use(0)[0], use(1)[0]], (8,))
    assert one.fail() == []
    assert one.fail() == one.members


COUNTS = """[map.m]
type = "total"
level = "thread"
data = {loads = "u64", stores = "u64", seen = "u64", bytes = "u64"}

[probe.load]
position = "ld.global:ld.shared"
level = "thread"
before = '''.reg .u32 %loads, %stores;
.reg .u64 %seen, %bytes;
add.u64 %bytes, %bytes, BYTES;
add.u32 %loads, %loads, 1;'''

[probe.store]
position = "st.global:st.shared"
level = "thread"
before = '''.reg .u64 %now;
add.u32 %stores, %stores, 3;
cvt.u64.u32 %now, %loads;
add.u64 %seen, %seen, %now;'''

[probe.end]
position = "kernel"
level = "thread"
after = '''.reg .u64 %wide, %more;
cvt.u64.u32 %wide, %loads;
cvt.u64.u32 %more, %stores;
SAVE [m] {%wide, %more, %seen, %bytes};'''
"""


STEADY = [name for name in sorted(CASE) if not name.startswith(("choices", "locks"))]  # in locks, threads spin


def singly(kernel, lowered):
    return {id(placed): Sum([placed], one.body.addends) for placed, one in lowered}


@pytest.mark.parametrize(
    ("name", "probe"),
    every(
        6,
        [(name, probe) for probe in ("gmem_bytes", "counts") for name in STEADY]
        + [("products-2x64-5", "tensorop_count")],
    ),
)
def test_records_are_those_of_single_additions(monkeypatch, tmp_path, name, probe):
    if probe == "counts":
        (tmp_path / "counts.toml").write_text(COUNTS)
        probe = str(tmp_path / "counts.toml")
    try:
        made, found = check(name, probe)
        monkeypatch.setattr(weave, "find_sums", singly)
        wanted_made, wanted = check(name, probe)
    except LeftAlone:
        pytest.skip("it has none of these instructions")
    assert found == wanted
    assert sites(made) == sites(wanted_made)
    assert len(made.data) <= len(wanted_made.data)


def test_constants_are_in_the_words(tmp_path):
    """A probe may contain the number that stands for a constant in a body."""
    text = COUNTS.replace("add.u32 %loads, %loads, 1;", f"mov.u32 %loads, {ADDEND};\nadd.u32 %loads, %loads, {ADDEND};")
    (tmp_path / "counts.toml").write_text(text)
    _, ((*threads,),) = check("widths-2x64-5", str(tmp_path / "counts.toml"))
    assert all(fields["loads"] == 2 * ADDEND for _, (fields,) in threads)
