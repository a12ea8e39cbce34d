"""The simulated device: what handles stand for, and for how long."""

import pytest

from tests import cuda
from tests.runtime import simulated


@pytest.mark.parametrize(
    ("arch", "expected"), [("9.0", "9 0"), ("sm_90", "9 0"), ("8.6", "8 6"), ("sm_120", "12 0"), ("", "9 0")]
)
def test_the_compute_capability(play, arch, expected):
    source = r"""
    int main(void) {
        begin();
        int major, minor;
        OK(D(cuDeviceGetAttribute)(&major, 75, 0));
        OK(D(cuDeviceGetAttribute)(&minor, 76, 0));
        printf("%d %d", major, minor);
    }
    """
    assert play(source, GPT_SIM_ARCH=arch) == expected


@pytest.mark.parametrize("arch", ["foo", "9", "sm_9", "sm_90a", "sm_", "0.9", "9.0x", "-9.0", "9.10", "sm_9000"])
def test_no_compute_capability(tmp_path, arch):
    source = r"""
    int main(void) {
        driver = dlopen("libcuda.so.1", RTLD_NOW);
        int count;
        IS(100, D(cuInit)(0)); // no device
        IS(100, D(cuInit)(0));
        IS(3, D(cuDeviceGetCount)(&count));
    }
    """
    done = simulated.run(simulated.build(tmp_path / "client", source), GPT_SIM_ARCH=arch)
    fact = f"GPT_SIM_ARCH: not a compute capability: '{arch}' (examples: 9.0, sm_90)"
    assert (done.returncode, done.stderr) == (0, f"libcuda.so.1: error: {fact}\n")


def test_an_image_may_go_when_it_is_loaded(play, tmp_path):
    cubin = cuda.nvrtc_compile('extern "C" __global__ void one(int *p) { *p = 1; }', "sm_90")
    (tmp_path / "code.cubin").write_bytes(cubin)
    (tmp_path / "code.fatbin").write_bytes(cuda.fatbin([("sm_90", "cubin", cubin)], "none"))
    (tmp_path / "code.ptx").write_bytes(cuda.nvrtc_compile('extern "C" __global__ void one() {}', "compute_90"))
    source = r"""
    #include <fcntl.h>
    #include <sys/mman.h>
    #include <sys/stat.h>
    int main(int count, char **paths) {
        begin();
        for (int i = 1; i < count; i++) {
            int file = open(paths[i], O_RDONLY);
            struct stat status;
            assert(file >= 0 && !fstat(file, &status));
            char *image = mmap(0, status.st_size + 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            assert(read(file, image, status.st_size) == status.st_size);
            void *module, *function, *other;
            OK(cuModuleLoadData(&module, image));
            assert(!munmap(image, status.st_size + 1));
            OK(cuModuleGetFunction(&function, module, "one"));
            IS(500, cuModuleGetFunction(&other, module, "on"));
            unsigned functions;
            OK(D(cuModuleGetFunctionCount)(&functions, module));
            OK(D(cuModuleEnumerateFunctions)(&other, 1, module));
            assert(functions == 1 && other == function);
            const char *name;
            OK(D(cuFuncGetName)(&name, function));
            assert(!strcmp(name, "one"));
            OK(D(cuModuleUnload)(module));
        }
    }
    """
    play(source, *(str(tmp_path / f"code.{form}") for form in ("cubin", "fatbin", "ptx")))


def test_a_handle_is_given_out_again_at_once(play):
    source = r"""
    int main(void) {
        begin();
        void *module, *function, *again, *other, *stream, *kept;
        OK(cuModuleLoadData(&module, NAMED("alpha")));
        OK(cuModuleGetFunction(&function, module, "alpha"));
        OK(cuModuleGetFunction(&again, module, "alpha"));
        assert(again == function);
        OK(D(cuModuleUnload)(module));
        IS(400, D(cuModuleUnload)(module));
        IS(400, cuModuleGetFunction(&again, module, "alpha"));
        IS(400, cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0));
        OK(cuModuleLoadData(&kept, NAMED("gamma")));
        assert(kept == module); // the last one that went
        OK(D(cuModuleEnumerateFunctions)(&other, 1, kept));
        const char *name;
        OK(D(cuFuncGetName)(&name, other));
        assert(other == function && !strcmp(name, "gamma"));
        OK(D(cuModuleUnload)(kept));
        OK(D(cuStreamCreate)(&stream, 0)); // another kind of object may be next
        assert(stream == module);
        OK(D(cuStreamDestroy_v2)(stream));
        IS(400, D(cuStreamDestroy_v2)(stream));
    }
    """
    play(source)


def test_what_goes_with_a_context(play):
    source = r"""
    static void *graph; // which is of no context
    static void *create(void) {
        void *context, *module, *function, *stream, *event, *exec;
        uint64_t memory;
        OK(D(cuCtxCreate_v2)(&context, 0, 0));
        OK(D(cuMemAlloc_v2)(&memory, (size_t)100));
        OK(cuModuleLoadData(&module, PTX));
        OK(cuModuleGetFunction(&function, module, "foo"));
        OK(D(cuStreamCreate)(&stream, 0));
        OK(D(cuEventCreate)(&event, 0));
        OK(D(cuGraphInstantiateWithFlags)(&exec, graph, 0ull));
        launch(function);
        OK(D(cuCtxDestroy_v2)(context));
        IS(400, D(cuEventDestroy_v2)(event));
        IS(400, D(cuStreamDestroy_v2)(stream));
        IS(1, D(cuGraphExecDestroy)(exec));
        uint64_t start;
        size_t size;
        IS(500, D(cuMemGetAddressRange_v2)(&start, &size, memory));
        return context;
    }
    static void *away(void *context) { // current elsewhere
        OK(cuCtxSetCurrent(context));
        OK(D(cuCtxDestroy_v2)(context));
        int device;
        IS(201, D(cuCtxGetDevice)(&device));
        return 0;
    }
    int main(void) {
        begin();
        OK(D(cuGraphCreate)(&graph, 0));
        void *current, *first = create();
        assert(create() == first);
        IS(201, D(cuCtxDestroy_v2)(first));
        OK(D(cuCtxGetCurrent)(&current)); // the primary one, as before
        IS(201, D(cuCtxDestroy_v2)(current));
        pthread_t thread;
        OK(D(cuCtxCreate_v2)(&first, 0, 0));
        pthread_create(&thread, 0, away, first);
        pthread_join(thread, 0);
        int device;
        IS(709, D(cuCtxGetDevice)(&device));
        OK(D(cuCtxCreate_v2)(&current, 0, 0));
        assert(first == current);
        OK(D(cuCtxGetDevice)(&device));
        OK(D(cuCtxDestroy_v2)(current));
        IS(709, D(cuCtxGetDevice)(&device)); // what is below is still the first
        OK(D(cuGraphDestroy)(graph));
    }
    """
    play(source)


