"""gpt-hook -p: if a kernel doesn't fit with probes, it's assembled again."""

import sys

import pytest

from tests.runtime.probing import CLIENT, PTX, buffers, build, good, unprobed

pytestmark = pytest.mark.full

# Kernels with probes take 128 registers unless fewer are requested; the simulated device's own kernels take 32.
HUNGRY = r"""
import re, sys, msgpack
from gpt.stream import wire
for record in msgpack.Unpacker(sys.stdin.buffer, strict_map_key=False, read_size=1):
    if record.get("kind") == "ptx" and "original" in record:
        record["data"] = re.sub(rb"(\.entry [^{]*)\{", rb"\1.maxnreg 128 {", record["data"])
    sys.stdout.buffer.write(msgpack.packb(record))
    if record.get("kind") in ("sync", "end"):
        sys.stdout.buffer.flush()
"""

# Waits until this many kernels with probes have been loaded.
FIT = (
    "#include <dirent.h>\n"
    + CLIENT
    + r"""
static const char *cache;

static void await(int kernels) {
    char path[4096];
    snprintf(path, sizeof(path), "%s/gpt/probed", cache);
    for (int i = 0, found = 0; found < kernels; i++) {
        assert(i < 3000);
        usleep(20000);
        OK(D(cuCtxSynchronize)());
        DIR *folder = opendir(path);
        found = 0;
        for (struct dirent *at; folder && (at = readdir(folder));)
            found += *at->d_name != '.';
        if (folder)
            closedir(folder);
    }
    OK(D(cuCtxSynchronize)());
}

static void run_blocks(unsigned blocks, unsigned threads) {
    void *params[] = {&items, &added, &count};
    OK(cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, NULL, params, NULL));
    expect(3);
}
"""
)


def fit(folder, body, *options, before=FIT, runs=1):
    """Return the traces of this many runs."""
    stage = folder / "hungry.py"
    stage.write_text(HUNGRY)
    line = f"gpt-extract --ptx | gpt-ptx-probe -p block_sched | {sys.executable} '{stage}' | gpt-asm --arch $GPT_ARCH"
    main = f"int main(int argc, char **argv) {{ cache = argv[2]; setup(argv[1]); {body} check(); return 0; }}"
    program = build(folder, before + main)
    arguments = (PTX, str(folder / "cache"))
    return [good(folder, program, "--jit", line, *options, arguments=arguments) for _ in range(runs)]


def kernels(trace):
    """Return the index of the kernel of each launch with probes."""
    return [record["kernel"] - 1 for record in trace.of("probed")]


FEW = "with probes, a block this large has too few registers"


def test_block_too_large(tmp_path):
    """The new variant is only used for such blocks, and is cached."""
    body = "run_blocks(1, 1024); run_blocks(6, 70); await(2); run_blocks(1, 1024); run_blocks(6, 70);"
    first, second = fit(tmp_path, body, runs=2)
    for trace in (first, second):
        assert kernels(trace) == [0, 1, 0]
        assert unprobed(trace) == {FEW: 1}
        for units in buffers(trace, "block_sched").values():
            assert (units["slots"]["start"] < units["slots"]["stop"]).all()


def test_ever_larger_blocks(tmp_path):
    body = "run_blocks(1, 640); await(2); run_blocks(1, 640); run_blocks(1, 1024); await(3); run_blocks(1, 1024);"
    (trace,) = fit(tmp_path, body)
    assert kernels(trace) == [1, 2]
    assert unprobed(trace) == {FEW: 2}


def test_cooperative_grid_too_large(tmp_path):
    body = r"""
        void *params[] = {&items, &added, &count};
        int processors, each;
        OK(D(cuDeviceGetAttribute)(&processors, 16, 0));
        for (int i = 0; i < 2; i++) {
            OK(D(cuLaunchCooperativeKernel)(function, 8 * processors, 1, 1, 256, 1, 1, 0, NULL, params));
            expect(3);
            if (!i)
                await(2);
        }
        OK(D(cuOccupancyMaxActiveBlocksPerMultiprocessor)(&each, function, 256, (size_t)0));
        assert(each == 2); // the first variant's, which runs if no grid is given
        OK(D(cuLaunchCooperativeKernel)(function, 2 * processors, 1, 1, 256, 1, 1, 0, NULL, params));
        expect(3);
    """
    (trace,) = fit(tmp_path, body)
    assert kernels(trace) == [1, 0]
    assert unprobed(trace) == {"with probes its cooperative grid does not fit": 1}


def test_launches_that_the_driver_rejects_get_no_variant(tmp_path):
    """The driver rejects the launch, and no code is made for it."""
    body = r"""
        void *params[] = {&items, &added, &count};
        run_blocks(6, 70);
        IS(1, cuLaunchKernel(function, 1, 1, 1, 1025, 1, 1, 0, NULL, params, NULL));
        IS(720, D(cuLaunchCooperativeKernel)(function, 100000, 1, 1, 256, 1, 1, 0, NULL, params));
        usleep(100000);
        OK(D(cuCtxSynchronize)());
        run_blocks(6, 70);
    """
    (trace,) = fit(tmp_path, body)
    assert kernels(trace) == [0, 0] and not unprobed(trace)
    assert len(list((tmp_path / "cache" / "gpt" / "probed").iterdir())) == 1


