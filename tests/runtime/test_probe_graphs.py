"""gpt-hook -p: kernels of CUDA graphs run with probes, each replay is recorded, and graphs stay as the program built
them. On the simulated device."""

import contextlib
import os
import re
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests.runtime import hooked
from tests.runtime.controlling import Server
from tests.runtime.graphing import GRAPHS, STRESS, check_scenario, compile_scenarios
from tests.runtime.probing import (
    COUNT,
    PTX,
    buffers,
    build,
    by_warp,
    check_bytes,
    good,
    in_both_forms,
    in_both_forms_at_once,
    kept,
    probed,
    unprobed,
)
from tests.tiers import every

# By name: the body of the function, the number of launches with probes, and the launches without probes by reason.
SCENARIOS = {
    "capture": (
        """
        put(NULL), launched(1);
        void *graph = captured(3), *exec = instantiated(graph);
        replay(exec, 4), launched(12);
        OK(D(cuGraphExecDestroy)(exec));
        OK(D(cuGraphDestroy)(graph));
        put(NULL), launched(1);
        """,
        14,
        {},
    ),
    "hand": (
        """
        void *graph, *nodes[4], *values[3], *exec, *old;
        int cooperative[16] = {1};
        size_t room = 4;
        OK(D(cuGraphCreate)(&graph, 0));
        nodes[0] = add(graph, NULL);
        CUgraphNodeParams any = {.type = CU_GRAPH_NODE_TYPE_KERNEL, .kernel = params_of(values)};
        OK(D(cuGraphAddNode_v2)(&nodes[1], graph, &nodes[0], NULL, (size_t)1, &any));
        CUDA_KERNEL_NODE_PARAMS params = params_of(values);
        OK(D(cuGraphAddKernelNode)(&nodes[2], graph, &nodes[1], (size_t)1, &params));
        OK(D(cuGraphKernelNodeSetAttribute)(nodes[2], CU_LAUNCH_ATTRIBUTE_COOPERATIVE, cooperative));
        OK(D(cuGraphInstantiate_v2)(&exec, graph, &old, NULL, (size_t)0));
        CUDA_GRAPH_INSTANTIATE_PARAMS how = {0};
        OK(D(cuGraphInstantiateWithParams)(&old, graph, &how));
        for (int i = 0; i < 3; i++)
            check_node(nodes[i], 5);
        cooperative[0] = 0;
        OK(D(cuGraphKernelNodeGetAttribute)(nodes[2], CU_LAUNCH_ATTRIBUTE_COOPERATIVE, cooperative));
        assert(cooperative[0] == 1);
        OK(D(cuGraphGetNodes)(graph, &nodes[0], &room));
        assert(room == 3);
        replay(exec, 2), replay(old, 1), launched(9);
        """,
        9,
        {},
    ),
    "inside": (  # graphs in graphs, and clones
        """
        void *inner = captured(2), *middle, *outer, *clone, *node;
        OK(D(cuGraphCreate)(&middle, 0));
        OK(D(cuGraphAddChildGraphNode)(&node, middle, NULL, (size_t)0, inner));
        add(middle, node);
        OK(D(cuGraphCreate)(&outer, 0));
        OK(D(cuGraphAddChildGraphNode)(&node, outer, NULL, (size_t)0, middle));
        add(outer, node);
        OK(D(cuGraphClone)(&clone, outer));
        void *first = instantiated(outer), *second = instantiated(clone);
        OK(D(cuGraphDestroy)(outer));
        replay(first, 2), replay(second, 1), launched(12);
        """,
        12,
        {},
    ),
    "later": (  # nodes of a graph are changed after it was instantiated; then an update
        """
        void *graph = captured(2), *exec = instantiated(graph), *nodes[2], *values[3], *other = captured(2);
        size_t room = 2;
        OK(D(cuGraphGetNodes)(graph, nodes, &room));
        CUDA_KERNEL_NODE_PARAMS params = params_of(values);
        unsigned more = 8;
        params.kernelParams[1] = &more;
        OK(D(cuGraphKernelNodeSetParams_v2)(nodes[0], &params));
        check_node(nodes[0], 8), check_node(nodes[1], 5);
        replay(exec, 1), launched(2);
        CUgraphExecUpdateResultInfo info;
        OK(D(cuGraphExecUpdate_v2)(exec, graph, &info));
        check_node(nodes[0], 8), check_node(nodes[1], 5);
        OK(D(cuGraphDestroy)(graph));
        replay(exec, 1);
        added = 8, launched(1), added = 5, launched(1);
        OK(D(cuGraphExecUpdate_v2)(exec, other, &info)); // the first graph is gone
        replay(exec, 2), launched(4);
        IS(910, D(cuGraphExecUpdate_v2)(exec, captured(3), &info));
        replay(exec, 1), launched(2);
        """,
        10,
        {},
    ),
    "single": (  # nodes of an executable graph, larger and smaller than before
        """
        void *graph = captured(2), *exec = instantiated(graph), *nodes[2], *values[3];
        size_t room = 2;
        OK(D(cuGraphGetNodes)(graph, nodes, &room));
        CUDA_KERNEL_NODE_PARAMS params = params_of(values);
        for (unsigned i = 0; i < 30; i++) {
            unsigned more = i;
            params.gridDimX = 6 + i % 7 * i;
            params.kernelParams[1] = &more;
            if (i % 3)
                OK(D(cuGraphExecKernelNodeSetParams_v2)(exec, nodes[i % 2], &params));
            else if (i % 2)
                OK(D(cuGraphExecKernelNodeSetParams)(exec, nodes[i % 2], &params));
            else {
                CUgraphNodeParams any = {.type = CU_GRAPH_NODE_TYPE_KERNEL, .kernel = params};
                OK(D(cuGraphExecNodeSetParams)(exec, nodes[i % 2], &any));
            }
            assert(params.func == function);
            check_node(nodes[i % 2], 5);
            OK(D(cuGraphLaunch)(exec, streams[i / 2 % 2]));
            unsigned before = i ? i - 1 : 5;
            added = i % 2 ? before : i, launched(1);
            added = i % 2 ? i : before, launched(1);
        }
        added = 5;
        params.func = &room;
        IS(400, D(cuGraphExecKernelNodeSetParams_v2)(exec, nodes[0], &params));
        OK(D(cuCtxSynchronize)());
        """,
        60,
        {},
    ),
    "child": (
        """
        void *graph, *inner = captured(2), *node, *nodes[2], *values[3], *exec, *alike;
        size_t room = 2;
        OK(D(cuGraphCreate)(&graph, 0));
        OK(D(cuGraphAddChildGraphNode)(&node, graph, NULL, (size_t)0, inner));
        add(graph, node);
        exec = instantiated(graph);
        OK(D(cuGraphClone)(&alike, inner));
        OK(D(cuGraphGetNodes)(alike, nodes, &room));
        CUDA_KERNEL_NODE_PARAMS params = params_of(values);
        params.gridDimX = 20;
        OK(D(cuGraphKernelNodeSetParams_v2)(nodes[1], &params));
        for (int i = 0; i < 20; i++) {
            OK(D(cuGraphExecChildGraphNodeSetParams)(exec, node, i % 2 ? inner : alike));
            OK(D(cuGraphLaunch)(exec, streams[i % 2]));
            launched(3);
        }
        check_node(nodes[0], 5);
        OK(D(cuCtxSynchronize)());
        """,
        60,
        {},
    ),
    "disabled": (
        """
        void *graph = captured(3), *exec = instantiated(graph), *nodes[3];
        size_t room = 3;
        OK(D(cuGraphGetNodes)(graph, nodes, &room));
        OK(D(cuGraphNodeSetEnabled)(exec, nodes[1], 0));
        replay(exec, 2), launched(4);
        OK(D(cuGraphNodeSetEnabled)(exec, nodes[1], 1));
        replay(exec, 1), launched(3);
        """,
        7,
        {},
    ),
    "streams": (  # one replay after the other, in two independent streams
        """
        void *exec = instantiated(captured(2));
        for (int i = 0; i < 40; i++)
            OK(D(cuGraphLaunch)(exec, i % 3 ? streams[i % 2] : (void *)2));
        launched(80);
        OK(D(cuGraphExecDestroy)(exec)); // which may still run
        OK(D(cuCtxSynchronize)());
        """,
        80,
        {},
    ),
    "ended": (  # streams are destroyed while the graph runs; the next stream reuses the handle
        """
        void *exec = instantiated(captured(20)), *stream;
        for (int i = 0; i < 20; i++) {
            OK(D(cuStreamCreate)(&stream, 1));
            OK(D(cuGraphLaunch)(exec, stream));
            OK(D(cuStreamDestroy_v2)(stream));
        }
        launched(400);
        OK(D(cuCtxSynchronize)());
        """,
        400,
        {},
    ),
    "destroyed": (  # streams are destroyed while being captured
        """
        void *exec = instantiated(captured(2)), *stream;
        for (int i = 0; i < 20; i++) {
            OK(D(cuStreamCreate)(&stream, 1));
            OK(D(cuGraphLaunch)(exec, stream));
            OK(D(cuStreamBeginCapture_v2)(stream, 2));
            OK(D(cuStreamDestroy_v2)(stream));
        }
        launched(40);
        OK(D(cuCtxSynchronize)());
        """,
        40,
        {},
    ),
    "recaptured": (  # a graph can't be launched in a captured stream, as on an H200
        """
        void *exec = instantiated(captured(2)), *graph;
        OK(D(cuStreamBeginCapture_v2)(streams[0], 0));
        IS(900, D(cuGraphLaunch)(exec, streams[0]));
        IS(901, D(cuStreamEndCapture)(streams[0], &graph));
        replay(exec, 3), launched(6);
        """,
        6,
        {},
    ),
    "device": (
        """
        void *exec;
        OK(D(cuGraphInstantiateWithFlags)(&exec, captured(2), 4ull));
        replay(exec, 3), launched(6);
        """,
        0,
        {"its graph can be launched from the device": 6},
    ),
    "constants": (  # the program writes constants between replays
        """
        size_t size;
        void *exec = instantiated(captured(2));
        OK(D(cuModuleGetGlobal_v2)(&factor, &size, module, "factor"));
        for (unsigned by = 4; by < 8; by++) {
            OK(D(cuMemcpyHtoDAsync_v2)(factor, &by, (size_t)4, streams[0]));
            replay(exec, 1);
            expect(by), expect(by);
        }
        """,
        8,
        {},
    ),
    "written": (  # a graph writes a constant
        """
        size_t size;
        void *graph, *node, *exec;
        OK(D(cuModuleGetGlobal_v2)(&factor, &size, module, "factor"));
        OK(D(cuGraphCreate)(&graph, 0));
        void *first = add(graph, NULL), *context;
        CUDA_MEMSET_NODE_PARAMS_v2 set = {.dst = factor, .value = 7, .elementSize = 4, .width = 1, .height = 1};
        OK(D(cuCtxGetCurrent)(&context));
        OK(D(cuGraphAddMemsetNode)(&node, graph, &first, (size_t)1, &set, context));
        add(graph, node);
        exec = instantiated(graph);
        replay(exec, 2);
        expect(3), expect(7), expect(7), expect(7);
        """,
        0,
        {"its graph writes a constant, of which the kernel with probes has a copy": 4},
    ),
    "packed": (
        """
        struct { CUdeviceptr items; unsigned added, count; } packed = {items, added, count};
        size_t size = sizeof(packed);
        void *extra[] = {(void *)1, &packed, (void *)2, &size, NULL}, *graph, *node;
        OK(D(cuStreamBeginCapture_v2)(streams[0], 0));
        OK(cuLaunchKernel(function, 6, 1, 1, 70, 1, 1, 0, streams[0], NULL, extra));
        OK(D(cuStreamEndCapture)(streams[0], &graph));
        CUDA_KERNEL_NODE_PARAMS params = {function, 6, 1, 1, 70, 1, 1, 0, NULL, extra, NULL, NULL};
        void *exec = instantiated(graph);
        replay(exec, 2), launched(2);
        OK(D(cuGraphCreate)(&graph, 0));
        OK(D(cuGraphAddKernelNode_v2)(&node, graph, NULL, (size_t)0, &params));
        exec = instantiated(graph);
        replay(exec, 2), launched(2);
        OK(D(cuGraphExecKernelNodeSetParams_v2)(exec, node, &params));
        replay(exec, 1), launched(1);
        """,
        5,
        {},
    ),
    "conditional": (  # the first body runs once in each replay, the second one never
        """
        void *graph, *node, *exec;
        OK(D(cuGraphCreate)(&graph, 0));
        add(graph, NULL);
        for (int value = 1; value >= 0; value--) {
            CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_CONDITIONAL, .conditional = {.size = 1}};
            OK(D(cuGraphConditionalHandleCreate)(&params.conditional.handle, graph, current_context(), value, 1));
            OK(D(cuGraphAddNode_v2)(&node, graph, NULL, NULL, (size_t)0, &params));
            add(params.conditional.phGraph_out[0], NULL);
        }
        exec = instantiated(graph);
        replay(exec, 3), launched(6);
        """,
        9,
        {},
    ),
    "unknown": (  # a kernel that was never looked up by name
        """
        void *found[2], *graph, *node, *values[3], *known = function;
        CUDA_KERNEL_NODE_PARAMS params = params_of(values);
        OK(D(cuGraphCreate)(&graph, 0));
        OK(D(cuModuleGetFunction)(&found[0], module, "other"));
        params.func = found[0];
        OK(D(cuGraphAddKernelNode_v2)(&node, graph, NULL, (size_t)0, &params));
        add(graph, node);
        void *exec = instantiated(graph);
        replay(exec, 3), launched(3);
        """,
        3,
        None,
    ),
}


