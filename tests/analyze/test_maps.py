"""gpt-analyze maps: the fields of any map, on known numbers."""

import struct

import numpy as np
import pytest

from gpt.stream import records
from tests.analyze.asked import answers, ask, run
from tests.trace import forge

NAME = "_Z6matmulIfEvPT_PKS0_i"


def trace(map_, *launches, kernel=NAME, threads=64, **header):
    """Make a launch for each (blocks, bytes)."""
    found = [forge.records.make("function", id=4, name=kernel), map_, forge.kernel(3, 4, kernel, 1)]
    for number, (blocks, data) in enumerate(launches):
        found += [forge.probed(number, 3, 4, blocks, threads), forge.buffer(number, data)]
    return forge.trace(*found, **header)


def test_array_with_unused_slots():
    map_ = forge.probe_map("mine", capacity=2, size="u32", error="f32")
    warps = [
        (1, 5, 0.5, 99, 99.0),
        (3, 7, -1.5, 9, float("nan")),
        (0, 99, 99.0, 99, 99.0),
        (2, 5, 1.0, 6, float("inf")),
    ]
    data = b"".join(struct.pack("<QIfIf", *warp) for warp in warps)
    found = answers("maps", trace(map_, (2, data)))
    whole, size, error = found.rows["mine"]
    assert whole == {"name": NAME, "launches": 1, "records": 5, "dropped": 1}
    assert size == {
        "name": NAME,
        "field": "size",
        "least": 5,
        "median": 6,
        "mean": 6.4,
        "p95": 9,
        "greatest": 9,
        "sum": 32,
    }
    infinity = float("inf")
    assert error == {
        "name": NAME, "field": "error", "least": -1.5, "median": 0.5, "mean": 0, "p95": infinity, "greatest": infinity,
        "sum": 0, "nans": 1, "infinite": 1,
    }  # fmt: skip
    bins = [(r["low"], r["high"], r["records"]) for r in found.rows["bins"] if r["field"] == "mine.size"]
    assert bins == [(5, 6, 2), (6, 7, 1), (7, 8, 1), (9, 10, 1)]
    assert sum(r["records"] for r in found.rows["bins"] if r["field"] == "mine.error") == 3  # finite ones
    assert found.verdicts["mine"] == ["maps:1 records:5 lost:1", "1 launch ran with probes"]


def test_logs_and_totals_of_several_kernels_and_launches():
    log = forge.probe_map("seen", type_="log", level="thread", capacity=4, clock="u64", what="u64")
    data = struct.pack("<Q12Q", 6, *(x for n in range(4) for x in (n, 10**18 + n, n)))
    total = forge.probe_map("mine", type_="total", sum="u64")
    sums = struct.pack("<4Q", 32, 10**15, 32, 10**15 + 1)
    found = answers("maps", trace(log, (1, data), (1, data)), trace(total, (1, sums), kernel="copy", pid=11))
    whole, clock, what = found.rows["seen"]
    assert (whole["launches"], whole["records"], whole["dropped"]) == (2, 8, 4)
    assert clock["least"] == 10**18 and "sum" not in clock  # the sum of clocks means nothing
    assert (what["sum"], what["mean"], what["greatest"]) == (12, 1.5, 3)
    (_, one) = found.rows["mine"]
    assert (one["name"], one["sum"], one["median"]) == ("copy", 2 * 10**15 + 1, 10**15)
    assert found.verdicts["seen"][0] == "maps:2 records:10 lost:4" and found.verdicts["mine"] == []


@pytest.mark.full
def test_maps_and_fields_that_are_named(tmp_path):
    map_ = forge.probe_map("gmem_bytes", type_="total", **forge.GMEM_BYTES)
    segment = trace(map_, (1, struct.pack("<12Q", 32, 1, 2, 3, 4, 5, 32, 6, 7, 8, 9, 10)))
    found = ask("maps", segment, args=["--map", "*.read"])
    assert [row.get("field") for row in found.rows["gmem_bytes"]] == [None, "read"]
    done = run("maps", "--map", "gmem*", "--plot", tmp_path / "m.png", data=forge.pack(segment))
    assert (done.returncode, done.stderr) == (0, b"") and (tmp_path / "m.png").read_bytes()[:4] == b"\x89PNG"
    assert done.stdout.decode().splitlines()[1].split()[-8:] == ["1", "2", *"------"]
    done = run("maps", "--map", "other", data=forge.pack(segment))
    fact = "no map of the trace is named 'other': without --map all are shown"
    assert (done.returncode, done.stderr.decode()) == (1, f"gpt-analyze: error: {fact}\n")


