"""gpt-analyze nvtx on hand-made ranges and calls."""

import pytest

from gpt.stream import records
from tests.analyze.asked import answers, ask, run
from tests.trace import forge

APIS = ["cuLaunchKernel", "cuMemcpyHtoD", "cuInit"]
MS, ZERO = 10**6, 10**9


def made(*calls, more=(), gpu=(), **header):
    """Return calls and GPU times. Calls are given as (thread, name, ms, bytes) and take 0.1 ms; GPU times as (thread,
    ms of the call, ms).
    """
    found = [forge.api(number, name) for number, name in enumerate(APIS, 1)]
    for thread, name, start, *size in calls:
        at, api = ZERO + int(start * MS), APIS.index(name) + 1
        if name == "cuLaunchKernel":
            found.append(forge.calls([forge.launch(at, MS // 10, api, 1)], forge.LAUNCH, thread))
        else:
            found.append(forge.calls([(at, MS // 10, api, 0, 0, 0, *(size or [0]), 0)], forge.MEMORY, thread))
    if gpu:
        at = [(ZERO + 10**12, int(took * MS), ZERO + int(call * MS), 0, 1, 1, thread, 0) for thread, call, took in gpu]
        found.append(records.make("gpu_times", **forge.rows(at, forge.GPU_TIMES)))
    return forge.trace(*found, *more, **header)


def ranged(*ranges):
    """Return ranges (name, begin, end or None, thread, type, domain), in ms."""
    found = []
    for number, (name, begin, end, *more) in enumerate(ranges, 1):
        thread, type_, domain = (*more, *(1, "push", None)[len(more) :])
        keys = {"type": type_, "thread": thread, "domain": domain, "name": name, "start": ZERO + int(begin * MS)}
        found.append(records.make("range", id=None if type_ == "mark" else number, **keys))
        if end is not None:
            found.append(records.make("range_end", id=number, thread=thread, end=ZERO + int(end * MS)))
    return found


def picked(row, *names):
    return tuple(row.get(name) for name in names)


def by_name(found, name="ranges"):
    return {(row["name"].strip(), row.get("domain"), row.get("type")): row for row in found.rows[name]}


LAUNCHES = [(1, "cuLaunchKernel", at) for at in (1, 3, 5, 12)]


def test_activity_counts_for_the_ranges_of_its_thread():
    calls = [*LAUNCHES, (1, "cuMemcpyHtoD", 6, 4096), (2, "cuLaunchKernel", 4)]
    ranges = ranged(("step", 0, 10), ("fwd", 2, 4), ("fwd", 5, 7), ("step", 11, 13))
    found = answers(
        "nvtx", made(*calls, more=ranges, gpu=[(1, 1, 2), (1, 3, 8), (1, 12, 1), (2, 4, 100), (0, -900, 7)])
    )
    rows = {row["name"]: row for row in found.rows["ranges"]}
    sums = ("count", "total", "mean", "longest", "calls", "launches", "gpu_time", "copied")
    assert picked(rows["step"], *sums) == (2, 12 * MS, 6 * MS, 10 * MS, 5, 4, 11 * MS, 4096)
    assert picked(rows["fwd"], *sums) == (2, 4 * MS, 2 * MS, 2 * MS, 3, 2, 8 * MS, 4096)
    nested = [picked(row, "name", "path", "count", "total", "own", "share") for row in found.rows["nested"]]
    assert nested == [
        ("step", "step", 2, 12 * MS, 8 * MS, None),
        ("  fwd", "step/fwd", 2, 4 * MS, 4 * MS, pytest.approx(100 / 3)),
    ]
    assert found.verdicts["ranges"] == ["80.0 % of 5 launches within pushed ranges"]
    assert picked(found.rows["longest"][0], "name", "depth", "time", "launches") == (
        "step", 0, 10 * MS, 3,
    )  # fmt: skip


def test_pauses_of_recording_are_reported():
    off = [records.make("recording", on=on, at=ZERO + at * MS) for at, on in ((6, False), (11, True))]
    found = ask("nvtx", made(*LAUNCHES, more=[*ranged(("step", 0, 20)), *off], monotonic=ZERO))
    assert found.rows["ranges"][0]["total"] == 20 * MS
    assert "recording was off for 5.00ms: only the times of ranges include that" in found.verdicts["ranges"]


def test_started_range_belongs_to_no_thread():
    calls = [*LAUNCHES, (2, "cuLaunchKernel", 4), (2, "cuLaunchKernel", 8)]
    found = answers("nvtx", made(*calls, more=ranged(("all", 2, 9, 3, "start"), ("all", 2, 9, 1))))
    rows = by_name(found)
    assert picked(rows["all", None, "start"], "launches", "count") == (4, 1)
    assert picked(rows["all", None, "push"], "launches", "count") == (2, 1)
    assert "nested" not in found.rows
    assert found.verdicts["ranges"][-1].startswith("no GPU times: 'gpt-hook run --gpu-time'")


def test_overlapping_and_recursive_ranges_count_launches_once():
    overlapping = ranged(("a", 0, 4, 1, "start"), ("a", 2, 10, 1, "start"), ("f", 0, 10), ("f", 1, 9), ("f", 2, 8))
    found = answers("nvtx", made(*LAUNCHES, more=overlapping))
    rows = by_name(found)
    assert picked(rows["a", None, "start"], "total", "launches") == (12 * MS, 3)
    assert picked(rows["f", None, "push"], "total", "launches") == (24 * MS, 3)
    nested = [picked(row, "path", "own", "launches") for row in found.rows["nested"]]
    assert nested == [("f", 2 * MS, 3), ("f/f", 2 * MS, 3), ("f/f/f", 6 * MS, 2)]


def test_domains_are_apart_and_marks_are_counted():
    ranges = ranged(("x", 0, 9), ("x", 1, 3, 1, "push", "lib"), ("m", 5, None, 1, "mark"), ("m", 8, None, 1, "mark"))
    found = answers("nvtx", made(*LAUNCHES, more=ranges))
    assert {name: row["total"] for name, row in by_name(found).items()} == {
        ("x", None, "push"): 9 * MS, ("x", "lib", "push"): 2 * MS,
    }  # fmt: skip
    assert [row["path"] for row in found.rows["nested"]] == ["x", "x/lib: x"]
    (mark,) = found.rows["marks"]
    assert picked(mark, "name", "count", "first", "last") == ("m", 2, ZERO + 5 * MS, ZERO + 8 * MS)


def test_names_that_differ_in_numbers_are_one():
    ranges = ranged(
        ("step 0", 0, 4), ("conv2d", 1, 2), ("step 17", 4.5, 10), ("conv2d", 5, 6), ("step 0", 6, 7),
        ("step 0", 11, 13, 1, "push", "lib"), ("tick 1", 2, None, 1, "mark"), ("tick 2", 9, None, 1, "mark"),
    )  # fmt: skip
    found = answers("nvtx", made(*LAUNCHES, more=ranges))
    rows = by_name(found)
    assert {name: picked(row, "count", "total", "launches") for name, row in rows.items()} == {
        ("step N", None, "push"): (3, int(10.5 * MS), 3), ("conv2d", None, "push"): (2, 2 * MS, 2),
        ("step 0", "lib", "push"): (1, 2 * MS, 1),
    }  # fmt: skip
    nested = {row["path"]: picked(row, "count", "launches") for row in found.rows["nested"]}
    assert nested == {
        "step N": (2, 3), "step N/conv2d": (2, 2), "step N/step N": (1, 0), "lib: step 0": (1, 1),
    }  # fmt: skip
    assert [row["name"] for row in found.rows["longest"]][:3] == ["step 17", "step 0", "step 0"]
    assert [picked(row, "name", "count", "first", "last") for row in found.rows["marks"]] == [
        ("tick N", 2, ZERO + 2 * MS, ZERO + 9 * MS)
    ]
    two = answers("nvtx", made(more=ranged(("step 1", 0, 1))), made(more=ranged(("step 2", 0, 1)), pid=11))
    assert [picked(row, "name", "count") for row in two.rows["ranges"]] == [("step N", 2)]


def test_ranges_that_are_open_or_end_strangely():
    ends = [records.make("range_end", id=77, thread=1, end=ZERO)]  # the range began before a fork
    ranges = [*ranged(("open", 2, None), ("back", 5, 3)), *ends]
    found = answers("nvtx", made(*LAUNCHES, more=ranges, end=False))
    rows = by_name(found)
    assert picked(rows["open", None, "push"], "open", "total", "launches") == (1, int(10.1 * MS), 3)
    assert picked(rows["back", None, "push"], "open", "total", "launches") == (0, 0, 0)
    assert "1 range had not ended: counted until the last record" in found.verdicts["ranges"]


def test_nothing_is_nested_in_a_range_that_is_open():
    """NCCL's traces have such ranges if NVTX's payload extension isn't recorded, because NCCL pops its ranges through
    the extension.
    """
    ranges = ranged(
        ("init", 0, None, 1, "push", "NCCL"), ("step", 2, 9), ("fwd", 3, 5), ("lost", 4, None), ("bwd", 6, 8),
        ("step", 11, None), ("fwd", 12, 13),
    )  # fmt: skip
    found = answers("nvtx", made(*LAUNCHES, more=ranges))
    assert [picked(row, "path", "count", "total", "own", "share") for row in found.rows["nested"]] == [
        ("(open) NCCL: init", 1, 13 * MS, 13 * MS, None),
        ("(open) lost", 1, 9 * MS, 9 * MS, None),
        ("step", 1, 7 * MS, 3 * MS, None),
        ("step/bwd", 1, 2 * MS, 2 * MS, pytest.approx(200 / 7)),
        ("step/fwd", 1, 2 * MS, 2 * MS, pytest.approx(200 / 7)),
        ("(open) step", 1, 2 * MS, 2 * MS, None),
        ("fwd", 1, MS, MS, None),
    ]
    depths = {(row["name"], row["begin"] - ZERO): row["depth"] for row in found.rows["longest"]}
    assert depths == {("init", 0): 0, ("lost", 4 * MS): 0, ("step", 2 * MS): 0, ("fwd", 3 * MS): 1, ("bwd", 6 * MS): 1,
                      ("step", 11 * MS): 0, ("fwd", 12 * MS): 0}  # fmt: skip


def test_ranges_of_domains_may_cross():
    found = answers("nvtx", made(more=ranged(("a", 0, 6), ("b", 2, 9, 1, "push", "d"), ("c", 3, 5))))
    assert [picked(row, "path", "own") for row in found.rows["nested"]] == [
        ("d: b", 5 * MS), ("d: b/c", 2 * MS), ("a", 6 * MS),
    ]  # fmt: skip


def test_only_what_is_chosen(tmp_path):
    calls = [*LAUNCHES, (2, "cuLaunchKernel", 4)]
    segment = made(*calls, more=ranged(("one", 0, 9), ("two", 0, 9, 2)))
    (row,) = ask("nvtx", segment, args=("--tid", "2", "--plot", tmp_path / "n.png")).rows["ranges"]
    assert picked(row, "name", "launches") == ("two", 1)
    assert (tmp_path / "n.png").read_bytes()[:4] == b"\x89PNG"


def test_a_trace_without_ranges():
    done = run("nvtx", data=forge.pack(made(*LAUNCHES)))
    assert done.returncode == 1 and b"no NVTX range in the trace: the program sets none" in done.stderr


def test_arbitrary_ranges_cause_no_traceback():
    most = (1 << 64) - 1
    wild = [records.make("range", id=n, type="push", thread=n % 2, name="x" * 5000 * (n % 3), start=start)
            for n, start in enumerate((0, 1, 1 << 63, most, most, 5, 5))]  # fmt: skip
    ends = [records.make("range_end", id=n, thread=0, end=end) for n, end in enumerate((most, 0, 1, most, 7, 7))]
    segment = made(*LAUNCHES, more=[*wild, *ends, *wild[:2]], gpu=[(1, 1, 5)])
    for form in ((), ("--format", "md"), ("--format", "csv")):
        done = run("nvtx", *form, data=forge.pack(segment))
        assert (done.returncode, done.stderr) == (0, b"")
        assert form != ("--format", "md") or len(done.stdout) <= 8000


def test_a_blank_name_is_reported():
    found = answers("nvtx", made(*LAUNCHES, more=ranged(("", 0, 4), (" \n", 5, 6), ("", 7, None, 1, "mark"))))
    assert [(row["name"], row["count"]) for row in found.rows["ranges"]] == [("(no name)", 2)]
    assert [row["name"] for row in found.rows["marks"]] == ["(no name)"]
