"""The calls that created the nodes of graphs, and what clones, child graphs and updates do to them."""

from __future__ import annotations

from tests.analyze.asked import Answers, run
from tests.runtime import hooked

CLIENT = r"""
#include "abi/cuda.h"
#define D(name) ((int (*)())dlsym(driver, #name))
static void (*leave)(void);
static int (*enter)(const char *);
static void *stream, *first, *second;
static void add(void *graph, void *function) {
    CUDA_KERNEL_NODE_PARAMS params = {function, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0};
    void *node;
    OK(D(cuGraphAddKernelNode_v2)(&node, graph, (void *)0, (size_t)0, &params));
}
static void run_in(const char *layer, void *function) {
    assert(enter(layer) == 1);
    OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, 0, 0));
    leave();
}
static void *capture(int layers) {
    void *graph;
    char name[32];
    OK(D(cuStreamBeginCapture_v2)(stream, 2));
    for (int i = 0; i < layers; i++) {
        sprintf(name, "layers.%d.attn", i), run_in(name, first);
        sprintf(name, "layers.%d.mlp", i), run_in(name, second);
    }
    OK(D(cuStreamEndCapture)(stream, &graph));
    return graph;
}
static void *instantiate(void *graph) {
    void *exec;
    OK(D(cuGraphInstantiateWithFlags)(&exec, graph, 0ull));
    return exec;
}
static void replay(void *exec, int times) {
    while (times--)
        OK(D(cuGraphLaunch)(exec, stream));
    OK(D(cuStreamSynchronize)(stream));
}
int main(void) {
    begin();
    first = kernel("foo"), second = kernel("bar");
    OK(D(cuStreamCreate)(&stream, 1));
    enter = dlsym(RTLD_DEFAULT, "gpt_hook_layer"), leave = dlsym(RTLD_DEFAULT, "gpt_hook_layer_end");
    MORE
}
"""


def traced(tmp_path, more: str, **options) -> hooked.Trace:
    return hooked.traced(tmp_path, CLIENT.replace("MORE", more), f"-I{hooked.ROOT}/runtime", **options)


def summed(tmp_path, by: str) -> dict[str, tuple[int, int]]:
    """Return launches, and those in graphs, by row."""
    done = run("summary", "--json", "--by", by, tmp_path / "t.mp")
    assert done.returncode == 0, done.stderr
    rows = Answers(done.stdout).rows[f"by_{by}"]
    return {row["name"]: (row["launches"], row["in_graphs"]) for row in rows}


def test_captured_nodes_come_from_captured_calls(tmp_path):
    trace = traced(tmp_path, "replay(instantiate(capture(3)), 5);")
    apis = {one["id"]: one["type"] for one in trace.of("api")}
    calls = {
        (record["thread"], row["start"]): (apis[row["api"]], row["function"])
        for record in trace.of("calls") for row in hooked.rows(record) if "function" in row
    }  # fmt: skip
    (nodes,) = trace.of("graph_nodes")
    (graph,) = trace.of("graph")
    assert (nodes["exec"], nodes["at"]) == (graph["exec"], graph["at"])
    found = list(zip(nodes["threads"], nodes["calls"], strict=True))
    assert [calls[one] for one in found] == [("capture", function) for function in nodes["functions"]]
    assert len(set(found)) == 6 and nodes["functions"][:2] * 3 == nodes["functions"]
    assert summed(tmp_path, "module") == {"layers.N.attn": (15, 15), "layers.N.mlp": (15, 15)}
    assert summed(tmp_path, "layer") == {f"layers.{n}": (10, 10) for n in range(3)}
    assert summed(tmp_path, "kernel") == {"foo": (15, 15), "bar": (15, 15)}


def test_clones_and_child_graphs_keep_the_origins(tmp_path):
    more = """
    void *graph = capture(2), *clone, *outer, *node;
    OK(D(cuGraphClone)(&clone, graph));
    OK(D(cuGraphDestroy)(graph));
    OK(D(cuGraphCreate)(&outer, 0));
    OK(D(cuGraphAddChildGraphNode)(&node, outer, (void *)0, (size_t)0, clone));
    assert(enter("head"));
    add(outer, second);
    leave();
    replay(instantiate(outer), 3);
    """
    traced(tmp_path, more)
    expected = {"layers.N.attn": (6, 6), "layers.N.mlp": (6, 6), "head": (3, 3)}
    assert summed(tmp_path, "module") == expected


