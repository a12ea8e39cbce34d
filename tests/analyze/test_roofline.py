"""gpt-analyze roofline on kernels with known bytes, operations and times, under known roofs."""

import io
import struct

import pytest

from gpt.analyze.lib.peaks import HALF, PER_CLOCK, PUBLISHED, find_bytes, find_flops, find_others
from gpt.analyze.roofline import Roofline
from gpt.stream import records, wire
from gpt.trace.process import iter_processes
from tests.analyze.asked import ask, run
from tests.analyze.blocks import saved
from tests.trace import forge

H200 = records.make("device", index=0, name="NVIDIA H200", arch="sm_90", runs="sass", sms=132, clock_hz=1_980_000_000,
                    memory_hz=3_201_000_000, bus_bits=6144)  # fmt: skip
BYTES = forge.probe_map("gmem_bytes", 1, type_="total", **forge.GMEM_BYTES)
FLOPS = forge.probe_map("tensorop_count", 2, type_="total", operations="u64", flops="u64")
BLOCKS = forge.probe_map("block_sched", 3, **forge.BLOCK_SCHED)
PEAKS = ("--peak-flops", "8e12", "--peak-bytes", "2e12")


def moved(*parts):
    return forge.buffer(0, struct.pack("<6Q", 32, *parts, *[0] * (5 - len(parts))), 1)


def computed(flops):
    return forge.buffer(0, struct.pack("<3Q", 32, 1, flops), 2)


def trace(*inner, name="k", maps=(1, 2), sites=(), device=None, **header):
    """Return a segment with one launch of one block that saved this data."""
    known = [records.make("function", id=4, name=name), BYTES, FLOPS, BLOCKS]
    kernel = forge.kernel(3, 4, name, *maps) | ({"sites": list(sites)} if sites else {})
    return forge.trace(*([device] if device else []), *known, kernel, forge.probed(0, 3, 4, 1, 32), *inner, **header)


def took(ns):
    return forge.gpu_times([(1000, ns, 2, 4)])


def test_a_kernel_under_its_roof():
    segment = trace(moved(600_000, 400_000), computed(2_000_000), took(1000))
    found = ask("roofline", segment, args=PEAKS)
    (row,) = found.rows["kernels"]
    assert row == {
        "name": "k", "bound": "memory", "timed": "gpu-time", "share": pytest.approx(50), "intensity": 2,
        "tflops": pytest.approx(2), "gbytes": pytest.approx(1000), "time": 1000, "bytes": 1_000_000,
        "flops": 2_000_000, "launches": 1, "device": "unknown device", "peak_tflops": 8, "peak_gbytes": 2000,
    }  # fmt: skip
    assert found.verdicts["kernels"] == ["kernels bound by memory: 1, by compute: 0", "1 launch ran with probes"]
    assert found.rows["devices"][0]["ridge"] == 4
    assert found.verdicts["devices"] == ["unknown device: FLOPs: --peak-flops; memory: --peak-bytes"]
    (row,) = ask("roofline", trace(moved(100_000), computed(2_000_000), took(1000)), args=PEAKS).rows["kernels"]
    assert (row["bound"], row["share"], row["intensity"]) == ("compute", pytest.approx(25), 20)


def test_bytes_operations_and_times_of_several_runs():
    times = records.make("times", launch=0, prologue=1, epilogue=1, kernel=900, original=500)
    runs = [
        trace(moved(1000), took(700), maps=(1,)),
        trace(computed(4000), maps=(2,), pid=11),
        trace(forge.buffer(0, b"", 1, lost="--benchmark saves no buffers"), times, maps=(1,), pid=12),
    ]
    (row,) = ask("roofline", *runs, args=PEAKS).rows["kernels"]
    assert (row["bytes"], row["flops"], row["timed"], row["time"]) == (1000, 4000, "benchmark", 500)
    (row,) = ask("roofline", *runs[:2], args=PEAKS).rows["kernels"]
    assert (row["timed"], row["time"]) == ("gpu-time", 700)