@pytest.mark.parametrize("end", ["cuDevicePrimaryCtxRelease_v2", "cuDevicePrimaryCtxReset_v2"])
def test_the_primary_context(play, end):
    source = r"""
    int main(void) {
        begin();
        void *context, *again, *module, *function;
        OK(cuDevicePrimaryCtxRetain(&context, 0));
        OK(D(cuDevicePrimaryCtxRelease_v2)(0)); // not the last one
        OK(cuModuleLoadData(&module, PTX));
        OK(cuModuleGetFunction(&function, module, "foo"));
        launch(function);
        OK(D(END)(0));
        unsigned flags;
        int active;
        OK(D(cuDevicePrimaryCtxGetState)(0, &flags, &active));
        assert(!active);
        IS(201, D(cuDevicePrimaryCtxRelease_v2)(0));
        IS(709, cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0));
        OK(cuDevicePrimaryCtxRetain(&again, 0));
        assert(again == context);
        IS(400, cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0));
        OK(cuModuleLoadData(&module, NAMED("other")));
        OK(cuModuleGetFunction(&again, module, "other"));
        assert(again == function);
        launch(again);
    }
    """
    play(source.replace("END", end))


def test_libraries_have_a_module_in_each_context(play):
    source = r"""
    int main(void) {
        begin();
        void *library, *kernel, *modules[2], *functions[2], *found, *context;
        OK(D(cuLibraryLoadData)(&library, PTX, 0, 0, 0, 0, 0, 0));
        OK(D(cuLibraryGetKernel)(&kernel, library, "foo"));
        for (int i = 0; i < 2; i++) {
            OK(D(cuKernelGetFunction)(&functions[i], kernel));
            OK(D(cuFuncGetModule)(&modules[i], functions[i]));
            OK(D(cuLibraryGetModule)(&found, library));
            assert(found == modules[i] && functions[i] != kernel && modules[i] != library);
            IS(400, D(cuModuleUnload)(found)); // it is the library's
            launch(functions[i]), launch(kernel);
            if (!i)
                OK(D(cuCtxCreate_v2)(&context, 0, 0));
        }
        assert(functions[0] != functions[1] && modules[0] != modules[1]);
        IS(400, cuLaunchKernel(functions[0], 1, 1, 1, 1, 1, 1, 0, 0, 0, 0)); // of the other context
        IS(400, D(cuKernelGetFunction)(&found, functions[1]));
        OK(D(cuKernelGetLibrary)(&found, kernel));
        assert(found == library);
        OK(D(cuCtxDestroy_v2)(context));
        OK(D(cuKernelGetFunction)(&found, kernel));
        assert(found == functions[0]);
        OK(D(cuLibraryUnload)(library));
        IS(400, D(cuFuncGetModule)(&found, functions[0]));
        IS(400, D(cuModuleUnload)(modules[0]));
        IS(400, D(cuLibraryGetKernel)(&kernel, library, "foo"));
        unsigned count;
        OK(D(cuLibraryLoadData)(&library, PTX, 0, 0, 0, 0, 0, 0));
        OK(D(cuLibraryGetKernelCount)(&count, library));
        assert(count == 2);
        OK(D(cuLibraryEnumerateKernels)(functions, 2, library));
        assert(functions[0] == kernel || functions[1] == kernel);
    }
    """
    play(source)


CODE = r"""
struct pair { char c; double d; };
__device__ int counter = 7;
__constant__ short table[4] = {1, 2, -3, 4};
__device__ float zeros[100];
extern "C" __global__ void __launch_bounds__(128) many(char a, struct pair b, short c, int *d, long long e) {
    *d += a + b.c + c + e + counter + table[a] + zeros[c];
}
"""


