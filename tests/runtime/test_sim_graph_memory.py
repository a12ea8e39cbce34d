"""Memory that graphs allocate, and what counts as memory of the simulated device: as an H200 answers (driver 580)."""

from textwrap import dedent

from tests.runtime.simulated import GATES

GRAPHS = r"""
enum { MIB = 1 << 20 };
static void *alloc_node(void *graph, uint64_t *memory, size_t size) {
    CUDA_MEM_ALLOC_NODE_PARAMS params = {.poolProps = {.allocType = 1, .location = {1, 0}}, .bytesize = size};
    void *node;
    OK(D(cuGraphAddMemAllocNode)(&node, graph, (void *)0, (size_t)0, &params));
    *memory = params.dptr;
    return node;
}
static void is_attribute(int attribute, uint64_t value) {
    uint64_t got = 1;
    OK(D(cuDeviceGetGraphMemAttribute)(0, attribute, &got));
    if (got != value)
        fprintf(stderr, "attribute %d: %ld, not %ld\n", attribute, (long)got, (long)value), abort();
}
static void *instance(void *graph, unsigned long long flags) {
    void *exec;
    OK(D(cuGraphInstantiateWithFlags)(&exec, graph, flags));
    return exec;
}
"""


def test_each_launch_allocates(play):
    source = r"""
    int main(void) {
        begin();
        void *s, *graph, *other, *exec, *frees, *node, *set, *context;
        uint64_t m, value;
        OK(D(cuStreamCreate)(&s, 1));
        OK(D(cuCtxGetCurrent)(&context));
        OK(D(cuGraphCreate)(&graph, 0));
        node = alloc_node(graph, &m, 256);
        CUDA_MEMSET_NODE_PARAMS_v2 params = {m, 0, 7, 4, 64, 1, context};
        OK(D(cuGraphAddMemsetNode)(&set, graph, &node, (size_t)1, &params, context));
        params.dst = m + 252;
        IS(1, D(cuGraphAddMemsetNode)(&set, graph, &node, (size_t)1, &params, context)); // beyond its end
        exec = instance(graph, 0);
        IS(1, D(cuMemcpyDtoH_v2)(&value, m, (size_t)4)); // not yet there
        IS(1, D(cuMemsetD8Async)(m, 0, (size_t)4, s));
        IS(1, D(cuPointerGetAttribute)(&value, 2, m));
        IS(500, D(cuMemGetAddressRange_v2)((void *)0, (void *)0, m));
        IS(1, D(cuMemFreeAsync)(m, s));
        is_attribute(0, 0);
        OK(D(cuGraphLaunch)(exec, s));
        OK(D(cuMemcpyDtoDAsync_v2)(m + 8, m, (size_t)8, s)); // after it, in the stream
        IS(1, D(cuGraphLaunch)(exec, s)); // without a free
        OK(D(cuStreamSynchronize)(s));
        for (int i = 0; i < 4; i++)
            is_attribute(i, 32 * MIB);
        OK(D(cuMemcpyDtoH_v2)(&value, m, (size_t)4));
        assert((uint32_t)value == 7);
        OK(D(cuMemFreeAsync)(m, s));
        IS(1, D(cuMemFreeAsync)(m, s));
        OK(D(cuGraphLaunch)(exec, s));
        OK(D(cuStreamSynchronize)(s));
        OK(D(cuMemcpyDtoH_v2)(&value, m, (size_t)4));
        OK(D(cuMemFree_v2)(m));
        IS(1, D(cuMemFree_v2)(m));
        IS(1, D(cuMemcpyDtoH_v2)(&value, m, (size_t)4));
        is_attribute(0, 32 * MIB); // the device keeps it
        OK(D(cuDeviceGraphMemTrim)(0));
        is_attribute(0, 0);
        is_attribute(1, 32 * MIB);
        value = 1;
        IS(1, D(cuDeviceSetGraphMemAttribute)(0, 1, &value));
        value = 0;
        IS(1, D(cuDeviceSetGraphMemAttribute)(0, 0, &value));
        OK(D(cuDeviceSetGraphMemAttribute)(0, 3, &value));
        is_attribute(3, 0);

        // Another graph frees it, if it is there.
        OK(D(cuGraphCreate)(&other, 0));
        OK(D(cuGraphAddMemFreeNode)(&node, other, (void *)0, (size_t)0, m));
        frees = instance(other, 0);
        IS(1, D(cuGraphLaunch)(frees, s));
        for (int i = 0; i < 2; i++) {
            OK(D(cuGraphLaunch)(exec, s));
            OK(D(cuGraphLaunch)(frees, s));
        }
        OK(D(cuStreamSynchronize)(s));
        IS(1, D(cuGraphLaunch)(frees, s));
        IS(1, D(cuMemcpyDtoH_v2)(&value, m, (size_t)4));

        // Memory stays when its graph goes, until it is freed.
        OK(D(cuGraphLaunch)(exec, s));
        OK(D(cuGraphExecDestroy)(exec));
        OK(D(cuGraphDestroy)(graph));
        OK(D(cuStreamSynchronize)(s));
        OK(D(cuMemcpyDtoH_v2)(&value, m, (size_t)4));
        assert((uint32_t)value == 7);
        OK(D(cuMemFree_v2)(m));
        IS(1, D(cuMemFree_v2)(m));

        // Freed by the next launch
        OK(D(cuGraphCreate)(&graph, 0));
        alloc_node(graph, &m, 256);
        exec = instance(graph, 1);
        for (int i = 0; i < 3; i++)
            OK(D(cuGraphLaunch)(exec, s));
        OK(D(cuStreamSynchronize)(s));
        OK(D(cuMemcpyDtoH_v2)(&value, m, (size_t)4));
        OK(D(cuDevicePrimaryCtxReset_v2)(0)); // takes all along
    }
    """
    play(GRAPHS + source)


