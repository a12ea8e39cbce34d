"""gpt-analyze memory on hand-made allocations."""

import numpy as np
import pytest

from gpt.analyze.lib.allocations import PAGE
from gpt.stream import records
from gpt.trace.modules import LAYERS
from tests.analyze.asked import answers, ask, run
from tests.trace import forge

NAMES = {
    "cuMemAlloc": "alloc", "cuMemFree": "free", "cuMemAllocAsync": "alloc", "cuMemFreeAsync": "free",
    "cuMemAllocHost": "alloc", "cuMemFreeHost": "free", "cuMemCreate": "alloc", "cuMemRelease": "free",
    "cuMemMap": "map", "cuMemUnmap": "unmap", "cuMemHostRegister": "register", "cuMemAllocManaged": "alloc",
}  # fmt: skip
CONTEXT = {"cuDevicePrimaryCtxRetain": "retain", "cuCtxCreate": "create", "cuDevicePrimaryCtxReset": "reset",
           "cuDevicePrimaryCtxRelease": "release"}  # fmt: skip
APIS = [*NAMES, *CONTEXT]
MS, ZERO, BASE = 10**6, 10**9, 0x7F0000000000


def api(number, name):
    type_, ops = ("memory", NAMES) if name in NAMES else ("context", CONTEXT)
    return records.make("api", id=number, symbol=name, name=name, type=type_, op=ops[name])


def made(*calls, more=(), **header):
    """Return a segment of calls, each given as (name, ms, to, bytes, from, result). Each takes 1 ms."""
    found = [api(number, name) for number, name in enumerate(APIS, 1)]
    for name, start, *what in calls:
        to, size, from_, result = (*what, *[0] * 4)[:4]
        number, at = APIS.index(name) + 1, ZERO + int(start * MS)
        if name in CONTEXT:
            found.append(forge.calls([(at, MS, number, result, to, 0)], forge.OBJECT))
        else:
            found.append(forge.calls([(at, MS, number, result, to, from_, size, 0)], forge.MEMORY))
    return forge.trace(*found, *more, **header)


def rows(found, name="memory"):
    return {row.get("type") or row["where"]: row for row in found.rows[name]}


def picked(row, *names):
    return tuple(row[name] for name in names)


def test_live_peak_and_what_is_left_by_kind():
    found = answers("memory", made(
        ("cuMemAlloc", 0, BASE, 1000), ("cuMemAllocAsync", 2, BASE + PAGE, 500), ("cuMemFree", 4, BASE),
        ("cuMemAllocHost", 5, 0x1000, 70), ("cuMemAlloc", 6, BASE, 300), ("cuMemFreeAsync", 8, BASE + PAGE),
        ("cuMemHostRegister", 9, 0x9000, 4096), ("cuMemAlloc", 10, 0, 1 << 40, 0, 2),
    ))  # fmt: skip
    told = rows(found)
    sums = ("allocations", "freed", "failed", "allocated", "peak", "at_peak", "left")
    assert picked(told["GPU memory"], *sums) == (3, 2, 1, 1800, 1500, 1500, 300)
    assert picked(told["device"], *sums) == (2, 1, 1, 1300, 1000, 1000, 300)
    assert picked(told["pool"], *sums) == (1, 1, 0, 500, 500, 500, 0)
    assert picked(told["host memory"], *sums) == (2, 0, 0, 4166, 4166, 0, 4166)
    assert [*told] == ["GPU memory", "device", "pool", "host memory", "pinned", "registered"]
    verdict = found.verdicts["memory"]
    ended = "300 B in 1 allocation not freed before it ended, when the driver frees it"
    assert verdict[0] == f"process 10 had allocated up to 1.46 KiB of GPU memory at a time; {ended}"
    assert verdict[1].startswith("no call sites: 'gpt-hook run --stacks memory'")
    live = [(row["time"] - ZERO, row["gpu"], row["host"]) for row in found.rows["live"]]
    assert live == [(MS, 1000, 0), (3 * MS, 1500, 0), (4 * MS, 500, 0), (6 * MS, 500, 70), (7 * MS, 800, 70),
                    (8 * MS, 300, 70), (10 * MS, 300, 4166)]  # fmt: skip
    left = [picked(row, "type", "address", "bytes") for row in found.rows["left"]]
    assert left == [("registered", 0x9000, 4096), ("device", BASE, 300), ("pinned", 0x1000, 70)]