@pytest.mark.parametrize("form", ["ptx", "cubin"])
def test_parameters_attributes_and_variables(play, tmp_path, form):
    path = tmp_path / f"code.{form}"
    path.write_bytes(cuda.nvrtc_compile(CODE, "compute_90" if form == "ptx" else "sm_90"))
    source = r"""
    int main(int argc, char **argv) {
        begin();
        void *module, *function;
        OK(D(cuModuleLoad)(&module, argv[1]));
        OK(cuModuleGetFunction(&function, module, "many"));
        size_t offset, size, expected[][2] = {{0, 1}, {8, 16}, {24, 2}, {32, 8}, {40, 8}};
        for (int i = 0; i < 5; i++) {
            OK(D(cuFuncGetParamInfo)(function, (size_t)i, &offset, &size));
            assert(offset == expected[i][0] && size == expected[i][1]);
        }
        IS(1, D(cuFuncGetParamInfo)(function, (size_t)5, &offset, &size));
        int value;
        OK(D(cuFuncGetAttribute)(&value, 0, function));
        assert(value == 128);
        IS(1, cuLaunchKernel(function, 1, 1, 1, 129, 1, 1, 0, 0, 0, 0));
        OK(cuLaunchKernel(function, 1, 1, 1, 128, 1, 1, 48 << 10, 0, 0, 0));
        IS(1, cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 64 << 10, 0, 0, 0));
        OK(D(cuFuncSetAttribute)(function, 8, 64 << 10));
        OK(D(cuFuncGetAttribute)(&value, 8, function));
        assert(value == 64 << 10);
        OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 64 << 10, 0, 0, 0));
        IS(1, D(cuFuncSetAttribute)(function, 8, 1 << 20));
        IS(1, D(cuFuncSetAttribute)(function, 4, 10));

        uint64_t memory, again;
        int counter;
        OK(D(cuModuleGetGlobal_v2)(&memory, &size, module, "counter"));
        OK(D(cuMemcpyDtoH_v2)(&counter, memory, sizeof(counter)));
        assert(size == 4 && counter == 7);
        counter = 8;
        OK(D(cuMemcpyHtoD_v2)(memory, &counter, sizeof(counter)));
        OK(D(cuModuleGetGlobal_v2)(&again, 0, module, "counter"));
        assert(again == memory);
        short table[4];
        OK(D(cuModuleGetGlobal_v2)(&memory, &size, module, "table"));
        OK(D(cuMemcpyDtoH_v2)(table, memory, sizeof(table)));
        assert(size == 8 && table[0] == 1 && table[1] == 2 && table[2] == -3 && table[3] == 4);
        OK(D(cuModuleGetGlobal_v2)(&memory, &size, module, "zeros"));
        assert(size == 400);
        IS(500, D(cuModuleGetGlobal_v2)(&memory, &size, module, "ones"));
        OK(D(cuModuleUnload)(module));
        IS(500, D(cuMemGetAddressRange_v2)(&again, &size, memory));
        OK(D(cuModuleLoad)(&module, argv[1]));
        OK(D(cuModuleGetGlobal_v2)(&memory, 0, module, "counter"));
        OK(D(cuMemcpyDtoH_v2)(&counter, memory, sizeof(counter)));
        assert(counter == 7);
        OK(D(cuLibraryLoadFromFile)(&module, argv[1], 0, 0, 0, 0, 0, 0)); // a library now
        OK(D(cuLibraryGetKernel)(&function, module, "many"));
        OK(D(cuKernelSetAttribute)(8, 60000, function, 0));
        void *made;
        OK(D(cuKernelGetFunction)(&made, function));
        OK(D(cuFuncGetAttribute)(&value, 8, made));
        assert(value == 60000);
        OK(D(cuKernelGetParamInfo)(function, (size_t)1, &offset, &size));
        assert(offset == 8 && size == 16);
        OK(D(cuLibraryGetGlobal)(&memory, &size, module, "counter"));
        assert(size == 4);
    }
    """
    play(source, str(path))


GRAPHS = r"""
static int calls[100], called;
static void call(void *number) { calls[called++] = (int)(long)number; }
static void *add_call(void *graph, void **before, size_t count, long number) {
    CUDA_HOST_NODE_PARAMS params = {call, (void *)number};
    void *node;
    OK(D(cuGraphAddHostNode)(&node, graph, before, count, &params));
    return node;
}
static void expect(const char *numbers) {
    char text[200] = "";
    OK(D(cuStreamSynchronize)((void *)0));
    for (int i = 0; i < called; i++)
        sprintf(text + strlen(text), "%d ", calls[i]);
    called = 0;
    if (strcmp(text, numbers))
        fprintf(stderr, "%s, not %s\n", text, numbers), abort();
}
"""


def test_graphs(play):
    source = r"""
    int main(void) {
        begin();
        void *graph, *nodes[4], *exec, *clone, *found, *outer, *child, *inner, *other;
        size_t count = 0;
        OK(D(cuGraphCreate)(&graph, 0));
        nodes[0] = add_call(graph, 0, 0, 1);
        nodes[1] = add_call(graph, nodes, 1, 2);
        nodes[2] = add_call(graph, 0, 0, 3);
        OK(D(cuGraphAddDependencies)(graph, &nodes[2], &nodes[0], (size_t)1)); // 3 before 1 before 2
        OK(D(cuGraphInstantiateWithFlags)(&exec, graph, 0ull));
        OK(D(cuGraphLaunch)(exec, (void *)0));
        expect("3 1 2 ");
        OK(D(cuGraphGetNodes)(graph, (void *)0, &count));
        assert(count == 3);
        OK(D(cuGraphAddDependencies)(graph, &nodes[1], &nodes[2], (size_t)1)); // a circle
        IS(1, D(cuGraphInstantiateWithFlags)(&found, graph, 0ull));
        OK(D(cuGraphRemoveDependencies)(graph, &nodes[1], &nodes[2], (size_t)1));

        // A clone has nodes of its own.
        OK(D(cuGraphClone)(&clone, graph));
        OK(D(cuGraphNodeFindInClone)(&found, nodes[1], clone));
        CUDA_HOST_NODE_PARAMS params = {call, (void *)5};
        OK(D(cuGraphHostNodeSetParams)(found, &params));
        OK(D(cuGraphHostNodeGetParams)(nodes[1], &params));
        assert(params.userData == (void *)2);
        OK(D(cuGraphLaunch)(exec, (void *)0));
        expect("3 1 2 ");

        // An executable graph takes over what the clone does, not another form.
        int result;
        OK(D(cuGraphExecUpdate)(exec, clone, &found, &result));
        OK(D(cuGraphLaunch)(exec, (void *)0));
        expect("3 1 5 ");
        OK(D(cuGraphDestroyNode)(nodes[2]));
        IS(910, D(cuGraphExecUpdate)(exec, graph, &found, &result));
        assert(result == CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
        params.userData = (void *)9;
        OK(D(cuGraphExecHostNodeSetParams)(exec, nodes[0], &params)); // of the node that it was made from
        OK(D(cuGraphLaunch)(exec, (void *)0));
        expect("3 9 5 ");

        // A graph inside of another is a copy, and goes with it.
        OK(D(cuGraphCreate)(&outer, 0));
        OK(D(cuGraphAddChildGraphNode)(&child, outer, (void *)0, (size_t)0, clone));
        OK(D(cuGraphChildGraphNodeGetGraph)(child, &inner));
        assert(inner != clone);
        OK(D(cuGraphDestroy)(clone));
        IS(1, D(cuGraphDestroy)(clone));
        IS(1, D(cuGraphDestroy)(inner));
        add_call(outer, &child, 1, 7);
        OK(D(cuGraphInstantiateWithFlags)(&other, outer, 0ull));
        OK(D(cuGraphDestroy)(outer));
        IS(1, D(cuGraphGetNodes)(inner, (void *)0, &count));
        OK(D(cuGraphLaunch)(other, (void *)0));
        expect("3 1 5 7 ");
        OK(D(cuGraphExecDestroy)(exec));
        IS(400, D(cuGraphLaunch)(exec, (void *)0));
        OK(D(cuGraphCreate)(&found, 0));
        OK(D(cuGraphLaunch)(other, (void *)0));
        expect("3 1 5 7 ");
    }
    """
    play(GRAPHS + source)


