"""gpt-hook -p: programs can use CUDA graphs as they can without probes, for more than launches. On the simulated
device.
"""

import os
import shutil
import subprocess

import pytest
from elftools.elf.elffile import ELFFile

from tests import cuda
from tests.runtime import hooked, simulated
from tests.runtime.graphing import check_scenario, compile_scenarios
from tests.runtime.probing import COUNT, PTX, good, in_both_forms, probe_file, probed, saved, unprobed
from tests.tiers import first

WRITES = "its graph writes a constant, of which the kernel with probes has a copy"
MAY_WRITE = "its graph may later write a constant, of which the kernel with probes has a copy"

# As in test_probe_graphs.py.
SCENARIOS = {
    "memset": (  # a node is changed to write a constant; another change fails
        """
        size_t size;
        void *graph, *node, *exec, *context;
        CUdeviceptr other;
        unsigned by = 3;
        OK(D(cuModuleGetGlobal_v2)(&factor, &size, module, "factor"));
        OK(D(cuMemAlloc_v2)(&other, (size_t)4));
        OK(D(cuGraphCreate)(&graph, 0));
        void *first = add(graph, NULL);
        CUDA_MEMSET_NODE_PARAMS_v2 set = {.dst = other, .value = 7, .elementSize = 4, .width = 1, .height = 1};
        OK(D(cuCtxGetCurrent)(&context));
        OK(D(cuGraphAddMemsetNode)(&node, graph, &first, (size_t)1, &set, context));
        add(graph, node);
        exec = instantiated(graph);
        replay(exec, 2), launched(4);
        set.dst = factor;
        OK(D(cuGraphExecMemsetNodeSetParams)(exec, node, &set, context));
        replay(exec, 2);
        expect(3), expect(7), expect(7), expect(7);
        set.dst = other;
        OK(D(cuGraphExecMemsetNodeSetParams)(exec, node, &set, context));
        OK(D(cuMemcpyHtoD_v2)(factor, &by, (size_t)4));
        OK(D(cuCtxSynchronize)());
        replay(exec, 1), launched(2);
        """,
        4,
        {WRITES: 6},
    ),
    "memcpy": (
        """
        size_t size;
        void *graph, *node, *exec, *context;
        CUdeviceptr other;
        unsigned by = 7;
        OK(D(cuModuleGetGlobal_v2)(&factor, &size, module, "factor"));
        OK(D(cuMemAlloc_v2)(&other, (size_t)8));
        OK(D(cuMemcpyHtoD_v2)(other, &by, (size_t)4));
        OK(D(cuCtxSynchronize)());
        OK(D(cuGraphCreate)(&graph, 0));
        void *first = add(graph, NULL);
        CUDA_MEMCPY3D copy = {.srcMemoryType = 2, .srcDevice = other, .dstMemoryType = 2, .dstDevice = other + 4,
                              .WidthInBytes = 4, .Height = 1, .Depth = 1};
        OK(D(cuCtxGetCurrent)(&context));
        OK(D(cuGraphAddMemcpyNode)(&node, graph, &first, (size_t)1, &copy, context));
        add(graph, node);
        exec = instantiated(graph);
        replay(exec, 2), launched(4);
        copy.dstDevice = factor;
        OK(D(cuGraphExecMemcpyNodeSetParams)(exec, node, &copy, context));
        replay(exec, 2);
        expect(3), expect(7), expect(7), expect(7);
        """,
        4,
        {WRITES: 4},
    ),
    "anynode": (  # uses the function for nodes of all kinds
        """
        size_t size;
        void *graph, *node, *exec, *values[3];
        CUdeviceptr other;
        OK(D(cuModuleGetGlobal_v2)(&factor, &size, module, "factor"));
        OK(D(cuMemAlloc_v2)(&other, (size_t)4));
        OK(D(cuGraphCreate)(&graph, 0));
        void *first = add(graph, NULL);
        CUgraphNodeParams set = {.type = CU_GRAPH_NODE_TYPE_MEMSET,
            .memset = {.dst = other, .value = 7, .elementSize = 4, .width = 1, .height = 1}};
        OK(D(cuGraphAddNode_v2)(&node, graph, &first, NULL, (size_t)1, &set));
        void *last = add(graph, node);
        exec = instantiated(graph);
        replay(exec, 2), launched(4);
        set.memset.dst = factor;
        OK(D(cuGraphExecNodeSetParams)(exec, node, &set));
        CUDA_KERNEL_NODE_PARAMS params = params_of(values);
        OK(D(cuGraphExecKernelNodeSetParams_v2)(exec, last, &params));
        replay(exec, 2);
        expect(3), expect(7), expect(7), expect(7);
        """,
        4,
        {WRITES: 4},
    ),
    "updated": (  # updated to a graph that writes the constant; then a node does
        """
        size_t size;
        void *graphs[2], *nodes[2], *exec, *context;
        CUdeviceptr other;
        unsigned by = 3;
        CUgraphExecUpdateResultInfo info;
        OK(D(cuModuleGetGlobal_v2)(&factor, &size, module, "factor"));
        OK(D(cuMemAlloc_v2)(&other, (size_t)4));
        OK(D(cuCtxGetCurrent)(&context));
        CUDA_MEMSET_NODE_PARAMS_v2 set = {.dst = other, .value = 7, .elementSize = 4, .width = 1, .height = 1};
        for (int i = 0; i < 2; i++) {
            OK(D(cuGraphCreate)(&graphs[i], 0));
            void *first = add(graphs[i], NULL);
            OK(D(cuGraphAddMemsetNode)(&nodes[i], graphs[i], &first, (size_t)1, &set, context));
            add(graphs[i], nodes[i]);
        }
        exec = instantiated(graphs[0]);
        replay(exec, 1), launched(2);
        OK(D(cuGraphExecUpdate_v2)(exec, graphs[1], &info));
        replay(exec, 1), launched(2);
        set.dst = factor;
        OK(D(cuGraphExecMemsetNodeSetParams)(exec, nodes[0], &set, context));
        replay(exec, 1);
        expect(3), expect(7);
        OK(D(cuMemcpyHtoD_v2)(factor, &by, (size_t)4));
        OK(D(cuCtxSynchronize)());
        OK(D(cuGraphMemsetNodeSetParams)(nodes[1], &set));
        OK(D(cuGraphExecUpdate_v2)(exec, graphs[1], &info));
        replay(exec, 1);
        expect(3), expect(7);
        """,
        2,
        {MAY_WRITE: 4, WRITES: 2},
    ),
    "writing_child": (  # a child graph is changed to write a constant
        """
        size_t size;
        void *graph, *inner[2], *child, *node, *exec, *context;
        CUdeviceptr other;
        OK(D(cuModuleGetGlobal_v2)(&factor, &size, module, "factor"));
        OK(D(cuMemAlloc_v2)(&other, (size_t)4));
        OK(D(cuCtxGetCurrent)(&context));
        for (int i = 0; i < 2; i++) {
            CUDA_MEMSET_NODE_PARAMS_v2 set = {.dst = i ? factor : other, .value = 7, .elementSize = 4, .width = 1,
                                              .height = 1};
            OK(D(cuGraphCreate)(&inner[i], 0));
            OK(D(cuGraphAddMemsetNode)(&node, inner[i], NULL, (size_t)0, &set, context));
        }
        OK(D(cuGraphCreate)(&graph, 0));
        void *first = add(graph, NULL);
        OK(D(cuGraphAddChildGraphNode)(&child, graph, &first, (size_t)1, inner[0]));
        add(graph, child);
        exec = instantiated(graph);
        replay(exec, 2), launched(4);
        OK(D(cuGraphExecChildGraphNodeSetParams)(exec, child, inner[1]));
        replay(exec, 2);
        expect(3), expect(7), expect(7), expect(7);
        """,
        4,
        {WRITES: 4},
    ),
    "forked": (  # other streams join a capture, in each mode
        """
        void *graph, *events[2], *stream;
        int modes[] = {0, 1, 2};
        OK(D(cuStreamCreate)(&stream, 1));
        for (int i = 0; i < 2; i++)
            OK(D(cuEventCreate)(&events[i], 2));
        for (int mode = 0; mode < 3; mode++) {
            OK(D(cuStreamBeginCapture_v2)(streams[0], modes[mode]));
            put(streams[0]);
            OK(D(cuEventRecord)(events[0], streams[0]));
            OK(D(cuStreamWaitEvent)(stream, events[0], 0));
            put(stream);
            OK(D(cuEventRecord)(events[1], stream));
            OK(D(cuStreamWaitEvent)(streams[0], events[1], 0));
            put(streams[0]);
            OK(D(cuStreamEndCapture)(streams[0], &graph));
            void *exec = instantiated(graph);
            OK(D(cuGraphDestroy)(graph));
            replay(exec, 2), launched(6);
            OK(D(cuGraphExecDestroy)(exec));
        }
        """,
        18,
        {},
    ),
    "midway": (  # graphs are made, launched and changed while another stream is captured
        """
        void *exec = instantiated(captured(2)), *graph, *second, *nodes[2], *values[3];
        size_t room = 2;
        for (int mode = 0; mode < 3; mode++) {
            OK(D(cuStreamBeginCapture_v2)(streams[1], mode));
            put(streams[1]);
            OK(D(cuStreamBeginCapture_v2)(streams[0], 2));
            put(streams[0]);
            OK(D(cuStreamEndCapture)(streams[0], &second));
            void *more = instantiated(second);
            OK(D(cuGraphLaunch)(exec, streams[0]));
            OK(D(cuGraphLaunch)(more, streams[0]));
            launched(3);
            room = 2;
            OK(D(cuGraphGetNodes)(second, nodes, &room));
            CUDA_KERNEL_NODE_PARAMS params = params_of(values);
            params.gridDimX = 40;
            OK(D(cuGraphExecKernelNodeSetParams_v2)(more, nodes[0], &params));
            OK(D(cuGraphLaunch)(more, streams[0]));
            launched(1);
            put(streams[1]);
            OK(D(cuStreamEndCapture)(streams[1], &graph));
            OK(D(cuStreamSynchronize)(streams[0]));
            replay(instantiated(graph), 1), launched(2);
        }
        """,
        18,
        {},
    ),
    "given": (  # capture into an existing graph, with dependencies set by the program
        """
        void *graph, *exec, *nodes[3], *from[3], *to[3];
        size_t count, room = 3;
        int status;
        OK(D(cuGraphCreate)(&graph, 0));
        void *first = add(graph, NULL);
        OK(D(cuStreamBeginCaptureToGraph)(streams[0], graph, &first, NULL, (size_t)1, 0));
        put(streams[0]);
        uint64_t id;
        void *seen;
        void *const *last;
        OK(D(cuStreamGetCaptureInfo_v2)(streams[0], &status, &id, &seen, &last, &count));
        assert(seen == graph && count == 1);
        void *own = add(graph, last[0]);
        OK(D(cuStreamUpdateCaptureDependencies)(streams[0], &own, (size_t)1, 1));
        put(streams[0]);
        OK(D(cuStreamEndCapture)(streams[0], &seen));
        assert(seen == graph);
        exec = instantiated(graph);
        room = 3;
        OK(D(cuGraphGetEdges)(graph, from, to, &room));
        assert(room == 3 && from[0] == first);
        replay(exec, 3), launched(12);
        """,
        12,
        {},
    ),
    "clones": (  # clones, and their nodes found in them
        """
        void *graph = captured(2), *one, *two, *three, *nodes[2], *node, *values[3];
        size_t room = 2;
        unsigned more = 9;
        OK(D(cuGraphClone)(&one, graph));
        OK(D(cuGraphClone)(&two, one));
        OK(D(cuGraphClone)(&three, two));
        OK(D(cuGraphGetNodes)(one, nodes, &room));
        OK(D(cuGraphNodeFindInClone)(&node, nodes[1], two));
        CUDA_KERNEL_NODE_PARAMS params = params_of(values);
        params.kernelParams[1] = &more;
        OK(D(cuGraphKernelNodeSetParams_v2)(node, &params));
        void *execs[] = {instantiated(graph), instantiated(one), instantiated(two), instantiated(three)};
        OK(D(cuGraphDestroy)(graph));
        for (int i = 0; i < 4; i++) {
            replay(execs[i], 1), launched(1);
            added = i == 2 ? 9 : 5, launched(1), added = 5;
        }
        OK(D(cuGraphExecKernelNodeSetParams_v2)(execs[2], node, &params));
        replay(execs[2], 1), launched(1);
        added = 9, launched(1), added = 5;
        """,
        10,
        {},
    ),
    "otherform": (  # updates that the driver rejects, and others that it accepts
        """
        void *exec = instantiated(captured(2)), *graph, *node, *first, *context, *values[3];
        CUgraphExecUpdateResultInfo info;
        OK(D(cuGraphCreate)(&graph, 0));
        first = add(graph, NULL), add(graph, NULL);
        IS(910, D(cuGraphExecUpdate_v2)(exec, graph, &info));
        assert(info.result == CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
        replay(exec, 1), launched(2);
        OK(D(cuGraphDestroy)(graph));
        OK(D(cuGraphCreate)(&graph, 0));
        first = add(graph, NULL);
        OK(D(cuGraphAddEmptyNode)(&node, graph, &first, (size_t)1));
        IS(910, D(cuGraphExecUpdate_v2)(exec, graph, &info));
        assert(info.result == CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED && info.errorNode == node);
        replay(exec, 1), launched(2);
        OK(D(cuGraphExecUpdate_v2)(exec, captured(2), &info));
        check_node(first, 5);
        replay(exec, 1), launched(2);
        """,
        6,
        {},
    ),
    "otherkernel": (  # nodes get another kernel with other parameters
        """
        void *graph = captured(2), *exec = instantiated(graph), *nodes[2], *values[3], *found;
        size_t room = 2;
        OK(D(cuGraphGetNodes)(graph, nodes, &room));
        OK(D(cuModuleGetFunction)(&found, module, "other"));
        CUDA_KERNEL_NODE_PARAMS params = params_of(values), other = params;
        other.func = found;
        other.gridDimX = 1;
        OK(D(cuGraphExecKernelNodeSetParams)(exec, nodes[0], &other));
        replay(exec, 1), launched(1);
        OK(D(cuGraphExecKernelNodeSetParams_v2)(exec, nodes[1], &other));
        replay(exec, 1);
        OK(D(cuGraphExecKernelNodeSetParams_v2)(exec, nodes[0], &params));
        OK(D(cuGraphExecKernelNodeSetParams)(exec, nodes[1], &params));
        replay(exec, 2), launched(4);
        check_node(nodes[0], 5), check_node(nodes[1], 5);
        """,
        5,
        None,
    ),
    "attributes": (
        """
        void *graph = captured(3), *nodes[3], *values[3];
        int one[16] = {1}, found[16];
        size_t room = 3;
        OK(D(cuGraphGetNodes)(graph, nodes, &room));
        OK(D(cuGraphKernelNodeSetAttribute)(nodes[0], CU_LAUNCH_ATTRIBUTE_COOPERATIVE, one));
        OK(D(cuGraphKernelNodeCopyAttributes)(nodes[1], nodes[0]));
        void *exec = instantiated(graph);
        for (int i = 0; i < 3; i++) {
            OK(D(cuGraphKernelNodeGetAttribute)(nodes[i], CU_LAUNCH_ATTRIBUTE_COOPERATIVE, found));
            assert(found[0] == (i < 2));
            check_node(nodes[i], 5);
        }
        CUDA_KERNEL_NODE_PARAMS params = params_of(values);
        OK(D(cuGraphExecKernelNodeSetParams_v2)(exec, nodes[0], &params));
        replay(exec, 2), launched(6);
        """,
        6,
        {},
    ),
    "memory": (  # memory that belongs to a graph, and nodes of all other kinds
        """
        void *graph, *node, *exec, *event, *values[3], *middle, *empty, *host, *record;
        CUDA_MEM_ALLOC_NODE_PARAMS memory = {.poolProps = {.allocType = 1, .location = {1, 0}}, .bytesize = 4096};
        OK(D(cuGraphCreate)(&graph, 0));
        OK(D(cuGraphAddMemAllocNode)(&node, graph, NULL, (size_t)0, &memory));
        CUDA_KERNEL_NODE_PARAMS params = params_of(values);
        params.kernelParams[0] = &memory.dptr;
        OK(D(cuGraphAddKernelNode_v2)(&middle, graph, &node, (size_t)1, &params));
        OK(D(cuGraphAddMemFreeNode)(&node, graph, &middle, (size_t)1, memory.dptr));
        CUDA_HOST_NODE_PARAMS call = {.fn = note, .userData = &notes};
        OK(D(cuGraphAddHostNode)(&host, graph, &node, (size_t)1, &call));
        OK(D(cuEventCreate)(&event, 2));
        OK(D(cuGraphAddEventRecordNode)(&record, graph, &host, (size_t)1, event));
        OK(D(cuGraphAddEmptyNode)(&empty, graph, &record, (size_t)1));
        add(graph, empty);
        exec = instantiated(graph);
        for (int i = 0; i < 3; i++)
            OK(D(cuGraphLaunch)(exec, streams[0]));
        OK(D(cuEventSynchronize)(event));
        OK(D(cuStreamSynchronize)(streams[0]));
        assert(notes == 3);
        times += 3; // in the memory of the graph
        launched(3);
        OK(D(cuGraphExecDestroy)(exec));
        """,
        6,
        {},
    ),
    "empty": (
        """
        void *graph, *exec, *node;
        CUgraphExecUpdateResultInfo info;
        OK(D(cuGraphCreate)(&graph, 0));
        exec = instantiated(graph);
        replay(exec, 2);
        OK(D(cuGraphExecUpdate_v2)(exec, graph, &info));
        OK(D(cuGraphUpload)(exec, streams[0]));
        OK(D(cuGraphExecDestroy)(exec));
        OK(D(cuGraphAddChildGraphNode)(&node, graph, NULL, (size_t)0, captured(0)));
        replay(instantiated(graph), 2);
        exec = instantiated(captured(1));
        OK(D(cuGraphUpload)(exec, streams[0]));
        uint64_t flags = 9;
        OK(D(cuGraphExecGetFlags)(exec, &flags));
        assert(!flags);
        replay(exec, 1), launched(1);
        """,
        1,
        {},
    ),
    "nested": (  # nested conditional nodes, with graphs in their bodies
        """
        void *graph, *node, *exec, *body;
        OK(D(cuGraphCreate)(&graph, 0));
        body = graph;
        for (int depth = 0; depth < 3; depth++) {
            CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_CONDITIONAL,
                .conditional = {.size = depth == 1 ? 3 : 2, .type = depth == 1 ? 2 : 0}};
            OK(D(cuGraphConditionalHandleCreate)(&params.conditional.handle, graph, current_context(), 1, 1));
            OK(D(cuGraphAddNode_v2)(&node, body, NULL, NULL, (size_t)0, &params));
            add(body, node);
            void *idle = params.conditional.phGraph_out[depth == 1 ? 2 : 1];
            body = params.conditional.phGraph_out[depth == 1 ? 1 : 0];
            add(idle, NULL);
        }
        OK(D(cuGraphAddChildGraphNode)(&node, body, NULL, (size_t)0, captured(1)));
        add(body, node);
        exec = instantiated(graph);
        replay(exec, 4), launched(4 * 5);
        """,
        4 * 8,
        {},
    ),
    "body": (  # a node outside of a conditional node, and a node inside
        """
        void *graph, *node;
        OK(D(cuGraphCreate)(&graph, 0));
        void *first = add(graph, NULL);
        CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_CONDITIONAL, .conditional = {.size = 1}};
        OK(D(cuGraphConditionalHandleCreate)(&params.conditional.handle, graph, current_context(), 1, 1));
        OK(D(cuGraphAddNode_v2)(&node, graph, &first, NULL, (size_t)1, &params));
        add(params.conditional.phGraph_out[0], NULL);
        replay(instantiated(graph), 2), launched(4);
        """,
        4,
        {},
    ),
    "bare_body": (  # a kernel without probes in a body counts once, like one with probes
        """
        void *graph, *node, *found, *values[3];
        CUDA_KERNEL_NODE_PARAMS params = params_of(values);
        OK(D(cuGraphCreate)(&graph, 0));
        CUgraphNodeParams body = {.type = CU_GRAPH_NODE_TYPE_CONDITIONAL, .conditional = {.size = 1}};
        OK(D(cuGraphConditionalHandleCreate)(&body.conditional.handle, graph, current_context(), 1, 1));
        OK(D(cuGraphAddNode_v2)(&node, graph, NULL, NULL, (size_t)0, &body));
        OK(D(cuModuleGetFunction)(&found, module, "other"));
        params.func = found;
        OK(D(cuGraphAddKernelNode_v2)(&node, body.conditional.phGraph_out[0], NULL, (size_t)0, &params));
        add(body.conditional.phGraph_out[0], node);
        replay(instantiated(graph), 3), launched(3);
        """,
        3,
        {"no probe applies to it": 3},
    ),
    # Disabled nodes stay so after updates; then nodes are enabled and disabled: launches are counted, not recorded.
    "still_disabled": (
        """
        void *graph = captured(3), *exec = instantiated(graph), *nodes[3];
        size_t room = 3;
        CUgraphExecUpdateResultInfo info;
        OK(D(cuGraphGetNodes)(graph, nodes, &room));
        OK(D(cuGraphNodeSetEnabled)(exec, nodes[1], 0));
        replay(exec, 2), launched(4);
        OK(D(cuGraphExecUpdate_v2)(exec, graph, &info));
        replay(exec, 2), launched(4);
        OK(D(cuGraphNodeSetEnabled)(exec, nodes[1], 1));
        replay(exec, 2), launched(6);
        OK(D(cuGraphNodeSetEnabled)(exec, nodes[2], 0));
        OK(D(cuGraphExecUpdate_v2)(exec, captured(3), &info));
        replay(exec, 2), launched(4);
        """,
        4,
        {
            "a node of its graph was disabled before an update": 8,
            "its graph was changed after an update": 6,
        },
    ),
    "other_context": (  # another context, or none, is current when a graph is updated, changed and launched
        """
        void *own, *other, *nodes[2], *values[3], *graph = captured(2), *exec = instantiated(graph);
        size_t room = 2, size;
        CUgraphExecUpdateResultInfo info;
        CUDA_KERNEL_NODE_PARAMS params = params_of(values);
        OK(D(cuCtxGetCurrent)(&own));
        OK(D(cuCtxCreate_v2)(&other, 0, 0));
        void *contexts[] = {other, NULL};
        OK(D(cuGraphGetNodes)(graph, nodes, &room));
        OK(D(cuGraphExecKernelNodeSetParams_v2)(exec, nodes[0], &params));
        OK(cuCtxSetCurrent(own));
        replay(exec, 1), launched(2);
        for (int i = 0; i < 2; i++) {
            OK(cuCtxSetCurrent(contexts[i]));
            OK(D(cuGraphExecUpdate_v2)(exec, graph, &info));
            OK(cuCtxSetCurrent(own));
            replay(exec, 2), launched(4);
        }
        OK(cuCtxSetCurrent(NULL));
        IS(201, D(cuGraphLaunch)(exec, NULL));
        OK(cuCtxSetCurrent(own));
        replay(exec, 1), launched(2);
        OK(D(cuModuleGetGlobal_v2)(&factor, &size, module, "factor"));
        OK(cuCtxSetCurrent(other));
        for (unsigned by = 3; by < 6; by++) {
            OK(D(cuMemcpyHtoD_v2)(factor, &by, (size_t)4));
            OK(D(cuGraphLaunch)(exec, NULL));
            OK(D(cuCtxSynchronize)());
            expect(by), expect(by);
        }
        OK(D(cuCtxDestroy_v2)(other));
        OK(cuCtxSetCurrent(own));
        replay(exec, 1), expect(5), expect(5);
        """,
        12,
        # The last replay is among the eight, because the graph has to be rebuilt for it.
        {"it was launched into a default stream of another context": 8},
    ),
    "objects": (  # user objects kept alive by a graph and a clone; executable graphs destroyed in their own callback
        """
        void *object, *graph = captured(2), *clone;
        OK(D(cuUserObjectCreate)(&object, &notes, note, 1, 1));
        OK(D(cuGraphRetainUserObject)(graph, object, 1, 1));
        OK(D(cuGraphClone)(&clone, graph));
        void *exec = instantiated(graph), *other = instantiated(clone);
        OK(D(cuGraphDestroy)(graph));
        OK(D(cuGraphDestroy)(clone));
        replay(exec, 2), replay(other, 1), launched(6);
        assert(!notes);
        OK(D(cuGraphExecDestroy)(exec));
        OK(D(cuGraphExecDestroy)(other));
        OK(D(cuCtxSynchronize)());
        for (int i = 0; i < 1000 && !notes; i++)
            usleep(1000);
        assert(notes == 1);
        """,
        6,
        {},
    ),
    "flight": (  # graphs are destroyed while they run, also by another thread, and made again there
        """
        for (int i = 0; i < 30; i++) {
            ending = instantiated(captured(2));
            OK(D(cuGraphLaunch)(ending, streams[1]));
            pthread_t thread;
            if (i % 2)
                assert(!pthread_create(&thread, NULL, end_exec, NULL) && !pthread_join(thread, NULL));
            else
                end_exec(NULL);
            if (i % 2)
                OK(D(cuStreamSynchronize)(streams[1]));
        }
        launched(60);
        OK(D(cuStreamSynchronize)(streams[1]));
        """,
        60,
        {},
    ),
    "alive": (  # code is unloaded, and its graphs are destroyed later; the context is destroyed, too
        """
        void *second, *own, *graph, *exec, *keep = function;
        OK(D(cuModuleLoadData)(&second, again));
        OK(cuModuleGetFunction(&own, second, "scale"));
        function = own;
        graph = captured(2), exec = instantiated(graph);
        function = keep;
        OK(D(cuGraphLaunch)(exec, streams[0]));
        OK(D(cuStreamSynchronize)(streams[0]));
        for (int i = 0; i < 2; i++)
            for (unsigned k = 0; k < count; k++)
                want[k] = 3 * want[k] + added;
        OK(D(cuModuleUnload)(second));
        put(NULL), launched(1);
        OK(D(cuGraphExecDestroy)(exec));
        OK(D(cuGraphDestroy)(graph));
        void *context, *before;
        OK(D(cuCtxGetCurrent)(&before));
        OK(D(cuCtxCreate_v2)(&context, 0, 0));
        OK(D(cuModuleLoadData)(&second, again));
        OK(cuModuleGetFunction(&function, second, "scale"));
        void *old = streams[0];
        CUdeviceptr there = items;
        OK(D(cuStreamCreate)(&streams[0], 1));
        OK(D(cuMemAlloc_v2)(&items, (size_t)4096));
        OK(D(cuMemsetD8_v2)(items, 0, (size_t)4096));
        graph = captured(2), exec = instantiated(graph);
        OK(D(cuGraphLaunch)(exec, streams[0]));
        OK(D(cuCtxDestroy_v2)(context));
        D(cuGraphLaunch)(exec, old);
        D(cuGraphExecDestroy)(exec);
        OK(D(cuCtxSetCurrent)(before));
        function = keep, streams[0] = old, items = there;
        replay(instantiated(captured(1)), 2), launched(2);
        """,
        None,
        None,
    ),
    "child_process": (  # a forked child that uses none of its parent's graphs
        """
        void *exec = instantiated(captured(2));
        replay(exec, 1), launched(2);
        pid_t child = fork();
        if (!child) {
            D(cuGraphLaunch)(exec, streams[0]);
            D(cuGraphExecDestroy)(exec);
            _exit(7);
        }
        int status;
        assert(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 7);
        replay(exec, 1), launched(2);
        """,
        4,
        {},
    ),
    "at_once": (  # several threads instantiate one graph at once, and others
        """
        pthread_t threads[4];
        void *graph = captured(2);
        made_of = graph;
        OK(D(cuCtxGetCurrent)(&its_context));
        for (long i = 0; i < 4; i++)
            pthread_create(&threads[i], NULL, make, (void *)i);
        for (int i = 0; i < 4; i++)
            pthread_join(threads[i], NULL);
        void *node;
        size_t room = 1;
        OK(D(cuGraphGetNodes)(graph, &node, &room));
        check_node(node, 5);
        for (int i = 0; i < 4 * 20; i++)
            replay(made[i], 1);
        launched(160);
        """,
        160,
        {},
    ),
}

