"""Several traces at once: other hosts, equal pids, one GPU or several, incomplete files."""

import json

import pytest

from gpt.stream import records
from tests.analyze.asked import Answers, ask, run
from tests.trace import forge

MS, EPOCH = 10**6, 10**18
APIS = ["cuLaunchKernel", "cuStreamSynchronize", "cuMemAlloc", "cuCtxSetCurrent", "cuCtxPushCurrent", "cuCtxPopCurrent"]
UUIDS = [f"GPU-{n:08x}" for n in range(8)]


def device(uuid, index=0):
    return records.make("device", index=index, name="H200", arch="sm_90", uuid=uuid, runs="sass")


def at(zero, ms):
    return zero + int(ms * MS)


def segment(*launches, zero=10**9, gpu=(), uuid=None, more=(), end=True, **header):
    """Return a process whose clock starts at `zero` ns: launches (ms, kernel), and GPU times (ms, ms, stream)."""
    found = [forge.api(number, name) for number, name in enumerate(APIS, 1)]
    found += [records.make("function", id=n, name=f"k{n}") for n in (1, 2)]
    found += [device(uuid)] if uuid else []
    rows = [forge.launch(at(zero, ms), MS, 1, kernel) for ms, kernel in launches]
    found += [forge.calls(rows, forge.LAUNCH)] if rows else []
    times = [(at(zero, ms), int(took * MS), at(zero, ms), stream, 1, 1, 1, 0) for ms, took, stream in gpu]
    found += [records.make("gpu_times", **forge.rows(times, forge.GPU_TIMES))] if times else []
    return forge.trace(*found, *more, end=end, monotonic=zero, **header)


def write(folder, *segments):
    paths = [folder / f"{number}.mp" for number in range(len(segments))]
    for path, one in zip(paths, segments, strict=True):
        path.write_bytes(forge.pack(one))
    return paths


def machines(count):
    """Return processes of `count` machines, started 1 ms apart, all with the same pid."""
    return [
        segment((10, 1), (20, 2), zero=10**9 * (n + 1), boot_id=f"b{n}", host=f"h{n}", realtime=EPOCH + n * MS,
                gpu=[(10, 5, 0), (20, 5, 0)], uuid=UUIDS[n])
        for n in range(count)
    ]  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("count", [2, 8])
def test_machines_are_joined_by_the_time_of_day(count, tmp_path):
    paths = write(tmp_path, *reversed(machines(count)))  # the first process comes last
    events = [json.loads(line) for line in run("events", "--json", *paths).stdout.splitlines()]
    assert [event["ts"] for event in events] == [10_000 + n * 1000 for n in range(count)] + [
        20_000 + n * 1000 for n in range(count)
    ]
    assert [event["host"] for event in events[:count]] == [f"h{n}" for n in range(count)]
    found = Answers(run("gaps", "--json", *paths).stdout)
    assert {(row["host"], row["pid"], row["total"]) for row in found.rows["gaps"]} == {
        (f"h{n}", 10, 9 * MS) for n in range(count)
    }
    assert [row["gpu"] for row in found.rows["idle"]] == [f"GPU {n}" for n in range(count)]
    # Times count from the start of the first process.
    chosen = Answers(run("summary", "--json", "--time", "0,0.0105", *paths).stdout)
    assert sorted(row["calls"] for row in chosen.rows["processes"]) == [0] * (count - 1) + [1]
    found = Answers(run("stages", "--json", *paths).stdout)
    assert len(found.rows["processes"]) == count and found.rows["processes"][0]["total"] == 11 * MS
    assert f"of {count} that launched: --pid chooses" in found.verdicts["stages"][0]


def test_processes_of_a_machine_keep_its_clock_when_the_time_of_day_is_set():
    """The second process began 5 ms after the first, when the time of day had been set back by an hour."""
    first = segment((10, 1))
    second = segment((10, 1), zero=10**9 + 5 * MS, pid=11, realtime=EPOCH - 3600 * 10**9)
    for order in ([first, second], [second, first]):
        lines = run("events", "--json", data=forge.pack(*order)).stdout.splitlines()
        events = [json.loads(line) for line in lines]
        assert [(event["ts"], event["pid"]) for event in events] == [(10_000, 10), (15_000, 11)]
        assert "host" not in events[0]