@pytest.fixture(scope="module")
def graphs(tmp_path_factory):
    return compile_scenarios(tmp_path_factory.mktemp("graphs"), SCENARIOS)


@in_both_forms
@pytest.mark.parametrize("name", every(4, SCENARIOS))
def test_graphs(tmp_path, graphs, name):
    _, launches, reasons = SCENARIOS[name]
    check_scenario(tmp_path, graphs, name, launches, reasons, [3] if name == "conditional" else [])


@in_both_forms_at_once
def test_each_node_of_each_replay_is_named(tmp_path, graphs):
    trace = good(tmp_path, graphs, "-p", "gmem_bytes", "-p", "block_sched", arguments=(PTX, "capture"))
    (graph,) = trace.of("graph")
    replayed = [record for record in trace.of("probed") if "node" in record]
    assert {record["exec"] for record in replayed} == {graph["exec"]}
    assert list(Counter(record["node"] for record in replayed).values()) == [4, 4, 4]
    starts = sorted(call["start"] for call in trace.calls if call["op"] == "launch" and call["type"] == "graph")
    assert sorted({record["start"] for record in replayed}) == starts and len(starts) == 4
    for record in replayed:
        assert np.frombuffer(record["params"], "<u4")[2:].tolist() == [5, COUNT]
    assert all((units["slots"]["stop"] > 0).all() for units in buffers(trace, "block_sched").values())