def test_a_first_launch_does_not_count_where_there_are_others():
    """The first launch's time may include loading the kernel's code."""
    times = forge.gpu_times([(9000, 800, 2, 4), (1000, 73_000_000, 2, 4), (5000, 600, 2, 4)])
    (row,) = ask("roofline", trace(moved(1000), times, maps=(1,))).rows["kernels"]
    assert (row["timed"], row["time"]) == ("gpu-time", 700)


def test_times_of_blocks_and_of_kernels_with_probes():
    blocks = forge.buffer(0, saved([(1000, 1000, 0)]), 3)
    (row,) = ask("roofline", trace(moved(1000), blocks, maps=(1, 3)), args=PEAKS).rows["kernels"]
    assert "timed" not in row  # a single time fits any clock
    blocks = forge.buffer(0, saved([(1000, 1000, 0), (2000, 1000, 0)]), 3)
    launch = forge.probed(1, 3, 4, 2, 32)
    two = [launch, forge.buffer(1, struct.pack("<6Q", 32, 500, 0, 0, 0, 0) * 2, 1), blocks | {"launch": 1}]
    segment = forge.trace(records.make("function", id=4, name="k"), BYTES, BLOCKS, forge.kernel(3, 4, "k", 1, 3), *two)
    (row,) = ask("roofline", segment, args=PEAKS).rows["kernels"]
    assert (row["timed"], row["time"], row["bytes"]) == ("block_sched", 1000, 1000)
    layout = forge.GPU_TIMES | {"probed": "u32"}
    probed = records.make("gpu_times", **forge.rows([(1000, 800, 1000, 0, 2, 4, 1, 0, 1)], layout))
    (row,) = ask("roofline", [*segment[:-1], probed, segment[-1]], args=PEAKS).rows["kernels"]
    assert (row["timed"], row["time"]) == ("probed", 800)


def test_tensor_map_copies_count_as_barrier_waits():
    (row,) = ask("roofline", trace(moved(1, 2, 4, 8, 100), computed(0))).rows["kernels"]
    assert row["bytes"] == 107


def test_probe_without_sites_counts_nothing():
    site = {"probe": "tensorop_count.begin", "position": "kernel", "matched": 1, "woven": 0}
    found = ask("roofline", trace(moved(1000), took(1000), maps=(1,), sites=[site]), args=PEAKS)
    (row,) = found.rows["kernels"]
    assert (row["flops"], row["intensity"], row["bound"], row["share"]) == (0, 0, "latency", pytest.approx(0.05))
    without = ask("roofline", trace(moved(1000), maps=(1,)), args=PEAKS)
    (row,) = without.rows["kernels"]
    assert not {"flops", "intensity", "bound", "share", "time"} & row.keys()
    assert without.verdicts["kernels"][:2] == [
        "no flops: 'gpt-hook run -p tensorop_count' records them", "no times: 'gpt-hook run --gpu-time' takes them",
    ]  # fmt: skip


def test_far_below_both_roofs_a_kernel_is_bound_by_latency():
    """In a microsecond the device could move 2 MB and compute 8 MFLOP (PEAKS)."""
    bounds = {}
    for share in (9.9, 10.1):
        for bound, bytes_, flops in (("memory", 20_000, 100), ("compute", 100, 80_000)):
            size, work = round(share * bytes_), round(share * flops)
            found = ask("roofline", trace(moved(size), computed(work), took(1000)), args=PEAKS)
            (row,) = found.rows["kernels"]
            assert row["share"] == pytest.approx(share, rel=0.01)
            bounds[bound, share] = row["bound"]
            told = ", by latency (below 10 % of both roofs): 1" in found.verdicts["kernels"][0]
            assert told == (share < 10)
    assert bounds == {("memory", 9.9): "latency", ("memory", 10.1): "memory", ("compute", 9.9): "latency",
                      ("compute", 10.1): "compute"}  # fmt: skip
    (row,) = ask("roofline", trace(moved(100), computed(100)), args=PEAKS).rows["kernels"]
    assert row["bound"] == "memory"  # the time isn't known


def test_more_bytes_than_the_memory_has_are_of_caches():
    found = ask("roofline", trace(moved(10_000_000), took(1000)), args=PEAKS)
    assert found.rows["kernels"][0]["share"] == pytest.approx(500)
    assert "more than 100 % of the memory: bytes that caches serve count too" in found.verdicts["kernels"]