def test_machines_without_a_boot_id_share_no_clock():
    segments = machines(2)
    for one in segments:
        del one[0]["boot_id"]
    events = [json.loads(line) for line in run("events", "--json", data=forge.pack(*segments)).stdout.splitlines()]
    assert [event["ts"] for event in events] == [10_000, 11_000, 20_000, 21_000]


@pytest.mark.full
def test_times_are_since_the_first_process_whatever_is_chosen(tmp_path):
    """`--time` takes times as tables print them. In lines with notes, times count from the first process in them."""
    ranges = [records.make("range", id=1, type="push", thread=1, name="step", start=10**9 + 1009 * MS),
              records.make("range_end", id=1, thread=1, end=10**9 + 1011 * MS)]  # fmt: skip
    second = segment((10, 1), zero=2 * 10**9, pid=11, rank=1, more=ranges, gpu=[(12, 1, 0)], uuid=UUIDS[0])
    paths = write(tmp_path, second, segment((1, 1)))
    for chosen in ("--rank", "1"), ("--pid", "11"), ("--time", "1,2"), ("--rank", "1", "--time", "1.009,1.011"):
        (event,) = map(json.loads, run("events", "--json", *chosen, *paths).stdout.splitlines())
        assert event["ts"] == 1_010_000, chosen
        (longest,) = Answers(run("nvtx", "--json", *chosen, *paths).stdout).rows["longest"]
        assert longest["begin"] == 1009 * MS, chosen
        drawn = run("timeline", *chosen, *paths).stdout.splitlines()
        assert b"0ns is 1.009000 s for --time" in drawn
        lines = run("events", "--json", "--notes", *chosen, *paths).stdout
        read = run("timeline", data=lines).stdout.splitlines()
        assert [line for line in read if b"0ns is " not in line] == [line for line in drawn if b"0ns is " not in line]


