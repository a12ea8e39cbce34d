"""Graphs on the simulated device: nodes, conditions, captures."""

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


# What is in the body of a condition is no call of the host: it sets a byte.
MARKS = r"""
static uint64_t marks;
static void add_mark(void *body, long number) {
    CUDA_MEMSET_NODE_PARAMS_v2 params = {marks + number, 0, 1, 1, 1, 1, 0};
    void *node, *context;
    OK(D(cuCtxGetCurrent)(&context));
    OK(D(cuGraphAddMemsetNode)(&node, body, (void *)0, (size_t)0, &params, context));
}
static void expect_marks(const char *expected) {
    char got[64], text[256] = "";
    OK(D(cuMemcpyDtoH_v2)(got, marks, sizeof(got)));
    for (int i = 0; i < 64; i++)
        if (got[i])
            sprintf(text + strlen(text), "%d ", i);
    if (strcmp(text, expected))
        fprintf(stderr, "'%s', not '%s'\n", text, expected), abort();
    OK(D(cuMemsetD8_v2)(marks, 0, sizeof(got)));
}
static void begin_marks(void) {
    OK(D(cuMemAlloc_v2)(&marks, (size_t)64));
    OK(D(cuMemsetD8_v2)(marks, 0, (size_t)64));
}
"""


def test_conditional_nodes(play):
    source = r"""
    int main(void) {
        begin();
        void *graph, *node, *exec, *event, *other;
        begin_marks();
        OK(D(cuEventCreate)(&event, 0));
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
                add_mark(params.conditional.phGraph_out[j], 10 * i + j);
        }
        IS(1, D(cuGraphClone)(&exec, graph)); // as CUDA has it
        OK(D(cuGraphInstantiateWithFlags)(&exec, graph, 0ull));
        IS(801, D(cuGraphInstantiateWithFlags)(&other, graph, 0ull)); // one at a time
        OK(D(cuGraphLaunch)(exec, (void *)0));
        expect_marks("0 21 32 ");
        OK(D(cuGraphDestroy)(graph));
        OK(D(cuGraphLaunch)(exec, (void *)0));
        expect_marks("0 21 32 ");

        // A body takes nodes of the host and of events, but can't be made executable with them.
        for (int i = 0; i < 4; i++) {
            CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_CONDITIONAL, .conditional = {.size = 1}};
            OK(D(cuGraphCreate)(&graph, 0));
            OK(D(cuGraphConditionalHandleCreate)(&params.conditional.handle, graph, (void *)0, 1, 1));
            OK(D(cuGraphAddNode_v2)(&node, graph, (void *)0, (void *)0, (size_t)0, &params));
            void *body = params.conditional.phGraph_out[0], *child;
            if (i == 0)
                add_call(body, 0, 0, 1);
            else if (i == 1)
                OK(D(cuGraphAddEventRecordNode)(&node, body, (void *)0, (size_t)0, event));
            else if (i == 2)
                OK(D(cuGraphAddEventWaitNode)(&node, body, (void *)0, (size_t)0, event));
            else {
                OK(D(cuGraphCreate)(&child, 0));
                add_call(child, 0, 0, 1);
                OK(D(cuGraphAddChildGraphNode)(&node, body, (void *)0, (size_t)0, child));
            }
            IS(1, D(cuGraphInstantiateWithFlags)(&exec, graph, 0ull));
        }
    }
    """
    play(GRAPHS + MARKS + source)