@in_both_forms
@pytest.mark.parametrize(
    ("options", "launches", "reason"),
    [
        (("--launch-skip", "3"), 11, "it was left out, as --launch-skip, --launch-count or --sample say"),
        (("--max-memory", "5K"), 2, "the buffers of its graph are larger than half of --max-memory"),
        (("--max-memory", "100K"), 14, ""),  # the slab of a graph usually has 64 KiB
    ],
)
def test_skipped_launches_are_counted(tmp_path, graphs, options, launches, reason):
    trace = good(tmp_path, graphs, "-p", by_warp(), *options, arguments=(PTX, "capture"))
    check_bytes(trace, launches)
    assert unprobed(trace) == ({reason: 14 - launches} if reason else {})


REPLAYS = (
    GRAPHS
    + r"""
int main(int argc, char **argv) {
    int nodes = atoi(argv[2]), times = atoi(argv[3]);
    setup(argv[1]);
    OK(D(cuCtxSynchronize)());
    OK(D(cuStreamCreate)(&streams[0], 1));
    void *exec = instantiated(captured(nodes));
    for (int i = 0; i < times; i++)
        OK(D(cuGraphLaunch)(exec, streams[0]));
    launched(nodes * times);
    OK(D(cuStreamSynchronize)(streams[0]));
    check();
    return 0;
}
"""
)