def test_what_is_captured(play):
    source = r"""
    int main(void) {
        begin();
        void *s, *t, *graph, *exec, *nodes[8];
        uint64_t m, second, pool, out;
        size_t count = 8;
        int type, types[] = {10, 2, 1, 11};
        OK(D(cuStreamCreate)(&s, 1));
        OK(D(cuStreamCreate)(&t, 1));
        OK(D(cuMemAlloc_v2)(&out, (size_t)256));
        OK(D(cuMemAllocAsync)(&pool, (size_t)256, s));
        OK(D(cuStreamBeginCapture_v2)(s, 0));
        OK(D(cuMemAllocAsync)(&m, (size_t)256, s));
        OK(D(cuMemsetD32Async)(m, 5, (size_t)64, s));
        OK(D(cuMemcpyDtoDAsync_v2)(out, m, (size_t)256, s));
        IS(1, D(cuMemFreeAsync)(pool, s)); // of no graph
        IS(1, D(cuMemFreeAsync)(m + 4, s));
        OK(D(cuMemFreeAsync)(m, s));
        IS(1, D(cuMemFreeAsync)(m, s));
        OK(D(cuStreamEndCapture)(s, &graph));
        OK(D(cuGraphGetNodes)(graph, nodes, &count));
        assert(count == 4);
        for (int i = 0; i < 4; i++) {
            OK(D(cuGraphNodeGetType)(nodes[i], &type));
            assert(type == types[i]);
        }
        exec = instance(graph, 0);
        for (int i = 0; i < 3; i++) {
            uint32_t got[64] = {0};
            OK(D(cuMemsetD32_v2)(out, 0, (size_t)64));
            OK(D(cuCtxSynchronize)());
            OK(D(cuGraphLaunch)(exec, s));
            OK(D(cuStreamSynchronize)(s));
            OK(D(cuMemcpyDtoH_v2)(got, out, (size_t)256));
            assert(got[0] == 5 && got[63] == 5);
            IS(1, D(cuMemFree_v2)(m));
        }
        OK(D(cuMemFreeAsync)(pool, t));
        IS(1, D(cuMemFreeAsync)(pool, t)); // it has been freed
        OK(D(cuStreamSynchronize)(t));
        OK(D(cuStreamBeginCapture_v2)(s, 0));
        OK(D(cuMemAllocAsync)(&second, (size_t)256, s));
        IS(900, D(cuMemFreeAsync)(second, t)); // only a launch allocates it
        IS(901, D(cuStreamEndCapture)(s, &graph));
    }
    """
    play(GRAPHS + source)