def test_a_trace_without_maps():
    done = run("maps", data=forge.pack(forge.trace(forge.launches({1: 2}))))
    fact = "no map in the trace: 'gpt-hook run -p PROBE' records one"
    assert (done.returncode, done.stderr.decode()) == (1, f"gpt-analyze: error: {fact}\n")


def test_records_that_were_only_counted_and_names_of_other_answers():
    found = answers("maps", trace(forge.probe_map("bins", capacity=0, x="u64"), (1, struct.pack("<2Q", 7, 0))))
    whole, x = found.rows["map bins"]
    assert (whole["records"], whole["dropped"], x) == (7, 0, {"name": NAME, "field": "x"})
    assert "records were only counted, not saved" in found.verdicts["map bins"] and found.rows["bins"] == []


@pytest.mark.parametrize("name", ["k" * 4096, "a`|<b>\x1b[2J"])
def test_hostile_names(name):
    data = forge.pack(trace(forge.probe_map(name, type_="total", **{name: "u64"}), (1, bytes(32)), kernel=name))
    done = run("maps", data=data)
    assert (done.returncode, done.stderr) == (0, b"") and b"\x1b[2" not in done.stdout
    assert max(map(len, done.stdout.decode().splitlines())) <= 80
    assert len(run("maps", "--format", "md", data=data).stdout) <= 8000


def test_many_fields():
    map_ = forge.probe_map("wide", type_="total", **{f"f{n}": "u64" for n in range(200)})
    data = np.ones((2, 201), "<u8").tobytes()
    found = answers("maps", trace(map_, (1, data)))
    assert len(found.rows["wide"]) == 201 and len(found.rows["bins"]) == 8
    assert "8 of 200 fields have a histogram: --map chooses" in found.verdicts["wide"]


def test_whole_numbers_keep_all_their_digits():
    """A double can't hold all numbers above 2^53. 2^64 - 1 is an ordinary number, not a special value."""
    map_ = forge.probe_map("mine", type_="total", level="block", at="u64", error="f32")
    numbers = [(1 << 53) + 1, (1 << 53) + 1, (1 << 64) - 1]  # their sum needs more than 64 bits, so it's a float
    data = b"".join(struct.pack("<QQfI", 1, number, 0.5, 0) for number in numbers)
    found = answers("maps", trace(map_, (3, data)))
    row = next(row for row in found.rows["mine"] if row.get("field") == "at")
    assert [row[name] for name in ("least", "median", "p95", "greatest", "sum")] == [
        (1 << 53) + 1, (1 << 53) + 1, (1 << 64) - 1, (1 << 64) - 1, float(sum(numbers)),
    ]  # fmt: skip
    text = run("maps", "--format", "csv", data=forge.pack(trace(map_, (3, data)))).stdout.decode()
    assert ",9007199254740993,9007199254740993," in text


def test_buffers_that_were_packed_without_zstd():
    """The output states how many bytes the buffers have before packing."""
    map_ = forge.probe_map("mine", type_="total", sum="u64")
    data = struct.pack("<2Q", 32, 5) * 2
    quick = records.make("buffer", launch=1, map=1, size=len(data), data=data, quick=1)
    told = trace(map_, (1, data))
    told[-1:-1] = [forge.probed(1, 3, 4, 1, 64), quick]
    verdict = answers("maps", told).verdicts["mine"]
    assert verdict[1:] == [
        "2 launches ran with probes",
        f"{len(data)} B of buffers were packed without zstd: writing couldn't keep up with the probes",
    ]
