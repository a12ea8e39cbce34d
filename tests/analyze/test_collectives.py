"""gpt-analyze collectives on hand-made ranks: which rank waits for which."""

import numpy as np
import pytest

from gpt.stream import records
from tests.analyze.asked import ask, run
from tests.trace import forge

US, EPOCH, ZERO = 1000, 10**18, 10**9
REDUCE = "_Z40ncclDevKernel_AllReduce_Sum_f32_RING_LL24ncclDevKernelArgsStorageILm4096EE"
GATHER, SENDRECV = "ncclDevKernel_AllGather_RING_LL(x)", "ncclDevKernel_SendRecv(x)"
BROADCAST = "ncclDevKernel_Broadcast_RING_LL(x)"
NAMES = [REDUCE, GATHER, SENDRECV, "gemm", BROADCAST]
TOOK = 50 * US  # duration after the last rank has begun


def rank(number, begins, ends, kernels=None, stream=7, more=(), shift=0, per_host=8, said=True, **header):
    """Return a rank's process: kernels that ran from `begins` to `ends` ns, on a clock that is `shift` ns ahead."""
    host = number // per_host
    found = [forge.api(1, "cuLaunchKernel")]
    found += [records.make("function", id=n, name=name) for n, name in enumerate(NAMES, 1)]
    found.append(records.make("device", index=number % per_host, name="H200", arch="sm_90",
                              uuid=f"GPU-{number:08x}", runs="sass"))  # fmt: skip
    zero = ZERO * (host + 1)  # CLOCK_MONOTONIC at the beginning
    kernels = [1] * len(begins) if kernels is None else kernels
    rows = [
        (zero + b + shift, e - b, zero + b, stream, 1, kernel, 1, 0)
        for b, e, kernel in zip(np.asarray(begins).tolist(), np.asarray(ends).tolist(), kernels, strict=True)
    ]
    found.append(records.make("gpu_times", **forge.rows(rows, forge.GPU_TIMES)))
    header = {"pid": 100, "host": f"h{host}", "boot_id": f"b{host}", "realtime": EPOCH, "monotonic": zero, **header}
    return forge.trace(*found, *more, **(({"rank": number} if said else {}) | header))


def lockstep(ranks, count, late, seed=0):
    """Return when the ranks begin and end `count` collectives, 1 ms apart; `late` has each rank's delay in ns."""
    begins = np.tile(np.arange(1, count + 1) * 1000 * US, (ranks, 1))
    for (who, step), ns in late.items():
        begins[who, step] += ns
    ends = np.tile(begins.max(axis=0) + TOOK, (ranks, 1))
    return begins, ends + np.random.default_rng(seed).integers(0, 200, ends.shape)


def by(rows, *keys):
    return {tuple(row[key] for key in keys): row for row in rows}


def test_one_of_two_ranks_is_late():
    late = {(1, 2): 300 * US, (1, 5): 100 * US, (0, 7): 40 * US}
    begins, ends = lockstep(2, 10, late)
    found = ask("collectives", *(rank(n, begins[n], ends[n]) for n in (1, 0)))  # whatever their order
    first, second = found.rows["ranks"]
    assert (first["rank"], first["collectives"], first["waiting"], first["caused"]) == ("rank 0", 10, 400 * US, 40 * US)
    assert (second["rank"], second["waiting"], second["caused"]) == ("rank 1", 40 * US, 400 * US)
    assert 10 * TOOK <= first["transfer"] <= 10 * (TOOK + 200) and second["last"] >= 2
    waits = by(found.rows["waits"], "rank", "whom")
    assert waits["rank 0", "rank 1"]["waiting"] == 400 * US and waits["rank 0", "rank 1"]["longest"] == 300 * US
    assert found.verdicts["ranks"][0].endswith("of their time waiting, 90.9 % of it for rank 1")
    assert found.verdicts["ranks"][1].startswith("90.9 % of the waiting is for rank 1, which is late because its host")
    (kernel,) = found.rows["kernels"]
    assert (kernel["name"], kernel["ranks"], kernel["collectives"], kernel["waiting"]) == (REDUCE, "0,1", 10, 22 * US)
    worst = found.rows["around"][0]
    assert (worst["rank"], worst["whom"], worst["number"], worst["end"] - worst["begin"]) == (
        "rank 0", "rank 1", 3, 300 * US,
    )  # fmt: skip


