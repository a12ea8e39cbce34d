"""Faulty kernels on the simulated device: the message, the context's error, and launches beyond limits."""

import os

from tests.runtime import probing
from tests.runtime.simulated import ask

FAULTS = r"""
VARIABLES()
KERNEL(store) {
    ARGUMENT(uint64_t, to, 0);
    if (CTAID == 2 && TID == 5)
        GLOBAL(to) = 1;
    else
        for (int i = 0; TID == 7 && i < 1000000000; i++) // the launch ends anyway
            BRANCH();
}
KERNEL(fault) {
    ARGUMENT(uint64_t, kind, 0);
    t->services->fault(t, 1, kind, 0x20);
}
KERNEL(lacks) { // a mask without the thread itself
    MEET(2, sum, &(uint32_t){0});
}
KERNEL(stuck) { // half of a warp waits for the rest, which waits at a barrier
    if (TID < 20)
        MEET(UINT32_MAX, sum, &(uint32_t){0});
    if (TID != 31)
        BARRIER();
    else
        t->services->barrier(t, 0, HOST_BARRIER_SYNC, 1, 64, false);
}
KERNEL(spins) {
    ARGUMENT(uint64_t, to, 0);
    while (!__atomic_load_n((uint32_t *)global(t, 3, to, 4), __ATOMIC_RELAXED))
        BRANCH();
}
KERNEL(assertion) {
    ARGUMENT(uint64_t, to, 0);
    if (TID == 1)
        t->services->fail(t, 1, to, to + 8, 42, to + 16);
}
KERNEL(heap) {
    ARGUMENT(uint64_t, again, 0);
    uint64_t got = t->services->allocate(t, 3, 100), huge = t->services->allocate(t, 3, 1ull << 40);
    GLOBAL(got + 96) = huge;
    t->services->release(t, 3, got);
    if (again)
        t->services->release(t, 3, got);
}
MODULE(HAS(store, 1), HAS(fault, 1), HAS(lacks, 0), HAS(stuck, 0), HAS(spins, 1), HAS(assertion, 1), HAS(heap, 1))
"""