def test_what_may_not_be_done_with_such_a_graph(play):
    source = r"""
    int main(void) {
        begin();
        void *graph, *outer, *exec, *alloc, *node, *empty, *clone;
        uint64_t m, got, plain;
        OK(D(cuMemAlloc_v2)(&plain, (size_t)256));
        OK(D(cuGraphCreate)(&graph, 0));
        OK(D(cuGraphCreate)(&outer, 0));
        alloc = alloc_node(graph, &m, 256);
        IS(801, D(cuGraphClone)(&clone, graph));
        IS(801, D(cuGraphAddChildGraphNode)(&node, outer, (void *)0, (size_t)0, graph));
        IS(801, D(cuGraphDestroyNode)(alloc));
        OK(D(cuGraphAddEmptyNode)(&empty, graph, &alloc, (size_t)1));
        IS(801, D(cuGraphRemoveDependencies)(graph, &alloc, &empty, (size_t)1));
        IS(1, D(cuGraphAddMemFreeNode)(&node, graph, (void *)0, (size_t)0, plain));
        IS(1, D(cuGraphAddMemFreeNode)(&node, graph, (void *)0, (size_t)0, m + 4));
        IS(1, D(cuGraphAddMemFreeNode)(&node, graph, (void *)0, (size_t)0, 0ull));
        OK(D(cuGraphAddMemFreeNode)(&node, graph, &empty, (size_t)1, m));
        IS(1, D(cuGraphAddMemFreeNode)(&empty, graph, &node, (size_t)1, m));
        CUDA_MEM_ALLOC_NODE_PARAMS params;
        OK(D(cuGraphMemAllocNodeGetParams)(alloc, &params));
        assert(params.bytesize == 256 && params.dptr == m && params.poolProps.allocType == 1);
        OK(D(cuGraphMemFreeNodeGetParams)(node, &got));
        assert(got == m);
        IS(1, D(cuGraphMemFreeNodeGetParams)(alloc, &got));
        params.bytesize = 0;
        IS(1, D(cuGraphAddMemAllocNode)(&node, graph, (void *)0, (size_t)0, &params));
        params.bytesize = 1ull << 45;
        IS(2, D(cuGraphAddMemAllocNode)(&node, graph, (void *)0, (size_t)0, &params));
        params = (CUDA_MEM_ALLOC_NODE_PARAMS){.bytesize = 256}; // where?
        IS(1, D(cuGraphAddMemAllocNode)(&node, graph, (void *)0, (size_t)0, &params));
        exec = instance(graph, 0);
        IS(801, D(cuGraphInstantiateWithFlags)(&clone, graph, 0ull)); // one at a time
        IS(801, D(cuGraphInstantiateWithFlags)(&clone, graph, 1ull));
        OK(D(cuGraphExecUpdate_v2)(exec, graph, (void *)0));
        OK(D(cuGraphExecDestroy)(exec));
        exec = instance(graph, 0);
        params = (CUDA_MEM_ALLOC_NODE_PARAMS){.poolProps = {.allocType = 1, .location = {1, 0}}, .bytesize = 64};
        CUgraphNodeParams both = {.type = 10, .alloc = params};
        OK(D(cuGraphAddNode)(&node, outer, (void *)0, (size_t)0, &both));
        both = (CUgraphNodeParams){.type = 11, .free = {both.alloc.dptr}};
        OK(D(cuGraphAddNode)(&empty, outer, &node, (size_t)1, &both));
        IS(910, D(cuGraphExecUpdate_v2)(exec, outer, (void *)0)); // its memory is another one's
        OK(D(cuGraphLaunch)(instance(outer, 0), (void *)0));
        IS(801, D(cuGraphExecUpdate_v2)(exec, outer, (void *)0)); // it has an executable graph of its own
        OK(D(cuCtxSynchronize)());
    }
    """
    play(GRAPHS + source)