@in_both_forms
def test_replays_without_a_free_buffer_are_counted_or_wait(tmp_path):
    program = build(tmp_path, REPLAYS)
    options = ("-p", by_warp(), "--max-memory", "136K")  # a set, and space for four replays
    some = good(tmp_path, program, *options, arguments=(PTX, "2", "100"))
    assert len(some.of("probed")) + sum(unprobed(some).values()) == 200
    assert len(some.of("probed")) >= 2
    check_bytes(good(tmp_path, program, *options, "--complete", arguments=(PTX, "2", "100")), 200)
    options = ("-p", by_warp(), "--max-memory", "4M", "--complete")  # as large as an ordinary slab
    check_bytes(good(tmp_path, program, *options, arguments=(PTX, "2", "100")), 200)


@in_both_forms
def test_many_graphs_leave_room_for_their_copies(tmp_path):
    """All launches are counted for nodes without space for buffers, and recorded for the others."""
    source = (
        GRAPHS
        + r"""
    int main(int argc, char **argv) {
        void *execs[8], *graph;
        setup(argv[1]);
        OK(D(cuStreamCreate)(&streams[0], 1));
        graph = captured(2);
        for (int i = 0; i < 8; i++)
            execs[i] = instantiated(graph);
        CUgraphExecUpdateResultInfo info;
        OK(D(cuGraphExecUpdate_v2)(execs[0], graph, &info)); // its buffers are exchanged
        for (int i = 0; i < 40; i++)
            replay(execs[i % 8], 1), launched(2);
        check();
        return 0;
    }
    """
    )
    options = ("-p", by_warp(), "--complete", "--max-memory", "512K")  # 64K each, and 128K
    trace = good(tmp_path, build(tmp_path, source), *options)
    check_bytes(trace, 60)
    assert unprobed(trace) == {"other graphs hold all buffers that --max-memory allows": 20}