def test_a_loop_that_never_ends_is_refused(play):
    """No kernel could end it."""
    source = r"""
    #include <fcntl.h>
    int main(void) {
        begin();
        void *graph, *node, *exec;
        int errors = dup(2), log[2];
        begin_marks();
        for (int value = 0; value < 2; value++) {
            CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_CONDITIONAL};
            params.conditional.type = CU_GRAPH_COND_TYPE_WHILE, params.conditional.size = 1;
            OK(D(cuGraphCreate)(&graph, 0));
            OK(D(cuGraphConditionalHandleCreate)(&params.conditional.handle, graph, (void *)0, value, 1));
            OK(D(cuGraphAddNode_v2)(&node, graph, (void *)0, (void *)0, (size_t)0, &params));
            add_mark(params.conditional.phGraph_out[0], 7);
            OK(D(cuGraphInstantiateWithFlags)(&exec, graph, 0ull));
            assert(!pipe(log) && dup2(log[1], 2) == 2);
            int status = D(cuGraphLaunch)(exec, (void *)0);
            assert(dup2(errors, 2) == 2 && !close(log[1]));
            char said[200] = "";
            IS(value ? 801 : 0, status);
            assert(read(log[0], said, sizeof(said) - 1) >= 0 && !!strstr(said, "a loop in a graph") == value);
            expect_marks("");
        }
    }
    """
    play(GRAPHS + MARKS + source, GPT_SIM_RUN="all")


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
        assert(!found.kernelParams && !found.extra); // as CUDA has it
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
        IS(1, D(cuEventQuery)(event)); // it was recorded in a capture that has ended

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


def test_a_graph_runs_once_at_a_time(play):
    source = r"""
    static int inside;
    static void begin_it(void *unused) { assert(!__atomic_fetch_add(&inside, 1, 5)), usleep(2000); }
    static void end_it(void *unused) { __atomic_fetch_sub(&inside, 1, 5); }
    int main(void) {
        begin();
        void *graph, *nodes[2], *exec, *streams[2];
        CUDA_HOST_NODE_PARAMS first = {begin_it, 0}, last = {end_it, 0};
        OK(D(cuGraphCreate)(&graph, 0));
        OK(D(cuGraphAddHostNode)(&nodes[0], graph, (void *)0, (size_t)0, &first));
        OK(D(cuGraphAddHostNode)(&nodes[1], graph, &nodes[0], (size_t)1, &last));
        OK(D(cuGraphInstantiateWithFlags)(&exec, graph, 0ull));
        for (int i = 0; i < 2; i++)
            OK(D(cuStreamCreate)(&streams[i], 1));
        for (int i = 0; i < 20; i++)
            OK(D(cuGraphLaunch)(exec, streams[i % 2]));
        for (int i = 0; i < 20; i++) { // in streams that end, of which the next one may have the handle
            OK(D(cuStreamCreate)(&streams[0], 1));
            OK(D(cuGraphLaunch)(exec, streams[0]));
            OK(D(cuStreamDestroy_v2)(streams[0]));
        }
        OK(D(cuCtxSynchronize)());
    }
    """
    play(GRAPHS + source)


