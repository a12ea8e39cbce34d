"""All forms of a launch have probes, however the program got the function: linked, with dlsym, or with
cuGetProcAddress.
"""

import os
import subprocess
from collections import Counter

import pytest

from tests.runtime import hooked, probing, simulated
from tests.runtime.simulated import needs_cxx

PROGRAM = hooked.ROOT / "tests/programs/launch_forms.c"
DRIVER = hooked.runtime() / "sim" / "libcuda.so.1"


@pytest.mark.parametrize("way", ["LINKED", "HANDLE", "ADDRESS"])
def test_each_form(tmp_path, way):
    # -O1 drops the unused pointers of sim.h, whose names the linker has to find.
    more = (DRIVER, "-O1") if way == "LINKED" else ()
    program = simulated.build(tmp_path / "forms", PROGRAM, f"-D{way}", "-w", *more)
    done, trace = probing.probed(tmp_path, program, "-p", "gmem_bytes")
    assert (done.returncode, done.stderr) == (0, "")
    launched, replayed = map(int, done.stdout.split())
    assert (launched, replayed) == (18, 12)
    probing.check_bytes(trace, launched + replayed)
    assert trace.launches == {"scale": launched}
    assert not probing.unprobed(trace)


RUNTIME = r"""
#include <cooperative_groups.h>
#include <cstdio>
__global__ void scale(unsigned *items, unsigned added, unsigned count) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        items[i] = 3 * items[i] + added;
}
#define OK(call) do { int s_ = (call); if (s_) { printf("%s: %d\n", #call, s_); return 1; } } while (0)
int main() {
    unsigned *items, added = 5, count = 400, found[420], want = 1;
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    OK(cudaStreamCreate(&stream));
    OK(cudaMalloc(&items, sizeof(found)));
    for (unsigned i = 0; i < 420; i++)
        found[i] = 1;
    OK(cudaMemcpy(items, found, sizeof(found), cudaMemcpyHostToDevice));
    void *params[] = {&items, &added, &count};
    cudaLaunchConfig_t config = {};
    config.gridDim = 6, config.blockDim = 70, config.stream = stream;
    scale<<<6, 70>>>(items, added, count);
    OK(cudaGetLastError());
    OK(cudaDeviceSynchronize());
    OK(cudaLaunchKernel((const void *)scale, 6, 70, params, 0, stream));
    OK(cudaLaunchKernelExC(&config, (const void *)scale, params));
    OK(cudaLaunchCooperativeKernel((const void *)scale, 6, 70, params, 0, stream));
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    scale<<<6, 70, 0, stream>>>(items, added, count);
    OK(cudaStreamEndCapture(stream, &graph));
    OK(cudaGraphInstantiate(&exec, graph, 0));
    OK(cudaGraphLaunch(exec, stream));
    OK(cudaStreamSynchronize(stream));
    OK(cudaMemcpy(found, items, sizeof(found), cudaMemcpyDeviceToHost));
    for (int i = 0; i < 5; i++)
        want = 3 * want + added;
    for (unsigned i = 0; i < 420; i++)
        if (found[i] != (i < count ? want : 1))
            return 2;
    return 0;
}
"""


@needs_cxx
@pytest.mark.full
def test_each_form_of_the_runtime(tmp_path):
    (tmp_path / "forms.cu").write_text(RUNTIME)
    program = simulated.compile_cuda(tmp_path, tmp_path / "forms.cu")
    line = hooked.command("run", "--device", "sim", "-o", tmp_path / "t.mp", "-p", "gmem_bytes", "--", program)
    env = os.environ | {"GPT_SIM_RUN": "all", "XDG_CACHE_HOME": probing.kept()}
    done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    trace = hooked.Trace(tmp_path / "t.mp")
    names = Counter(len(row["data"]) for row in trace.of("buffer"))
    assert (len(trace.of("probed")), names.total()) == (5, 5)
    assert not probing.unprobed(trace)
    assert trace.launches == {"_Z5scalePjjj": 4}
