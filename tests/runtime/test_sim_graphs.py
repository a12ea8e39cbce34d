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


def test_a_loop_that_never_ends_is_refused(play):
    """No kernel could end it."""
    source = r"""
    #include <fcntl.h>
    int main(void) {
        begin();
        void *graph, *node, *exec;
        int errors = dup(2), log[2];
        for (int value = 0; value < 2; value++) {
            CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_CONDITIONAL};
            params.conditional.type = CU_GRAPH_COND_TYPE_WHILE, params.conditional.size = 1;
            OK(D(cuGraphCreate)(&graph, 0));
            OK(D(cuGraphConditionalHandleCreate)(&params.conditional.handle, graph, (void *)0, value, 1));
            OK(D(cuGraphAddNode_v2)(&node, graph, (void *)0, (void *)0, (size_t)0, &params));
            add_call(params.conditional.phGraph_out[0], 0, 0, 7);
            OK(D(cuGraphInstantiateWithFlags)(&exec, graph, 0ull));
            assert(!pipe(log) && dup2(log[1], 2) == 2);
            int status = D(cuGraphLaunch)(exec, (void *)0);
            assert(dup2(errors, 2) == 2 && !close(log[1]));
            char said[200] = "";
            IS(value ? 801 : 0, status);
            assert(read(log[0], said, sizeof(said) - 1) >= 0 && !!strstr(said, "a loop in a graph") == value);
            expect("");
        }
    }
    """
    play(GRAPHS + source, GPT_SIM_RUN="all")


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
