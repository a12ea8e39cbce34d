"""gpt-analyze value_range on threads with known ranges."""

import struct

import pytest

from tests.analyze.asked import answers, run
from tests.trace import forge

INF = float("inf")
NOTHING = (INF, -INF, 0)  # saved by a thread that computed nothing
MAP = forge.probe_map("value_range", level="thread", least="f32", greatest="f32", nans="u32")


def trace(*launches, name="k", **header):
    found = [forge.records.make("function", id=4, name=name), MAP, forge.kernel(3, 4, name, 1)]
    for number, threads in enumerate(launches):
        data = b"".join(struct.pack("<QffI4x", 1, *thread) for thread in threads)
        found += [forge.probed(number, 3, 4, 1, len(threads)), forge.buffer(number, data)]
    return forge.trace(*found, **header)


def test_ranges_of_kernels_and_threads():
    found = answers("value_range", trace([(-2, 3, 0), NOTHING, (0.5, 70000, 0)], [(1, 1, 0)]))
    (row,) = found.rows["kernels"]
    assert (row["least"], row["greatest"], row["computed"], row["idle"], row["beyond_half"]) == (-2, 70000, 3, 1, 1)
    assert (row["launches"], row["with_nan"], row["with_infinity"]) == (2, 0, 0)
    assert [(r["least"], r["greatest"], r["computed"]) for r in found.rows["launches"]] == [(-2, 70000, 2), (1, 1, 1)]
    assert sum(r["threads"] for r in found.rows["sizes"]) == 3
    assert found.verdicts["kernels"][:2] == [
        "value_range:computed 3 with_nan 0 with_infinity 0 beyond_half 1",
        "no NaN, no infinity; largest result 7e+04 in k, beyond half precision",
    ]


def test_nan_and_infinity_come_first_and_say_where():
    bad = trace([(1, 2, 0)] * 2, [(1, 2, 0), (INF, -INF, 4)], [(-INF, 2, 1), (1, 2, 0)], name="bad", pid=11)
    found = answers("value_range", trace([(-3e38, 3e38, 0)]), bad)
    first, second = found.rows["kernels"]
    assert (first["name"], first["with_nan"], first["with_infinity"], first["nans"], first["computed"]) == (
        "bad",
        2,
        1,
        5,
        6,
    )
    assert (first["least"], first["greatest"], second["name"]) == (-INF, 2, "k")
    assert found.verdicts["kernels"][1] == "NaN in bad, 2 of its 6 threads, first in launch 3"


def test_kernel_with_zero_results_has_a_visible_bin():
    (row,) = answers("value_range", trace([(-0.0, 0.0, 0)])).rows["sizes"]
    assert (row["low"], row["high"], row["threads"]) == (0, pytest.approx(1), 1)


def test_kernel_without_arithmetic():
    found = answers("value_range", trace([NOTHING]))
    assert found.verdicts["kernels"][1] == "no thread computed in single precision" and found.rows["sizes"] == []


@pytest.mark.full
def test_a_picture_and_a_trace_without_it(tmp_path):
    data = forge.pack(trace([(float(n), 2.0**n, 0) for n in range(64)]))
    done = run("value_range", "--plot", tmp_path / "v.png", data=data)
    assert (done.returncode, done.stderr) == (0, b"") and (tmp_path / "v.png").read_bytes()[:4] == b"\x89PNG"
    done = run("value_range", data=forge.pack(forge.trace(forge.launches({1: 2}))))
    fact = "no map 'value_range' in the trace: 'gpt-hook run -p value_range' records one"
    assert (done.returncode, done.stderr.decode()) == (1, f"gpt-analyze: error: {fact}\n")


@pytest.mark.parametrize("type_", ["u32", "i32"])
def test_a_map_of_another_probe(type_):
    map_ = forge.probe_map("value_range", level="thread", least=type_, greatest="f32", nans="u32")
    found = [forge.records.make("function", id=4, name="k"), map_, forge.kernel(3, 4, "k", 1)]
    found += [forge.probed(0, 3, 4, 1, 1), forge.buffer(0, bytes(24))]
    done = run("value_range", data=forge.pack(forge.trace(*found)))
    assert done.returncode and b"map 'value_range' has no field 'least' of a float, unlike" in done.stderr
