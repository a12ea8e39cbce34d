"""Memory of the simulated device: every way to allocate it, values that streams write, and what graphs keep."""

from tests.runtime.hooked import PROGRAMS


def test_memory_of_every_kind(play):
    play(PROGRAMS / "memory_of_every_kind.c")


def test_memory_larger_than_files_may_be(play):
    """Memory without an address is an unnamed file, to which the limit applies: no signal comes."""
    play(r"""
    #include <sys/resource.h>
    int main(void) {
        begin();
        int props[8] = {1, 0, 1, 0}; // pinned, no handle, on device 0
        uint64_t handle;
        OK(D(cuMemCreate)(&handle, (size_t)2 << 20, props, 0ull));
        assert(!setrlimit(RLIMIT_FSIZE, &(struct rlimit){4096, RLIM_INFINITY}));
        IS(2, D(cuMemCreate)(&handle, (size_t)2 << 20, props, 0ull));
    }
    """)


def test_values_that_streams_write_and_wait_for(play):
    source = r"""
    struct { uint32_t type; uint64_t address, value; uint32_t flags; uint64_t alias, pad; } operations[] = {
        {2, 0, 7, 0, 0, 0}, {1, 0, 6, 0, 0, 0}, {3, 0, 0, 0, 0, 0}, {5, 8, 1ull << 40, 0, 0, 0},
        {4, 8, 1ull << 40, 2, 0, 0}};
    int main(void) {
        begin();
        uint64_t memory;
        void *one, *two, *context, *green = &one;
        int value[16] = {-2}, got[16];
        OK(D(cuStreamCreate)(&one, 1));
        OK(D(cuStreamCreate)(&two, 1));
        OK(D(cuMemAlloc_v2)(&memory, (size_t)64));
        OK(D(cuMemsetD8_v2)(memory, 0, (size_t)64));
        OK(D(cuCtxSynchronize)());
        OK(D(cuStreamWaitValue32_v2)(one, memory, 5, 0)); // at least 5
        OK(D(cuStreamWaitValue64_v2)(one, memory + 8, 3ull, 1)); // 3
        OK(D(cuStreamWriteValue32)(one, memory + 16, 1, 0));
        IS(600, D(cuStreamQuery)(one));
        OK(D(cuStreamWriteValue32_v2)(two, memory, 4, 0));
        OK(D(cuStreamWriteValue64_v2)(two, memory + 8, 3ull, 0));
        OK(D(cuStreamSynchronize)(two));
        IS(600, D(cuStreamQuery)(one));
        OK(D(cuStreamWriteValue32_v2)(two, memory, 5, 0));
        OK(D(cuStreamSynchronize)(one));
        assert(*(int *)(memory + 16) == 1);
        for (int i = 0; i < 5; i++)
            operations[i].address += memory;
        OK(D(cuStreamBatchMemOp_v2)(one, 5, operations, 0));
        OK(D(cuStreamSynchronize)(one));
        assert(*(uint64_t *)(memory + 8) == 1ull << 40);
        IS(1, D(cuStreamWriteValue32_v2)(one, memory + 2, 5, 0));
        IS(1, D(cuStreamWriteValue32_v2)(one, memory + 64, 5, 0));
        OK(D(cuStreamSetAttribute)(one, 8, value)); // the priority
        OK(D(cuStreamCopyAttributes)(two, one));
        OK(D(cuStreamGetAttribute)(two, 8, got));
        assert(got[0] == -2);
        IS(1, D(cuStreamGetAttribute)(two, 4, value));
        OK(D(cuStreamGetCtx_v2)(one, &context, &green));
        assert(!green);
    }
    """
    play(source)


def test_wrong_flags_pitches_and_frees(play):
    """The driver API's manual has the rule for pitches, lists the flags, and says where freed memory must come from.
    Nobody has tried these on a GPU.
    """
    source = r"""
    #define VARIABLE ".version 7.0\n.target sm_70\n.address_size 64\n.global .u32 g = 7;\n.const .u32 c = 8;\n"
    int main(void) {
        begin();
        uint64_t memory, variable, constant;
        void *stream, *module, *library, *loaded;
        int value = 0;
        OK(D(cuStreamCreate)(&stream, 1));
        OK(D(cuMemAlloc_v2)(&memory, (size_t)4096));
        IS(1, D(cuStreamWaitValue32_v2)(stream, memory, 0, 9));
        IS(1, D(cuStreamWaitValue64_v2)(stream, memory, 0ull, 4));
        IS(1, D(cuStreamWriteValue32_v2)(stream, memory, 1, 2));
        OK(D(cuStreamWriteValue32_v2)(stream, memory, 1, 1));
        OK(D(cuStreamWaitValue32_v2)(stream, memory, 1, 1 << 30 | 1));
        OK(D(cuStreamSynchronize)(stream));
        IS(1, D(cuMemsetD2D32_v2)(memory, (size_t)6, 1, (size_t)1, (size_t)4));
        IS(1, D(cuMemsetD2D16_v2)(memory, (size_t)5, 1, (size_t)1, (size_t)4));
        IS(1, D(cuMemsetD2D32Async)(memory, (size_t)10, 1, (size_t)2, (size_t)2, stream));
        OK(D(cuMemsetD2D32_v2)(memory, (size_t)6, 1, (size_t)1, (size_t)1)); // a single row has no pitch
        OK(D(cuMemsetD2D8_v2)(memory, (size_t)5, 1, (size_t)3, (size_t)4));
        OK(D(cuModuleLoadData)(&module, VARIABLE));
        OK(D(cuModuleGetGlobal_v2)(&variable, (void *)0, module, "g"));
        OK(D(cuModuleGetGlobal_v2)(&constant, (void *)0, module, "c"));
        IS(1, D(cuMemFree_v2)(variable));
        IS(1, D(cuMemFree_v2)(constant));
        IS(1, D(cuMemFreeAsync)(variable, stream));
        OK(D(cuMemcpyDtoH_v2)(&value, variable, (size_t)4));
        assert(value == 7);
        OK(D(cuLibraryLoadData)(&library, VARIABLE, 0, 0, 0, 0, 0, 0));
        OK(D(cuLibraryGetGlobal)(&variable, (void *)0, library, "g"));
        IS(1, D(cuMemFree_v2)(variable));
        OK(D(cuModuleUnload)(module));
        OK(D(cuLibraryUnload)(library));
        OK(D(cuMemFree_v2)(memory));
    }
    """
    play(source)


def test_memory_of_graphs(play):
    play(PROGRAMS / "memory_of_graphs.c", GPT_SIM_RUN="none")
