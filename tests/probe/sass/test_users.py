"""Probes as users write them: strings of SAVEs, branches, constants of every kind. The kernels come from
the interpreter's tests, and the expected values are closed forms.
"""

import pytest

from tests.probe.sass import running
from tests.probe.sass.compared import check, sites
from tests.sass.interp.cases import CASES
from tests.tiers import full

CASE = {case.name: case for case in CASES}
THREADS = """[map.m]
type = "total"
level = "thread"
{map}

[probe.end]
position = "kernel"
level = "thread"
{before}after = '''.reg .u32 %thread;
mov.u32 %thread, %tid.x;
{after}'''
"""


def run(tmp_path, case, text):
    """Weave a probe into a case's kernel, check that results don't change, and return its records."""
    path = tmp_path / f"{len(list(tmp_path.iterdir()))}.toml"  # files that were read are cached by name
    path.write_text(text)
    made, found = check(case, str(path))
    assert all(matched == woven for matched, woven in sites(made).values())
    return made, found


SAVES = """.reg .u64 %wide;
.reg .s32 %low;
.reg .u32 %part;
.reg .pred %odd, %big, %few;
mul.wide.u32 %wide, %thread, 1000000007;
sub.s32 %low, 20, %thread;
and.b32 %part, %thread, 1;
setp.eq.u32 %odd, %part, 1;
and.b32 %part, %thread, 7;
setp.gt.u32 %big, %part, 3;
setp.eq.u32 %few, %part, 6;
"""
FIELDS = """data = {sum = "u64", few = "u32", least = "u32", low = "s32", far = "u64"}
min = ["least", "far"]
max = ["low"]"""
VALUES = "{%wide, %thread, %thread, %low, %wide}"


@pytest.mark.parametrize(
    ("counts", "sample"), [("", ""), full("counts = false\n", ""), full("", 'sample = "block/2"\n')]
)
def test_several_guarded_saves_at_an_exit(tmp_path, counts, sample):
    """ptxas would jump from one SAVE into the next, and need a BREAK."""
    saves = "\n".join(f"{guard} SAVE [m] {VALUES};" for guard in ("@%odd", "@!%big", "@%few"))
    text = THREADS.format(map=counts + FIELDS, before=sample, after=SAVES + saves)
    _, (found,) = run(tmp_path, "leaving-2x33-5", text)
    for number, (count, records) in enumerate(found):
        block, thread = divmod(number, 33)
        times = (thread % 2 == 1) + (thread % 8 <= 3) + (thread % 8 == 6) if not (sample and block % 2) else 0
        assert count == (None if counts else times or None) or not times
        if times and (not counts or thread):
            far = thread * 1000000007
            assert records == [
                {"sum": times * far, "few": times * thread, "least": thread, "low": 20 - thread, "far": far}
            ]


LOG = """[map.m]
level = "thread"
cap = "dynamic"
budget = 65536
data = {thread = "u32", wide = "u64", low = "s32"}

[probe.end]
position = "kernel"
level = "thread"
after = '''.reg .u32 %thread;
.reg .u64 %wide;
.reg .s32 %low;
mov.u32 %thread, %tid.x;
mul.wide.u32 %wide, %thread, 2654435761;
mul.lo.u64 %wide, %wide, 12297829382473034410;
sub.s32 %low, 20, %thread;
SAVE [m] {%thread, %wide, %low};'''
"""


def test_predicates_that_a_mask_names_keep_their_numbers(tmp_path):
    """ptxas keeps predicates of this snippet in a register for a while (P2R, R2P)."""
    made, _ = run(tmp_path, "leaving-2x33-5", LOG)
    case = CASE["leaving-2x33-5"]
    assert any(compiled.masked for compiled in running.compiler()._known.values() if not isinstance(compiled, str))
    rows = running.entries(case, made.maps[0], running.run(case, made).buffers[0])
    wanted = [
        {
            "unit": unit,
            "thread": unit % 33,
            "wide": unit % 33 * 2654435761 * 12297829382473034410 % (1 << 64),
            "low": 20 - unit % 33,
        }
        for unit in range(66)
    ]
    assert sorted(rows, key=lambda row: row["unit"]) == wanted


LOOP = """.reg .u32 %turn, %sum;
.reg .pred %again;
mov.u32 %turn, 0;
mov.u32 %sum, %ctaid.x;
AGAIN: mad.lo.u32 %sum, %sum, %sum, %thread;
xor.b32 %sum, %sum, %turn;
mul.hi.u32 %sum, %sum, 2654435761;
add.u32 %sum, %sum, 12345;
add.u32 %turn, %turn, 1;
setp.lt.u32 %again, %turn, 61;
@%again bra AGAIN;
SAVE [m] {%sum};"""
UNIFORM = """.reg .u32 %sum, %block;
.reg .pred %first;
mov.u32 %block, %ctaid.x;
mov.u32 %sum, %thread;
setp.eq.u32 %first, %block, 0;
@%first bra OVER;
mul.lo.u32 %sum, %sum, %sum;
mad.lo.u32 %sum, %sum, %sum, %thread;
mul.hi.u32 %sum, %sum, 2654435761;
mad.lo.u32 %sum, %sum, %sum, %thread;
mad.lo.u32 %sum, %sum, %thread, %thread;
mul.hi.u32 %sum, %sum, 2654435761;
mad.lo.u32 %sum, %sum, %thread, %thread;
OVER: SAVE [m] {%sum};"""
_32 = (1 << 32) - 1


