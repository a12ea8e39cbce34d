"""The simulated device: handles and their lifetimes."""

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


WRONG = ["foo", "9", "sm_9", "sm_90a", "sm_", "0.9", "9.0x", "-9.0", "9.10", "sm_9000"]


@pytest.mark.parametrize("arch", [*WRONG, " 9.0", "+9.0", "9. 0", "9.0 ", "sm_ 90", "sm_+90"])
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


NONSENSE = ["banana", "-1", "+1", "1x", " 1", "1 ", "0x10", "1.5", "1e6", "99999999999999999999"]
INIT = 'int main(void) { driver = dlopen("libcuda.so.1", RTLD_NOW); return D(cuInit)(0) + D(cuInit)(0); }'


@pytest.mark.parametrize(
    ("name", "values", "range_"),
    [
        ("GPT_SIM_DELAY", [*NONSENSE, "1000000001"], "microseconds from 0 to 1000000000"),
        ("GPT_SIM_LOAD_DELAY", [*NONSENSE, "1000000001"], "microseconds from 0 to 1000000000"),
        ("GPT_SIM_MEMORY", [*NONSENSE, "0", "18446744073709551616"], f"bytes from 1 to {2**64 - 1}"),
        ("GPT_SIM_TIMEOUT", [*NONSENSE, "1000000001"], "seconds from 0 to 1000000000"),
        ("GPT_SIM_RUN", ["banana", "None", "none "], None),
    ],
)
def test_variables_that_mean_nothing(tmp_path, name, values, range_):
    client = simulated.build(tmp_path / "client", INIT)
    for value in values:
        done = simulated.run(client, **{name: value})
        fact = f"not a number of {range_}" if range_ else "neither none nor all"
        assert (done.returncode, done.stderr) == (200, f"libcuda.so.1: error: {name}: {fact}: '{value}'\n")
    for value in ("", "all" if name == "GPT_SIM_RUN" else "60"):
        done = simulated.run(client, **{name: value})
        assert (done.returncode, done.stderr) == (0, ""), value


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
        assert(kept == module); // the last one that was removed
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


def test_a_destroyed_context_takes_its_objects(play):
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
        IS(709, D(cuCtxGetDevice)(&device)); // the one below is still the first
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
            IS(800, D(cuModuleUnload)(found)); // it is the library's
            launch(functions[i]), launch(kernel);
            if (!i)
                OK(D(cuCtxCreate_v2)(&context, 0, 0));
        }
        assert(functions[0] != functions[1] && modules[0] != modules[1]);
        IS(400, cuLaunchKernel(functions[0], 1, 1, 1, 1, 1, 1, 0, 0, 0, 0)); // belongs to the other context
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
        OK(D(cuFuncGetParamCount)(function, &size));
        assert(size == 5);
        IS(1, D(cuFuncGetParamCount)(function, NULL));
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
        OK(D(cuKernelGetParamCount)(function, &size));
        assert(size == 5);
        IS(400, D(cuKernelGetParamCount)(NULL, &size));
        OK(D(cuLibraryGetGlobal)(&memory, &size, module, "counter"));
        assert(size == 4);
    }
    """
    play(source, str(path))


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