def test_faults_end_the_launch_and_break_the_context(play_kernels):
    script = r"""
    import os, traceback

    def check(status, name, grid, block, arguments):
        begin()
        module, stream, memory, first, second = load(PATH), c_void_p(), Memory(1), c_void_p(), c_void_p()
        ok(cu.cuStreamCreate(byref(stream), 1))
        ok(cu.cuCtxGetCurrent(byref(first)))
        ok(cu.cuCtxCreate_v2(byref(second), 0, 0))
        ok(cu.cuCtxSetCurrent(first))
        ok(launch(function(module, name), grid, block, *arguments(module)))
        allocate = lambda: cu.cuMemAlloc_v2(byref(c_uint64()), c_size_t(4))
        for context in (first, second, first):  # no context can be used again
            ok(cu.cuCtxSetCurrent(context))
            assert synchronize() == status, (name, synchronize())
            assert allocate() == cu.cuMemsetD8_v2(memory, 0, c_size_t(4)) == status
            assert cu.cuStreamCreate(byref(c_void_p()), 0) == cu.cuStreamDestroy_v2(stream) == status
            assert cu.cuModuleLoadData(byref(c_void_p()), open(PATH, "rb").read()) == status
            ok(cu.cuCtxGetDevice(byref(c_int())))
            ok(cu.cuCtxGetFlags(byref(c_uint32())))
        ok(cu.cuCtxDestroy_v2(second))
        assert cu.cuCtxCreate_v2(byref(second), 0, 0) == status
        ok(cu.cuDevicePrimaryCtxReset_v2(0))
        assert allocate() == 709
        assert cu.cuDevicePrimaryCtxRetain(byref(first), 0) == status

    def goes_wrong(status, name, grid, block, arguments):  # in a process of its own: it can't use the device again
        child = os.fork()
        if not child:
            try:
                check(status, name, grid, block, arguments)
                os._exit(0)
            finally:
                traceback.print_exc()
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0

    def freed(module):
        memory = Memory(100)
        ok(cu.cuMemFree_v2(memory))
        return [memory.value + 8]

    def text(module):
        memory = Memory(6)
        memory.write(list(memoryview(b"i < n\0\0\0" b"file.cu\0" b"f()\0\0\0\0\0").cast("I")))
        return [memory]

    def heap(module):
        ok(launch(function(module, "heap"), 1, 40, 0))
        ok(synchronize())
        return [1]

    goes_wrong(700, "store", 4, 32, lambda module: [Memory(100).value + 404])
    goes_wrong(700, "store", 4, 32, lambda module: [Memory(100).value - 4])
    goes_wrong(700, "store", 4, 32, freed)
    goes_wrong(700, "store", 4, 32, lambda module: [0])
    for kind, status in enumerate([700, 716, 700, 700, 700, 719, 715, 715, 710]):
        goes_wrong(status, "fault", 1, 1, lambda module: [kind])
    goes_wrong(715, "lacks", 1, 1, lambda module: [])
    goes_wrong(702, "stuck", 1, 32, lambda module: [])
    goes_wrong(702, "spins", 1, 1, lambda module: [Memory(1)])
    goes_wrong(710, "assertion", 1, 2, text)
    goes_wrong(700, "heap", 1, 1, heap)
    """
    done = play_kernels(FAULTS, script, begin=False, GPT_SIM_TIMEOUT="1")
    said = [line.removeprefix("libcuda.so.1: error: ") for line in done.stderr.splitlines()]
    store = "kernel 'store': block (2,0,0), thread (5,0,0): '13: st.global.u32;': illegal address 0x"
    assert all(line.startswith(store) for line in said[:4])
    assert [line.partition(", ")[2].split(", ")[-1] for line in said[:3]] == [
        "4 bytes after an allocation of 400 bytes",
        "4 bytes before an allocation of 400 bytes",
        "8 bytes into an allocation of 400 bytes that was freed",
    ]
    assert said[3].endswith("illegal address 0x0")
    at = "kernel 'fault': block (0,0,0), thread (0,0,0): '11: shfl.sync.bfly.b32;': "
    assert [line.removeprefix(at) for line in said[4:13]] == [
        "illegal address 0x20",
        "misaligned address 0x20",
        "address 0x20 is outside of the shared memory of 0 bytes",
        *(line.removeprefix(at) for line in said[7:8]),
        "calls too deep",
        "trap",
        "call of 0x20, which is not a function",
        "illegal operand 0x20",
        "assertion failed",
    ]
    assert said[13].endswith(
        "'11: shfl.sync.bfly.b32;': mask 0x2 lacks the thread that runs it, lane 0: all that run it must be in the mask"
    )
    stuck = "'11: shfl.sync.bfly.b32;': deadlock: of 32 threads 20 wait here, 12 elsewhere, 0 have exited"
    assert said[14] == f"kernel 'stuck': block (0,0,0), thread (0,0,0): {stuck}"
    assert said[15].endswith("'12: bra L;': no thread has made progress for 1 seconds (GPT_SIM_TIMEOUT)")
    assert said[16] == "file.cu:42: f(): block: [0,0,0], thread: [1,0,0] Assertion `i < n` failed."
    assert "free of 0x" in said[18] and len(said) == 19