@pytest.mark.parametrize(("ahead", "drift"), [(3_000_000, 0), (-7_000_000, 0), (2_000_000, 1e-5)])
def test_eight_ranks_of_two_hosts_whose_clocks_differ(ahead, drift):
    """The second host's clock is milliseconds ahead, more than any collective takes, and drifts away."""
    late = {(6, step): (step % 5 + 1) * 20 * US for step in range(3, 60, 4)}
    begins, ends = lockstep(8, 64, late)
    shifts = np.zeros(8, int)
    shifts[4:] = ahead
    begins, ends = (times + (times * drift).astype(int) * (np.arange(8) >= 4)[:, None] for times in (begins, ends))
    found = ask("collectives", *(rank(n, begins[n], ends[n], shift=int(shifts[n]), per_host=4) for n in range(8)))
    total = sum(late.values())
    for row in found.rows["ranks"]:
        wanted = 0 if row["rank"] == "rank 6" else total
        assert row["waiting"] == pytest.approx(wanted, abs=64 * US) and row["host"] == f"h{int(row['rank'][5:]) // 4}"
    caused = {row["rank"]: row["caused"] for row in found.rows["ranks"]}
    assert caused["rank 6"] == pytest.approx(7 * total, rel=0.02)
    (clock,) = [line for line in found.verdicts["ranks"] if line.startswith("clock of h1 set ")]
    assert ("back" if ahead > 0 else "forward") in clock and f"by {abs(ahead) / 1e6:.0f}" in clock
    (kernel,) = found.rows["kernels"]
    assert (kernel["ranks"], kernel["collectives"]) == ("0-7", 64)


def test_communicators_of_some_ranks_each():
    """Two communicators have two ranks each. Pairs reduce often, at their own pace; all four gather on a third one."""
    rng, segments = np.random.default_rng(1), []
    pairs = [lockstep(2, 40, {(0, n): int(rng.integers(0, 90)) * US for n in range(40)}, seed) for seed in (1, 2)]
    jitter = np.cumsum(rng.integers(-300, 300, 40)) * US
    everyone = lockstep(4, 10, {(3, n): 30 * US for n in range(10)}, 3)
    for number in range(4):
        begins, ends = (times[number % 2] + (jitter if number > 1 else 0) for times in pairs[number // 2])
        other = everyone[0][number] + 60_000 * US, everyone[1][number] + 60_000 * US
        rows = [(ZERO + b, e - b, ZERO + b, 9, 1, 2, 1, 0) for b, e in zip(*map(np.ndarray.tolist, other), strict=True)]
        times = records.make("gpu_times", **forge.rows(rows, forge.GPU_TIMES))
        segments.append(rank(number, begins, ends, more=[times]))
    kernels = by(ask("collectives", *segments).rows["kernels"], "name", "ranks")
    assert {key: row["collectives"] for key, row in kernels.items()} == {
        (REDUCE, "0,1"): 40, (REDUCE, "2,3"): 40, (GATHER, "0-3"): 10,
    }  # fmt: skip
    assert kernels[GATHER, "0-3"]["waiting"] == pytest.approx(22.5 * US, abs=US)


def test_kernels_without_full_barriers_are_not_split():
    begins, ends = lockstep(2, 7, {})
    found = ask("collectives", *(rank(n, begins[n], ends[n], [1, 3, 4, 1, 3, 5, 5]) for n in (0, 1)))
    first, _ = found.rows["ranks"]
    assert first["collectives"] == 2 and 4 * TOOK <= first["other"] <= 4 * TOOK + 800
    kernels = [(row["name"], row["rank"], row["count"]) for row in found.rows["others"]]
    assert sorted(kernels) == [(name, f"rank {n}", 2) for name in (BROADCAST, SENDRECV) for n in (0, 1)]
    assert sum(row["total"] for row in found.rows["others"] if row["rank"] == "rank 0") == first["other"]
    assert found.verdicts["ranks"][-1] == "other NCCL: kernels in which not every rank waits for all others"


def test_trace_ends_or_begins_earlier():
    begins, ends = lockstep(3, 30, {(2, n): 10 * US for n in range(30)})
    cuts = [slice(0, 30), slice(0, 20), slice(5, 30)]
    found = ask("collectives", *(rank(n, begins[n][cut], ends[n][cut]) for n, cut in enumerate(cuts)))
    assert [row["collectives"] for row in found.rows["ranks"]] == [15] * 3
    assert [row["waiting"] for row in found.rows["ranks"]] == [150 * US, 150 * US, 0]


@pytest.mark.parametrize("header", [{"said": False}, {"rank": 0}])
def test_indistinguishable_ranks_are_numbered(header):
    begins, ends = lockstep(2, 5, {(1, 2): 100 * US})
    found = ask("collectives", *(rank(n, begins[n], ends[n], pid=100 - n, **header) for n in (0, 1)))
    assert [(row["rank"], row["pid"]) for row in found.rows["ranks"]] == [("rank 0", 100), ("rank 1", 99)]
    assert "the traces name no ranks: they are numbered by host, process and device" in found.verdicts["ranks"]


def test_ranks_of_one_process():
    begins, ends = lockstep(2, 5, {(1, 2): 100 * US})
    layout = {**forge.GPU_TIMES, "device": "u32"}
    rows = [
        (ZERO + b, e - b, ZERO + b, 7 + n, 1, 1, 1, 0, n)
        for n in (0, 1)
        for b, e in zip(begins[n].tolist(), ends[n].tolist(), strict=True)
    ]
    times = records.make("gpu_times", **forge.rows(rows, layout))
    found = ask("collectives", rank(0, [], [], more=[times]))
    assert [(row["rank"], row["device"], row["waiting"]) for row in found.rows["ranks"]] == [
        ("rank 0", 0, 100 * US), ("rank 1", 1, 0),
    ]  # fmt: skip


SLOT = np.dtype([("count", "<u8"), ("start", "<u8"), ("end", "<u8"), ("elapsed", "<u4"), ("sm", "<u4")])


def blocks(number, begins, ends, gpu, shift):
    """Return a rank whose NCCL kernels had the probe block_sched. Its GPU clock is `gpu` ns ahead; SMs run at 2 GHz."""
    map_ = forge.probe_map("block_sched", **forge.BLOCK_SCHED)
    found = [records.make("function", id=1, name=REDUCE), map_, forge.kernel(3, 1, REDUCE, 1)]
    for at, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True)):
        slots = np.zeros(2, SLOT)
        for sm in (0, 1):
            slots[sm] = (1, 2 * begin + sm * 10**6, EPOCH + gpu + end, 2 * (end - begin), sm)
        launch = forge.probed(at, 3, 1, 2, 32) | {"start": ZERO + begin - shift, "device": number}
        found += [launch, forge.buffer(at, slots.tobytes())]
    return forge.trace(*found, rank=number, pid=100 + number, monotonic=ZERO)


