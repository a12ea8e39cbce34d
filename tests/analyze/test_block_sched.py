"""gpt-analyze block_sched on known blocks, compared with a scheduler that processes them one by one."""

import heapq
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt.analyze.lib.base import EMPTY
from gpt.analyze.lib.occupancy import make_occupancy
from gpt.analyze.lib.schedule import make_schedule
from gpt.stream import records
from gpt.trace.buffers import MapLayout, ProbedLaunch
from tests.analyze.asked import Answers, ask, run
from tests.analyze.blocks import BLOCK, BLOCKS, EPOCH, FIELDS, MAP, NAME, SLOT, saved, schedule, trace
from tests.tiers import examples, full
from tests.trace import forge

UNKNOWN = "not known: the trace of its process has no end"


def walked(blocks):
    """Return running and scheduling cycles and slots per SM, counted block by block."""
    found = {}
    for sm in sorted({sm for _, _, sm in blocks}):
        ended, running, scheduling, slots = [], 0, 0, 0
        for start, took in sorted((start, took) for start, took, of in blocks if of == sm):
            running += took
            if ended and ended[0] <= start:
                scheduling += start - heapq.heappop(ended)
            else:
                slots += 1
            heapq.heappush(ended, start + took)
        found[sm] = (running, scheduling, slots)
    return found


def test_cycles_are_those_of_a_first_in_first_out_scheduler():
    # SM 0: slots 0 (1000-1100, 1105-1155) and 1 (1000-1050, 1060-1110): 250 and 5 + 10; SM 9: 100 and 0
    found = ask("block_sched", trace(BLOCKS))
    (kernel,) = found.rows["kernels"]
    assert kernel == {"name": NAME, "launches": 1, "blocks": 5, "sms": 2, "slots": 2, "running": 175, "scheduling": 8,
                      "share": pytest.approx(100 * 7.5 / 182.5), "silent": 0, "clocks": 350}  # fmt: skip
    assert found.verdicts["kernels"] == ["No.block:5 Running:175 Scheduling:8(cycle)", "1 launch ran with probes"]
    sms = [(row["sm"], row["blocks"], row["slots"], row["running"], row["scheduling"]) for row in found.rows["sms"]]
    assert sms == [(0, 4, 2, 250, 15), (9, 1, 1, 100, 0)]
    blocks = [(r["sm"], r["slot"], r["block"], r["begin"], r["running"], r.get("scheduling"))
              for r in found.rows["blocks"]]  # fmt: skip
    assert blocks == [
        (0, 0, 0, 0, 100, None),
        (0, 1, 1, 0, 50, None),
        (0, 1, 2, 60, 50, 10),
        (0, 0, 3, 105, 50, 5),
        (9, 0, 4, 0, 100, None),
    ]