def test_conditional_nodes(play):
    source = r"""
    int main(void) {
        begin();
        void *graph, *node, *exec;
        OK(D(cuGraphCreate)(&graph, 0));
        static const struct { int type, size, value; } cases[] = {
            {0, 1, 1}, {0, 1, 0}, {0, 2, 0}, {2, 3, 2}, {1, 1, 0}};
        for (long i = 0; i < 5; i++) {
            uint64_t handle;
            OK(D(cuGraphConditionalHandleCreate)(&handle, graph, (void *)0, cases[i].value, 1));
            CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_CONDITIONAL};
            params.conditional.handle = handle;
            params.conditional.type = cases[i].type, params.conditional.size = cases[i].size;
            void *before = node;
            OK(D(cuGraphAddNode_v2)(&node, graph, &before, (void *)0, (size_t)(i > 0), &params));
            int type;
            OK(D(cuGraphNodeGetType)(node, &type));
            assert(type == CU_GRAPH_NODE_TYPE_CONDITIONAL && params.conditional.phGraph_out);
            for (long j = 0; j < cases[i].size; j++)
                add_call(params.conditional.phGraph_out[j], 0, 0, 10 * i + j);
        }
        IS(1, D(cuGraphClone)(&exec, graph)); // as CUDA has it
        OK(D(cuGraphInstantiateWithFlags)(&exec, graph, 0ull));
        OK(D(cuGraphLaunch)(exec, (void *)0));
        expect("0 21 32 ");
        OK(D(cuGraphDestroy)(graph));
        OK(D(cuGraphLaunch)(exec, (void *)0));
        expect("0 21 32 ");
    }
    """
    play(GRAPHS + source)


def test_kernel_nodes_keep_their_arguments(play):
    source = r"""
    #define TWO ".version 7.0\n.target sm_70\n.address_size 64\n.entry two(.param .u32 a, .param .u64 b){ret;}\n"
    int main(void) {
        begin();
        void *module, *function, *graph, *nodes[2], *exec, *clone, *stream;
        OK(cuModuleLoadData(&module, TWO));
        OK(cuModuleGetFunction(&function, module, "two"));
        uint32_t a = 1;
        uint64_t b = 2;
        void *values[] = {&a, &b};
        CUDA_KERNEL_NODE_PARAMS params = {function, 1, 2, 3, 4, 5, 6, 7, values, 0, 0, 0}, found;
        OK(D(cuGraphCreate)(&graph, 0));
        OK(D(cuGraphAddKernelNode_v2)(&nodes[0], graph, (void *)0, (size_t)0, &params));
        a = b = 0;
        OK(D(cuGraphKernelNodeGetParams_v2)(nodes[0], &found));
        assert(found.func == function && found.gridDimZ == 3 && found.blockDimX == 4 && found.sharedMemBytes == 7);
        assert(*(uint32_t *)found.kernelParams[0] == 1 && *(uint64_t *)found.kernelParams[1] == 2);
        // One that is captured, of a packed buffer
        struct { uint32_t a; uint64_t b; } packed = {3, 4};
        size_t size = sizeof(packed);
        void *extra[] = {(void *)1, &packed, (void *)2, &size, 0};
        OK(D(cuStreamCreate)(&stream, 0));
        OK(D(cuStreamBeginCapture_v2)(stream, 0));
        OK(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, 0, extra));
        OK(D(cuStreamEndCapture)(stream, &clone));
        packed.a = 0;
        size_t count = 2;
        OK(D(cuGraphGetNodes)(clone, nodes, &count));
        assert(count == 1 && !nodes[1]);
        OK(D(cuGraphKernelNodeGetParams_v2)(nodes[0], &found));
        assert(*(uint32_t *)found.kernelParams[0] == 3 && *(uint64_t *)found.kernelParams[1] == 4);
        OK(D(cuGraphInstantiateWithFlags)(&exec, clone, 0ull));
        OK(D(cuGraphDestroy)(clone));
        OK(D(cuGraphLaunch)(exec, stream));
    }
    """
    play(source)