ASK = r"""
    int each, grid, threads, processors, regs;
    OK(D(cuDeviceGetAttribute)(&processors, 16, 0));
"""
ASKED = "the program asked for its occupancy, which is lower with probes"


@pytest.mark.parametrize(
    ("question", "without"),
    [
        (
            "OK(D(cuOccupancyMaxActiveBlocksPerMultiprocessor)(&each, function, 256, (size_t)0));assert(each == %d);",
            (8, 2),
        ),
        (
            "OK(D(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags)(&each, function, 256, (size_t)0, 0));"
            "assert(each == %d);",
            (8, 2),
        ),
        (
            "OK(D(cuOccupancyMaxPotentialBlockSize)(&grid, &threads, function, NULL, (size_t)0, 0));"
            "assert(grid / processors * threads == %d);",
            (2048, 512),
        ),
    ],
)
def test_occupancy_that_was_asked_for(tmp_path, question, without):
    """Occupancy is queried before the kernel with probes is loaded, and after that."""
    alone, with_probes = (question % number for number in without)
    body = f"{ASK} {alone} run_blocks(2, 256); await(2); run_blocks(2, 256); {alone}"
    (trace,) = fit(tmp_path, body, "--wait", "0")
    assert kernels(trace) == [1]
    assert len(unprobed(trace)) == 1
    (trace,) = fit(tmp_path, f"{ASK} {with_probes} run_blocks(2, 256); {with_probes}")
    assert kernels(trace) == [0]


def test_no_launch_exceeds_the_reported_occupancy(tmp_path):
    """The first kernel with probes is loaded long before the second one."""
    ask = "OK(D(cuOccupancyMaxActiveBlocksPerMultiprocessor)(&each, function, 256, (size_t)0));"
    body = f"{ASK} {ask} assert(each == 8);"
    body += "for (int i = 0; i < 100; i++) { run_blocks(2, 256); usleep(10000); OK(D(cuCtxSynchronize)()); }"
    (trace,) = fit(tmp_path, body + "await(2); run_blocks(2, 256);", "--wait", "0")
    assert set(kernels(trace)) == {1}
    assert set(unprobed(trace)) <= {"it was not looked up by name, or is still being compiled", ASKED}


def test_function_queries_return_the_programs_values(tmp_path):
    body = r"""
        int value;
        const char *name;
        void *of, *library, *kernel;
        size_t offset, size;
        OK(D(cuFuncGetAttribute)(&value, 4, function));
        assert(value == 32);
        OK(D(cuFuncGetAttribute)(&value, 0, function));
        assert(value == 1024);
        OK(D(cuFuncGetName)(&name, function));
        assert(!strcmp(name, "scale"));
        OK(D(cuFuncGetModule)(&of, function));
        assert(of == module);
        OK(D(cuFuncGetParamInfo)(function, (size_t)2, &offset, &size));
        assert(offset == 12 && size == 4);
        assert(D(cuFuncGetParamInfo)(function, (size_t)3, &offset, &size));
        OK(D(cuFuncGetParamCount)(function, &size));
        assert(size == 3);
        FILE *file = fopen(argv[1], "r");
        assert(fread(text, 1, sizeof(text) - 1, file));
        OK(D(cuLibraryLoadData)(&library, text, NULL, NULL, 0, NULL, NULL, 0));
        OK(D(cuLibraryGetKernel)(&kernel, library, "scale"));
        OK(D(cuKernelGetAttribute)(&value, 4, kernel, 0));
        assert(value == 32);
        OK(D(cuKernelGetLibrary)(&of, kernel));
        assert(of == library);
        assert(D(cuKernelGetParamInfo)(kernel, (size_t)3, &offset, &size));
        OK(D(cuKernelGetParamCount)(kernel, &size));
        assert(size == 3);
        run_blocks(6, 70);
        void *graph, *nodes[2], *exec, *arguments[] = {&items, &added, &count};
        CUDA_KERNEL_NODE_PARAMS own = {.func = function, 6, 1, 1, 70, 1, 1, .kernelParams = arguments};
        OK(D(cuGraphCreate)(&graph, 0));
        OK(D(cuGraphAddKernelNode_v2)(&nodes[0], graph, NULL, (size_t)0, &own));
        CUgraphNodeParams same = {.type = CU_GRAPH_NODE_TYPE_KERNEL, .kernel = own}, told;
        OK(D(cuGraphAddNode_v3)(&nodes[1], graph, nodes, NULL, (size_t)1, &same));
        for (int i = 0; i < 4; i++) { // before and after the executable graph has the kernel with probes
            OK(D(cuGraphNodeGetParams)(nodes[i % 2], &told));
            assert(told.type == CU_GRAPH_NODE_TYPE_KERNEL && told.kernel.func == function);
            assert(told.kernel.gridDimX == 6 && told.kernel.blockDimX == 70);
            assert(*(CUdeviceptr *)told.kernel.kernelParams[0] == items);
            assert(*(unsigned *)told.kernel.kernelParams[2] == count);
            if (i == 1)
                OK(D(cuGraphInstantiateWithFlags)(&exec, graph, 0ull));
        }
        OK(D(cuGraphNodeSetParams_v2)(nodes[0], &told));
    """
    (trace,) = fit(tmp_path, body)
    assert kernels(trace) == [0]