def test_times_of_blocks_are_put_on_the_clock_of_the_calls():
    begins, ends = lockstep(2, 20, {(1, 3): 200 * US, (0, 11): 80 * US})
    found = ask("collectives", *(blocks(n, begins[n], ends[n], n * 10**9, 3 * US) for n in (0, 1)))
    assert [row["waiting"] for row in found.rows["ranks"]] == pytest.approx([200 * US, 80 * US], abs=5 * US)
    assert [row["transfer"] for row in found.rows["ranks"]] == pytest.approx([20 * TOOK] * 2, rel=0.02)


@pytest.mark.full
def test_missing_data_is_reported():
    begins, ends = lockstep(2, 3, {})
    one, other = (rank(n, begins[n], ends[n]) for n in (0, 1))
    plain = rank(0, begins[0], ends[0], [4] * 3)
    untimed = [record for record in one if record["kind"] != "gpu_times"]
    for segments, fact in (
        ([one], "collectives of one rank only: give the traces of the other ranks, too"),
        ([plain], "no collective kernels in the trace: NCCL's have ncclDevKernel or ncclKernel in their names"),
        ([untimed], "no kernel times: 'gpt-hook run --gpu-time' or '-p block_sched' records when they ran"),
    ):
        done = run("collectives", data=forge.pack(*segments))
        assert (done.returncode, done.stdout) == (1, b"")
        assert done.stderr.decode() == f"gpt-analyze: error: {fact}\n"
    done = run("collectives", data=forge.pack(one, other)[:-20])
    assert done.returncode == 3 and b"rank 1" in done.stdout and b"incomplete: " in done.stdout