def test_what_an_active_and_an_invalid_capture_refuse(play):
    """As an H200 answers (driver 580)."""
    source = r"""
    static void *s, *t, *event, *other, *f, *pool;
    static int state(void) {
        int status;
        OK(D(cuStreamIsCapturing)(s, &status));
        return status;
    }
    #define ENDS(result, after, call) do { void *graph_ = s; OK(D(cuStreamBeginCapture_v2)(s, 0)); IS(result, call); \
        IS(after, state()); IS(after == 1 ? 0 : 901, D(cuStreamEndCapture)(s, &graph_)); \
        assert((after == 2) == !graph_); } while (0)
    int main(void) {
        begin();
        void *module, *graph, *exec, *made;
        uint64_t m, memory, id;
        char host[8];
        size_t size;
        unsigned flags;
        int number;
        struct { int type, handles, location, place; uint64_t rest[10]; } props = {1, 0, 1, 0, {0}};
        f = kernel("foo");
        OK(cuModuleLoadData(&module, PTX));
        OK(D(cuStreamCreate)(&s, 1));
        OK(D(cuStreamCreate)(&t, 1));
        OK(D(cuEventCreate)(&event, 0));
        OK(D(cuEventCreate)(&other, 0));
        OK(D(cuEventRecord)(other, t));
        OK(D(cuMemAlloc_v2)(&m, (size_t)4096));
        OK(D(cuDeviceGetDefaultMemPool)(&pool, 0));
        OK(D(cuGraphCreate)(&graph, 0));
        OK(D(cuGraphInstantiateWithFlags)(&exec, graph, 0ull));
        ENDS(900, 2, D(cuMemAlloc_v2)(&memory, (size_t)4));
        ENDS(900, 2, D(cuMemAllocManaged)(&memory, (size_t)4, 1));
        ENDS(900, 2, D(cuMemHostAlloc)(&made, (size_t)4, 0));
        ENDS(900, 2, D(cuMemFree_v2)(0ull));
        ENDS(900, 2, D(cuModuleUnload)(module));
        ENDS(900, 2, D(cuCtxSynchronize)());
        ENDS(900, 2, D(cuStreamSynchronize)(t));
        ENDS(900, 2, D(cuStreamQuery)(t));
        ENDS(900, 2, D(cuEventQuery)(other));
        ENDS(900, 2, D(cuEventSynchronize)(other));
        ENDS(900, 2, D(cuCtxSetLimit)(0, (size_t)2048));
        ENDS(900, 2, D(cuMemPoolCreate)(&made, &props));
        ENDS(900, 2, D(cuMemPoolTrimTo)(pool, (size_t)0));
        ENDS(900, 2, D(cuMemAllocAsync)(&memory, (size_t)4, t));
        ENDS(900, 2, D(cuMemFreeAsync)(m, t));
        ENDS(900, 2, D(cuMemFreeAsync)(0ull, t));
        ENDS(900, 2, D(cuStreamGetFlags)(s, &flags));
        ENDS(900, 2, D(cuStreamGetId)(s, &id));
        ENDS(900, 2, D(cuStreamGetDevice)(s, &number));
        ENDS(900, 2, D(cuMemPrefetchAsync)(m, (size_t)4, 0, s));
        ENDS(900, 2, D(cuGraphLaunch)((void *)0, s));
        ENDS(900, 2, D(cuGraphLaunch)(exec, s));
        ENDS(1, 2, cuLaunchKernel(f, 0, 1, 1, 1, 1, 1, 0, s, 0, 0));
        ENDS(1, 2, cuLaunchKernel(f, 1, 1, 1, 2048, 1, 1, 0, s, 0, 0));
        ENDS(0, 1, cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, t, 0, 0));
        ENDS(0, 1, D(cuMemcpyDtoH_v2)(host, m, (size_t)4)); // the legacy stream does not wait for this one
        ENDS(0, 1, D(cuMemcpyDtoD_v2)(m, m + 64, (size_t)4));
        ENDS(0, 1, D(cuMemsetD8_v2)(m, 0, (size_t)4));
        ENDS(0, 1, D(cuMemGetInfo_v2)(&size, &size));
        ENDS(0, 1, D(cuStreamCreate)(&made, 1));
        ENDS(0, 1, cuModuleLoadData(&made, PTX));
        ENDS(401, 1, D(cuStreamBeginCapture_v2)(s, 0));
        ENDS(1, 1, D(cuMemFreeAsync)(m, s)); // not memory of a graph
        OK(D(cuStreamSynchronize)(t));

        OK(D(cuStreamBeginCapture_v2)(s, 0));
        OK(D(cuEventRecord)(event, s));
        IS(907, D(cuEventQuery)(event));
        IS(2, state());
        IS(901, D(cuStreamWaitEvent)(t, event, 0));
        IS(901, D(cuMemAllocAsync)(&memory, (size_t)4, s));
        IS(901, D(cuMemAllocFromPoolAsync)(&memory, (size_t)4, pool, s));
        IS(901, D(cuMemFreeAsync)(m, s));
        IS(901, cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, s, 0, 0));
        IS(901, D(cuMemsetD32Async)(m, 0, (size_t)1, s));
        IS(901, D(cuMemcpyDtoDAsync_v2)(m, m + 64, (size_t)4, s));
        IS(901, D(cuMemcpyHtoDAsync_v2)(m, host, (size_t)4, s));
        IS(901, D(cuEventRecord)(event, s));
        IS(901, D(cuStreamWaitEvent)(s, other, 0));
        IS(901, D(cuLaunchHostFunc)(s, call, 1l));
        IS(901, D(cuStreamWriteValue32_v2)(s, m, 1, 0));
        IS(900, D(cuStreamAddCallback)(s, call, 1l, 0));
        IS(900, D(cuGraphLaunch)((void *)0, s));
        IS(900, D(cuGraphUpload)(exec, s));
        IS(900, D(cuStreamSynchronize)(s));
        IS(900, D(cuStreamQuery)(s));
        IS(900, D(cuStreamGetFlags)(s, &flags));
        IS(901, D(cuStreamGetPriority)(s, &number));
        IS(901, D(cuStreamGetCtx)(s, &made));
        IS(901, D(cuStreamUpdateCaptureDependencies)(s, (void *)0, (size_t)0, 1));
        IS(401, D(cuStreamBeginCapture_v2)(s, 0));
        OK(D(cuStreamGetCaptureInfo)(s, &number, &id));
        assert(number == 2);
        OK(D(cuMemcpyDtoH_v2)(host, m, (size_t)4));
        IS(903, D(cuStreamEndCapture)(t, &made) == 401 ? 903 : 0); // t has not joined it
        made = s;
        IS(901, D(cuStreamEndCapture)(s, &made));
        assert(!made);
        IS(1, D(cuEventSynchronize)(event));
        IS(1, D(cuStreamWaitEvent)(t, event, 0));
        OK(D(cuEventRecord)(event, t));
        OK(D(cuStreamWaitEvent)(s, event, 0));
        OK(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, s, 0, 0));
        OK(D(cuStreamSynchronize)(s));
    }
    """
    play(GRAPHS + source)