def test_answers_depend_on_the_order_of_calls(play):
    """Whatever runs first: work may use memory that is freed by a later call, and none that was by an earlier one."""
    source = r"""
    static void are_refused(uint64_t m, void *stream) {
        uint64_t got[2];
        int attribute = 7;
        IS(1, D(cuMemsetD8_v2)(m, 0, (size_t)64));
        IS(1, D(cuMemsetD32Async)(m, 0, (size_t)16, stream));
        IS(1, D(cuMemcpyDtoH_v2)(got, m, (size_t)8));
        IS(1, D(cuMemcpyHtoDAsync_v2)(m + 8, got, (size_t)8, stream));
        IS(1, D(cuMemcpy)((uint64_t)got, m, (size_t)8));
        IS(1, D(cuMemcpyAsync)(m + 8, (uint64_t)got, (size_t)8, stream));
        IS(1, D(cuPointerGetAttribute)(got, attribute, m));
        IS(500, D(cuMemGetAddressRange_v2)((void *)0, (void *)0, m));
        IS(1, D(cuStreamWriteValue32_v2)(stream, m, 1u, 0u));
        IS(1, D(cuMemFreeAsync)(m, stream));
        IS(1, D(cuMemFree_v2)(m));
    }
    int main(void) {
        begin();
        void *s, *t, *graph, *exec, *nodes[4], *context;
        uint64_t m, plain, used[2], own, pool_memory, all;
        void *pool;
        OK(D(cuCtxGetCurrent)(&context));
        OK(D(cuStreamCreate)(&s, 1));
        OK(D(cuStreamCreate)(&t, 1));
        OK(D(cuDeviceGetDefaultMemPool)(&pool, 0));
        OK(D(cuMemAlloc_v2)(&plain, (size_t)64));

        // Freed while it is used, in another stream, and before it is used
        OK(D(cuGraphCreate)(&graph, 0));
        alloc_node(graph, &own, 64);
        exec = instance(graph, 0);
        for (int i = 0; i < 6; i++) {
            int of_graph = i % 2;
            if (of_graph) {
                OK(D(cuGraphLaunch)(exec, s));
                m = own;
            } else
                OK(D(cuMemAllocAsync)(&m, (size_t)64, s));
            OK(D(cuStreamSynchronize)(s));
            close_stream(t, 0);
            OK(D(cuMemsetD8Async)(m, i + 1, (size_t)64, t));
            OK(D(cuMemcpyDtoDAsync_v2)(plain, m, (size_t)64, t));
            OK(D(cuStreamWriteValue32_v2)(t, m, 1u, 0u));
            OK(D(cuMemFreeAsync)(m, s));
            OK(D(cuStreamSynchronize)(s)); // it has been freed
            are_refused(m, s);
            open_stream(0);
            OK(D(cuStreamSynchronize)(t));
            OK(D(cuMemcpyDtoH_v2)(used, plain, (size_t)8));
            assert(used[0] == 0x0101010101010101ull * (unsigned)(i + 1));

            if (of_graph) {
                OK(D(cuGraphLaunch)(exec, s));
                m = own;
            } else
                OK(D(cuMemAllocAsync)(&m, (size_t)64, s));
            close_stream(s, 0);
            OK(D(cuMemFreeAsync)(m, s));
            are_refused(m, t); // it has not been freed
            OK(D(cuMemPoolGetAttribute)(pool, 7, used));
            assert(!used[0]);
            open_stream(0);
            OK(D(cuStreamSynchronize)(s));
        }

        // What is freed in a stream can be allocated again, if not until then.
        OK(D(cuMemFree_v2)(plain));
        for (int i = 0; i < 3; i++) {
            OK(D(cuMemAllocAsync)(&all, (size_t)900 * MIB, s));
            OK(D(cuMemFreeAsync)(all, s));
        }
        OK(D(cuMemAlloc_v2)(&all, (size_t)900 * MIB));
        IS(2, D(cuMemAllocAsync)(&m, (size_t)900 * MIB, s));
        OK(D(cuMemFree_v2)(all));

        // Nodes of a graph: what is there when it is launched
        OK(D(cuMemAllocAsync)(&pool_memory, (size_t)64, s));
        OK(D(cuGraphCreate)(&graph, 0));
        CUDA_MEMSET_NODE_PARAMS_v2 params = {pool_memory, 0, 7, 1, 64, 1, context};
        OK(D(cuGraphAddMemsetNode)(&nodes[0], graph, (void *)0, (size_t)0, &params, context));
        exec = instance(graph, 0);
        close_stream(t, 0);
        OK(D(cuGraphLaunch)(exec, t));
        OK(D(cuMemFreeAsync)(pool_memory, s));
        OK(D(cuStreamSynchronize)(s));
        open_stream(0);
        OK(D(cuStreamSynchronize)(t));
        close_stream(s, 0);
        OK(D(cuGraphLaunch)(exec, t)); // its memory is gone
        IS(700, D(cuStreamSynchronize)(t));
        open_stream(0);
    }
    """
    play(GRAPHS + GATES + source, GPT_SIM_MEMORY=str(1 << 30))