HELPERS = r"""
#include <sys/wait.h>
static char again[1 << 16];
static int notes;
static void *ending, *made_of, *its_context, *made[80];
static void note(void *to) { __atomic_fetch_add((int *)to, 1, __ATOMIC_SEQ_CST); }
static void *end_exec(void *unused) { OK(D(cuGraphExecDestroy)(ending)); return unused; }
static void *make(void *number) {
    OK(cuCtxSetCurrent(its_context));
    for (long i = 0; i < 20; i++)
        OK(D(cuGraphInstantiateWithFlags)(&made[(long)number * 20 + i], made_of, 0ull));
    return NULL;
}
__attribute__((constructor)) static void read_again(void) {
    FILE *file = fopen(PTX_FILE, "r");
    assert(file && fread(again, 1, sizeof(again) - 1, file));
    fclose(file);
}
"""


@pytest.fixture(scope="module")
def graphs(tmp_path_factory):
    return compile_scenarios(tmp_path_factory.mktemp("graphs"), SCENARIOS, HELPERS)


@in_both_forms
@pytest.mark.parametrize("name", first(*SCENARIOS))
def test_graphs(tmp_path, graphs, name):
    _, launches, reasons = SCENARIOS[name]
    check_scenario(tmp_path, graphs, name, launches, reasons, [4, 4, 4] if name == "nested" else [])