def test_capture(play):
    source = r"""
    static void *other_thread(void *stream) {
        uint64_t memory;
        void *context;
        OK(cuDevicePrimaryCtxRetain(&context, 0));
        OK(cuCtxSetCurrent(context));
        IS((int)(long)getenv("x") ? 900 : 0, D(cuMemAlloc_v2)(&memory, (size_t)1));
        return 0;
    }
    int main(void) {
        begin();
        void *a, *b, *event, *back, *graph, *exec;
        uint64_t memory, id;
        int status;
        OK(D(cuStreamCreate)(&a, CU_STREAM_NON_BLOCKING));
        OK(D(cuStreamCreate)(&b, CU_STREAM_NON_BLOCKING));
        OK(D(cuEventCreate)(&event, 0));
        OK(D(cuEventCreate)(&back, 0));
        IS(900, D(cuStreamBeginCapture_v2)((void *)0, 0)); // the legacy stream

        // Two streams
        OK(D(cuStreamBeginCapture_v2)(a, 2));
        OK(D(cuStreamIsCapturing)(a, &status));
        assert(status == 1);
        OK(D(cuLaunchHostFunc)(a, call, 1l));
        OK(D(cuEventRecord)(event, a));
        OK(D(cuStreamWaitEvent)(b, event, 0));
        OK(D(cuStreamIsCapturing)(b, &status));
        assert(status == 1);
        OK(D(cuLaunchHostFunc)(b, call, 2l));
        OK(D(cuEventRecord)(back, b));
        OK(D(cuStreamWaitEvent)(a, back, 0));
        OK(D(cuLaunchHostFunc)(a, call, 3l));
        IS(903, D(cuStreamEndCapture)(b, &graph) ? 903 : 0);
        IS(901, D(cuStreamEndCapture)(a, &graph)); // that made it invalid
        assert(!graph && !called);

        for (int joined = 0; joined < 2; joined++) {
            OK(D(cuStreamBeginCapture_v2)(a, 2));
            OK(D(cuLaunchHostFunc)(a, call, 1l));
            OK(D(cuEventRecord)(event, a));
            OK(D(cuStreamWaitEvent)(b, event, 0));
            OK(D(cuLaunchHostFunc)(b, call, 2l));
            OK(D(cuEventRecord)(back, b));
            if (joined)
                OK(D(cuStreamWaitEvent)(a, back, 0));
            OK(D(cuLaunchHostFunc)(a, call, 3l));
            IS(joined ? 0 : 904, D(cuStreamEndCapture)(a, &graph));
            OK(D(cuStreamIsCapturing)(b, &status));
            assert(status == 0);
        }
        OK(D(cuGraphInstantiateWithFlags)(&exec, graph, 0ull));
        OK(D(cuGraphLaunch)(exec, a));
        OK(D(cuStreamSynchronize)(a));
        expect("1 2 3 ");
        IS(907, D(cuEventQuery)(event)); // it was recorded in a capture

        // What a thread may not do meanwhile
        OK(D(cuStreamBeginCapture_v2)(a, 0));
        int mode = 2;
        OK(D(cuThreadExchangeStreamCaptureMode)(&mode));
        OK(D(cuMemAlloc_v2)(&memory, (size_t)1));
        assert(mode == 0);
        OK(D(cuThreadExchangeStreamCaptureMode)(&mode));
        IS(900, D(cuMemAlloc_v2)(&memory, (size_t)1));
        OK(D(cuStreamGetCaptureInfo)(a, &status, &id));
        assert(status == 2);
        IS(901, D(cuLaunchHostFunc)(a, call, 1l));
        IS(901, D(cuStreamEndCapture)(a, &graph));
        OK(D(cuStreamBeginCapture_v2)(a, 0));
        IS(900, D(cuStreamSynchronize)(a));
        IS(901, D(cuStreamEndCapture)(a, &graph));
        for (int i = 0; i < 2; i++) { // in another thread
            pthread_t thread;
            OK(D(cuStreamBeginCapture_v2)(a, i));
            i ? unsetenv("x") : setenv("x", "", 1);
            pthread_create(&thread, 0, other_thread, a);
            pthread_join(thread, 0);
            IS(i ? 0 : 901, D(cuStreamEndCapture)(a, &graph));
        }
        OK(D(cuStreamBeginCapture_v2)(a, 2));
        OK(D(cuStreamDestroy_v2)(a)); // takes the capture along
        OK(D(cuMemAlloc_v2)(&memory, (size_t)1));
    }
    """
    play(GRAPHS + source)


THREADS = r"""
static void *work(void *context) {
    OK(cuCtxSetCurrent(context));
    for (int i = 0; i < 300; i++) {
        void *module, *function, *library, *kernel, *made, *stream, *event, *graph, *exec, *node;
        uint64_t memory;
        OK(cuModuleLoadData(&module, PTX));
        OK(cuModuleGetFunction(&function, module, i % 2 ? "foo" : "bar"));
        OK(D(cuLibraryLoadData)(&library, PTX, 0, 0, 0, 0, 0, 0));
        OK(D(cuLibraryGetKernel)(&kernel, library, "foo"));
        OK(D(cuKernelGetFunction)(&made, kernel));
        OK(D(cuStreamCreate)(&stream, i % 2));
        OK(D(cuEventCreate)(&event, 0));
        OK(D(cuMemAlloc_v2)(&memory, (size_t)1000));
        OK(D(cuGraphCreate)(&graph, 0));
        OK(D(cuGraphAddEmptyNode)(&node, graph, (void *)0, (size_t)0));
        OK(D(cuGraphInstantiateWithFlags)(&exec, graph, 0ull));
        OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, 0, 0));
        OK(cuLaunchKernel(made, 1, 1, 1, 1, 1, 1, 0, stream, 0, 0));
        OK(D(cuMemsetD8Async)(memory, 1, (size_t)1000, stream));
        OK(D(cuEventRecord)(event, stream));
        OK(D(cuGraphLaunch)(exec, stream));
        if (i % 3)
            OK(D(cuStreamSynchronize)(stream));
        OK(D(cuStreamDestroy_v2)(stream));
        OK(D(cuEventDestroy_v2)(event));
        OK(D(cuMemFree_v2)(memory));
        OK(D(cuGraphExecDestroy)(exec));
        OK(D(cuGraphDestroy)(graph));
        OK(D(cuModuleUnload)(module));
        OK(D(cuLibraryUnload)(library));
    }
    return 0;
}
int main(void) {
    begin();
    void *context;
    pthread_t threads[8];
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    for (int i = 0; i < 8; i++)
        pthread_create(&threads[i], 0, work, context);
    for (int i = 0; i < 8; i++)
        pthread_join(threads[i], 0);
}
"""


