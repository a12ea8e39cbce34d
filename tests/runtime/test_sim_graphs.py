"""Graphs on the simulated device: nodes, conditions, captures."""

from tests.runtime.hooked import PROGRAMS

GRAPHS = '#include "calls_in_graphs.h"\n'


def test_graphs(play):
    play(PROGRAMS / "sim_graphs.c")


MARKS = '#include "marks.h"\n'


def test_conditional_nodes(play):
    play(PROGRAMS / "conditional_nodes.c")


def test_endless_loop_is_refused(play):
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
            OK(D(cuGraphConditionalHandleCreate)(&params.conditional.handle, graph, current_context(), value, 1));
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
        assert(!found.kernelParams && !found.extra); // like CUDA
        OK(D(cuGraphInstantiateWithFlags)(&exec, clone, 0ull));
        OK(D(cuGraphDestroy)(clone));
        OK(D(cuGraphLaunch)(exec, stream));
    }
    """
    play(source)


def test_capture(play):
    play(PROGRAMS / "sim_capture.c")


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


def test_calls_refused_during_an_active_or_invalid_capture(play):
    """The results are an H200's (driver 580)."""
    play(PROGRAMS / "calls_refused_during_an_active_or_invalid_capture.c")


def test_calls_that_wait_for_a_captured_stream(play):
    """The results are an H200's (driver 580)."""
    play(PROGRAMS / "calls_that_wait_for_a_captured_stream.c")


def test_stream_destroyed_during_capture(play):
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