def test_a_gpu_of_several_processes_is_idle_when_none_uses_it():
    """Two processes of a machine share a GPU, recognized by its UUID; a third has another one."""
    gpu = [(10, 4, 0), (20, 4, 0)], [(12, 4, 0), (30, 1, 0)], [(10, 1, 0), (31, 1, 0)]
    segments = [segment((9, 1), gpu=gpu[n], uuid=UUIDS[n // 2], pid=10 + n, realtime=EPOCH + n) for n in range(3)]
    found = ask("gaps", *segments)
    idle = [(r["gpu"], r["stream"], r.get("pid"), r["busy"], r["total"]) for r in found.rows["idle"]]
    assert idle == [
        ("GPU 0", "all processes", None, 11 * MS, 10 * MS),
        ("GPU 0", "all streams", 10, 8 * MS, 6 * MS),
        ("GPU 0", "all streams", 11, 5 * MS, 14 * MS),
        ("GPU 1", "all streams", 12, 2 * MS, 20 * MS),
    ]
    assert found.verdicts["idle"][0] == (
        "GPU 0: idle 47.6 % of the 21.0ms from the first to the last thing that ran on it, which began 10.0ms after "
        "the first of its processes did and ended 21.0ms after the last call did"
    )
    points = [(r["place"], r["source"], r["target"], r["took"]) for r in found.rows["switch_points"]]
    assert points == [
        ("GPU 0", "pid 10", "pid 11", 0),
        ("GPU 0", "pid 11", "pid 10", 4 * MS),
        ("GPU 0", "pid 10", "pid 11", 6 * MS),
    ]
    (back, forth) = sorted(found.rows["switches"], key=lambda row: row["count"])
    assert (back["count"], forth["count"], forth["total"], forth["longest"]) == (1, 2, 6 * MS, 6 * MS)
    assert found.verdicts["switches"][0] == (
        "'total', 'mean' and 'longest' are times: for a GPU, when it was idle between two processes"
    )


def test_one_process_with_several_devices():
    rows = [(10**9 + at * MS, 2 * MS, 5, 0, 1, 1, 1, 0, device) for at, device in ((1, 0), (2, 1), (8, 0), (9, 1))]
    layout = {**forge.GPU_TIMES, "device": "u32"}
    times = records.make("gpu_times", **forge.rows(rows, layout))
    found = ask("gaps", segment((1, 1), more=[device(UUIDS[0]), device(UUIDS[1], 1), times]))
    assert [(r["gpu"], r["busy"], r["total"]) for r in found.rows["idle"]] == [
        ("GPU 0", 4 * MS, 5 * MS), ("GPU 1", 4 * MS, 5 * MS),
    ]  # fmt: skip


def contexts(*calls):
    """Make calls about contexts (ms, name, context), in one thread."""
    rows = [(at(10**9, ms), MS, APIS.index(name) + 1, 0, context, 0) for ms, name, context in calls]
    return segment((1, 1), more=[forge.calls(rows, forge.OBJECT)])


def test_points_at_which_a_thread_goes_to_another_context():
    set_, push, pop = APIS[3:]
    calls = [(2, set_, 0xA), (4, set_, 0xA), (6, set_, 0xB), (8, push, 0xA), (10, push, 0xA), (12, pop, 0xA),
             (14, pop, 0xA), (16, set_, 0), (18, set_, 0xB), (20, pop, 0xB), (22, pop, 0xB)]  # fmt: skip
    found = ask("gaps", contexts(*calls)).rows["switch_points"]
    assert [(row["start"] // MS, row["source"], row["target"]) for row in found] == [
        (6, "0xa", "0xb"), (8, "0xb", "0xa"), (14, "0xa", "0xb"),
    ]  # fmt: skip
    assert {row["place"] for row in found} == {"thread 1"} and found[0]["took"] == MS


def test_a_wait_for_one_stream_leaves_work_of_others():
    launched = (1, 7), (2, 8), (10, 7), (20, 8), (40, 7)
    waits = [(at(10**9, ms), MS, 2, 0, 0, stream) for ms, stream in ((4, 7), (24, 8))]
    found = segment(
        more=[
            forge.calls([forge.launch(at(10**9, ms), MS, 1, 1, stream) for ms, stream in launched], forge.LAUNCH),
            forge.calls(waits, forge.OBJECT),
        ]
    )
    rows = {row["gap"]: row for row in ask("gaps", found).rows["gaps"]}
    assert "wait" not in rows  # at 5, stream 8 has work; at 25, stream 7
    waits = [(at(10**9, ms), MS, 2, 0, 0, stream) for ms, stream in ((4, 7), (6, 8))]
    rows = [forge.launch(at(10**9, ms), MS, 1, 1, stream) for ms, stream in ((1, 7), (2, 8), (20, 7))]
    found = segment(more=[forge.calls(rows, forge.LAUNCH), forge.calls(waits, forge.OBJECT)])
    assert {r["gap"]: r["total"] for r in ask("gaps", found).rows["gaps"]}["wait"] == 13 * MS


@pytest.mark.parametrize("name", ["summary", "events", "gaps", "stages"])
def test_one_bad_file_leaves_the_others_usable(name, tmp_path):
    whole = machines(4)
    paths = write(tmp_path, *whole)
    copy, torn, empty = (tmp_path / f"{word}.mp" for word in ("copy", "torn", "empty"))
    copy.write_bytes(paths[0].read_bytes())
    torn.write_bytes(paths[1].read_bytes()[:-30])
    empty.touch()
    paths[1].unlink()
    done = run(name, "--json", paths[0], paths[0], torn, empty, copy, *paths[2:])
    lines = done.stderr.decode().splitlines()
    assert done.returncode == 3 and len(lines) == 3, lines
    assert "torn.mp+0x" in lines[0] and lines[1].endswith("empty.mp: empty: no segment")
    assert lines[2] == f"gpt-analyze: warning: {copy}: process 10 is in {paths[0]} too, and counted once"
    if name == "events":
        assert len(done.stdout.splitlines()) == 8
        return
    found = Answers(done.stdout)
    answer, per_process = {"summary": ("processes", 1), "gaps": ("gaps", 1), "stages": ("processes", 1)}[name]
    assert len(found.rows[answer]) == 4 * per_process
    table = run(name, paths[0], torn, empty, copy, *paths[2:]).stdout.decode()
    assert "incomplete: " in table and "no end of process 10" in table


def test_a_trace_is_compared_with_its_copy(tmp_path):
    paths = write(tmp_path, machines(1)[0], machines(1)[0])
    done = run("diff", *paths)
    assert (done.returncode, done.stderr) == (0, b"")