def test_peaks_of_a_record_of_a_table_and_of_nothing():
    found = ask("roofline", trace(moved(1), computed(1), device=H200))
    (row,) = found.rows["devices"]
    assert row["peak_tflops"] == pytest.approx(132 * 1.98 * 4096 / 1000)
    assert row["peak_gbytes"] == pytest.approx(3.201 * 2 * 6144 / 8)
    assert found.verdicts["devices"] == [
        "NVIDIA H200: FLOPs: 132 SMs x 1.98 GHz x 4,096, dense FP16 of sm_90; memory: 2 x 3.201 GHz x 6,144 bits"
    ]
    older = records.make("device", index=0, name="NVIDIA H200", arch="sm_90", runs="sass")
    (row,) = ask("roofline", trace(moved(1), computed(1), device=older)).rows["devices"]
    assert (row["peak_tflops"], row["peak_gbytes"], row["flops_from"]) == (989.4, 4800, "published, dense FP16")
    found = ask("roofline", trace(moved(1), computed(1), device=older | {"name": "another"}))
    assert found.verdicts["devices"][-1].startswith("not known for all devices: set it with --peak-flops and")
    assert "peak_tflops" not in found.rows["devices"][0] and "bound" not in found.rows["kernels"][0]


def test_the_tables_agree():
    """From a device's record, we compute the published peaks at the clock rate for which they were published."""
    told = {  # SMs, MHz, MHz of memory, bits
        "Tesla V100-SXM2-16GB": ("sm_70", 80, 1530, 877, 4096),
        "Tesla T4": ("sm_75", 40, 1590, 5001, 256),
        "NVIDIA A100-SXM4-40GB": ("sm_80", 108, 1410, 1215, 5120),
        "NVIDIA A40": ("sm_86", 84, 1740, 7251, 384),
        "NVIDIA L4": ("sm_89", 58, 2040, 6251, 192),
        "NVIDIA H100 80GB HBM3": ("sm_90", 132, 1830, 2619, 5120),
    }
    for name, (arch, sms, clock, memory, bits) in told.items():
        card = {"name": name, "arch": arch, "sms": sms, "clock_hz": clock * 10**6, "memory_hz": memory * 10**6,
                "bus_bits": bits}  # fmt: skip
        flops, bytes_ = PUBLISHED[name]
        assert find_flops(card).rate == pytest.approx(flops * 1e12, rel=0.01)
        assert find_bytes(card).rate == pytest.approx(bytes_ * 1e9, rel=0.01)
    others = {  # published TFLOP/s: FP64 and TF32 in tensor cores where they have it
        "Tesla V100-SXM2-16GB": {"FP64": 7.8, "FP32": 15.7},
        "Tesla T4": {"FP32": 8.1},
        "NVIDIA A100-SXM4-40GB": {"FP64": 19.5, "FP32": 19.5, "TF32": 156},
        "NVIDIA A40": {"FP32": 37.4, "TF32": 74.8},
        "NVIDIA L4": {"FP32": 30.3, "FP8": 242},
        "NVIDIA H100 80GB HBM3": {"FP64": 67, "FP32": 67, "TF32": 494.7, "FP8": 1979},
    }
    for name, published in others.items():
        arch, sms, clock, *_ = told[name]
        found = find_others({"name": name, "arch": arch, "sms": sms, "clock_hz": clock * 10**6})
        for precision, rate in published.items():
            assert found[precision] == pytest.approx(rate * 1e12, rel=0.08), (name, precision)
    geforce = find_others({"name": "NVIDIA GeForce RTX 4090", "arch": "sm_89", "sms": 128, "clock_hz": 2_520_000_000})
    assert geforce["FP32"] == pytest.approx(82.6e12, rel=0.01) and geforce["TF32"] == pytest.approx(82.6e12, rel=0.01)
    card = {"name": "NVIDIA GeForce RTX 4090", "arch": "sm_89", "sms": 128, "clock_hz": 2_520_000_000}
    assert find_flops(card).rate == pytest.approx(165.2e12, rel=0.01)
    assert set(HALF[1]) <= set(PER_CLOCK)