def test_memory_of_handles_is_there_until_nothing_maps_it():
    at = [("cuMemCreate", 0, 7, PAGE), ("cuMemMap", 2, BASE, PAGE, 7), ("cuMemRelease", 4, 7),
          ("cuMemCreate", 6, 7, PAGE), ("cuMemUnmap", 8, BASE - PAGE, 4 * PAGE),
          ("cuMemMap", 9, BASE, PAGE, 7)]  # fmt: skip
    found = answers("memory", made(*at, ("cuMemRelease", 10, 7), ("cuMemUnmap", 12, BASE, PAGE)))
    assert picked(rows(found)["physical"], "allocations", "freed", "peak", "left") == (2, 2, 2 * PAGE, 0)
    assert [row["gpu"] // PAGE for row in found.rows["live"]] == [1, 2, 1, 0]
    found = answers("memory", made(*at))
    assert picked(rows(found)["physical"], "freed", "left") == (1, PAGE)
    found = answers("memory", made(*at, ("cuMemRelease", 10, 7)))  # the memory is still mapped
    assert picked(rows(found)["physical"], "freed", "left") == (1, PAGE)


def test_a_context_ends_with_its_memory():
    reset = [("cuDevicePrimaryCtxRetain", 0, 99), ("cuMemAlloc", 1, BASE, 100), ("cuDevicePrimaryCtxReset", 3),
             ("cuMemAlloc", 5, BASE, 10)]  # fmt: skip
    found = answers("memory", made(*reset))
    assert picked(rows(found)["device"], "allocations", "freed", "peak", "left") == (2, 0, 100, 110)
    assert [row["gpu"] for row in found.rows["live"]] == [100, 0, 10]
    assert found.verdicts["times"] == [
        "GPU memory of process 10, from its beginning to its last call, in 10 equal parts",
        "'from' counts from the beginning of the first process",
        "freed: with 1 allocation that ended with the context",
    ]
    found = answers("memory", made(*reset, ("cuCtxCreate", 0.5, 98)))  # the allocation's context isn't known
    assert picked(rows(found)["device"], "freed", "left") == (1, 10)
    assert "1 allocation at an address still in use" in found.verdicts["memory"][1]
    two = [("cuDevicePrimaryCtxRetain", 0, 99), ("cuDevicePrimaryCtxRetain", 0.1, 99), *reset[1:2]]
    released = [("cuDevicePrimaryCtxRelease", 3), ("cuMemFree", 5, BASE)]
    assert rows(answers("memory", made(*two, *released)))["device"]["freed"] == 1
    assert rows(answers("memory", made(*two, ("cuDevicePrimaryCtxRelease", 2.5), *released)))["device"]["freed"] == 0


def test_fragmentation_is_page_memory_minus_live_memory():
    half = PAGE // 2
    found = answers("memory", made(
        ("cuMemAlloc", 0, BASE, half), ("cuMemAlloc", 2, BASE + half, half),
        ("cuMemAlloc", 4, BASE + PAGE, PAGE + half),
        ("cuMemFree", 6, BASE + half), ("cuMemAlloc", 8, BASE + 64 * PAGE, 512), ("cuMemFree", 10, BASE),
    ))  # fmt: skip
    fragments = {row["when"]: row for row in found.rows["fragmentation"]}
    keys = ("live", "held", "pieces", "holes", "largest")
    last = PAGE - 512
    assert picked(fragments["most pages"], *keys) == (half + PAGE + half + 512, 4 * PAGE, 3, 3, last)
    assert picked(fragments["most unused"], *keys) == picked(fragments["most pages"], *keys)
    assert picked(fragments["last change"], *keys) == (PAGE + half + 512, 3 * PAGE, 2, 2, last)
    assert fragments["last change"]["fragmented"] == pytest.approx(100 * (half + last) / (3 * PAGE))
    held = [(row["gpu"], row["held"]) for row in found.rows["live"]]
    assert held[:4] == [(half, PAGE), (PAGE, PAGE), (2 * PAGE + half, 3 * PAGE), (2 * PAGE, 3 * PAGE)]


def test_no_pages_are_not_fragmented():
    found = answers("memory", made(("cuMemAlloc", 0, BASE, PAGE // 2), ("cuMemFree", 2, BASE)))
    assert picked(found.rows["fragmentation"][-1], "live", "held", "fragmented") == (0, 0, 0)
    assert found.verdicts["memory"][0].endswith("of GPU memory at a time; all of it was freed before it ended")


def test_pages_and_holes_of_random_pieces_are_those_of_a_slow_count():
    random = np.random.default_rng(5)
    calls, live, pages, time = [], {}, 8, 0
    unit = PAGE // 16
    taken = np.zeros(pages * 16, bool)
    told = []
    for _ in range(300):
        time += 2
        size = int(random.integers(1, 40))
        free = [at for at in range(len(taken) - size) if not taken[at : at + size].any()]
        if live and (random.random() < 0.4 or not free):
            at = int(random.choice([*live]))
            taken[at : at + live.pop(at)] = False
            calls.append(("cuMemFree", time, BASE + at * unit))
        elif free:
            at = int(random.choice(free))
            taken[at : at + size], live[at] = True, size
            calls.append(("cuMemAlloc", time, BASE + at * unit, size * unit))
        held = taken.reshape(pages, 16).any(1)
        told.append((int(taken.sum()) * unit, int(held.sum()) * PAGE))
        edges = np.diff(np.concatenate([[0], (np.repeat(held, 16) & ~taken).astype(int), [0]]))
        holes = np.flatnonzero(edges == -1) - np.flatnonzero(edges == 1)
    found = answers("memory", made(*calls))
    assert [(row["gpu"], row["held"]) for row in found.rows["live"]] == told
    last = found.rows["fragmentation"][-1]
    assert picked(last, "pieces", "holes", "largest") == (len(live), len(holes), holes.max() * unit)


def test_pieces_that_overlap_count_once():
    """If a later piece overlaps an earlier one, the earlier one must have been freed without a record: its bytes and
    pages no longer count.
    """
    unit = PAGE // 2
    taken = [("cuMemAlloc", 0, BASE, 8 * unit), ("cuMemAlloc", 2, BASE + 16 * unit, unit)]
    found = answers("memory", made(*taken, ("cuMemAlloc", 4, BASE + 4 * unit, 13 * unit)))
    assert [(row["gpu"], row["held"]) for row in found.rows["live"]] == [
        (8 * unit, 4 * PAGE), (9 * unit, 5 * PAGE), (13 * unit, 7 * PAGE),
    ]  # fmt: skip
    assert picked(rows(found)["device"], "allocations", "freed", "peak", "left") == (3, 2, 13 * unit, 13 * unit)
    assert "2 allocations at an address still in use" in " ".join(found.verdicts["memory"])
    beside = [("cuMemAlloc", 4, BASE + 8 * unit, 8 * unit), ("cuMemFree", 6, BASE), ("cuMemAlloc", 8, BASE + 1, 1)]
    found = answers("memory", made(*taken, *beside))
    assert picked(rows(found)["device"], "freed", "left") == (1, 9 * unit + 1)
    assert "still in use" not in " ".join(found.verdicts["memory"])


def test_bytes_of_random_pieces_that_overlap_are_those_of_a_slow_count():
    random = np.random.default_rng(6)
    calls, live, told = [], {}, []
    for time in range(2, 600, 2):
        if live and random.random() < 0.3:
            at = int(random.choice([*live]))
            live.pop(at)
            calls.append(("cuMemFree", time, BASE + at))
        else:
            at, size = int(random.integers(0, 1000)), int(random.integers(1, 60))
            live = {one: end for one, end in live.items() if end <= at or at + size <= one}
            live[at] = at + size
            calls.append(("cuMemAlloc", time, BASE + at, size))
        told.append(sum(end - one for one, end in live.items()))
    found = answers("memory", made(*calls))
    assert [row["gpu"] for row in found.rows["live"]] == told


def stack(number, *paths):
    frames = [{"path": path, "offset": 16} for path in paths]
    return records.make("stack", id=number, frames=frames)


def test_allocations_by_caller_outside_pytorch():
    stacks = [stack(1, "/l/libcudart.so.12", "/l/libc10_cuda.so", "/l/python3"), stack(2, "/l/libcublas.so.12")]
    calls = [("cuMemAlloc", 0, BASE, 1000), ("cuMemAlloc", 2, BASE + 4096, 500), ("cuMemFree", 4, BASE)]
    sites = [records.make("call_site", thread=1, start=ZERO + at * MS, stack=n) for at, n in ((0, 1), (2, 2))]
    found = answers("memory", made(*calls, more=[*stacks, *sites]))
    libraries = {row["library"]: row for row in found.rows["sites"] if "function" not in row}
    keys = ("allocations", "freed", "allocated", "at_peak", "left")
    assert picked(libraries["libc10_cuda.so"], *keys) == (1, 1, 1000, 1000, 0)
    assert picked(libraries["libcublas.so.12"], *keys) == (1, 0, 500, 500, 500)
    assert found.rows["sites"][0]["library"] == "libc10_cuda.so" and found.verdicts["sites"] == []
    host = ("cuMemAllocHost", 3, BASE + (1 << 32), 64)
    sites.append(records.make("call_site", thread=1, start=ZERO + 3 * MS, stack=2))
    both = [made(*calls, host, more=[*stacks, *sites], pid=pid) for pid in (10, 11)]
    told = answers("memory", *both)
    sums = [row for row in told.rows["sites"] if (row["library"], row.get("function")) == ("libcublas.so.12", None)]
    assert picked(sums[0], *keys) == (4, 0, 1128, 1128 - 128, 1128)
    assert told.verdicts["sites"] == [
        "GPU and host memory together", "'peak' and 'at GPU peak' are summed over 2 processes",
    ]  # fmt: skip
    verdict = "at the peak, PyTorch's allocator held 1,000 B; 500 B more was allocated outside of it"
    assert found.verdicts["memory"][1:] == [verdict]
    assert found.rows["left"][0]["site"] == "libcublas.so.12"


def test_python_line_that_allocated():
    def python(number, *frames):
        told = [{"path": path, "offset": 0, "function": name, **line} for path, name, line in frames]
        return records.make("stack", id=number, frames=told)

    stacks = [
        stack(1, "/l/_ctypes.cpython-311-x86_64-linux-gnu.so", "/l/libpython3.11.so.1.0"),
        stack(2, "/l/libc10_cuda.so"),
        python(3, ("/app/a.py", "load", {"line": 7}), ("/app/a.py", "<module>", {})),
        python(4, ("/v/lib/python3.11/site-packages/f.py", "linear", {}), ("/app/b.py", "Net.forward", {"line": 20})),
        python(5, ("/v/lib/python3.11/json.py", "dumps", {})),
    ]  # fmt: skip
    calls = [("cuMemAlloc", 2 * at, BASE + 4096 * at, 100 * (at + 1)) for at in range(4)]
    sites = [
        records.make("call_site", thread=1, start=ZERO + 2 * at * MS, stack=native, python=frames)
        for at, (native, frames) in enumerate([(1, 3), (2, 4), (1, 5), (1, None)])
    ]
    found = answers("memory", made(*calls, more=[*stacks, *sites]))
    assert [picked(row, "line", "function", "path", "left") for row in found.rows["lines"]] == [
        ("json.py:?", "dumps", "/v/lib/python3.11/json.py", 300), ("b.py:20", "Net.forward", "/app/b.py", 200),
        ("a.py:7", "load", "/app/a.py", 100),
    ]  # fmt: skip
    assert {picked(row, "library", "left") for row in found.rows["sites"] if "function" not in row} == {
        ("libpython3.11.so.1.0", 400), ("json.py", 300), ("libc10_cuda.so", 200), ("a.py", 100),
    }  # fmt: skip
    assert {row["site"] for row in found.rows["left"]} == {
        "libpython3.11.so.1.0", "json.py dumps", "libc10_cuda.so", "a.py load, line 7",
    }  # fmt: skip


def test_allocations_by_module_and_range():
    opened = [("Model", LAYERS, 0, 3), ("layers.0", LAYERS, 2, 3), ("load", None, 4, 6)]
    more = []
    for number, (name, domain, begin, end) in enumerate(opened, 1):
        more.append(records.make("range", id=number, type="push", thread=1, domain=domain, name=name,
                                 start=ZERO + begin * MS - MS // 2))  # fmt: skip
        more.append(records.make("range_end", id=number, thread=1, end=ZERO + end * MS + MS // 2))
    sizes = {0: 100, 1: 200, 2: 300, 5: 400, 7: 500}
    calls = [("cuMemAlloc", at, BASE + at * 4096, size) for at, size in sizes.items()]
    found = answers("memory", made(*calls, ("cuMemFree", 8, BASE), more=more))
    keys = ("allocations", "freed", "allocated", "left")
    assert {row["module"]: picked(row, *keys) for row in found.rows["modules"]} == {
        "Model": (1, 1, 100, 0), "layers.0": (2, 0, 500, 500), "load (range)": (1, 0, 400, 400),
        "(unknown)": (1, 0, 500, 500),
    }  # fmt: skip
    assert "modules" not in answers("memory", made(*calls)).rows


def test_time_without_recording_is_reported():
    off = [records.make("recording", on=on, at=ZERO + at * MS) for at, on in ((1, True), (20, False), (90, True))]
    found = answers("memory", made(("cuMemAlloc", 0, BASE, 1000), ("cuMemAlloc", 99, BASE + PAGE, 9), more=off))
    assert sum(row.get("unrecorded", 0) for row in found.rows["times"]) == ZERO + 71 * MS
    assert "recording was off for 1.07s: allocations and frees in that time are missing" in found.verdicts["times"]


def test_several_processes_with_one_killed():
    two = made(("cuMemAlloc", 0, BASE, 10), pid=11, end=False)
    found = answers("memory", made(("cuMemAlloc", 0, BASE, 1000)), two)
    assert [picked(row, "pid", "left") for row in found.rows["memory"]] == [(10, 1000)] * 2 + [(11, 10)] * 2
    assert found.verdicts["live"][1:] == ["process 10, of 2: --pid chooses"]
    told = answers("memory", two).verdicts["memory"][0]
    assert told.endswith("10 B in 1 allocation not freed before its trace ended, when the driver frees it")
    one = made(("cuMemAlloc", 0, BASE, 1000))
    for segments, titles in (
        ((one, two), ["address", "pid", "since", "bytes"]),
        ((one,), ["address", "since", "bytes"]),
    ):
        lines = run("memory", data=forge.pack(*segments)).stdout.decode().splitlines()
        (head,) = (line.split() for line in lines if line.startswith("not freed "))
        assert head == ["not", "freed", *titles]


def test_parts_of_time_reach_from_the_beginning_of_the_process_to_its_last_call():
    """Memory is allocated from 1.00 to 1.01 s. The last call, which has nothing to do with memory, ends at 10 s."""
    sync = forge.calls([(ZERO + 8999 * MS, MS, 99, 0)])
    found = answers("memory", made(("cuMemAlloc", 0, BASE, 1000), ("cuMemAlloc", 10, BASE + PAGE, 9),
                                   more=[forge.api(99, "cuCtxSynchronize"), sync]))  # fmt: skip
    spans = [picked(row, "begin", "allocations", "peak", "live") for row in found.rows["times"]]
    assert [begin // (100 * MS) for begin, *_ in spans] == [10 * n for n in range(10)]
    assert [rest for _, *rest in spans] == [[0, 0, 0], [2, 1009, 1009], *[[0, 1009, 1009]] * 8]


@pytest.mark.parametrize("segment", [forge.trace(forge.probe_map("x", a="u32")), forge.trace(forge.launches({1: 2}))])
def test_a_trace_without_calls(segment):
    done = run("memory", data=forge.pack(segment))
    assert done.returncode == 1 and b"no call allocates memory: 'gpt-hook run' records them" in done.stderr


def test_program_without_allocations():
    found = answers("memory", made(("cuMemFree", 0, BASE)))
    assert found.rows["memory"] == [] and "no call allocates memory" in found.verdicts["memory"][0]


@pytest.mark.full
def test_arbitrary_rows_cause_no_traceback(tmp_path):
    most = (1 << 64) - 1
    wild = [(at, took, number, 0, to, from_, size, 0)
            for at, took in ((1, most), (1 << 63, 1), (most, most)) for number in (1, 2, 7, 8, 9, 10)
            for to, from_, size in ((most, 0, most), (1, most, 0), (0, 1, most), (PAGE, PAGE, 1 << 63))]  # fmt: skip
    data = forge.pack(made(more=[forge.calls(wild, forge.MEMORY)]))
    for args in ((), ("--plot", tmp_path / "m.png"), ("--format", "md")):
        done = run("memory", *args, data=data)
        assert (done.returncode, done.stderr) == (0, b""), done.stderr
    cut = run("memory", data=data[:-100])
    assert cut.returncode == 3 and b"Traceback" not in cut.stderr and b"incomplete" in cut.stdout


@pytest.mark.full
def test_many_moments_are_drawn_by_their_highest(tmp_path):
    calls = [
        one for at in range(0, 6000, 2) for one in (("cuMemAlloc", at, BASE, 9 + at), ("cuMemFree", at + 1.5, BASE))
    ]
    found = ask("memory", made(*calls), args=("--plot", tmp_path / "m.png"))
    live = found.rows["live"]
    assert len(live) <= 2000 and max(row["gpu"] for row in live) == 9 + 5998
    assert "of 6,000 moments" in found.verdicts["live"][1]
    assert (tmp_path / "m.png").read_bytes()[:4] == b"\x89PNG"


def grows(*calls):
    return [line for line in answers("memory", made(*calls)).verdicts["memory"] if "keeps growing" in line]


def test_memory_that_grows_until_the_last_allocation():
    steps = [("cuMemAlloc", 10 * n, BASE + n * PAGE, 1024) for n in range(20)]
    assert grows(*steps) == [
        "GPU memory keeps growing, from 1 KiB to 20 KiB in 180ms: 19 allocations aren't freed. What does the "
        "program keep?"
    ]
    freed = [("cuMemFree", 10 * n + 5, BASE + n * PAGE) for n in range(20)]
    assert not grows(*steps, *freed)
    assert not grows(*steps[:9])
    assert not grows(*steps[:15], ("cuMemAlloc", 2000, BASE + 50 * PAGE, 1024))  # all at the beginning
    assert not grows(*[("cuMemAlloc", n, BASE + n * PAGE, 1024) for n in range(20)], ("cuMemFree", 500, BASE))
    twice = [("cuMemAlloc", 10 * n + 1, BASE + (30 + n) * PAGE, 512) for n in range(20)]
    gone = [("cuMemFree", 10 * n + 2, BASE + (30 + n) * PAGE) for n in range(20)]
    (line,) = grows(*steps, *twice, *gone)
    assert "to 20 KiB" in line


def test_host_memory_may_grow_too():
    pinned = [("cuMemAllocHost", 10 * n, BASE + n * PAGE, 1024) for n in range(20)]
    assert grows(*pinned, ("cuMemAlloc", 1, BASE + 50 * PAGE, 1 << 20)) == [
        "host memory keeps growing, from 1 KiB to 20 KiB in 180ms: 19 allocations aren't freed. What does the "
        "program keep?"
    ]