def test_kernels_use_what_was_there_when_they_were_launched(sim_play):
    script = """
    from threading import Event
    module = load(PTX)
    store = function(module, "store")
    s, t, memory, plain = c_void_p(), c_void_p(), c_uint64(), Memory(1)
    for stream in (s, t):
        ok(cu.cuStreamCreate(byref(stream), 1))
    gate = Event()
    wait = CFUNCTYPE(None, c_void_p)(lambda unused: gate.wait())

    def closed(stream):
        gate.clear()
        ok(cu.cuLaunchHostFunc(stream, wait, None))

    for size in (64, 64 << 20, 3 << 20):
        ok(cu.cuMemAllocAsync(byref(memory), c_size_t(size), s))
        ok(cu.cuStreamSynchronize(s))
        closed(t)
        for at in (0, size - 4):
            ok(launch(store, 1, 1, memory.value + at, stream=t))
        ok(cu.cuMemFreeAsync(memory, s))
        ok(cu.cuStreamSynchronize(s))
        gate.set()
        ok(cu.cuStreamSynchronize(t))
    ok(cu.cuMemAllocAsync(byref(memory), c_size_t(64), s))
    closed(s)
    ok(cu.cuMemFreeAsync(memory, s))
    ok(launch(store, 1, 1, memory, stream=t))
    print(cu.cuStreamSynchronize(t))
    gate.set()
    """
    ptx = """.version 7.0
.target sm_70
.address_size 64
.visible .entry store(.param .u64 p) {
.reg .b64 %a;
ld.param.u64 %a, [p];
st.u32 [%a], 1;
ret;
}
"""
    done = sim_play(f"PTX = {ptx.encode()!r}\n" + dedent(script))
    assert (done.returncode, done.stdout) == (0, "700\n"), done.stderr
    assert (
        done.stderr.endswith(", 0 bytes into an allocation of 64 bytes that was freed\n")
        and done.stderr.count("\n") == 1
    )