def test_threads_load_and_unload(play):
    play(THREADS)


# A stream that waits until it is let go, so that what is behind it is pending as long as a test wants.
GATES = r"""
#include <stdatomic.h>
#include <sched.h>
static atomic_int gates[8]; // closed, reached, open
enum { CLOSED, REACHED, OPEN };
static void gate(void *number) {
    int closed = CLOSED;
    atomic_compare_exchange_strong(&gates[(long)number], &closed, REACHED);
    while (atomic_load(&gates[(long)number]) != OPEN)
        sched_yield();
}
static void close_stream(void *stream, long number) {
    atomic_store(&gates[number], CLOSED);
    OK(D(cuLaunchHostFunc)(stream, gate, (void *)number));
    while (atomic_load(&gates[number]) != REACHED)
        sched_yield();
}
static void open_stream(long number) { atomic_store(&gates[number], OPEN); }
"""


def test_work_is_done_later_and_in_order(play):
    source = r"""
    static pthread_t own, other;
    static void take_note(void *unused) { other = pthread_self(); }
    static void back(void *stream, int status, void *data) {
        void *context, *event;
        assert(!status && stream == *(void **)data);
        IS(800, D(cuCtxSynchronize)()); // no calls in there
        IS(800, D(cuEventCreate)(&event, 0));
    }
    int main(void) {
        begin();
        void *stream, *event, *never, *late, *pinned, *f = kernel("foo");
        uint64_t memory;
        float ms;
        OK(D(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
        OK(D(cuEventCreate)(&event, 0));
        OK(D(cuEventCreate)(&late, 0));
        OK(D(cuEventCreate)(&never, 0));
        OK(D(cuMemAlloc_v2)(&memory, (size_t)64));
        OK(D(cuMemHostAlloc)(&pinned, (size_t)64, 0));
        OK(D(cuMemsetD8_v2)(memory, 0, (size_t)64));
        OK(D(cuCtxSynchronize)()); // or it could come after what is in a stream that is not blocking
        OK(D(cuStreamQuery)(stream));
        OK(D(cuEventQuery)(never));
        close_stream(stream, 0);
        IS(600, D(cuStreamQuery)(stream));
        OK(D(cuEventRecord)(event, stream));
        IS(600, D(cuEventQuery)(event));
        char pageable[64] = "first";
        memset(pinned, 0, 64), strcpy(pinned, "first");
        OK(D(cuMemcpyHtoDAsync_v2)(memory, pageable, (size_t)32, stream));
        OK(D(cuMemcpyHtoDAsync_v2)(memory + 32, pinned, (size_t)32, stream));
        strcpy(pageable, "second"), strcpy(pinned, "second"); // the one was staged, the other is read later
        OK(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, stream, 0, 0));
        OK(D(cuLaunchHostFunc)(stream, take_note, (void *)0));
        OK(D(cuStreamAddCallback)(stream, back, &stream, 0));
        OK(D(cuMemcpyDtoHAsync_v2)((char *)pinned + 32, memory, (size_t)32, stream));
        OK(D(cuEventRecord)(late, stream));
        IS(600, D(cuEventElapsedTime_v2)(&ms, event, late));
        IS(400, D(cuEventElapsedTime_v2)(&ms, never, late));
        assert(!((char *)pinned)[32]);
        usleep(2000);
        IS(600, D(cuEventQuery)(late));
        open_stream(0);
        OK(D(cuEventSynchronize)(late));
        OK(D(cuEventQuery)(event));
        OK(D(cuStreamSynchronize)(stream));
        OK(D(cuStreamQuery)(stream));
        assert(!pthread_equal(other, pthread_self()));
        assert(!strcmp((char *)pinned + 32, "first"));
        OK(D(cuMemcpyDtoH_v2)(pageable, memory, (size_t)64));
        assert(!strcmp(pageable, "first") && !strcmp(pageable + 32, "second"));
        OK(D(cuEventElapsedTime_v2)(&ms, event, late));
        assert(ms >= 0 && ms < 60000);
        close_stream(stream, 0);
        OK(D(cuEventRecord)(event, stream));
        OK(D(cuEventRecord)(never, 0)); // in another stream: at once
        OK(D(cuEventQuery)(never));
        usleep(3000);
        open_stream(0);
        OK(D(cuEventSynchronize)(event));
        OK(D(cuEventElapsedTime_v2)(&ms, never, event));
        assert(ms >= 3);
    }
    """
    play(GATES + source)