def test_a_record_a_block_says_what_records_of_its_warps_did():
    slot = np.dtype([("start", "<u8"), ("stop", "<u8"), ("end", "<u8"), ("sm", "<u8")])
    data = np.zeros(len(BLOCKS) + 1, slot)
    for number, (start, took, sm) in enumerate(BLOCKS):
        data[number] = (~np.uint64(start), start + took, EPOCH + (start + took) // 2, sm)
    fields = dict.fromkeys(("start", "stop", "end", "sm"), "u64")
    map_ = forge.probe_map("block_sched", type_="total", level="block", **fields)
    map_ |= {"min": ["start"], "max": ["stop"], "last": ["end", "sm"], "head": 0}
    segment = [records.make("function", id=4, name=NAME), map_, forge.kernel(3, 4, NAME, 1)]
    segment += [forge.probed(0, 3, 4, len(data), 96), forge.buffer(0, data.tobytes())]
    (found,) = ask("block_sched", forge.trace(*segment)).rows["kernels"]
    (wanted,) = ask("block_sched", trace(BLOCKS)).rows["kernels"]
    assert found == wanted | {"blocks": 6, "silent": 1}  # the last block saved nothing


@settings(max_examples=examples(300))
@given(st.lists(BLOCK, min_size=1, max_size=40), st.integers(1, 3))
def test_whatever_the_blocks_are_it_is_what_a_walk_finds(blocks, warps):
    found = schedule(blocks, warps)
    rows = zip(found.running.tolist(), found.scheduling.tolist(), found.slots.tolist(), strict=True)
    assert dict(zip(found.sms.tolist(), rows, strict=True)) == walked(blocks)
    for sm in range(len(found.sms)):
        for slot in range(found.slots[sm]):
            here = (found.which == sm) & (found.slot == slot)
            begin, end, gap = found.begin[here], found.end[here], found.gap[here]
            assert gap[0] == -1 and (gap[1:] == begin[1:] - end[:-1]).all() and (gap[1:] >= 0).all()
    assert found.slot.max() < found.slots.max() and sorted(found.block) == list(range(len(blocks)))


def test_times_across_sms_are_those_of_the_common_clock():
    """SM clocks are unrelated to each other; times in ns are comparable. Here two clocks are 1 ns."""
    blocks = [(start, 1000, sm) for sm in range(4) for start in range(0, 20000, 1100)]
    data = np.frombuffer(saved(blocks, 2), SLOT).copy()
    # The timer ticks every 32 ns.
    data["end"] = EPOCH + (data["start"] + data["elapsed"]) // 2 // 32 * 32 + 300 * data["sm"]
    data["start"] += data["sm"] * np.uint64(1 << 40)
    found = make_schedule(MapLayout(MAP).read(data.tobytes(), len(blocks), 64))
    assert found.ns_per_clock == pytest.approx(0.5, rel=0.01)
    assert found.began == pytest.approx(found.begin / 2 + 300 * found.which, abs=40)
    assert found.ended == pytest.approx(found.end / 2 + 300 * found.which, abs=40)
    assert found.began.min() == 0
    assert 32 <= found.bound <= 100


def test_a_short_launch_has_the_clock_of_its_device():
    """An H200's warps end within a few steps of the timer (32 ns), so their slope is off by a factor of up to 15."""
    rng = np.random.default_rng(1)
    for blocks, warps in (([(1000, 2000, 0)], 4), ([(1000 + 90 * sm, 7500, sm) for sm in range(96)], 4)):
        data = np.frombuffer(saved(blocks, warps), SLOT).copy()
        data["elapsed"] += rng.integers(0, 40, len(data), np.uint32)
        data["end"] = EPOCH + ((data["start"] + data["elapsed"]) / 1.98).astype(np.uint64) // 32 * 32
        read = MapLayout(MAP).read(data.tobytes(), len(blocks), 32 * warps)
        found = make_schedule(read, {"clock_hz": 1_980_000_000})
        span = (data["start"] + data["elapsed"]).max() - data["start"].min()
        assert found.ns_per_clock == pytest.approx(1 / 1.98, rel=0.02)
        assert found.ended.max() == pytest.approx(span / 1.98, abs=40)
        data["end"] = EPOCH  # all in one step
        one = make_schedule(MapLayout(MAP).read(data.tobytes(), len(blocks), 32 * warps), {"clock_hz": 1_980_000_000})
        assert one.ns_per_clock == pytest.approx(1 / 1.98)
        for clock in (None, 0, 1, (1 << 64) - 1):  # nonsense values are rejected
            make_schedule(read, {"clock_hz": clock})


def test_a_long_launch_has_its_own_clock():
    blocks = [(start, 1000, sm) for sm in range(4) for start in range(0, 20000, 1100)]
    read = MapLayout(MAP).read(saved(blocks, 2), len(blocks), 64)
    assert make_schedule(read, {"clock_hz": 1_000_000_000}).ns_per_clock == pytest.approx(0.5, rel=0.01)


@pytest.mark.parametrize("end", [0, 10**9])
def test_times_outside_the_clock_are_omitted(end):
    data = np.frombuffer(saved(BLOCKS), SLOT).copy()
    data["end"] = np.arange(len(data)) * np.uint64(end)
    found = [records.make("function", id=4, name=NAME), MAP, forge.kernel(3, 4, NAME, 1)]
    found += [forge.probed(0, 3, 4, 5, 32), forge.buffer(0, data.tobytes())]
    answers = ask("block_sched", forge.trace(*found))
    assert "span" not in answers.rows["launches"][0] and "began" not in answers.rows["blocks"][0]
    assert answers.rows["kernels"][0]["running"] == 175
    assert "no times: its warps' time stamps fit no single clock rate" in answers.verdicts["sms"]


def test_warps_that_saved_nothing_do_not_count():
    data = np.frombuffer(saved(BLOCKS, 2), SLOT).copy().reshape(5, 2)
    data[0, 0] = 0  # the block's other warp began one clock later
    data[3] = 0
    data["count"][1, 1] = 3  # divergent groups: the last one wrote the record
    found = make_schedule(MapLayout(MAP).read(data.tobytes(), 5, 64))
    assert found.silent == 1 and sorted(found.block) == [0, 1, 2, 4]
    assert found.running.tolist() == [199, 100]
    silent = [MAP, forge.kernel(3, 4, NAME, 1), forge.probed(0, 3, 4, 5, 64), forge.buffer(0, bytes(data.nbytes))]
    answers = ask("block_sched", forge.trace(*silent))
    (row,) = answers.rows["kernels"]
    assert (row["blocks"], row["silent"], row["running"], row["sms"]) == (5, 5, 0, 0)
    assert answers.verdicts["kernels"][0] == "No.block:5 Running:0 Scheduling:0(cycle)"


def test_launches_add_up_and_the_longest_is_shown():
    longer = [(start, 2 * took, sm) for start, took, sm in BLOCKS]
    first, second = trace(BLOCKS, longer, BLOCKS), trace(BLOCKS, name="_Z1kv", pid=11, first=40)
    found = ask("block_sched", first, second)
    assert [(r["name"], r["launches"], r["blocks"]) for r in found.rows["kernels"]] == [(NAME, 3, 15), ("_Z1kv", 1, 5)]
    launches = [(r["launch"], r["kernel"], r["pid"], r["id"], r["stream"]) for r in found.rows["launches"]]
    assert launches == [(1, NAME, 10, 0, 7), (2, NAME, 10, 1, 7), (3, NAME, 10, 2, 7), (4, "_Z1kv", 11, 40, 7)]
    assert found.rows["launches"][0]["start"] == EPOCH + 1000
    assert [(r["blocks"], r["threads"], r["sms"], r["running"]) for r in found.rows["launches"]][1:3] == [
        (5, 32, 2, 350),
        (5, 32, 2, 175),
    ]
    text = run("block_sched", data=forge.pack(trace(*[BLOCKS] * 12))).stdout.decode()
    assert "and 2 more launches: 10 blocks" in text.splitlines()
    aligned = "SMs are aligned within 10ns: step 2ns, drift 8ns"
    assert found.verdicts["sms"] == ["launch 2, the longest: --launch shows another", aligned]
    assert [row["running"] for row in found.rows["blocks"]][:1] == [200]
    fourth = ask("block_sched", first, second, args=("--launch", 4))
    assert fourth.verdicts["sms"][0] == "launch 4" and fourth.rows["blocks"][0]["running"] == 100


def test_a_stream_keeps_what_others_use():
    found = ask("block_sched", trace(BLOCKS))
    assert found.others == ["header", "function", "map", "kernel", "probed", "end"]


def test_unprobed_launches_and_lost_data_are_reported():
    more = [
        records.make("function", id=8, name="_Z1kv"),
        *(
            records.make("unprobed", function=8, launches=n, reason=reason)
            for n, reason in ((5, "no PTX"), (1, "late"))
        ),
        records.make("unprobed", function=4, launches=2, reason="no PTX"),
        forge.launches({4: 9, 8: 10, 77: 3}),
        *(forge.probed(number, 3, 4, 5, 32) for number in range(1, 4)),
        forge.buffer(1, bytes(5 * 32), lost="the disk is full"),
        forge.buffer(2, bytes(5 * 32), path="nowhere"),
    ]
    segment = trace(BLOCKS)
    found = ask("block_sched", [*segment[:-1], *more])  # no end record
    assert found.verdicts["kernels"][1:] == [
        f"4 launches ran with probes, 18 without: {UNKNOWN} (10), no PTX (7), late (1)",
        "1 launch lost what it saved: the disk is full",
        "1 launch lost what it saved: nowhere: cannot be found from standard input",
        "1 launch lost what it saved: the trace ends before it was written",
    ]
    assert [(row["kernel"], row["reason"], row["launches"]) for row in found.rows["unprobed"]] == [
        ("_Z1kv", "no PTX", 5),
        ("_Z1kv", UNKNOWN, 4),
        ("#77", UNKNOWN, 3),
        (NAME, UNKNOWN, 3),
        (NAME, "no PTX", 2),
        ("_Z1kv", "late", 1),
    ]


def test_buffers_next_to_the_trace(tmp_path):
    data = saved(BLOCKS)
    (tmp_path / "t.mp.buffers").write_bytes(b"x" * 999 + data)
    segment = [MAP, forge.kernel(3, 4, NAME, 1), forge.probed(0, 3, 4, 5, 32)]
    segment.append(forge.buffer(0, data, path="t.mp.buffers", offset=999))
    (tmp_path / "t.mp").write_bytes(forge.pack(forge.trace(*segment)))
    done = run("block_sched", "--json", tmp_path / "t.mp")
    assert (done.returncode, done.stderr) == (0, b"")
    assert Answers(done.stdout).rows["kernels"][0]["running"] == 175


@pytest.mark.parametrize(
    ("segment", "fact"),
    [
        ([forge.launches({1: 2})], "no map 'block_sched' in the trace: 'gpt-hook run -p block_sched' records one"),
        ([forge.probe_map("other", n="u64")], "no map 'block_sched' in the trace: 'gpt-hook run -p block_sched'"),
        ([MAP, records.make("unprobed", function=1, launches=2, reason="no PTX")], "no launch has a buffer of map"),
    ],
)
def test_trace_without_the_map(segment, fact):
    done = run("block_sched", data=forge.pack(forge.trace(*segment)))
    assert done.returncode == 1 and done.stderr.decode().startswith(f"gpt-analyze: error: {fact}")
    assert len(done.stderr.splitlines()) == 1
    assert (b"no PTX" in done.stdout) == (segment[0] is MAP)


def test_the_reason_why_no_launch_has_a_buffer_is_reported():
    lost = forge.buffer(0, bytes(32), lost="the disk is full")
    segment = forge.trace(MAP, forge.kernel(3, 4, NAME, 1), forge.probed(0, 3, 4, 1, 1), lost)
    done = run("block_sched", data=forge.pack(segment))
    assert done.returncode == 1
    assert done.stderr.decode() == (
        "gpt-analyze: error: no launch has a buffer of map 'block_sched'; 1 launch ran with probes; "
        "1 launch lost what it saved: the disk is full\n"
    )


@pytest.mark.parametrize(
    ("map_", "fact"),
    [
        (forge.probe_map("block_sched", start="u64", end="u64", elapsed="u32"), "unsigned field 'sm'"),
        (forge.probe_map("block_sched", **{**FIELDS, "elapsed": "i32"}), "unsigned field 'elapsed'"),
        (forge.probe_map("block_sched", capacity=0, **FIELDS), "slot for each unit"),
        (forge.probe_map("block_sched", type_="log", **FIELDS), "slot for each unit"),
    ],
)
def test_different_map_of_the_same_name(map_, fact):
    segment = forge.trace(map_, forge.kernel(3, 4, NAME, 1), forge.probed(0, 3, 4, 1, 1), forge.buffer(0, b""))
    done = run("block_sched", data=forge.pack(segment))
    assert done.returncode == 1
    assert done.stderr.decode() == (
        f"gpt-analyze: error: <stdin>: map 'block_sched' has no {fact}, unlike the built-in probe's\n"
    )


def test_text_markdown_and_csv():
    data = forge.pack(trace(BLOCKS))
    env = {key: value for key, value in os.environ.items() if key != "COLUMNS"}
    text = run("block_sched", data=data, env=env).stdout.decode()
    assert text.replace("\n", "").isprintable() and max(map(len, text.splitlines())) <= 80
    lines = text.splitlines()
    assert lines[0].split() == ["kernel", "launches", "blocks", "SMs", "slots", "running", "scheduling", "share"]
    assert lines[2] == "No.block:5 Running:175 Scheduling:8(cycle)"
    assert "woven" not in text
    wide = run("block_sched", data=data, env={**env, "COLUMNS": "160"}).stdout.decode()
    assert "matmul<float>(float*, float const*, int)" in wide and "time" in wide
    markdown = run("block_sched", "--format", "md", data=data).stdout.decode()
    assert len(markdown) <= 8000 and "No.block:5 Running:175 Scheduling:8\\(cycle\\)" in markdown
    table = run("block_sched", "--format", "csv", data=data).stdout.decode()
    assert "0,0,3,105,50,5," in table and f"{NAME},1,5,2,2,175,8," in table


@pytest.mark.parametrize("form", ["png", full("svg")])
def test_a_plot(tmp_path, form):
    pytest.importorskip("matplotlib")
    path = tmp_path / f"plot.{form}"
    done = run("block_sched", "--plot", path, data=forge.pack(trace(BLOCKS, name="_Z1kv$\x1b\n")))
    assert (done.returncode, done.stderr) == (0, b"")
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG" if form == "png" else b"<?xml") and len(data) > 5000
    assert b"No.block:5" in done.stdout


@pytest.mark.full
def test_bars_narrower_than_a_pixel_are_all_there(tmp_path):
    """Blocks run for a third of the time, which is drawn as a light color. It used to be drawn as a pattern of bars and
    false gaps.
    """
    pyplot = pytest.importorskip("matplotlib.pyplot")
    blocks = [(93 * number, 31, 0) for number in range(5000)]
    done = run("block_sched", "--plot", tmp_path / "p.png", data=forge.pack(trace(blocks)))
    assert done.returncode == 0
    row = pyplot.imread(tmp_path / "p.png")[210, 200:1400, :3].min(axis=1)  # the only SM's row
    assert row.max() < 0.99


@pytest.mark.full
def test_plots_that_cannot_be(tmp_path):
    pytest.importorskip("matplotlib")
    data = forge.pack(trace(BLOCKS))
    for path, status, fact in (
        ("plot.pdf", 2, "plot.pdf: the name of a plot ends in .png or .svg"),
        ("absent/plot.png", 4, "absent/plot.png: No such file or directory"),
    ):
        done = run("block_sched", "--plot", path, data=data, cwd=tmp_path)
        assert (done.returncode, done.stderr.decode()) == (status, f"gpt-analyze: error: {fact}\n")
    done = run("block_sched", "--plot", tmp_path / "p.png", data=forge.pack(forge.trace(MAP)))
    assert done.returncode == 1 and not (tmp_path / "p.png").exists()


def test_without_matplotlib_it_says_what_to_install(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['matplotlib'] = None\n")
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = run("block_sched", "--plot", "p.png", data=forge.pack(trace(BLOCKS)), cwd=tmp_path, env=env)
    assert (done.returncode, done.stdout) == (4, b"")
    assert b" -m pip install matplotlib" in done.stderr


@pytest.mark.full
def test_a_hundred_thousand_blocks(tmp_path):
    blocks, warps = 100_000, 4
    number = np.arange(blocks, dtype=np.uint64)
    data = np.zeros((blocks, warps), SLOT)
    data["count"] = 1
    data["sm"] = (number % 132)[:, None]
    data["start"] = (number // 132 * 1100 + (number % 132 << np.uint64(32)))[:, None]
    data["elapsed"] = 1000
    data["end"] = EPOCH + (number // 132 * 1100 + 1000)[:, None]
    segment = [MAP, forge.kernel(3, 4, NAME, 1), forge.probed(0, 3, 4, blocks, 32 * warps)]
    (tmp_path / "t.mp").write_bytes(forge.pack(forge.trace(*segment, forge.buffer(0, data.tobytes()))))
    before = os.times()
    done = run("block_sched", tmp_path / "t.mp")
    after = os.times()
    assert done.returncode == 0 and "No.block:100000 Running:757576 Scheduling:75658(cycle)" in done.stdout.decode()
    used = sum(after[2:4]) - sum(before[2:4])
    assert used < 2, f"{used:.1f} s of CPU time"


WORDS = st.sampled_from([0, 1, 2, 31, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 63, (1 << 64) - 1])


@settings(max_examples=examples(60))
@given(st.lists(st.tuples(*[WORDS] * 5), min_size=6, max_size=6))
def test_arbitrary_numbers_cause_no_traceback(rows):
    data = np.array([(*row[:3], row[3] & 0xFFFFFFFF, row[4] & 0xFFFFFFFF) for row in rows], SLOT)
    with np.errstate(all="raise"):
        found = make_schedule(MapLayout(MAP).read(data.tobytes(), 3, 64))
    if found:
        assert (found.end > found.begin).all() and (found.gap >= -1).all() and np.isfinite(found.ended).all()
        with np.errstate(all="raise"):
            row = make_occupancy(
                found, ProbedLaunch(*[0] * 7, (3, 1, 1), (64, 1, 1), b""), {"sms": 2, "warps": 64}
            ).row()
        assert all(value is None or value >= 0 for value in row)


@pytest.mark.full
def test_numbers_that_are_too_large_are_shown(tmp_path):
    rows = [(1, (1 << 64) - 1, (1 << 64) - 1, (1 << 32) - 1, 5), (1, 0, 0, 1, 5)]
    data = np.array(rows, SLOT).tobytes()
    segment = forge.trace(MAP, forge.kernel(3, 4, NAME, 1), forge.probed(0, 3, 4, 2, 32), forge.buffer(0, data))
    for form in ([], ["--json"], ["--format", "md"], ["--format", "csv"]):
        done = run("block_sched", *form, data=forge.pack(segment))
        assert (done.returncode, done.stderr) == (0, b"")


SAMPLE = forge.pack([*trace(BLOCKS)[:-1], forge.launches({4: 2}), *trace(BLOCKS)[-1:]])


@pytest.mark.full
@settings(max_examples=examples(15))
@given(st.lists(st.tuples(st.integers(0, len(SAMPLE) - 1), st.binary(min_size=1, max_size=8)), max_size=4))
def test_any_input_gives_an_answer_or_one_error(changes):
    data = bytearray(SAMPLE)
    for at, value in changes:
        data[at : at + len(value)] = value
    for name in ("block_sched", "gmem_bytes"):
        done = run(name, "--json", data=bytes(data))
        said = [line for line in done.stderr.splitlines() if EMPTY.encode() not in line]
        assert done.returncode in (0, 1, 3) and len(said) == (done.returncode > 0), done.stderr
        assert b"internal" not in done.stderr and b"Warning" not in done.stderr