def test_where_such_nodes_may_be(play):
    source = r"""
    static int add(void *graph, CUgraphNodeParams *params) {
        void *node;
        return D(cuGraphAddNode)(&node, graph, (void *)0, (size_t)0, params);
    }
    int main(void) {
        begin();
        void *s, *graph, *child, *inner, *node, *exec, *context;
        uint64_t m, handle;
        OK(D(cuStreamCreate)(&s, 1));
        OK(D(cuCtxGetCurrent)(&context));
        // the body of a condition takes one, but no graph with it can be made executable
        OK(D(cuGraphCreate)(&graph, 0));
        OK(D(cuGraphConditionalHandleCreate)(&handle, graph, context, 1, 1));
        CUgraphNodeParams condition = {.type = CU_GRAPH_NODE_TYPE_CONDITIONAL,
                                       .conditional = {.handle = handle, .size = 1, .ctx = context}};
        OK(add(graph, &condition));
        alloc_node(condition.conditional.phGraph_out[0], &m, 256);
        IS(1, D(cuGraphInstantiateWithFlags)(&exec, graph, (unsigned long long)0));
        IS(1, add(graph, &condition)); // a handle has one node
        // a child graph takes none, but may have some if it is moved
        CUDA_MEM_ALLOC_NODE_PARAMS params = {.poolProps = {.allocType = 1, .location = {1, 0}}, .bytesize = 64};
        OK(D(cuGraphCreate)(&graph, 0));
        OK(D(cuGraphCreate)(&child, 0));
        OK(D(cuGraphAddChildGraphNode)(&node, graph, (void *)0, (size_t)0, child));
        OK(D(cuGraphChildGraphNodeGetGraph)(node, &inner));
        IS(801, D(cuGraphAddMemAllocNode)(&node, inner, (void *)0, (size_t)0, &params));
        alloc_node(child, &m, 256);
        CUgraphNodeParams moved = {.type = CU_GRAPH_NODE_TYPE_GRAPH, .graph = {.graph = child, .ownership = 1}};
        exec = instance(child, 0);
        IS(801, add(graph, &moved));
        OK(D(cuGraphExecDestroy)(exec));
        OK(add(graph, &moved));
        exec = instance(graph, 0);
        OK(D(cuGraphLaunch)(exec, s));
        OK(D(cuMemsetD8_v2)(m, 0, (size_t)256));
        OK(D(cuMemFreeAsync)(m, s));
        IS(1, D(cuMemsetD8_v2)(m, 0, (size_t)256)); // even if that has not run yet
        IS(1, D(cuMemcpyDtoH_v2)(&handle, m, (size_t)8));
        // flags
        unsigned long long flags;
        OK(D(cuGraphCreate)(&graph, 0));
        node = alloc_node(graph, &m, 256);
        IS(1, D(cuGraphInstantiateWithFlags)(&exec, graph, 2ull)); // an upload, without its stream
        IS(1, D(cuGraphInstantiateWithFlags)(&exec, graph, 4ull)); // a launch by the device
        IS(1, D(cuGraphInstantiateWithFlags)(&exec, graph, 16ull));
        CUDA_GRAPH_INSTANTIATE_PARAMS how = {.flags = 2, .hUploadStream = s};
        OK(D(cuGraphInstantiateWithParams)(&exec, graph, &how));
        OK(D(cuGraphExecGetFlags)(exec, &flags));
        assert(!flags);
        // access
        CUmemAccessDesc access = {{1, 0}, 3};
        params.accessDescs = &access, params.accessDescCount = 1;
        OK(D(cuGraphAddMemAllocNode)(&node, graph, (void *)0, (size_t)0, &params));
        access.flags = 1;
        IS(801, D(cuGraphAddMemAllocNode)(&node, graph, (void *)0, (size_t)0, &params));
        access.flags = 3, access.location.id = 7;
        IS(101, D(cuGraphAddMemAllocNode)(&node, graph, (void *)0, (size_t)0, &params));
        size_t pitch;
        IS(1, D(cuMemAllocPitch_v2)(&m, &pitch, (size_t)100, (size_t)3, 5));
        return 0;
    }
    """
    play(GRAPHS + source)