@pytest.mark.full
@in_both_forms
def test_a_graph_is_made_while_all_buffers_are_in_use(tmp_path, monkeypatch):
    """With --complete, a replay waits until buffers are free, as launches do."""
    source = (
        GRAPHS
        + r"""
    int main(int argc, char **argv) {
        setup(argv[1]);
        OK(D(cuCtxSynchronize)());
        for (int i = 0; i < 2; i++)
            OK(D(cuStreamCreate)(&streams[i], 1));
        void *graph = captured(2);
        for (int i = 0; i < 600; i++)
            put(streams[1]);
        launched(600);
        void *exec = instantiated(graph);
        OK(D(cuStreamSynchronize)(streams[1]));
        replay(exec, 3), launched(6);
        check();
        return 0;
    }
    """
    )
    monkeypatch.setenv("GPT_SIM_DELAY", "100")
    options = ("-p", by_warp(), "--max-memory", "200K")
    program = build(tmp_path, source)
    assert len(good(tmp_path, program, *options).of("probed")) < 600
    check_bytes(good(tmp_path, program, *options, "--complete"), 606)


@in_both_forms
def test_buffers_of_a_graph_arrive_while_the_program_runs(tmp_path, monkeypatch):
    """The program doesn't wait for the device after its only replay, and launches nothing else."""
    source = (
        GRAPHS
        + r"""
    int main(int argc, char **argv) {
        setup(argv[1]);
        OK(D(cuStreamCreate)(&streams[0], 1));
        void *exec = instantiated(captured(80));
        OK(D(cuGraphLaunch)(exec, streams[0]));
        launched(80);
        puts("ready"), fflush(stdout);
        while (getchar() != EOF)
            continue;
        OK(D(cuStreamSynchronize)(streams[0]));
        check();
        return 0;
    }
    """
    )
    monkeypatch.setenv("GPT_SIM_DELAY", "100000")  # it doesn't end before the call returns
    options = ("-p", by_warp(), "--max-memory", "256K")  # 40 KB of a slab of 64
    out, program = tmp_path / "t.mp", build(tmp_path, source)
    server = Server(out, program, *options, arguments=(PTX,), GPT_SIM_RUN="all", XDG_CACHE_HOME=kept())
    hooked.wait_until(lambda: len(hooked.Trace(out).of("buffer")) == 80, 20)
    check_bytes(hooked.Trace(out), 80)
    check_bytes(server.end(), 80)


