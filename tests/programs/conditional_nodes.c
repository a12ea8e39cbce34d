// Run by test_conditional_nodes in tests/runtime/test_sim_graphs.py.

#include "calls_in_graphs.h"
#include "marks.h"

int main(void) {
    begin();
    void *graph, *node, *exec, *event, *other;
    begin_marks();
    OK(D(cuEventCreate)(&event, 0));
    OK(D(cuGraphCreate)(&graph, 0));
    static const struct {
        int type, size, value;
    } cases[] = {{0, 1, 1}, {0, 1, 0}, {0, 2, 0}, {2, 3, 2}, {1, 1, 0}};
    for (long i = 0; i < 5; i++) {
        uint64_t handle;
        OK(D(cuGraphConditionalHandleCreate)(&handle, graph, current_context(), cases[i].value, 1));
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
    IS(1, D(cuGraphClone)(&exec, graph)); // as in CUDA
    OK(D(cuGraphInstantiateWithFlags)(&exec, graph, 0ull));
    IS(801, D(cuGraphInstantiateWithFlags)(&other, graph, 0ull)); // only one executable graph at a time
    OK(D(cuGraphLaunch)(exec, (void *)0));
    expect_marks("0 21 32 ");
    OK(D(cuGraphDestroy)(graph));
    OK(D(cuGraphLaunch)(exec, (void *)0));
    expect_marks("0 21 32 ");

    // A body takes nodes of the host and of events, but can't be made executable with them.
    for (int i = 0; i < 4; i++) {
        CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_CONDITIONAL, .conditional = {.size = 1}};
        OK(D(cuGraphCreate)(&graph, 0));
        OK(D(cuGraphConditionalHandleCreate)(&params.conditional.handle, graph, current_context(), 1, 1));
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