def test_what_waits_for_a_captured_stream(play):
    """As an H200 answers (driver 580)."""
    source = r"""
    static void *s;
    static void *context;
    static void *ends(void *status) {
        void *graph;
        OK(D(cuCtxSetCurrent)(context));
        *(int *)status = D(cuStreamEndCapture)(s, &graph);
        return NULL;
    }
    #define INVALID(status, call) do { \
            void *graph; \
            OK(D(cuStreamBeginCapture_v2)(s, 2)); \
            IS(status, call); \
            IS(901, D(cuStreamEndCapture)(s, &graph)); \
        } while (0)
    int main(void) {
        begin();
        void *e, *recorded, *graph;
        int state, status;
        OK(D(cuCtxGetCurrent)(&context));
        OK(D(cuStreamCreate)(&s, 0)); // blocking: the legacy stream waits for it
        OK(D(cuEventCreate)(&e, 0));
        OK(D(cuEventCreate)(&recorded, 0));
        OK(D(cuEventRecord)(recorded, NULL));
        INVALID(906, D(cuStreamSynchronize)(NULL));
        INVALID(906, D(cuStreamWaitEvent)(NULL, recorded, 0));
        INVALID(900, D(cuCtxSynchronize)());
        OK(D(cuStreamBeginCapture_v2)(s, 0));
        OK(D(cuEventRecord)(e, s));
        float ms;
        IS(907, D(cuEventElapsedTime_v2)(&ms, recorded, e));
        OK(D(cuStreamEndCapture)(s, &graph)); // it went on
        // another thread can only end it
        OK(D(cuStreamBeginCapture_v2)(s, 0));
        pthread_t thread;
        assert(!pthread_create(&thread, NULL, ends, &status) && !pthread_join(thread, NULL));
        assert(status == 908);
        OK(D(cuStreamIsCapturing)(s, &state));
        assert(!state);
        IS(401, D(cuStreamEndCapture)(s, &graph));
        return 0;
    }
    """
    play(source)


