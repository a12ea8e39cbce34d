"""The cost of a launch with probes, --benchmark and --memusage, on the simulated device."""

import os
import subprocess

import numpy as np
import pytest

from gpt.analyze.lib.base import SIMULATED
from tests import loaded
from tests.analyze.asked import Answers
from tests.runtime import hooked
from tests.runtime.probing import BLOCKS, CLIENT, PTX, build, check_bytes, good, in_both_forms, kept, unprobed

# Like `scale`, but from one array to another: only `total` is changed in place.
COPY = PTX.read_text().replace("ld.global.u32 %r6, [%d1]", "ld.global.u32 %r6, [%d1+1680]")
NEEDS = {
    "gmem_bytes": BLOCKS * 32,  # a record for each block
    "dmat": 16 * 128 + 17 * 128,  # a log: a head, and a room for each warp that accesses anything
}


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    source = (
        CLIENT
        + r"""
    int main(int argc, char **argv) {
        unsigned from[420], found[420], sum;
        size_t size;
        setup(argv[1]);
        OK(D(cuMemAlloc_v2)(&items, (size_t)2 * sizeof(want)));
        for (unsigned i = 0; i < 420; i++)
            from[i] = 7 * i;
        OK(D(cuMemcpyHtoD_v2)(items + sizeof(want), from, sizeof(from)));
        for (int i = 0; i < 4; i++) {
            if (i == 3) { // a launch that may begin before the one before has ended
                void *params[] = {&items, &added, &count};
                CUlaunchAttribute early = {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION};
                early.value.cooperative = 1;
                CUlaunchConfig config = {6, 1, 1, 70, 1, 1, 0, NULL, &early, 1};
                OK(D(cuLaunchKernelEx)(&config, function, params, NULL));
                expect(3);
            } else
                run();
        }
        OK(D(cuMemcpyDtoH_v2)(found, items, sizeof(found)));
        for (unsigned i = 0; i < count; i++)
            assert(found[i] == 3 * from[i] + added);
        OK(D(cuModuleGetGlobal_v2)(&total, &size, module, "total"));
        OK(D(cuMemcpyDtoH_v2)(&sum, total, (size_t)4));
        assert(sum == times * count);
        return 0;
    }
    """
    )
    return build(tmp_path_factory.mktemp("copies"), source)


@pytest.fixture
def ptx(tmp_path):
    path = tmp_path / "copy.ptx"
    path.write_text(COPY)
    return path


def analyzed(name, path):
    done = loaded.run(["gpt-analyze", name, "--json", path], check=True)
    return Answers(done.stdout)


@in_both_forms
def test_times_of_a_probed_launch_are_recorded(tmp_path, program, ptx):
    trace = good(tmp_path, program, "-p", "gmem_bytes", "--gpu-time", arguments=(ptx,))
    check_bytes(trace, 4)
    assert sorted(r["launch"] for r in trace.of("times")) == sorted(r["id"] for r in trace.of("probed"))
    for times in trace.of("times"):
        assert 0 < times["prologue"] < 10**9 and 0 < times["epilogue"] < 10**9
        assert not {"kernel", "original"} & times.keys()
    (row,) = analyzed("overhead", tmp_path / "t.mp").rows["kernels"]
    assert (row["name"], row["launches"], row["timed"], row["compared"]) == ("scale", 4, 4, 0)
    took = [r["duration"] for record in trace.of("gpu_times") for r in hooked.rows(record) if r["function"]]
    hz = trace.of("header")[0].get("tsc_hz", 10**9)
    assert row["probed"] == pytest.approx(np.median(took) * 1e9 / hz, rel=0.1)


@pytest.mark.full
def test_benchmark(tmp_path, program, ptx):
    """Results are the same as without probes, although each kernel runs twice. That includes `total`, because the first
    run gets a copy of it.
    """
    trace = good(tmp_path, program, "-p", "gmem_bytes", "--benchmark", arguments=(ptx,))
    assert unprobed(trace) == {
        "--benchmark cannot measure it: it depends on its predecessor, so nothing may come between them": 1
    }
    assert trace.launches == {"scale": 4} and len(trace.of("probed")) == len(trace.of("times")) == 3
    for times in trace.of("times"):
        assert times["kernel"] > 0 and times["original"] > 0
    assert {r.get("lost") for r in trace.of("buffer")} == {"not_saved"}
    found = analyzed("overhead", tmp_path / "t.mp")
    (row,) = found.rows["kernels"]
    original, probed = (round(np.median([r[key] for r in trace.of("times")])) for key in ("original", "kernel"))
    assert (row["compared"], row["original"], row["probed"]) == (3, original, probed)
    assert row["slowdown"] == pytest.approx(probed / original)
    assert found.verdicts["kernels"][0] == f"slowdown:{probed / original:.3f}, mean of 1 kernel"


@pytest.mark.full
def test_benchmark_of_a_pipeline_without_the_original(tmp_path, program, ptx):
    pipeline = "gpt-extract --ptx | gpt-ptx-probe -p gmem_bytes | gpt-asm --arch $GPT_ARCH"
    trace = good(tmp_path, program, "--jit", pipeline, "--benchmark", arguments=(ptx,))
    reason = "--benchmark cannot measure it: the pipeline returns no code without probes, as 'gpt-asm --original' does"
    assert unprobed(trace) == {reason: 4} and not trace.of("probed")