def loop(block, thread):
    total = block
    for turn in range(61):
        total = (((total * total + thread & _32) ^ turn) * 2654435761 >> 32) + 12345 & _32
    return total


def jump(block, thread):
    if block == 0:
        return thread
    total = thread * thread & _32
    total = (total * total + thread & _32) * 2654435761 >> 32
    total = total * total + thread & _32
    total = (total * thread + thread & _32) * 2654435761 >> 32
    return total * thread + thread & _32


@pytest.mark.parametrize(("code", "wanted"), [(LOOP, loop), (UNIFORM, jump)])
def test_branches_that_all_lanes_take_together(tmp_path, code, wanted):
    """ptxas would leave out the BSSY and the BSYNC, with which the checker proves that lanes meet again."""
    _, (found,) = run(tmp_path, "leaving-2x33-5", THREADS.format(map='data = {sum = "u32"}', before="", after=code))
    assert found == [(1, [{"sum": wanted(*divmod(number, 33))}]) for number in range(66)]


BLOCK = """.reg .u32 %block;
.reg .pred %second;
.reg .f32 %part;
.reg .f64 %wide;
mov.u32 %block, %ctaid.x;
setp.eq.u32 %second, %block, 1;
cvt.rn.f32.u32 %part, %thread;
cvt.rn.f64.u32 %wide, %thread;
"""
FLOATS = 'data = {part = "f32", wide = "f64"}'
HISTOGRAM = 'type = "histogram"\ndata = {thread = "u32"}\nlow = 0\nhigh = 40\nstep = 10'


def test_saves_of_all_lanes_or_none(tmp_path):
    """ptxas knows that all lanes of a warp have the same predicate."""
    text = THREADS.format(map=FLOATS, before="", after=BLOCK + "@%second SAVE [m] {%part, %wide};")
    _, (found,) = run(tmp_path, "leaving-2x33-5", text)
    saved = [[{"part": thread, "wide": thread}] for thread in range(33)]
    assert [records for _, records in found] == [[]] * 33 + saved
    text = THREADS.format(map=HISTOGRAM, before="", after=BLOCK + "@%second SAVE [m] {%thread};")
    _, (found,) = run(tmp_path, "leaving-2x33-5", text.replace('type = "total"\nlevel = "thread"\n', ""))
    ((_, bins),) = found
    assert [one["count"] for one in bins if one["count"]] == [10, 10, 10, 3]


TABLE = """[map.m]
type = "table"
key = ["key"]
cap = 64
data = {key = "u32", none = "u64"}

[probe.end]
position = "kernel"
level = "thread"
after = '''.reg .u32 %key;
.reg .u64 %none;
.reg .pred %small;
mov.u64 %none, 0;
mov.u32 %key, LANEID;
setp.lt.u32 %small, %key, 20;
and.b32 %key, %key, 15;
@%small SAVE [m] {%key, %none};
@%small or.b32 %key, %key, 1;'''
"""


def test_a_table_whose_loop_ends_for_all_lanes_together(tmp_path):
    _, (found,) = run(tmp_path, "leaving-2x33-5", TABLE)
    lanes = [*range(20), 0] * 2  # the second warp of each block has one lane
    rows = [(sum(lane & 15 == key for lane in lanes), [{"key": (key,), "none": 0}]) for key in range(16)]
    assert found == [(0, []), *rows]


CONSTANTS = """before = '''.reg .b32 %low, %high;
.reg .f32 %part;
.reg .f64 %wide;
.reg .u16 %short;
.reg .b64 %long;
mov.b64 {%low, %high}, 0x500000007;
mov.b32 %part, 1078530011;
mov.b64 %wide, 4614256656552045848;
mov.u16 %short, 65535;
mov.b64 %long, -7;'''
"""
READ = """.reg .u32 %whole, %round;
.reg .u64 %sum;
cvt.u64.u16 %sum, %short;
add.u64 %sum, %sum, %long;
cvt.rzi.u32.f32 %whole, %part;
cvt.rzi.u32.f64 %round, %wide;
mad.lo.u32 %whole, %round, 10, %whole;
SAVE [m] {%low, %high, %whole, %sum};"""


def test_constants_that_the_entry_sets(tmp_path):
    """Each is set where it's read: half of a pair isn't the pair's value, and a float may be given by its bits."""
    fields = 'data = {low = "u32", high = "u32", whole = "u32", sum = "u64"}'
    _, (found,) = run(tmp_path, "leaving-2x33-5", THREADS.format(map=fields, before=CONSTANTS, after=READ))
    assert found == [(1, [{"low": 7, "high": 5, "whole": 33, "sum": 65528}])] * 66