def test_launches_beyond_the_limits(play_kernels):
    kernels = r"""
    VARIABLES()
    KERNEL(few) {}
    KERNEL(fixed) {}
    MODULE(HAS(few, 0, .max_threads = 64), HAS(fixed, 1, .required = {8, 2, 1}, .shared_size = 40000))
    """
    script = r"""
    few, fixed = function(module, "few"), function(module, "fixed")
    sizes = [(1, 64), (1, 65), (1, (1, 1, 65)), (0, 1), ((1, 65536), 1)]
    assert [launch(few, *size) for size in sizes] == [0, 1, 1, 1, 1]
    assert [launch(fixed, 1, (8, 2), 0), launch(fixed, 1, 16, 0)] == [0, 1]
    assert launch(fixed, 1, (8, 2), 0, shared=9152) == 0
    assert launch(fixed, 1, (8, 2), 0, shared=9153) == 1
    ok(cu.cuFuncSetAttribute(fixed, 8, 180000))
    assert launch(fixed, 1, (8, 2), 0, shared=180000) == 0
    value = c_int()
    ok(cu.cuFuncGetAttribute(byref(value), 1, fixed))
    assert value.value == 40000
    assert cu.cuLaunchKernel(fixed, 1, 1, 1, 8, 2, 1, 0, None, None, None) == 1 # no arguments
    ok(cu.cuDeviceGetAttribute(byref(value), 16, 0))
    assert launch(few, 32 * value.value, 64, cooperative=True) == 0
    assert launch(few, 32 * value.value + 1, 64, cooperative=True) == 720
    ok(synchronize())
    """
    said = play_kernels(kernels, script).stderr.splitlines()
    few, fixed = ("libcuda.so.1: error: kernel 'few': ", "libcuda.so.1: error: kernel 'fixed': ")
    assert said == [
        f"{few}threads of a block, by the device or .maxntid (__launch_bounds__): 65 given, 64 allowed",
        f"{few}threads in a dimension of the block: 65 given, 64 allowed",
        f"{few}blocks in a dimension of the grid: 0 given, 2147483647 allowed",
        f"{few}blocks in a dimension of the grid: 65536 given, 65535 allowed",
        f"{fixed}threads of a block, by .reqntid: 16 given, 16 allowed",
        f"{fixed}bytes of dynamic shared memory (cuFuncSetAttribute allows more): 9153 given, 9152 allowed",
    ]


def test_asynchronous_stores_need_clusters(play_kernels):
    """An H200 gives the same result for a launch without cluster dimensions."""
    kernels = r"""
    VARIABLES()
    KERNEL(plain) { if (!t->cluster) t->services->fault(t, 11, HOST_FAULT_CLUSTER, 0); }
    KERNEL(explicit) { if (!t->cluster) t->services->fault(t, 11, HOST_FAULT_CLUSTER, 0); }
    MODULE(HAS(plain, 0), HAS(explicit, 0, .cluster = 1))
    """
    script = r"""
    plain, explicit = function(module, "plain"), function(module, "explicit")
    def launch_in(cluster, kernel):
        attribute = (c_uint32 * 18)(4, 0, *cluster)  # CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        config = (c_uint64 * 7)(1 | 1 << 32, 1 | 1 << 32, 1 | 1 << 32, 0, 0, addressof(attribute), 1)
        return cu.cuLaunchKernelEx(config, kernel, None, None)
    assert [launch_in(cluster, plain) for cluster in ((2, 1, 1), (1, 0, 1))] == [912, 912]
    ok(launch_in((1, 1, 1), plain))
    ok(launch(explicit, 1, 1))
    ok(cu.cuCtxSynchronize())
    ok(launch(plain, 1, 1))
    assert cu.cuCtxSynchronize() == 715
    """
    done = play_kernels(kernels, script)
    assert "give it cluster dimensions" in done.stderr


def test_memory_that_runs_out_before_the_first_thread():
    """There's too little memory for a stack: the launch fails, but the process doesn't."""
    code = """
    import resource
    context, module, kernel, memory, size = c.c_void_p(), c.c_void_p(), c.c_void_p(), c.c_uint64(), c.c_size_t(64)
    text = b".version 7.0\\n.target sm_70\\n.address_size 64\\n.visible .entry k() { ret; }\\n"
    assert cu.cuDevicePrimaryCtxRetain(c.byref(context), 0) == cu.cuCtxSetCurrent(context) == 0
    assert cu.cuModuleLoadData(c.byref(module), text) == cu.cuModuleGetFunction(c.byref(kernel), module, b"k") == 0
    assert cu.cuMemAlloc_v2(c.byref(memory), size) == cu.cuMemsetD8Async(memory, 0, size, None) == 0
    assert cu.cuCtxSynchronize() == 0  # the thread that runs the kernel is there
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (3 << 20),) * 2)
    answer([cu.cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, None, None, None), cu.cuCtxSynchronize()])
    """
    answers, said = ask(code, PATH=os.environ["PATH"], XDG_CACHE_HOME=probing.kept())
    assert answers == [[0, 2]]
    assert said == "libcuda.so.1: error: kernel 'k': block (0,0,0), thread (0,0,0): no memory for another stack\n"