ARRAY = """
[map.steps]
type = "array"
level = "LEVEL"
cap = CAP
data = {n = "u32"}

[probe.step]
position = "ld.global:st.global:atom.global"
level = "LEVEL"
before = '''.reg .u32 %n = 0;
add.u32 %n, %n, 1;
SAVE [steps] {%n};'''
"""


@pytest.mark.parametrize(("level", "capacity"), first(("thread", 2), ("thread", 1), ("warp", 2), ("warp", 1)))
def test_arrays_keep_the_last_records_where_a_node_repeats(tmp_path, graphs, level, capacity):
    """A kernel saves three records, in order. In a conditional node's body, it may run again before they're copied."""
    probe = probe_file("steps.toml", ARRAY.replace("LEVEL", level).replace("CAP", str(capacity)))
    trace = good(tmp_path, graphs, "-p", str(probe), arguments=(PTX, "body"))
    repeats = {record["id"]: record.get("repeats", 0) for record in trace.of("probed")}
    assert sorted(repeats.values()) == [0, 0, 1, 1]
    assert {record["keeps"] for record in trace.of("map")} == {"last"}
    for launch, found in saved(tmp_path / "t.mp", "steps").items():
        ran = found.counts > 0
        assert ran.sum() == (COUNT if level == "thread" else 17)
        assert (found.counts[ran] == 3).all() and found.dropped == (3 - capacity) * ran.sum()
        kept = range(4 - capacity, 4) if repeats[launch] else range(1, capacity + 1)
        assert (found.slots["n"][ran] == list(kept)).all()