def test_a_kernel_without_tensor_operations_is_a_point():
    """A kernel without tensor operations is drawn under the memory's roof; only a kernel without a time isn't drawn."""
    plain = trace(moved(3000), computed(0), took(1000), device=H200)
    timeless = trace(moved(3000), computed(9), device=H200, pid=11, name="other")
    fold = Roofline()
    for process in iter_processes(wire.read_records(io.BytesIO(forge.pack(plain, timeless)), "in"), fold.kinds):
        fold.take(process)
        fold.end(process)
    (answer,) = [one for one in fold.answer([]) if one["name"] == "kernels"]
    roofs = answer["plots"][0]
    assert (roofs["form"], roofs["y"][3]) == ("roofs", "gbytes") and "peak_fp8" in roofs["y"]
    assert roofs["title"].endswith("not drawn for lack of a time: 1 kernel")


@pytest.mark.full
def test_two_devices_are_distinguished_and_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    other = H200 | {"name": "B$\x1b\n", "sms": 10}
    both = [trace(moved(1000), computed(90_000), took(1000), device=H200),
            trace(moved(1000), computed(0), took(1000), name="z" * 4096, device=other, pid=11)]  # fmt: skip
    found = ask("roofline", *both)
    assert [(row["name"][0], row["device"][0]) for row in found.rows["kernels"]] == [("k", "N"), ("z", "B")]
    for form in ([], ["--format", "md"], ["--plot", tmp_path / "r.png"]):
        done = run("roofline", *form, data=forge.pack(*both))
        assert (done.returncode, done.stderr) == (0, b"") and len(done.stdout) < 8000
        assert max(map(len, done.stdout.decode().splitlines())) <= 80 or form[:1] == ["--format"]
    assert (tmp_path / "r.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "many"])
def test_an_invalid_peak_is_refused(value):
    done = run("roofline", "--peak-bytes", value, data=forge.pack(trace(moved(1))))
    assert done.returncode == 2 and b"--peak-bytes" in done.stderr


def test_numbers_that_are_too_large_are_shown():
    large = [(1 << 64) - 1] * 5
    data = forge.pack(trace(moved(*large), computed(large[0]), took(1), device=H200 | {"sms": (1 << 32) - 1}))
    for form in ([], ["--json"], ["--format", "csv"]):
        done = run("roofline", *form, data=data)
        assert (done.returncode, done.stderr) == (0, b"")


def test_trace_without_the_maps():
    done = run("roofline", data=forge.pack(forge.trace(forge.launches({1: 2}))))
    assert done.returncode == 1
    assert done.stderr.decode() == (
        "gpt-analyze: error: no map 'gmem_bytes' in the trace: 'gpt-hook run -p gmem_bytes' records one, "
        "with -p tensorop_count and --gpu-time\n"
    )


def test_a_simulated_device_has_no_peaks():
    """The simulated device's clocks and memory are made up, so no share of its peak makes sense."""
    card = {"index": 0, "name": "GPT simulated device", "arch": "sm_90", "sms": 2, "clock_hz": 1_980_000_000,
                "memory_hz": 3_201_000_000, "bus_bits": 6144}  # fmt: skip
    for runs, known in (("ptx", False), ("sass", True)):
        segment = trace(
            moved(600_000), computed(2_000_000), took(1000), device=records.make("device", runs=runs, **card)
        )
        found = ask("roofline", segment)
        (row,), (device,) = found.rows["kernels"], found.rows["devices"]
        assert [key in row and row[key] is not None for key in ("share", "bound", "peak_tflops")] == [known] * 3
        assert (device.get("peak_gbytes") is not None) == known
        said = "GPT simulated device: FLOPs: none, as its times mean nothing; memory: none, as its times mean nothing"
        assert (found.verdicts["devices"] == [said]) != known
    found = ask("roofline", trace(moved(1), took(1), device=records.make("device", runs="ptx", **card)), args=PEAKS)
    assert found.rows["devices"][0]["peak_gbytes"] == 2000  # the requested value
