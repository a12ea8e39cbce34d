"""gaps, stages, nvtx, idle and startup read calls in batches: the answer doesn't depend on the size of a batch."""

import random
from itertools import pairwise

import numpy as np
import pytest

from gpt.analyze.lib import numbers, periods
from gpt.analyze.lib.numbers import Numbers
from gpt.analyze.lib.sequence import NextLaunches
from gpt.stream import records
from gpt.trace import calls_store, ranges, spill
from tests import tiers
from tests.analyze.asked import answers
from tests.trace import forge

APIS = (
    "cuLaunchKernel", "cuGraphLaunch", "cuMemcpyHtoD", "cuMemcpyDtoH", "cuStreamSynchronize", "cuCtxSynchronize",
    "cuModuleLoadData", "cuCtxSetCurrent", "cuCtxPushCurrent", "cuCtxPopCurrent", "cuMemAlloc",
)  # fmt: skip
TYPES = {"cuCtxSynchronize": ("sync", "context")}
NAMES = ("step", "forward", "warmup", "", "decode")
LAYOUTS = {"cuLaunchKernel": forge.LAUNCH, "cuMemcpyHtoD": forge.MEMORY, "cuMemcpyDtoH": forge.MEMORY}
TIMES = forge.GPU_TIMES | {"probed": "u32", "device": "u32"}
ZERO, HZ = 10**6, 2_500_000_000