# The hook keeps eight streams of one hash, given by its upper 9 bits; the ninth replaces one.
FORGOTTEN = (
    "#include <semaphore.h>\n"
    + GRAPHS
    + r"""
    static unsigned place(void *stream) { return (unsigned long)stream * 0x9e3779b97f4a7c15u >> 55; }
    static sem_t gate;
    static void wait(void *nothing) { sem_wait(&gate); }
    int main(int argc, char **argv) {
        static void *sets[512][9];
        static int counts[512];
        void *stream, *exec;
        int at, last = argc > 2 ? 18 : 9;
        setup(argv[1]);
        sem_init(&gate, 0, 0);
        OK(D(cuStreamCreate)(&streams[0], 1));
        exec = instantiated(captured(2));
        OK(D(cuCtxSynchronize)());
        do {
            OK(D(cuStreamCreate)(&stream, 1));
            at = (int)place(stream);
            sets[at][counts[at]++] = stream;
        } while (counts[at] < 9);
        for (int i = 0; i < last; i++) {
            if (last > 9 && !i)
                OK(D(cuLaunchHostFunc)(sets[at][0], wait, NULL));
            OK(D(cuGraphLaunch)(exec, sets[at][i % 9]));
            if (last == 9)
                OK(D(cuStreamSynchronize)(sets[at][i]));
        }
        sem_post(&gate);
        OK(D(cuCtxSynchronize)());
        return 0;
    }
    """
)


def test_replays_in_a_stream_that_was_forgotten_have_probes(tmp_path):
    """Each replay has ended before the next one begins."""
    trace = good(tmp_path, build(tmp_path, FORGOTTEN), "-p", "gmem_bytes")
    assert not unprobed(trace)
    check_bytes(trace, 18)


def test_replays_in_a_stream_that_was_forgotten_are_counted(tmp_path):
    """An earlier replay is still being copied. A replay with probes would have to make the stream wait for that
    copy.
    """
    trace = good(tmp_path, build(tmp_path, FORGOTTEN), "-p", "gmem_bytes", arguments=(PTX, "waits"))
    assert set(unprobed(trace)) == {"gpt-hook did not see its stream being created"}
    assert len(trace.of("probed")) + sum(unprobed(trace).values()) == 36


@in_both_forms
def test_waiting_for_buffers_does_not_include_later_replays(tmp_path, monkeypatch):
    """Other threads continue meanwhile. The program prints how long a failing allocation and the end of a context took,
    in ms.
    """
    source = (
        GRAPHS
        + r"""
    static volatile int stop;
    static void *context, *execs[2];
    static void *work(void *number) {
        long self = (long)number;
        OK(cuCtxSetCurrent(context));
        while (!stop)
            OK(D(cuGraphLaunch)(execs[self], streams[self]));
        return NULL;
    }
    static long now(void) {
        struct timespec at;
        clock_gettime(CLOCK_MONOTONIC, &at);
        return at.tv_sec * 1000 + at.tv_nsec / 1000000;
    }
    int main(int argc, char **argv) {
        pthread_t threads[2];
        CUdeviceptr large;
        void *other;
        setup(argv[1]);
        OK(D(cuCtxGetCurrent)(&context));
        count = 0; // the threads do not write to the same
        for (long i = 0; i < 2; i++) {
            OK(D(cuStreamCreate)(&streams[i], 1));
            execs[i] = instantiated(captured(20));
        }
        for (long i = 0; i < 2; i++)
            pthread_create(&threads[i], NULL, work, (void *)i);
        usleep(200000);
        long start = now();
        IS(2, D(cuMemAlloc_v2)(&large, (size_t)1 << 40));
        long allocated = now();
        OK(D(cuCtxCreate_v2)(&other, 0, 0));
        OK(D(cuCtxDestroy_v2)(other));
        printf("%ld %ld", allocated - start, now() - allocated);
        stop = 1;
        for (int i = 0; i < 2; i++)
            pthread_join(threads[i], NULL);
        return 0;
    }
    """
    )
    monkeypatch.setenv("GPT_SIM_DELAY", "20000")  # some slabs are always in flight
    options = ("-p", by_warp(), "--max-memory", "300K", "--complete")
    done, trace = probed(tmp_path, build(tmp_path, source), *options)
    assert (done.returncode, done.stderr) == (0, "")
    assert max(map(int, done.stdout.split())) < 10000
    assert trace.of("probed") and not trace.of("unprobed")


