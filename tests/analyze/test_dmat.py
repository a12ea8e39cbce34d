"""gpt-analyze dmat on accesses to known pages at known clocks."""

import json
import re
import struct

import numpy as np
import pytest

from gpt.analyze.lib import page_ranks
from tests.analyze.asked import Answers, ask, run
from tests.trace import forge
from tests.trace.logs import Room, Saved, write_log

FIELDS = {"address": "u64", "clock": "u64", "bytes": "u32"}
ENTRY = np.dtype([("unit", "<u8"), ("address", "<u8"), ("clock", "<u8"), ("bytes", "<u4"), ("pad", "<u4")])
PAGE, LOW, CLOCK = 4096, 0x7F0000000000, 1 << 40


def log(accesses, lost):
    """Pack a log of (address, clock); its count includes some dropped entries."""
    entries = np.zeros(len(accesses), ENTRY)
    entries["address"], entries["clock"] = np.array(accesses, np.uint64).T
    entries["bytes"] = 4
    return struct.pack("<Q", len(accesses) + lost) + entries.tobytes()


def trace(*launches):
    capacity = max(map(len, launches))
    map_ = forge.probe_map("dmat", type_="log", level="thread", capacity=capacity, **FIELDS)
    found = [forge.records.make("function", id=4, name="k"), map_, forge.kernel(3, 4, "k", 1)]
    for number, accesses in enumerate(launches):
        data = log(accesses, lost=3 if len(accesses) == capacity else 0)
        found += [forge.probed(number, 3, 4, 1, 32), forge.buffer(number, data)]
    return forge.trace(*found)


ACCESSES = [
    (LOW, CLOCK),
    (LOW + 4, CLOCK),
    (LOW + PAGE, CLOCK + 5),
    (LOW + 900 * PAGE, CLOCK + 9),
    (LOW + PAGE, CLOCK + 5),
]


def test_accesses_by_page_and_clock():
    found = ask("dmat", trace(ACCESSES, ACCESSES[:2]))
    cells = [(row["page"] - LOW, row["clock"], row["accesses"]) for row in found.rows["accesses"]]
    assert cells == [(0, 0, 2), (PAGE, 5, 2), (900 * PAGE, 9, 1)]
    assert [(r["accesses"], r["bytes"], r["pages"], r["clocks"], r["dropped"]) for r in found.rows["launches"]] == [
        (5, 20, 3, 9, 3), (2, 8, 1, 0, 0),
    ]  # fmt: skip
    found = ask("dmat", trace(ACCESSES, ACCESSES[:2]), args=("--launch", 2, "--page", 4))
    cells = [(row["page"] - LOW, row["clock"], row["accesses"]) for row in found.rows["accesses"]]
    assert cells == [(0, 0, 1), (4, 0, 1)]


@pytest.mark.parametrize(("blocks", "told"), [([2, 5, 3, 2], "blocks 2 to 5"), ([6, 6, 6, 6], "block 6")])
def test_it_says_from_which_blocks_a_full_log_has_accesses(blocks, told):
    entries = np.zeros(4, ENTRY)
    entries["unit"], entries["address"] = np.array(blocks) * 32 + 31, LOW
    map_ = forge.probe_map("dmat", type_="log", level="thread", capacity=4, **FIELDS)
    found = [forge.records.make("function", id=4, name="k"), map_, forge.kernel(3, 4, "k", 1)]
    found += [forge.probed(0, 3, 4, 8, 32), forge.buffer(0, struct.pack("<Q", 16) + entries.tobytes())]
    trace = forge.trace(*found)
    answers, done = ask("dmat", trace), run("dmat", "--json", data=forge.pack(trace))
    (drawn,) = [plot for line in done.stdout.splitlines() for plot in json.loads(line).get("plots", ())]
    kept = f"25.0 % of 16 accesses were kept, from {told}"
    assert answers.verdicts["accesses"][0] == f"launch 1: 4 accesses, {kept}"
    assert f"incomplete: {kept}" in drawn["title"].split("\n")
    said = f"25.0 % of 16 records were kept, from {told}: the log of the launch"
    assert answers.verdicts["launches"][0].startswith(said)