@in_both_forms
@pytest.mark.parametrize("probe", [pytest.param("gmem_bytes", marks=pytest.mark.full), "dmat"])
def test_memusage(tmp_path, program, ptx, probe, code):
    trace = good(tmp_path, program, "-p", probe, "--memusage", arguments=(ptx,))
    need = NEEDS[probe]
    (record,) = trace.of("memusage")
    assert (record["launches"], record["bytes"], record["most"]) == (4, 4 * need, need)
    assert not trace.of("probed") and not trace.of("buffer") and not trace.of("unprobed")
    found = analyzed("memusage", tmp_path / "t.mp")
    assert found.rows["kernels"] == [
        {"name": "scale", "launches": 4, "total": 4 * need, "mean": need, "most": need},
    ]
    told = [SIMULATED] if code == "ptx" else []  # with twins, the device claims to run machine code
    assert found.verdicts["kernels"] == [f"memusage:{need} for a launch at most, {4 * need} for all", *told]
    (row,) = found.rows["processes"]
    assert (row["allocations"], row["peak"], row["left"], row["most"]) == (2, 3 * 1680, 3 * 1680, need)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--benchmark",), "--benchmark: no -p or --jit"),
        (("--memusage",), "--memusage: no -p or --jit"),
        (("-p", "dmat", "--memusage", "--benchmark"), "--memusage: cannot be combined with --benchmark"),
    ],
)
def test_options_that_exclude_each_other(tmp_path, options, message):
    line = hooked.command("run", "-o", tmp_path / "t.mp", *options, "true")
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, f"gpt-hook: error: {message}\n")


@in_both_forms
def test_the_line_at_the_end(tmp_path, program, ptx):
    options = ("-o", tmp_path / "t.mp", "--device", "sim", "-p", "dmat", "--memusage", "--")
    line = hooked.command("run", *options, program, ptx, quiet=False)
    env = os.environ | {"GPT_SIM_RUN": "all", "XDG_CACHE_HOME": kept()}
    done = subprocess.run(line, capture_output=True, text=True, check=True, env=env)
    needs = "4 launches would need 4.1 KiB at most, 16 KiB together"
    assert done.stderr.splitlines()[1:] == [f"gpt-hook: buffers of {needs}: gpt-analyze memusage says which"]


@in_both_forms
def test_in_place_kernel_causes_a_warning(tmp_path):
    line = hooked.command("run", "-o", tmp_path / "t.mp", "-p", "gmem_bytes", "--benchmark", "true", quiet=False)
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[0] == (
        "gpt-hook: warning: --benchmark runs each kernel twice: a kernel that works in place gives another result"
    )


@pytest.mark.full
def test_benchmark_of_every_form(tmp_path, ptx):
    """Kernels of a library and their functions, packed parameters, cooperative grids, and a context after a reset."""
    source = (
        CLIENT
        + r"""
    static void launch_all(const char *path) {
        void *library, *kernel, *stream;
        void *params[] = {&items, &added, &count};
        setup(path);
        OK(D(cuMemAlloc_v2)(&items, (size_t)2 * sizeof(want)));
        struct { CUdeviceptr items; unsigned added, count; } packed = {items, added, count};
        size_t size = sizeof(packed), bytes;
        void *extra[] = {(void *)1, &packed, (void *)2, &size, NULL};
        OK(D(cuMemsetD8_v2)(items, 0, 2 * sizeof(want)));
        FILE *file = fopen(path, "r");
        assert(fread(text, 1, sizeof(text) - 1, file));
        OK(D(cuLibraryLoadData)(&library, text, NULL, NULL, 0, NULL, NULL, 0));
        OK(D(cuLibraryGetKernel)(&kernel, library, "scale"));
        OK(D(cuStreamCreate)(&stream, 1));
        OK(cuLaunchKernel(function, 6, 1, 1, 70, 1, 1, 0, stream, NULL, extra));
        OK(D(cuLaunchCooperativeKernel)(function, 6, 1, 1, 70, 1, 1, 0, stream, params));
        OK(D(cuCtxSynchronize)());
        OK(D(cuModuleGetGlobal_v2)(&total, &bytes, module, "total"));
        unsigned sum;
        OK(D(cuMemcpyDtoH_v2)(&sum, total, (size_t)4));
        assert(sum == 2 * count);
        function = kernel, run();
        OK(D(cuKernelGetFunction)(&function, kernel));
        run();
        OK(D(cuLibraryGetModule)(&module, library));
        OK(D(cuModuleGetGlobal_v2)(&total, &bytes, module, "total"));
        OK(D(cuMemcpyDtoH_v2)(&sum, total, (size_t)4));
        assert(sum == 2 * count);
    }

    int main(int argc, char **argv) {
        launch_all(argv[1]);
        OK(D(cuDevicePrimaryCtxReset_v2)(0));
        launch_all(argv[1]);
        return 0;
    }
    """
    )
    trace = good(tmp_path, build(tmp_path, source), "-p", "gmem_bytes", "--benchmark", arguments=(ptx,))
    assert not unprobed(trace) and len(trace.of("times")) == 8
    assert all(times["kernel"] and times["original"] for times in trace.of("times"))