def test_a_stream_that_goes_while_it_is_captured(play):
    source = r"""
    int main(void) {
        begin();
        void *s, *u, *first, *back, *graph, *exec;
        int status;
        OK(D(cuStreamCreate)(&s, 1));
        OK(D(cuEventCreate)(&first, 0));
        OK(D(cuEventCreate)(&back, 0));
        for (int bits = 0; bits < 8; bits++) { // it has work; it is joined back; it has work after that
            OK(D(cuStreamCreate)(&u, 1));
            OK(D(cuStreamBeginCapture_v2)(s, 0));
            OK(D(cuLaunchHostFunc)(s, call, 1l));
            OK(D(cuEventRecord)(first, s));
            OK(D(cuStreamWaitEvent)(u, first, 0));
            if (bits & 1)
                OK(D(cuLaunchHostFunc)(u, call, 2l));
            if (bits & 2) {
                OK(D(cuEventRecord)(back, u));
                OK(D(cuStreamWaitEvent)(s, back, 0));
            }
            if (bits & 4)
                OK(D(cuLaunchHostFunc)(u, call, 3l));
            if (bits == 1)
                OK(D(cuEventRecord)(back, u)); // is joined by its event, when the stream is gone
            OK(D(cuStreamDestroy_v2)(u));
            if (bits == 1)
                OK(D(cuStreamWaitEvent)(s, back, 0));
            OK(D(cuStreamIsCapturing)(s, &status));
            assert(status == 1);
            IS(bits & 4 ? 904 : 0, D(cuStreamEndCapture)(s, &graph));
            if (bits & 4)
                continue;
            OK(D(cuGraphInstantiateWithFlags)(&exec, graph, 0ull));
            OK(D(cuGraphLaunch)(exec, s));
            OK(D(cuStreamSynchronize)(s));
            expect(bits & 1 ? "1 2 " : "1 ");
        }
    }
    """
    play(GRAPHS + source)


def test_the_parameters_of_any_node(play):
    source = r"""
    static void called(void *data) { ++*(int *)data; }
    int main(void) {
        begin();
        void *graph, *inner, *nodes[4], *function = kernel("foo");
        int calls = 0;
        CUdeviceptr memory;
        CUgraphNodeParams told;
        OK(D(cuMemAlloc_v2)(&memory, (size_t)64));
        OK(D(cuGraphCreate)(&graph, 0));
        OK(D(cuGraphCreate)(&inner, 0));
        CUgraphNodeParams given[4] = {
            {.type = CU_GRAPH_NODE_TYPE_KERNEL, .kernel = {.func = function, 2, 3, 4, 5, 6, 7}},
            {.type = CU_GRAPH_NODE_TYPE_MEMSET, .memset = {.dst = memory, .elementSize = 4, .width = 3, .height = 1}},
            {.type = CU_GRAPH_NODE_TYPE_HOST, .host = {called, &calls}},
            {.type = CU_GRAPH_NODE_TYPE_EMPTY}};
        for (int i = 0; i < 4; i++) {
            OK(D(cuGraphAddNode_v3)(&nodes[i], graph, NULL, NULL, (size_t)0, &given[i]));
            OK(D(cuGraphNodeGetParams)(nodes[i], &told));
            assert(told.type == given[i].type);
            if (i == 0)
                assert(told.kernel.func == function && told.kernel.gridDimZ == 4 && told.kernel.blockDimX == 5);
            if (i == 1)
                assert(told.memset.dst == memory && told.memset.width == 3);
            if (i == 2)
                assert(told.host.fn == called && told.host.userData == &calls);
        }
        given[1].memset.width = 5;
        OK(D(cuGraphNodeSetParams_v2)(nodes[1], &given[1]));
        OK(D(cuGraphNodeGetParams)(nodes[1], &told));
        assert(told.memset.width == 5);
        IS(1, D(cuGraphNodeGetParams)(nodes[1], NULL));
        IS(1, D(cuGraphNodeGetParams)(graph, &told));
        OK(D(cuLaunchHostFunc_v2)(NULL, called, &calls, 1));
        OK(D(cuStreamSynchronize)(NULL));
        assert(calls == 1);
        IS(1, D(cuLaunchHostFunc_v2)(NULL, called, &calls, 2));
    }
    """
    play(source)
