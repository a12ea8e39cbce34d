"""Graphs: the records of their kernels and nodes, and how often they ran."""

from tests.runtime import hooked

GRAPHS = r"""
#include "abi/cuda.h"
#define D(name) ((int (*)())dlsym(driver, #name))
#define TEXT ".version 7.0\n.target sm_70\n.address_size 64\n" \
    ".visible .entry one(){ret;}\n.visible .entry two(){ret;}\n.visible .entry body(){ret;}\n"
static void add(void *graph, void *function) {
    CUDA_KERNEL_NODE_PARAMS params = {function, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0};
    void *node;
    OK(D(cuGraphAddKernelNode_v2)(&node, graph, (void *)0, (size_t)0, &params));
}
static void *condition(void *graph) { // its body is one graph
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_CONDITIONAL, .conditional = {.type = 1, .size = 1}};
    void *node;
    OK(D(cuGraphConditionalHandleCreate)(&params.conditional.handle, graph, current_context(), 0, 0));
    OK(D(cuGraphAddNode_v2)(&node, graph, (void *)0, (void *)0, (size_t)0, &params));
    return params.conditional.phGraph_out[0];
}
int main(void) {
    begin();
    void *module, *f[3], *graph, *other, *child, *node, *exec, *again;
    OK(cuModuleLoadData(&module, TEXT));
    OK(D(cuModuleEnumerateFunctions)(f, 3, module));
    OK(D(cuGraphCreate)(&graph, 0));
    OK(D(cuGraphCreate)(&child, 0));
    add(graph, f[0]), add(child, f[0]);
    OK(D(cuGraphAddChildGraphNode)(&node, graph, (void *)0, (size_t)0, child));
    OK(D(cuGraphInstantiateWithFlags)(&exec, graph, 0ull)); // twice the first
    OK(D(cuGraphLaunch)(exec, (void *)0));
    OK(D(cuGraphClone)(&other, graph));
    CUDA_KERNEL_NODE_PARAMS params = {f[1], 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0};
    void *nodes[9];
    size_t count = 9;
    OK(D(cuGraphGetNodes)(other, nodes, &count));
    for (size_t i = 0; i < count; i++)
        D(cuGraphKernelNodeSetParams_v2)(nodes[i], &params);
    struct { int result; void *node, *from; } info;
    OK(D(cuGraphExecUpdate_v2)(exec, other, &info)); // the second, and in the child the first
    OK(D(cuGraphLaunch)(exec, (void *)0));
    OK(D(cuGraphLaunch)(exec, (void *)0));
    OK(D(cuGraphExecDestroy)(exec));
    OK(D(cuGraphDestroy)(graph));
    OK(D(cuGraphCreate)(&graph, 0));
    void *body = condition(graph);
    add(body, f[2]), add(condition(body), f[1]);
    OK(D(cuGraphInstantiateWithFlags)(&again, graph, 0ull)); // nothing that is sure
    OK(D(cuGraphLaunch)(again, (void *)0));
}
"""


def test_graphs_that_are_updated_destroyed_and_conditional(tmp_path):
    trace = hooked.traced(tmp_path, GRAPHS, f"-I{hooked.ROOT}/runtime")
    names = {f["id"]: f["name"] for f in trace.of("function")}
    found = [dict(zip((names[f] for f in g["functions"]), g["launches"], strict=True)) for g in trace.of("graph")]
    kernels = sorted(names.values())
    assert kernels == ["body", "one", "two"]
    assert found == [{"one": 2}, {"two": 1, "one": 1}, {"body": 0, "two": 0}]


def test_nodes_of_a_graph_that_can_be_launched(tmp_path):
    """Each node in turn gets another kernel, and is disabled and enabled. Updates apply to the current state."""
    main = r"""
int main(void) {
    begin();
    void *module, *f[3], *graph, *child, *other, *exec, *nodes[4];
    OK(cuModuleLoadData(&module, TEXT));
    for (int i = 0; i < 3; i++)
        OK(cuModuleGetFunction(&f[i], module, (const char *[]){"one", "two", "body"}[i]));
    OK(D(cuGraphCreate)(&graph, 0));
    OK(D(cuGraphCreate)(&child, 0));
    OK(D(cuGraphCreate)(&other, 0));
    add(child, f[0]), add(other, f[2]);
    add(graph, f[0]), add(graph, f[0]), add(condition(graph), f[2]);
    OK(D(cuGraphAddChildGraphNode)(&nodes[3], graph, (void *)0, (size_t)0, child));
    size_t count = 4;
    OK(D(cuGraphGetNodes)(graph, nodes, &count));
    OK(D(cuGraphInstantiateWithFlags)(&exec, graph, 0ull));
    CUDA_KERNEL_NODE_PARAMS params = {f[1], 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0};
    OK(D(cuGraphExecKernelNodeSetParams_v2)(exec, nodes[1], &params));
    OK(D(cuGraphExecKernelNodeSetParams_v2)(exec, nodes[1], &params)); // nothing new
    OK(D(cuGraphNodeSetEnabled)(exec, nodes[0], 0));
    OK(D(cuGraphExecChildGraphNodeSetParams)(exec, nodes[3], other));
    CUgraphNodeParams node = {.type = CU_GRAPH_NODE_TYPE_KERNEL, .kernel = params};
    node.kernel.func = f[2];
    OK(D(cuGraphExecNodeSetParams)(exec, nodes[0], &node)); // which is still out
    OK(D(cuGraphNodeSetEnabled)(exec, nodes[0], 1));
    struct { int result; void *node, *from; } info;
    OK(D(cuGraphExecUpdate_v2)(exec, graph, &info)); // as at the beginning
    OK(D(cuGraphExecDestroy)(exec));
}
"""
    trace = hooked.traced(tmp_path, GRAPHS[: GRAPHS.index("int main")] + main, f"-I{hooked.ROOT}/runtime")
    names = {f["id"]: f["name"] for f in trace.of("function")}
    found = [dict(zip((names[f] for f in g["functions"]), g["launches"], strict=True)) for g in trace.of("graph")]
    assert [{name: count for name, count in graph.items() if count} for graph in found] == [
        {"one": 3},
        {"one": 2, "two": 1},
        {"one": 1, "two": 1},
        {"two": 1, "body": 1},
        {"two": 1, "body": 1},
        {"two": 1, "body": 2},
        {"one": 3},
    ]
    assert {graph["nodes"] for graph in trace.of("graph")} == {6}