@pytest.mark.full
@simulated.needs_cxx
def test_a_program_of_the_cuda_runtime(tmp_path):
    """This is the program that tests/gpu/probe_graphs.py runs on a GPU."""
    program = simulated.compile_cuda(tmp_path, hooked.ROOT / "tests/gpu/probe_graphs.cu", "-std=c++17")
    bare = os.environ | {"LD_LIBRARY_PATH": str(hooked.runtime() / "sim"), "GPT_SIM_RUN": "all"}
    said = subprocess.run([program], env=bare, capture_output=True, text=True, check=True, timeout=100).stdout
    assert said.count("\n") > 5
    done, trace = probed(tmp_path, program, "-p", "gmem_bytes", arguments=())
    assert (done.returncode, done.stdout, done.stderr) == (0, said, "")
    assert len(trace.of("probed")) == 319 and unprobed(trace) == {}
    found = saved(tmp_path / "t.mp", "gmem_bytes")
    assert len(found) == 319
    for units in found.values():
        assert units.slots["read"].sum() == units.slots["written"].sum() == 4 << 14


@pytest.mark.full
def test_nodes_without_driver_information(tmp_path, graphs, monkeypatch):
    shutil.copytree(hooked.runtime(), tmp_path / "runtime")
    with open(tmp_path / "runtime/sim/libcuda.so.1", "rb+") as file:
        elf = ELFFile(file)
        (symbol,) = elf.get_section_by_name(".dynsym").get_symbol_by_name("cuGraphKernelNodeGetParams_v2")
        file.seek(next(elf.address_offsets(symbol["st_value"])))
        file.write(bytes.fromhex("b801000000c3"))  # mov eax, CUDA_ERROR_INVALID_VALUE; ret
    monkeypatch.setenv("GPT_RUNTIME", str(tmp_path / "runtime"))
    trace = good(tmp_path, graphs, "-p", "gmem_bytes", arguments=(PTX, "forked"))
    assert unprobed(trace) == {"the driver does not say which kernel its node launches": 18}


def test_turns_alone(tmp_path):
    """Threads and signal handlers that instantiate graphs only wait for others that instantiate the same graph."""
    folder = hooked.ROOT / "runtime"
    test, hook = hooked.ROOT / "tests/runtime/turns_alone.c", folder / "hook"
    sources = [test, hook / "probe/graph_lock.c", hook / "write/no_signals.c"]
    program = tmp_path / "alone"
    cuda.c_compiler("-std=gnu11", "-D_GNU_SOURCE", *hooked.INCLUDE, *sources, "-o", program, "-lpthread")
    subprocess.run([program], check=True, timeout=60)