def test_streams_wait_for_each_other(play):
    source = r"""
    static int order[8], steps;
    static void step(void *number) { order[__atomic_fetch_add(&steps, 1, __ATOMIC_SEQ_CST)] = (int)(long)number; }
    int main(void) {
        begin();
        void *blocking, *free_one, *legacy = (void *)1, *own = (void *)2, *event;
        OK(D(cuStreamCreate)(&blocking, 0));
        OK(D(cuStreamCreate)(&free_one, CU_STREAM_NON_BLOCKING));
        OK(D(cuEventCreate)(&event, 0));

        close_stream(blocking, 0); // the legacy stream waits for it, others do not
        OK(D(cuLaunchHostFunc)(legacy, step, (void *)2));
        OK(D(cuLaunchHostFunc)(own, step, (void *)3)); // waits for the legacy one
        OK(D(cuLaunchHostFunc)(free_one, step, (void *)1));
        OK(D(cuStreamSynchronize)(free_one));
        assert(steps == 1 && order[0] == 1);
        IS(600, D(cuStreamQuery)(legacy));
        IS(600, D(cuStreamQuery)(own));
        open_stream(0);
        OK(D(cuStreamSynchronize)(own));
        assert(steps == 3 && order[1] == 2 && order[2] == 3);

        close_stream(legacy, 0);
        OK(D(cuLaunchHostFunc)(blocking, step, (void *)2));
        OK(D(cuLaunchHostFunc)(free_one, step, (void *)1));
        OK(D(cuStreamSynchronize)(free_one));
        assert(steps == 4);
        open_stream(0);
        OK(D(cuCtxSynchronize)());
        assert(steps == 5);

        // An event is what it was last recorded with, when it is waited for.
        close_stream(free_one, 0);
        OK(D(cuEventRecord)(event, free_one));
        OK(D(cuStreamWaitEvent)(own, event, 0));
        OK(D(cuLaunchHostFunc)(own, step, (void *)2));
        OK(D(cuEventRecord)(event, blocking));
        OK(D(cuEventQuery)(event));
        OK(D(cuEventDestroy_v2)(event));
        IS(600, D(cuStreamQuery)(own));
        assert(steps == 5);
        open_stream(0);
        OK(D(cuStreamSynchronize)(own));
        assert(steps == 6);
        // A synchronization of the legacy stream is one with those that it would wait for.
        close_stream(blocking, 0);
        IS(600, D(cuStreamQuery)(legacy));
        open_stream(0);
        OK(D(cuStreamSynchronize)(legacy));
        OK(D(cuStreamQuery)(blocking));
        void *graph;
        OK(D(cuStreamBeginCapture_v2)(blocking, 2));
        IS(906, D(cuLaunchHostFunc)(legacy, step, (void *)2)); // would wait for what is captured
        IS(901, D(cuStreamEndCapture)(blocking, &graph));
    }
    """
    play(GATES + source)


def test_what_is_destroyed_while_it_has_work(play):
    source = r"""
    static int done;
    static void *open_later(void *number) {
        usleep(2000);
        open_stream((long)number);
        return 0;
    }
    static void count(void *unused) { __atomic_fetch_add(&done, 1, __ATOMIC_SEQ_CST); }
    static void behind(void (*destroy)(void), void *stream) {
        pthread_t thread;
        int before = done;
        close_stream(stream, 0);
        OK(D(cuLaunchHostFunc)(stream, count, (void *)0));
        pthread_create(&thread, 0, open_later, (void *)0);
        destroy();
        assert(done == before + 1); // it waited
        pthread_join(thread, 0);
    }
    static uint64_t memory;
    static void *module, *context;
    static void free_memory(void) { OK(D(cuMemFree_v2)(memory)); }
    static void unload(void) { OK(D(cuModuleUnload)(module)); }
    static void destroy(void) { OK(D(cuCtxDestroy_v2)(context)); }
    static void reset(void) { OK(D(cuDevicePrimaryCtxReset_v2)(0)); }
    int main(void) {
        begin();
        void *stream, *again, *graph, *exec, *event;
        OK(D(cuStreamCreate)(&stream, 1));
        close_stream(stream, 0);
        OK(D(cuLaunchHostFunc)(stream, count, (void *)0));
        OK(D(cuEventCreate)(&event, 0));
        OK(D(cuEventRecord)(event, stream));
        OK(D(cuStreamDestroy_v2)(stream)); // at once; its work is still done
        OK(D(cuStreamCreate)(&again, 1));
        assert(again == stream);
        OK(D(cuStreamQuery)(again));
        assert(!done);
        open_stream(0);
        OK(D(cuEventSynchronize)(event));
        OK(D(cuCtxSynchronize)());
        assert(done == 1);

        OK(D(cuMemAlloc_v2)(&memory, (size_t)1));
        behind(free_memory, again);
        OK(cuModuleLoadData(&module, PTX));
        behind(unload, again);

        // An executable graph that is launched runs as it was then.
        CUDA_HOST_NODE_PARAMS params = {count, 0};
        OK(D(cuGraphCreate)(&graph, 0));
        OK(D(cuGraphAddHostNode)(&stream, graph, (void *)0, (size_t)0, &params));
        OK(D(cuGraphInstantiateWithFlags)(&exec, graph, 0ull));
        close_stream(again, 0);
        OK(D(cuGraphLaunch)(exec, again));
        OK(D(cuGraphLaunch)(exec, again));
        OK(D(cuGraphExecDestroy)(exec));
        OK(D(cuGraphDestroy)(graph));
        int before = done;
        open_stream(0);
        OK(D(cuStreamSynchronize)(again));
        assert(done == before + 2);

        // Memory that is freed in the order of a stream; a copy behind it is an error of the context.
        OK(D(cuCtxCreate_v2)(&context, 0, 0));
        OK(D(cuStreamCreate)(&again, 1));
        close_stream(again, 0);
        OK(D(cuMemAllocAsync)(&memory, (size_t)100, again));
        OK(D(cuMemsetD8Async)(memory, 1, (size_t)100, again));
        OK(D(cuMemFreeAsync)(memory, again));
        uint64_t start;
        size_t size;
        OK(D(cuMemGetAddressRange_v2)(&start, &size, memory)); // not yet
        OK(D(cuMemsetD8Async)(memory, 1, (size_t)100, again));
        open_stream(0);
        IS(700, D(cuStreamSynchronize)(again));
        IS(700, D(cuStreamQuery)(again));
        IS(500, D(cuMemGetAddressRange_v2)(&start, &size, memory));
        OK(D(cuCtxDestroy_v2)(context));
        OK(D(cuCtxCreate_v2)(&context, 0, 0));
        OK(D(cuStreamCreate)(&again, 1));
        behind(destroy, again);
        OK(D(cuStreamCreate)(&again, 1));
        behind(reset, again);
    }
    """
    play(GATES + source)