def test_each_sm_has_a_clock_of_its_own():
    """If a number can't be an SM's, all clocks count as one."""
    accesses = [(LOW, CLOCK + 7), (LOW, CLOCK + 9), (LOW, 100), (LOW, 103)]
    for sms, clocks in (((0, 0, 131, 131), [0, 2, 0, 3]), ((0, 0, 1 << 31, 131), [CLOCK - 93, CLOCK - 91, 0, 3])):
        entries = np.zeros(4, ENTRY)
        entries["address"], entries["clock"] = np.array(accesses, np.uint64).T
        entries["pad"] = sms  # the probe stores it here
        map_ = forge.probe_map("dmat", type_="log", level="thread", capacity=4, **FIELDS, sm="u32")
        records = [forge.records.make("function", id=4, name="k"), map_, forge.kernel(3, 4, "k", 1)]
        records += [forge.probed(0, 3, 4, 1, 32), forge.buffer(0, struct.pack("<Q", 4) + entries.tobytes())]
        found = ask("dmat", forge.trace(*records))
        assert found.rows["launches"][0]["clocks"] == max(clocks)
        step = max(clocks) // 160 + 1
        cells = {row["clock"]: row["accesses"] for row in found.rows["accesses"]}
        wanted = {}
        for clock in clocks:
            wanted[clock // step * step] = wanted.get(clock // step * step, 0) + 1
        assert cells == wanted


def make_log(accesses, params=(), args=b""):
    """Return a trace whose log has one room for each access. An access is a tuple of SM, clock, address and time."""
    fields = FIELDS | {"sm": "u32"}
    map_ = forge.probe_map("dmat", type_="log", level="thread", capacity=1 << 20, **fields)
    found = [
        Room(0, sm, [Saved(clock, {0: (address, clock, 4, sm)})], time=time) for sm, clock, address, time in accesses
    ]
    data = write_log(fields.values(), ["lane", "clock", "equal", "sm"], [found])
    kernel, probed = forge.kernel(3, 4, "k", 1) | {"params": [*params]}, forge.probed(0, 3, 4, 1, 32) | {"params": args}
    map_ |= {"stored": ["lane", "clock", "equal", "sm"]}
    return forge.trace(forge.records.make("function", id=4, name="k"), map_, kernel, probed, forge.buffer(0, data))


def test_clocks_of_sms_are_aligned_by_pairs(tmp_path):
    """Two clocks are a nanosecond, the timer has steps of 32 ns, and the SMs take turns."""
    times = [37 * at for at in range(430)]
    log = [(at % 2, (1 << 40) * (at % 2) + 2 * time + 1000, LOW, 10**18 + time // 32 * 32)
           for at, time in enumerate(times)]  # fmt: skip
    found = ask("dmat", make_log(log))
    (step,) = {row["next"] - row["clock"] for row in found.rows["accesses"]}
    aligned = found.verdicts["accesses"][-1]
    bound = int(re.fullmatch(r"SMs are aligned within (\d+)ns: step 32ns, drift \d+ns", aligned)[1])
    assert bound < 100
    told = [row for row in found.rows["accesses"] for _ in range(row["accesses"])]
    for row, time in zip(told, times, strict=True):
        assert row["time"] - bound <= time <= row["until"] + bound
        assert row["time"] == pytest.approx(row["clock"] / 2, rel=0.01) and row["until"] > row["time"]
    assert found.rows["launches"][0]["clocks"] == pytest.approx(2 * times[-1], abs=2 * bound) and step == 199
    done = run("dmat", "--plot", tmp_path / "d.svg", data=forge.pack(make_log(log)))
    assert done.returncode == 0
    assert {aligned, "time (\N{MICRO SIGN}s)"} <= {*re.findall("<!-- (.*?) -->", (tmp_path / "d.svg").read_text())}


def test_memory_without_tensors_is_divided_by_arguments_and_gaps():
    params = [{"offset": 8 * at, "size": 8, "type": "u64"} for at in range(3)]
    args = struct.pack("<3Q", LOW, LOW + 2 * PAGE + 16, 77)
    pages = [0, 1, 2, 3, 600, 601]
    found = ask("dmat", make_log([(0, at, LOW + at * PAGE, at) for at in pages], params=params, args=args))
    assert [row["memory"] for row in found.rows["accesses"]] == [
        *2 * [f"{LOW:#x}, 8 KiB, argument 0"],
        *2 * [f"{LOW + 2 * PAGE:#x}, 8 KiB, argument 1"],
        *2 * [f"{LOW + 600 * PAGE:#x}, 8 KiB"],
    ]
    assert found.verdicts["accesses"][-1] == "all accesses are from one SM"


@pytest.mark.full
@pytest.mark.parametrize("far", [1 << 20, 1 << 45])  # with a bitmap, and without
def test_many_pages_share_rows(far):
    random = np.random.default_rng(1)
    pages = random.integers(0, 5000, 20_000)
    clocks = random.integers(0, 3000, 20_000)
    accesses = np.stack([LOW + PAGE * pages + far * (pages > 2500), CLOCK + clocks], 1)
    accesses[0] = LOW, CLOCK
    accesses[1] = LOW + PAGE * 4999 + far, CLOCK + 2999
    found = ask("dmat", trace(accesses.tolist()))
    there = np.unique(accesses[:, 0] // PAGE)
    parts = [there] if far < 2 << 20 else [there[there < (LOW + far) // PAGE], there[there >= (LOW + far) // PAGE]]
    rows = next(rows for rows in range(1, 5000) if sum(-(-len(part) // rows) for part in parts) <= 100)
    firsts = np.concatenate([part[::rows] for part in parts])  # a gap begins a new row
    wanted = {}
    for address, clock in accesses.tolist():
        row = int(np.searchsorted(firsts, address // PAGE, "right")) - 1
        key = int(firsts[row]) * PAGE, (clock - CLOCK) // 19 * 19
        wanted[key] = wanted.get(key, 0) + 1
    assert {(r["page"], r["clock"]): r["accesses"] for r in found.rows["accesses"]} == wanted


def test_text_and_picture(tmp_path):
    data = forge.pack(trace(ACCESSES))
    done = run("dmat", "--plot", tmp_path / "d.png", data=data)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode() == f"{tmp_path}/d.png\n"  # which notebooks read
    assert (tmp_path / "d.png").read_bytes()[:4] == b"\x89PNG"
    assert "0x7f0000000000" in run("dmat", data=data).stdout.decode()


@pytest.mark.full
def test_invalid_options_and_maps_are_refused():
    data = forge.pack(trace(ACCESSES))
    done = run("dmat", "--page", 3, data=data)
    assert done.returncode == 2 and b"--page is not a power of two: 3" in done.stderr
    found = Answers(run("dmat", "--json", "--launch", 7, data=data).stdout)
    assert found.verdicts["accesses"] == ["no launch with the number 7 has accesses"]
    array = forge.probe_map("dmat", **FIELDS)
    wrong = forge.trace(array, forge.kernel(3, 4, "k", 1), forge.probed(0, 3, 4, 1, 32), forge.buffer(0, bytes(32)))
    done = run("dmat", data=forge.pack(wrong))
    assert b"map 'dmat' has no log of records, unlike the built-in probe's" in done.stderr


@pytest.mark.full
def test_pages_have_the_names_of_their_tensors(tmp_path):
    def tensor(id_, name, address, size, at=1):
        return forge.records.make("tensor", id=id_, at=at, thread=1, name=name, address=address, bytes=size,
                                  dtype="float32", shape=[size // 4])  # fmt: skip

    named = [tensor(1, "q", LOW, 2 * PAGE), tensor(2, "out", LOW + 900 * PAGE + 64, 64),
             tensor(3, "gone", LOW, 64), forge.records.make("tensor_end", id=3, at=2)]  # fmt: skip
    segment = trace([*ACCESSES, (LOW + 500 * PAGE, CLOCK)])
    segment[-1:-1] = named  # after the buffer: they come when they come
    found = ask("dmat", segment)
    cells = [(row["page"] - LOW, row.get("tensor")) for row in found.rows["accesses"]]
    owned = [(0, "q 2048 float32"), (PAGE, "q 2048 float32")]
    assert cells == [*owned, (500 * PAGE, None), (900 * PAGE, None)]  # "out" begins and ends within its page
    assert [(r["name"], r["accesses"], r["shape"]) for r in found.rows["tensors"]] == [("q", 4, "2048")]
    done = run("dmat", "--plot", tmp_path / "d.svg", data=forge.pack(segment))
    assert (done.returncode, done.stderr) == (0, b"") and (tmp_path / "d.svg").exists()
    more = trace([*ACCESSES, (LOW + PAGE, CLOCK + 7)])
    more[-1:-1] = [tensor(1, "few", LOW, PAGE), tensor(2, "most", LOW + PAGE, PAGE)]
    told = [(row["name"], row["accesses"], round(row["share"], 1)) for row in ask("dmat", more).rows["tensors"]]
    assert told == [("most", 3, 50.0), ("few", 2, 33.3)]


@pytest.mark.parametrize("span", [1 << 12, 1 << 22, 1 << 34, 1 << 51])
@pytest.mark.parametrize("most", [page_ranks.PAGES, 1 << 21])  # too few: they are sorted
def test_each_page_has_its_place_however_far_apart_they_are(span, most, monkeypatch):
    monkeypatch.setattr(page_ranks, "PAGES", most)
    random = np.random.default_rng(span)
    near = [random.integers(0, 1000, 500, np.uint64) + np.uint64(span * at // 8) for at in range(5)]
    pages, rank = page_ranks.rank_pages(lambda: iter(near), int(min(map(np.min, near))), int(max(map(np.max, near))))
    assert (pages == np.unique(near)).all()
    assert (rank(near[3]) == np.searchsorted(pages, near[3])).all()