def test_updates_keep_origins_unless_they_change_the_kernel(tmp_path):
    more = """
    void *graph = capture(1), *exec = instantiate(graph), *nodes[2], *other;
    struct { int result; void *node, *from; } info;
    size_t count = 2;
    replay(exec, 1);
    OK(D(cuGraphGetNodes)(graph, nodes, &count));
    CUDA_KERNEL_NODE_PARAMS params = {second, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0};
    OK(D(cuGraphExecKernelNodeSetParams_v2)(exec, nodes[0], &params)); // attn is bar now
    replay(exec, 10);
    OK(D(cuStreamBeginCapture_v2)(stream, 2));
    run_in("again.attn", first), run_in("again.mlp", second);
    OK(D(cuStreamEndCapture)(stream, &other));
    OK(D(cuGraphExecUpdate_v2)(exec, other, &info)); // only the first gets another kernel
    replay(exec, 100);
    """
    traced(tmp_path, more)
    expected = {"layers.N.attn": (11, 11), "again.attn": (100, 100), "layers.N.mlp": (111, 111)}
    assert summed(tmp_path, "module") == expected
    assert summed(tmp_path, "kernel") == {"bar": (121, 121), "foo": (101, 101)}


def test_nodes_that_are_disabled_or_without_a_range(tmp_path):
    more = """
    void *graph = capture(1), *nodes[2], *exec;
    size_t count = 2;
    OK(D(cuGraphGetNodes)(graph, nodes, &count));
    OK(D(cuStreamBeginCaptureToGraph)(stream, graph, (void *)0, (void *)0, (size_t)0, 2));
    OK(cuLaunchKernel(first, 1, 1, 1, 1, 1, 1, 0, stream, 0, 0));
    OK(D(cuStreamEndCapture)(stream, &graph));
    exec = instantiate(graph);
    replay(exec, 1);
    OK(D(cuGraphNodeSetEnabled)(exec, nodes[1], 0));
    assert(enter("decode"));
    replay(exec, 10);
    leave();
    run_in("eager", first);
    """
    traced(tmp_path, more)
    assert summed(tmp_path, "module") == {
        "layers.N.attn": (11, 11), "layers.N.mlp": (1, 1), "decode": (10, 10), "eager": (1, 0), "(unknown)": (1, 1),
    }  # fmt: skip


def test_a_memset_of_nothing_adds_no_node(tmp_path):
    """The driver says that the stream's last node is an earlier one."""
    more = """
    void *graph;
    uint64_t memory;
    OK(D(cuMemAlloc_v2)(&memory, (size_t)4096));
    OK(D(cuStreamBeginCapture_v2)(stream, 2));
    run_in("a", first);
    assert(enter("b"));
    OK(D(cuMemsetD8Async)(memory, 0, (size_t)0, stream));
    leave();
    OK(D(cuStreamEndCapture)(stream, &graph));
    replay(instantiate(graph), 2);
    """
    traced(tmp_path, more)
    assert summed(tmp_path, "module") == {"a": (2, 2)}


def test_stacks_of_launches_and_of_captured_calls(tmp_path):
    traced(tmp_path, "replay(instantiate(capture(2)), 3); run_in(\"eager\", first);",
           options=("--calls", "all", "--stacks", "kernel"))  # fmt: skip
    rows = summed(tmp_path, "stack")
    assert {name.split(" < ")[0] for name in rows} == {"run_in"} and len(rows) == 2
    assert {name.split(" < ")[1]: counts for name, counts in rows.items()} == {"capture": (12, 12), "main": (1, 0)}


def test_many_and_deep_modules(tmp_path):
    """Chunks of the trace fill up in between, and modules below the 64th level are left out."""
    more = """
    for (int i = 0; i < 20000; i++)
        run_in(i % 2 ? "layers.0" : "layers.1", first);
    for (int i = 0; i < 100; i++)
        assert(enter("deep"));
    for (int i = 0; i < 101; i++)
        leave();
    run_in("last", first);
    """
    trace = traced(tmp_path, more)
    begun, ends = trace.of("range"), {one["id"]: one["end"] for one in trace.of("range_end")}
    assert [one["name"] for one in begun] == ["layers.1", "layers.0"] * 10000 + ["deep"] * 64 + ["last"]
    assert {(one["domain"], one["type"]) for one in begun} == {("gpt.layers", "push")}
    assert len(ends) == len(begun) == len({one["id"] for one in begun})
    moments = [moment for one in begun[:20000] for moment in (one["start"], ends[one["id"]])]
    assert moments == sorted(moments)
    assert sorted(summed(tmp_path, "layer").items()) == [
        ("last", (1, 0)), ("layers.0", (10000, 0)), ("layers.1", (10000, 0)),
    ]  # fmt: skip