def test_a_forked_child_has_the_objects_and_none_of_the_work(play):
    source = r"""
    #include <sys/wait.h>
    static void fork_there(void *child) {
        *(int *)child = fork();
        if (!*(int *)child) {
            void *context;
            if (D(cuCtxGetCurrent)(&context))
                _exit(3);
            _exit(7);
        }
    }
    int main(void) {
        begin();
        void *stream, *event, *f = kernel("foo");
        uint64_t memory;
        OK(D(cuMemAlloc_v2)(&memory, (size_t)1000));
        OK(D(cuStreamCreate)(&stream, 1));
        OK(D(cuEventCreate)(&event, 0));
        close_stream(stream, 0);
        OK(D(cuEventRecord)(event, stream));
        int child = fork(), status;
        if (!child) {
            OK(D(cuEventQuery)(event));
            OK(D(cuStreamSynchronize)(stream));
            close_stream(stream, 1);
            OK(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, stream, 0, 0));
            IS(600, D(cuStreamQuery)(stream));
            open_stream(1);
            OK(D(cuMemFree_v2)(memory));
            OK(D(cuCtxSynchronize)());
            exit(5);
        }
        IS(600, D(cuEventQuery)(event));
        assert(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 5);
        open_stream(0);
        OK(D(cuStreamSynchronize)(stream));
        OK(D(cuLaunchHostFunc)(stream, fork_there, &child));
        OK(D(cuStreamSynchronize)(stream));
        assert(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
        OK(D(cuLaunchHostFunc)(stream, gate, (void *)2)); // pending as the process ends
    }
    """
    play(GATES + source)


def test_a_delay_of_all_work(play):
    source = r"""
    int main(void) {
        begin();
        void *first, *last, *f = kernel("foo");
        OK(D(cuEventCreate)(&first, 0));
        OK(D(cuEventCreate)(&last, 0));
        OK(D(cuEventRecord)(first, (void *)0));
        launch(f);
        IS(600, D(cuEventQuery)(first));
        OK(D(cuEventSynchronize)(first));
        OK(D(cuEventRecord)(last, (void *)0));
        OK(D(cuStreamSynchronize)((void *)0));
        float ms;
        OK(D(cuEventElapsedTime_v2)(&ms, first, last));
        assert(ms >= 20);
    }
    """
    play(source, GPT_SIM_DELAY="20000")


def test_a_default_stream_of_the_thread(play):
    source = r"""
    static void *other_thread(void *context) {
        OK(cuCtxSetCurrent(context));
        OK(D(cuStreamQuery_ptsz)((void *)0)); // another stream
        OK(D(cuStreamQuery)((void *)2));
        return 0;
    }
    int main(void) {
        begin();
        void *context, *f = kernel("foo"), *launch_own, *launch_legacy;
        unsigned long long ids[2];
        int status;
        OK(cuDevicePrimaryCtxRetain(&context, 0));
        OK(D(cuStreamGetId_ptsz)((void *)0, &ids[0]));
        OK(D(cuStreamGetId)((void *)2, &ids[1]));
        assert(ids[0] == ids[1]);
        OK(D(cuStreamGetId_ptsz)((void *)1, &ids[0]));
        assert(ids[0] != ids[1]);
        OK(D(cuGetProcAddress_v2)("cuLaunchKernel", &launch_own, 12000, 2ull, &status));
        OK(D(cuGetProcAddress_v2)("cuLaunchKernel", &launch_legacy, 12000, 0ull, &status));
        assert(launch_own == (void *)D(cuLaunchKernel_ptsz) && launch_legacy == (void *)cuLaunchKernel);
        OK(D(cuLaunchHostFunc_ptsz)((void *)0, gate, (void *)0));
        OK(((__typeof__(cuLaunchKernel))launch_own)(f, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0));
        IS(600, D(cuStreamQuery_ptsz)((void *)0));
        pthread_t thread;
        pthread_create(&thread, 0, other_thread, context);
        pthread_join(thread, 0);
        IS(600, D(cuStreamQuery)((void *)0)); // the legacy stream waits for those of threads
        open_stream(0);
        OK(D(cuStreamSynchronize_ptsz)((void *)0));
    }
    """
    play(GATES + source)


def test_more_work_than_fits_in_a_stream(play):
    source = r"""
    static void *open_later(void *unused) {
        usleep(20000);
        open_stream(0);
        return 0;
    }
    int main(void) {
        begin();
        void *stream;
        uint64_t memory;
        size_t size = 4 << 20;
        char *image = malloc(size), *back = malloc(size);
        pthread_t thread;
        OK(D(cuStreamCreate)(&stream, 1));
        OK(D(cuMemAlloc_v2)(&memory, size));
        close_stream(stream, 0);
        pthread_create(&thread, 0, open_later, 0);
        for (int i = 0; i < 3000; i++) // waits in between
            OK(D(cuMemcpyHtoDAsync_v2)(memory, &i, sizeof(i), stream));
        assert(gates[0] == OPEN);
        memset(image, 7, size);
        OK(D(cuMemcpyHtoDAsync_v2)(memory, image, size, stream)); // more than is staged
        OK(D(cuStreamQuery)(stream));
        OK(D(cuMemcpyDtoHAsync_v2)(back, memory, size, stream));
        assert(!memcmp(image, back, size));
        pthread_join(thread, 0);
        free(image), free(back);
    }
    """
    play(GATES + source)