def make_process(dice, pid, calls, threads, streams):
    """Make a segment of random calls, many of which begin at the same time, in each thread's chunks."""
    found = [
        forge.api(number, name) | dict(zip(("type", "op"), TYPES.get(name, ()), strict=False))
        for number, name in enumerate(APIS, 1)
    ]
    uuids = [records.make("device", index=n, name="H200", arch="sm_90", uuid=f"GPU-{n}", runs="sass") for n in (0, 1)]
    found += [*uuids[: dice.choice((1, 2))], *(records.make("function", id=n, name=f"k{n}") for n in range(1, 6))]
    chunks = []
    for thread in range(1, threads + 1):
        now, told, gpu, open_ = ZERO + dice.randrange(50), [], [], []
        for number in range(calls // threads):
            name = APIS[number % 3 if dice.random() < 0.5 else dice.randrange(len(APIS))]
            took, stream, api = dice.choice((0, 1, 1, 3, 10, 400)), dice.randrange(streams), APIS.index(name) + 1
            function, result = dice.randrange(1, 6), dice.choice((0, 0, 0, 0, 1))
            layout = LAYOUTS.get(name, forge.OBJECT)
            if layout is forge.LAUNCH:
                row = (now, took, api, result, stream, function, 128, 1, 2, 3, 32, 4, 1, 0, 0, 0, 0, 0)
            elif layout is forge.MEMORY:
                row = (now, took, api, result, 1, 2, dice.choice((1, 100, 10**6)), stream)
            else:
                row = (now, took, api, result, dice.randrange(3), stream)
            told.append(forge.calls([row], layout, thread))
            if layout is forge.LAUNCH and dice.random() < 0.8:
                at = now + dice.randrange(500)
                gpu.append((at, dice.choice((1, 50, 900)), now, stream, api, function, thread, 0, 0, dice.randrange(2)))
            if dice.random() < 0.2:
                where = {"thread": thread, "name": dice.choice(NAMES), "start": now}
                where |= {"domain": "nccl"} if dice.random() < 0.2 else {}
                if dice.random() < 0.2:
                    told.append(records.make("range", type="mark", **where))
                else:
                    open_.append(thread * 100_000 + number)
                    kind = dice.choice(("push", "push", "push", "start"))
                    told.append(records.make("range", id=open_[-1], type=kind, **where))
            if open_ and dice.random() < 0.19:
                told.append(records.make("range_end", id=open_.pop(), thread=thread, end=now))
            now += dice.choice((0, 1, 7, 100, 2000))
        if gpu:
            told.append(records.make("gpu_times", **forge.rows(gpu, TIMES)))
        size = dice.choice((5, 50))
        chunks += [(at + dice.random() * size, told[at : at + size]) for at in range(0, len(told), size)]
    chunks.sort(key=lambda chunk: chunk[0])
    clock = {"tsc": 1000, "tsc_hz": HZ, "monotonic": 5000} if dice.random() < 0.5 else {}
    return forge.trace(*found, *(record for _, told in chunks for record in told), pid=pid, **clock)


def make_segments(seed, most=150):
    dice = random.Random(seed)
    return [
        make_process(dice, pid, dice.randrange(1, most), dice.randrange(1, 6), dice.choice((1, 2, 9)))
        for pid in range(10, 10 + dice.choice((1, 1, 2, 3)))
    ]


@pytest.fixture()
def little(monkeypatch):
    """All that is kept in memory is a few rows."""
    few = {spill: {"IN_MEMORY": 100, "BATCH": 16, "ROOM": 16, "LEAST": 2}, calls_store: {"BLOCK": 3},
           ranges: {"MANY": 4}, numbers: {"PENDING": 8, "SMALL": 2, "FEW": 4},
           periods: {"BLOCKS": 4, "BLOCK": 5}}  # fmt: skip

    def change(on):
        for module, values in few.items():
            for name, value in values.items():
                if on:
                    monkeypatch.setattr(module, name, value)
        if not on:
            monkeypatch.undo()

    return change


@pytest.mark.parametrize("seed", tiers.every(10, range(60)))
def test_what_is_said_does_not_depend_on_how_much_is_read_at_once(seed, little):
    segments = make_segments(seed)
    for name in ("gaps", "stages", "nvtx", "idle", "startup"):
        whole = answers(name, *segments)
        little(True)
        parts = answers(name, *segments)
        little(False)
        assert (parts.rows, parts.verdicts) == (whole.rows, whole.verdicts), name
        assert whole.rows or name != "gaps"  # a trace by chance may have no ranges


def test_rows_are_merged_in_order(little):
    random_ = np.random.default_rng(1)
    little(True)
    for size in (0, 1, 15, 16, 17, 500):
        for most in (1, 3, 1000):
            rows = np.zeros(size, [("key", "<i8"), ("place", "<i8")])
            rows["key"], rows["place"] = random_.integers(-most, most, size), np.arange(size)
            found = spill.Sorted(spill.Aside(), rows.dtype, "key")
            for at in range(0, size, 7):
                found.add(rows[at : at + 7])
            chunks = list(found)
            assert np.array_equal(np.concatenate([rows[:0], *chunks]), rows[np.argsort(rows["key"], kind="stable")])
            lasts = [(int(chunk["key"][0]), int(chunk["key"][-1])) for chunk in chunks]
            assert all(before[1] < after[0] for before, after in pairwise(lasts))


def test_a_tape_is_an_array(little):
    little(True)
    tape, rows = spill.Tape(spill.Aside(), np.int64), np.arange(83)
    for at in range(0, 83, 9):
        tape.append(rows[at : at + 9])
    assert len(tape) == 83 and np.array_equal(np.concatenate(list(tape)), rows)
    for low, high in ((0, 83), (3, 4), (15, 17), (79, 90), (83, 99), (40, 20)):
        assert np.array_equal(tape[low:high], rows[low:high])
    places = np.array([0, 1, 15, 16, 47, 48, 80, 82])
    assert np.array_equal(tape.take(places), places) and not len(tape.take(places[:0]))


@pytest.mark.parametrize("size", [1, 2, 99, 100, 101, 1000])
def test_percentiles_are_exact(size, little):
    little(True)
    random_ = np.random.default_rng(size)
    for values in (random_.lognormal(9, 3, size).astype(np.int64), random_.integers(0, 3, size), np.full(size, 7)):
        found = Numbers()
        for part in np.array_split(values, 5):
            found.add("one", part)
            found.add("other", part[:3])
        for percent in (1, 50, 99, 100):
            assert found.percentile("one", percent) == np.percentile(values, percent, method="inverted_cdf")
        assert (found.total("one"), found.most("one"), found.count("one")) == (values.sum(), values.max(), size)
        assert found.median("one") == np.median(values)


def test_sums_of_numbers_are_exact():
    found = Numbers()
    found.add(1, np.full(100, (1 << 62) - 1))
    assert found.total(1) == 100 * ((1 << 62) - 1)


def after_waits(calls):
    """ns from waits to the next launch, one call after the other: calls are (start, end, True for a launch)."""
    found, waited = [], []
    for start, end, launch in calls:
        if launch:
            if waited and min(waited) < start:
                found.append(start - min(waited))
            waited = []
        elif not any(begin < start < until for begin, until, other in calls if other):
            waited.append(end)
    return found


@pytest.mark.parametrize("seed", range(20))
def test_waits_before_a_launch_that_comes_much_later(seed):
    """Some are over after further calls have begun, and end."""
    random_ = np.random.default_rng(seed)
    starts = np.cumsum(random_.integers(1, 5, 300))
    launch = random_.random(300) < random_.choice([0.02, 0.5])
    ends = starts + random_.choice([1, 2, 100, 500], 300, p=random_.dirichlet([1, 1, 1, 1]))
    found, next_ = [], NextLaunches()
    edges = [0, *np.sort(random_.choice(np.arange(1, 300), 40, replace=False)).tolist(), 300]
    for low, high in pairwise(edges):
        mine, begin, end = launch[low:high], starts[low:high], ends[low:high]
        waits, launches = next_.find(begin[mine], end[mine], begin[~mine], end[~mine])
        found += (launches - waits).tolist()
    assert found == after_waits([*zip(starts.tolist(), ends.tolist(), launch.tolist(), strict=True)])
