"""gpt-analyze diff: two traces whose differences are known."""

import os
import random

import pytest

from gpt import records
from gpt.analyze.diff import Side, tell_difference
from tests.analyze.asked import Answers, run
from tests.trace import forge

NAMES = ("cuMemAlloc", "cuMemcpyHtoD", "cuLaunchKernel", "cuStreamSynchronize", "cuInit")
APIS = [forge.api(number, name) for number, name in enumerate(NAMES, 1)]
ALLOC, COPY, LAUNCH, SYNC, INIT = range(1, 6)


def side(count, mean, deviation=0.0, size=0):
    return Side(count, count, count * mean, deviation**2, size)


@pytest.mark.parametrize(
    ("a", "b", "differs"),
    [
        (side(0, 0), side(1, 5), "only in B"),
        (side(1, 5), side(0, 0), "only in A"),
        (side(100, 50, 10), side(101, 50, 10), "count"),  # one more is never noise
        (side(100, 50, 10), side(100, 50, 10, size=1), "bytes"),
        (side(100, 50, 10), side(100, 54, 10), "noise"),  # 2.8 standard errors
        (side(100, 50, 10), side(100, 55, 10), "time"),  # 3.5
        (side(10**6, 50, 10), side(10**6, 50.5, 10), "noise"),  # 1 %: of runs on another day
        (side(10**6, 50, 10), side(10**6, 52, 10), "time"),
        (side(2, 50, 1), side(2, 500, 1), "too few"),
        (side(100, 50), side(100, 50), "nothing"),
        (Side(7, 0, 0, 0, 0), Side(7, 0, 0, 0, 0), "nothing"),  # only counted
    ],
)
def test_what_is_a_difference(a, b, differs):
    assert tell_difference(a, b) == differs


def trace(seed, copies, sync, kernels, **header):
    """Noisy calls, copies of 100 bytes, waits of `sync` ns, and GPU times of kernels: (count, ns)."""
    noise = random.Random(seed)
    plain = [(10 * n, round(noise.gauss(1000, 100)), ALLOC, 0) for n in range(1, 200)]
    plain += [(10 * n, round(noise.gauss(sync, 100)), SYNC, 0) for n in range(1, 200)]
    moved = [(10 * n, 50, COPY, 0, 0, 0, 100, 0) for n in range(1, copies + 1)]
    times = [(7, round(noise.gauss(ns, 5)), LAUNCH, function) for function, (count, ns) in kernels.items()
             for _ in range(count)]  # fmt: skip
    names = [records.make("function", id=n, name=f"_Z2k{n}v") for n in kernels]
    counted = forge.launches({function: count for function, (count, _) in kernels.items()})
    return forge.trace(*APIS, *names, forge.calls(plain), forge.calls(moved, forge.MEMORY),
                       forge.gpu_times(times), counted, **header)  # fmt: skip


@pytest.fixture
def two(tmp_path):
    before = trace(1, 10, 3000, {1: (50, 200), 2: (50, 400), 3: (5, 100)}, pid=1, argv=["before"])
    after = trace(2, 11, 3500, {1: (50, 200), 2: (50, 300), 4: (5, 100)}, pid=2, argv=["after"])
    for name, segment in (("a.mp", before), ("b.mp", after)):
        (tmp_path / name).write_bytes(forge.pack(segment))
    return tmp_path / "a.mp", tmp_path / "b.mp"


def test_what_changed_most_comes_first(two):
    done = run("diff", "--json", *two)
    assert (done.returncode, done.stderr) == (0, b"")
    found = Answers(done.stdout)
    rows = [(r["name"], r["differs"], r["count_a"], r["count_b"]) for r in found.rows["functions"]]
    assert rows == [("cuStreamSynchronize", "time", 199, 199), ("cuMemcpyHtoD", "count", 10, 11),
                    ("cuMemAlloc", "noise", 199, 199)]  # fmt: skip
    first, copies, _ = found.rows["functions"]
    assert first["change"] == first["total_b"] - first["total_a"] == pytest.approx(199 * 500, rel=0.05)
    assert (copies["bytes_a"], copies["bytes_b"], copies["change"]) == (1000, 1100, 50)
    rows = [(r["name"], r["differs"], r.get("mean_a"), r.get("mean_b")) for r in found.rows["kernels"]]
    assert [row[:2] for row in rows] == [("_Z2k2v", "time"), ("_Z2k3v", "only in A"), ("_Z2k4v", "only in B"),
                                         ("_Z2k1v", "noise")] or rows[1][0] == "_Z2k4v"  # fmt: skip
    assert rows[0][2:] == (pytest.approx(400, abs=5), pytest.approx(300, abs=5))
    verdict = found.verdicts["functions"]
    assert verdict[0].startswith("A: before: 408 calls") and verdict[1].startswith("B: after: 409 calls")
    assert verdict[2] == "functions: 1 differ in count, 1 differ in time; 1 in what may be noise"
    assert found.verdicts["kernels"][0] == "kernels: 1 only in A, 1 only in B, 1 differ in time; 1 in what may be noise"


@pytest.mark.full
def test_tables_are_whole_in_80_columns_and_in_markdown(two):
    for width in ("80", "160"):
        text = run("diff", *two, env={**os.environ, "COLUMNS": width}).stdout.decode()
        assert max(map(len, text.splitlines())) <= int(width)
        assert ("no room for bytes A, bytes B" in text) == (width == "80")
    text = run("diff", "--format", "md", *two).stdout.decode()
    assert "| `cuStreamSynchronize` | `time` | 199 | 199 |" in text and len(text) <= 8000


def test_children_are_of_the_trace_that_names_them(tmp_path):
    child = records.make("child", pid=5, how="fork", path="a.mp.5")
    call = forge.calls([(5, 10, INIT, 0)])
    for name, segment in (
        ("a.mp", forge.trace(*APIS, child, call, pid=1)),
        ("a.mp.5", forge.trace(*APIS, call, call, pid=5)),
        ("b.mp", forge.trace(*APIS, call, pid=2)),
    ):
        (tmp_path / name).write_bytes(forge.pack(segment))
    (row,) = Answers(run("diff", "--json", tmp_path / "a.mp", tmp_path / "b.mp").stdout).rows["functions"]
    assert (row["count_a"], row["count_b"], row["differs"]) == (3, 1, "count")


@pytest.mark.full
def test_two_traces_are_needed(two, tmp_path):
    for paths in ([], two[:1], [*two, two[0]], [two[0], two[0]]):
        done = run("diff", *paths)
        assert done.returncode == 2 and b"two traces are compared" in done.stderr
    (tmp_path / "empty.mp").write_bytes(forge.pack(forge.trace(pid=9)))
    (tmp_path / "torn.mp").write_bytes(two[1].read_bytes()[:-7])
    done = run("diff", two[0], tmp_path / "empty.mp")
    assert done.returncode == 1 and b"no calls in trace B: 'gpt-hook run' records some" in done.stderr
    done = run("diff", two[0], tmp_path / "torn.mp")
    assert done.returncode == 3 and b"incomplete:" in done.stdout
    assert run("diff", two[0], tmp_path / "absent").returncode == 4