@pytest.mark.full
def test_more_nodes_than_16_bits_can_number(tmp_path):
    trace = good(tmp_path, build(tmp_path, REPLAYS), "-p", "gmem_bytes", "--complete", arguments=(PTX, "66", "1000"))
    assert not trace.of("unprobed")
    check_bytes(trace, 66000)


@pytest.mark.full
def test_late_kernel_is_not_in_a_graph(tmp_path):
    """The kernel is loaded in the middle of a capture, which continues; graphs that are made later have probes."""
    source = (
        "#include <sys/stat.h>\n"
        + GRAPHS
        + r"""
    int main(int argc, char **argv) {
        void *graph, *exec;
        setup(argv[1]);
        OK(D(cuCtxSynchronize)());
        OK(D(cuStreamCreate)(&streams[0], 1));
        exec = instantiated(captured(2));
        OK(D(cuStreamBeginCapture_v2)(streams[0], 0));
        put(streams[0]);
        struct stat made;
        for (int i = 0; i < 600 && (stat(argv[2], &made) || !made.st_size); i++)
            usleep(50000);
        usleep(1000000); // the rest of its answer
        OK(D(cuModuleGetFunction)(&function, module, "scale"));
        put(streams[0]);
        OK(D(cuStreamEndCapture)(streams[0], &graph));
        replay(exec, 2), launched(4);
        replay(instantiated(graph), 3), launched(6);
        check();
        return 0;
    }
    """
    )
    made = tmp_path / "made"
    pipeline = f"gpt-extract --ptx | gpt-ptx-probe -p gmem_bytes | gpt-asm --arch $GPT_ARCH | tee '{made}'"
    stage = tmp_path / "late"
    stage.write_text(f"#!/bin/sh\nsleep 0.5\n{pipeline}\n")
    stage.chmod(0o755)
    trace = good(tmp_path, build(tmp_path, source), "--wait", "0", "--jit", str(stage), arguments=(PTX, made))
    check_bytes(trace, 6)
    assert unprobed(trace) == {"it was not looked up by name, or is still being compiled": 4}


def helpers(folder):
    """Yield the processes of a gpt-hook whose trace is in the folder, except the program itself."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if re.match(rf"[^\0]*gpt-hook.*{re.escape(str(folder))}", path.read_text(errors="replace"), re.DOTALL):
                yield int(path.parent.name)


@pytest.mark.full
def test_streams_threads_and_a_killed_broker(tmp_path):
    program = build(tmp_path, STRESS)
    env = os.environ | {"GPT_SIM_RUN": "all", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    out = tmp_path / "t.mp"
    line = hooked.command("run", "-o", out, "--device", "sim", "-p", "gmem_bytes", program, PTX)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(line, env=env, text=True, **pipes) as process:
        assert process.stdout.readline() == "ready\n"
        time.sleep(1)
        for broker in helpers(tmp_path):
            os.kill(broker, signal.SIGKILL)
        time.sleep(4)
        replays = int(process.communicate(timeout=100)[0])
    assert process.returncode == 0
    trace = hooked.Trace(out)
    assert len(trace.of("probed")) + sum(unprobed(trace).values()) == 3 * replays
    for units in buffers(trace, "gmem_bytes").values():
        assert (units["slots"]["read"].sum(), units["slots"]["written"].sum()) == (8 * COUNT, 8 * COUNT)