@pytest.mark.parametrize("times", [[(1, (1 << 63) - 1)], [((1 << 63), 1 << 63)], [(5, 0)] * 3, [(9, 5), (3, 100)]])
def test_arbitrary_times_cause_no_traceback(times):
    rows = [(begin, took, begin, 7, 1, 1, 1, 0) for begin, took in times]
    more = [records.make("gpu_times", **forge.rows(rows, forge.GPU_TIMES))]
    begins, ends = lockstep(2, 2, {})
    done = run("collectives", "--json", data=forge.pack(*(rank(n, begins[n], ends[n], more=more) for n in (0, 1))))
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.full
def test_a_picture_of_ranks(tmp_path):
    begins, ends = lockstep(2, 5, {(1, 2): 100 * US})
    data = forge.pack(*(rank(n, begins[n], ends[n]) for n in (0, 1)))
    done = run("collectives", "--plot", tmp_path / "c.png", data=data)
    assert (done.returncode, done.stderr) == (0, b"") and (tmp_path / "c.png").read_bytes()[:4] == b"\x89PNG"


def test_time_that_other_kernels_hide():
    """Kernels of the rank's other stream overlap the first collective for 30 us, twice, and end with the second."""
    begins, ends = lockstep(2, 3, {})
    ends = begins + TOOK  # exactly
    first, second = begins[0][:2].tolist()
    spans = [(first - 20 * US, first + 20 * US), (first + 10 * US, first + 30 * US), (second - 5 * US, second + TOOK)]
    rows = [(ZERO + b, e - b, ZERO + b, 9, 1, 4, 1, 0) for b, e in spans]
    more = [records.make("gpu_times", **forge.rows(rows, forge.GPU_TIMES))]
    found = ask("collectives", rank(0, begins[0], ends[0], more=more), rank(1, begins[1], ends[1]))
    exposed = [row["exposed"] for row in found.rows["ranks"]]
    assert exposed == [3 * TOOK - 30 * US - TOOK, 3 * TOOK]
    assert any(line.startswith("26.7 % of their time is hidden") for line in found.verdicts["ranks"])


@pytest.mark.parametrize(("called", "why"), [(True, "launched late"), (False, "its GPU was busy"), (None, "not known")])
def test_why_a_rank_is_late(called, why):
    """Rank 1 begins 300 us late. Either it makes the call late, or its kernel waits after a call in time, or the call
    isn't known.
    """
    begins, ends = lockstep(2, 10, {(1, n): 300 * US for n in range(10)})
    late = rank(1, begins[1], ends[1])
    if not called:
        rows = [(ZERO + b, e - b, ZERO + b - 300 * US, 7, 1, 1, called is False, 0)
                for b, e in zip(begins[1].tolist(), ends[1].tolist(), strict=True)]  # fmt: skip
        times = records.make("gpu_times", **forge.rows(rows, forge.GPU_TIMES))
        late = [times if record["kind"] == "gpu_times" else record for record in late]
    found = ask("collectives", rank(0, begins[0], ends[0]), late)
    (row,) = found.rows["late"]
    assert (row["rank"], row["why"], row["collectives"], row["caused"]) == ("rank 1", why, 10, 3000 * US)
    assert any("host launches late" in line for line in found.verdicts["ranks"]) == bool(called)
    assert found.rows["kernels"][0]["dominated"] == "waiting"


def test_the_first_collective_and_the_warm_up_are_distinguished():
    """The first one takes 100 times as long as most, the next two three times as long."""
    begins, ends = lockstep(2, 20, {(1, 0): 400 * US})
    ends = begins.max(axis=0) + np.array([100 * TOOK, 3 * TOOK, 3 * TOOK, *[TOOK] * 17])
    begins, ends = (times + np.array([0, *[9_000 * US] * 19]) for times in (begins, np.tile(ends, (2, 1))))
    found = ask("collectives", *(rank(n, begins[n], ends[n]) for n in (0, 1)))
    rows = [(row["phase"], row["collectives"], row["waiting"], row["transfer"]) for row in found.rows["phases"]]
    assert rows == [
        ("the first one", 1, 400 * US, 200 * TOOK), ("warm-up", 2, 0, 12 * TOOK), ("the rest", 17, 0, 34 * TOOK),
    ]  # fmt: skip
    assert any(line.startswith("without the first 3 collectives") for line in found.verdicts["ranks"])


@pytest.mark.parametrize(
    ("count", "late", "dominated"), [(8, 0, "not clear"), (9, 0, "transfer"), (9, 100, "both"), (9, 1000, "waiting")]
)
def test_waits_or_transfers_dominate_collectives(count, late, dominated):
    """Each collective takes 50 + `late` us, of which rank 0 waits for `late`. Rank 1 never waits."""
    begins, ends = lockstep(2, count, {(1, n): late * US for n in range(count)})
    found = ask("collectives", *(rank(n, begins[n], ends[n]) for n in (0, 1)))
    assert found.rows["kernels"][0]["dominated"] == dominated