def test_the_limit_of_memory(play):
    source = r"""
    enum { PIECE = 32 * MIB, ALL = 32 };
    static uint64_t got[2 * ALL];
    #define COUNT(status, call) ({ int n_ = 0, last_ = 0; \
        while (n_ < 2 * ALL && !(last_ = (call))) n_++; \
        IS(status, last_); n_; })
    static size_t left(void) {
        size_t left;
        OK(D(cuMemGetInfo_v2)(&left, (void *)0));
        return left / MIB;
    }
    int main(void) {
        begin();
        struct { int type, handles, location, place; uint64_t rest[2]; } props = {1, 0, 1, 0, {0}};
        size_t pitch, size = PIECE;
        void *pool, *graph, *exec, *second;
        uint64_t m, other;
        assert(left() == 1024);
        #define FREE(n, call) do { for (int i_ = n; i_--;) { uint64_t p = got[i_]; OK(call); } \
            assert(left() == 1024); } while (0)
        IS(ALL, COUNT(2, D(cuMemAlloc_v2)(&got[n_], size)));
        FREE(ALL, D(cuMemFree_v2)(p));
        IS(ALL, COUNT(2, D(cuMemAllocPitch_v2)(&got[n_], &pitch, (size_t)MIB, (size_t)32, 4)));
        FREE(ALL, D(cuMemFree_v2)(p));
        IS(ALL, COUNT(2, D(cuMemAllocAsync)(&got[n_], size, (void *)0)));
        for (int i = 0; i < ALL; i++)
            OK(D(cuMemFreeAsync)(got[i], (void *)0));
        OK(D(cuCtxSynchronize)());
        OK(D(cuDeviceGetDefaultMemPool)(&pool, 0));
        IS(ALL, COUNT(2, D(cuMemAllocFromPoolAsync)(&got[n_], size, pool, (void *)0)));
        FREE(ALL, D(cuMemFree_v2)(p));
        IS(ALL, COUNT(2, D(cuMemCreate)(&got[n_], size, &props, 0ull)));
        assert(left() == 0);
        IS(2, D(cuMemAlloc_v2)(&m, (size_t)1));
        FREE(ALL, D(cuMemRelease)(p));
        IS(2 * ALL, COUNT(0, D(cuMemAllocManaged)(&got[n_], size, 1))); // more than the device has
        OK(D(cuMemAlloc_v2)(&m, 31 * size));
        IS(2, D(cuMemAlloc_v2)(&other, size + 1));
        OK(D(cuMemFree_v2)(m));
        FREE(2 * ALL, D(cuMemFree_v2)(p));
        IS(2 * ALL, COUNT(0, D(cuMemHostAlloc)(&got[n_], size, 0)));
        for (int i = 0; i < 2 * ALL; i++)
            OK(D(cuMemFreeHost)((void *)got[i]));

        // Memory that is mapped counts once, until both its handle and its mapping are gone.
        OK(D(cuMemAddressReserve)(&m, size, (size_t)0, 0ull, 0ull));
        OK(D(cuMemCreate)(&other, size, &props, 0ull));
        OK(D(cuMemMap)(m, size, (size_t)0, other, 0ull));
        OK(D(cuMemRelease)(other));
        assert(left() == 1024 - 32);
        OK(D(cuMemUnmap)(m, size));
        assert(left() == 1024);

        // Graphs share what they need one after the other; it is taken when the first is launched.
        OK(D(cuGraphCreate)(&graph, 0));
        void *node = alloc_node(graph, &m, 20 * size), *freed;
        OK(D(cuGraphAddMemFreeNode)(&freed, graph, &node, (size_t)1, m));
        exec = instance(graph, 0);
        OK(D(cuGraphCreate)(&graph, 0));
        alloc_node(graph, &other, 20 * size);
        second = instance(graph, 0);
        assert(left() == 1024);
        OK(D(cuGraphLaunch)(exec, (void *)0));
        OK(D(cuGraphLaunch)(second, (void *)0));
        IS(2, D(cuGraphLaunch)(exec, (void *)0));
        assert(left() == 1024 - 20 * 32);
        OK(D(cuMemFree_v2)(other));
        assert(left() == 1024 - 20 * 32);
        OK(D(cuGraphUpload)(exec, (void *)0));
        IS(2, D(cuMemAlloc_v2)(&m, 13 * size));
        OK(D(cuDeviceGraphMemTrim)(0));
        OK(D(cuMemAlloc_v2)(&m, 13 * size));
        IS(2, D(cuGraphUpload)(exec, (void *)0));
    }
    """
    play(GRAPHS + source, GPT_SIM_MEMORY=str(1 << 30))
