// Run by test_graphs in tests/runtime/test_sim_graphs.py.

#include "calls_in_graphs.h"

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
    OK(D(cuGraphAddDependencies)(graph, &nodes[1], &nodes[2], (size_t)1)); // a cycle
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

    // An executable graph can take over the clone's operations, but not another topology.
    int result;
    OK(D(cuGraphExecUpdate)(exec, clone, &found, &result));
    OK(D(cuGraphLaunch)(exec, (void *)0));
    expect("3 1 5 ");
    OK(D(cuGraphDestroyNode)(nodes[2]));
    IS(910, D(cuGraphExecUpdate)(exec, graph, &found, &result));
    assert(result == CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
    params.userData = (void *)9;
    OK(D(cuGraphExecHostNodeSetParams)(exec, nodes[0], &params)); // the node from which it was made
    OK(D(cuGraphLaunch)(exec, (void *)0));
    expect("3 9 5 ");

    // A graph inside another one is a copy, and is destroyed with it.
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
    IS(1, D(cuGraphLaunch)(exec, (void *)0));
    OK(D(cuGraphCreate)(&found, 0));
    OK(D(cuGraphLaunch)(other, (void *)0));
    expect("3 1 5 7 ");
}
