"""gpt-analyze gmem_bytes: sums of known numbers."""

import struct

import pytest

from gpt.stream import records
from tests.analyze.asked import ask, run
from tests.trace import forge

FIELDS = forge.GMEM_BYTES
MAP = forge.probe_map("gmem_bytes", type_="total", **FIELDS)
NAME = "_Z6matmulIfEvPT_PKS0_i"


def totals(*warps):
    return b"".join(struct.pack("<6Q", 32, *warp) for warp in warps)


def trace(*launches, name=NAME, map_=MAP, more=(), **header):
    """Return a segment with a launch of two blocks for each argument, which has the warps of both."""
    found = [records.make("function", id=4, name=name), map_, forge.kernel(3, 4, name, 1)]
    for number, data in enumerate(launches):
        found += [forge.probed(number, 3, 4, 2, 32), forge.buffer(number, data)]
    return forge.trace(*found, *more, **header)


def test_bytes_add_up_by_kernel_and_launch():
    first = trace(totals((1000, 20, 3, 4, 5), (100, 0, 0, 0, 0)), totals((1, 0, 0, 0, 0), (0, 0, 0, 0, 0)))
    second = trace(totals((3000, 0, 0, 0, 0), (256, 0, 0, 0, 0)), name="_Z1kv", pid=11)
    found = ask("gmem_bytes", first, second)
    assert found.rows["kernels"] == [
        {"name": "_Z1kv", "launches": 1, "share": pytest.approx(100 * 3256 / 4384), "total": 3256, "read": 3256,
         "written": 0, "sync": 0, "async": 0, "bulk": 0, "expected": 0, "dropped": 0},
        {"name": NAME, "launches": 2, "share": pytest.approx(100 * 1128 / 4384), "total": 1128, "read": 1101,
         "written": 20, "sync": 0, "async": 3, "bulk": 4, "expected": 5, "dropped": 0},
    ]  # fmt: skip
    assert found.verdicts["kernels"] == [
        "gmem_bytes:4384",
        "expected: bytes that barriers waited for, including bulk copies by tensor map; not in the total",
        "3 launches ran with probes",
    ]
    launches = [(r["launch"], r["kernel"], r["pid"], r["id"], r["total"], r["blocks"]) for r in found.rows["launches"]]
    assert launches == [(1, NAME, 10, 0, 1127, 2), (2, NAME, 10, 1, 1, 2), (3, "_Z1kv", 11, 0, 3256, 2)]
    assert found.others == ["header", "function", "map", "kernel", "probed", "probed", "end", "header", "function",
                            "map", "kernel", "probed", "end"]  # fmt: skip


def test_records_of_an_array_that_were_dropped():
    map_ = forge.probe_map("gmem_bytes", capacity=2, **FIELDS)
    data = b"".join(struct.pack("<11Q", count, *range(1, 6), *range(6, 11)) for count in (2, 9))
    (row,) = ask("gmem_bytes", trace(data, map_=map_)).rows["kernels"]
    assert (row["read"], row["total"], row["dropped"]) == (14, 2 * (1 + 2 + 3 + 4 + 6 + 7 + 8 + 9), 7)


def test_launches_without_probes_are_reported():
    unprobed = records.make("unprobed", function=4, launches=5, reason="no PTX")
    found = ask("gmem_bytes", trace(totals(*[(1, 2, 3, 4, 5)] * 2), more=[unprobed]))
    assert found.verdicts["kernels"][-1] == "1 launch ran with probes, 5 without: no PTX (5)"
    assert found.rows["unprobed"] == [{"kernel": NAME, "reason": "no PTX", "launches": 5}]


def test_text():
    data = forge.pack(trace(totals(*[(1 << 20, 2, 0, 0, 0)] * 2)))
    lines = run("gmem_bytes", data=data).stdout.decode().splitlines()
    assert lines[0].split() == ["kernel", "launches", "share", "total", "read", "written"]
    assert lines[1].split()[-9:] == ["1", "100.0", "%", "2", "MiB", "2", "MiB", "4", "B"]
    assert "gmem_bytes:2097156" in lines
    assert b"gmem\\_bytes:2097156" in run("gmem_bytes", "--format", "md", data=data).stdout
    assert (
        f"{NAME},1,100.0,2097156,2097152,4,0,0,0,0".encode() in run("gmem_bytes", "--format", "csv", data=data).stdout
    )


def test_trace_without_the_map():
    done = run("gmem_bytes", data=forge.pack(forge.trace(forge.launches({1: 2}))))
    fact = "no map 'gmem_bytes' in the trace: 'gpt-hook run -p gmem_bytes' records one"
    assert (done.returncode, done.stderr.decode()) == (1, f"gpt-analyze: error: {fact}\n")


@pytest.mark.parametrize("wrong", [forge.buffer(0, totals((1, 2, 3, 4, 5))), forge.probed(0, 3, 4, 3, 32)])
def test_a_buffer_of_another_size_is_malformed(wrong):
    inner = [MAP, forge.kernel(3, 4, NAME, 1), forge.probed(0, 3, 4, 2, 32)]
    right = forge.buffer(0, totals(*[(1, 2, 3, 4, 5)] * 2))
    segment = forge.trace(*inner, wrong) if wrong["kind"] == "buffer" else forge.trace(*inner[:2], wrong, right)
    done = run("gmem_bytes", data=forge.pack(segment))
    assert done.returncode == 3 and len(done.stderr.splitlines()) == 1
    assert b"<stdin>: buffer of" in done.stderr and b"bytes; map 'gmem_bytes' has" in done.stderr


@pytest.mark.full
def test_sums_that_are_too_large_are_shown():
    data = forge.pack(trace(totals(*[((1 << 64) - 1,) * 5] * 2)))
    for form in ([], ["--json"], ["--format", "csv"]):
        done = run("gmem_bytes", *form, data=data)
        assert (done.returncode, done.stderr) == (0, b"")
