"""gpt-analyze bank_conflict on accesses with known passes, compared with a count lane by lane."""

import struct
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt.analyze.bank_conflict import find_passes
from gpt.trace.buffers import MapLayout
from tests.analyze.asked import answers, run
from tests.trace import forge

FIELDS = {"clock": "u64", "address": "u32", "bytes": "u32"}
THREADS = 40  # a warp, and one of 8 threads


def pack(accesses):
    """Return the bytes of a log of (thread, clock, address, bytes)."""
    return struct.pack("<Q", len(accesses)) + b"".join(struct.pack("<QQII", *access) for access in accesses)


def trace(accesses, *more, capacity=None, name="k"):
    map_ = forge.probe_map("bank_conflict", type_="log", level="thread", capacity=capacity or len(accesses), **FIELDS)
    found = [forge.records.make("function", id=4, name=name), map_, forge.kernel(3, 4, name, 1), *more]
    return forge.trace(*found, forge.probed(0, 3, 4, 1, THREADS), forge.buffer(0, pack(accesses)))


def warp(address, size=4, clock=5, lanes=32):
    return [(lane, clock, address(lane), size) for lane in range(lanes)]


@pytest.mark.parametrize(
    ("accesses", "least", "passes"),
    [
        (warp(lambda lane: 4 * lane), 1, 1),
        (warp(lambda lane: 64), 1, 1),  # one word for all lanes
        (warp(lambda lane: lane, 1), 1, 1),
        (warp(lambda lane: 8 * lane), 1, 2),
        (warp(lambda lane: 128 * lane), 1, 32),
        (warp(lambda lane: 132 * lane), 1, 1),  # padded
        (warp(lambda lane: 8 * lane, 8), 2, 2),
        (warp(lambda lane: 16 * lane, 16), 4, 4),
        (warp(lambda lane: 128 * lane, 16), 4, 32),  # rows of ldmatrix
        (warp(lambda lane: 144 * lane, 16), 4, 4),
        (warp(lambda lane: 128 * lane, lanes=8), 1, 8),
        (warp(lambda lane: 4 * lane) + warp(lambda lane: 256 * lane, clock=9), 2, 33),
    ],
)
def test_passes_of_known_accesses(accesses, least, passes):
    found = answers("bank_conflict", trace(accesses[::-1]))
    (row,) = found.rows["kernels"]
    assert (row["passes"], row["conflicts"], row["accesses"]) == (passes, passes - least, len(accesses))
    assert row["requests"] == len({clock for _, clock, _, _ in accesses})
    shares = [one["conflicting"] for one in (row, *found.rows["launches"])]
    assert shares == [pytest.approx(100 * (passes - least) / passes)] * 2


def test_strides_and_their_advice():
    found = answers("bank_conflict", trace(warp(lambda lane: 4 * lane) + warp(lambda lane: 256 * lane, clock=9)))
    rows = [(r["stride"], r["ways"], r["requests"], r["conflicts"]) for r in found.rows["strides"]]
    assert rows == [(256, 32, 1, 31), (4, 1, 1, 0)]
    assert [(r["low"], r["groups"]) for r in found.rows["ways"]] == [(1, 1), (32, 1)]
    assert found.verdicts["kernels"] == [
        "bank_conflict:requests 2 passes 33 conflicts 31",
        "93.9 % of the passes are conflicts; 100.0 % of them in k, "
        "most in accesses of 4 bytes per lane, 256 bytes apart: 32 passes instead of 1",
        "of the blocks that are sampled",
        "1 launch ran with probes",
    ]


def test_nth_accesses_of_serialized_lanes_are_one_request():
    turns = [
        (lane, 100 * lane + n, address, 4) for lane in range(32) for n, address in enumerate((4 * lane, 128 * lane))
    ]
    device = forge.records.make("device", index=0, name="sim", arch="sm_90", runs="ptx")
    found = answers("bank_conflict", trace(turns, device))
    assert (found.rows["kernels"][0]["requests"], found.rows["kernels"][0]["passes"]) == (2, 33)
    assert any(line.startswith("simulated") for line in found.verdicts["kernels"])
    assert answers("bank_conflict", trace(turns)).rows["kernels"][0]["conflicts"] == 0


def walked(accesses):
    """Return the number of passes, counted lane by lane."""
    groups = defaultdict(lambda: defaultdict(set))
    for thread, clock, address, size in accesses:
        block, within = divmod(thread, THREADS)
        lanes = 128 // max(size, 4)
        group = groups[block, within // 32, clock, size, within % 32 // lanes]
        for word in range(address // 4, (address + size - 1) // 4 + 1):
            group[word % 32].add(word)
    return len(groups), sum(max(map(len, group.values())) for group in groups.values())


ACCESS = st.tuples(
    st.integers(0, 3 * THREADS - 1),
    st.sampled_from([7, 8, (1 << 64) - 1]),
    st.integers(0, 40).map(lambda n: 16 * n) | st.integers(0, (1 << 32) - 1),
    st.sampled_from([1, 2, 4, 8, 16]),
)


@given(st.lists(ACCESS, max_size=60))
def test_passes_are_those_of_a_walk_through_lanes(accesses):
    layout = MapLayout(forge.probe_map("bank_conflict", type_="log", level="thread", capacity=64, **FIELDS))
    data = pack(accesses).ljust(8 + 64 * 24, b"\0")
    found = find_passes(layout.read(data, 3, THREADS), THREADS)
    assert (found.least.sum(), found.passes.sum()) == walked(accesses)


def test_log_empty_and_log_too_small(tmp_path):
    found = answers("bank_conflict", trace([], capacity=1))
    assert found.verdicts["kernels"][1] == "no access to shared memory in these blocks"
    data = forge.pack(trace(warp(lambda lane: 4 * lane), name="k" * 4096))
    done = run("bank_conflict", "--plot", tmp_path / "b.png", data=data)
    assert (done.returncode, done.stderr) == (0, b"") and (tmp_path / "b.png").read_bytes()[:4] == b"\x89PNG"
    assert max(map(len, done.stdout.decode().splitlines())) <= 80
