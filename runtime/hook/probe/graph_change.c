// Handlers of the calls that change a single node. When the program changes the kernel or the parameters of
// a node in an executable graph, we weave probes into the new kernel and pass that to the driver instead.

#include <stdlib.h>
#include <string.h>

#include "driver_calls.h"
#include "graphs.h"
#include "hook/watch/watch.h"

struct changed {
    struct prepared *graph; // locked
    struct member member;
    uint64_t params;         // the program's argument, restored after the call
    CUgraphNodeParams given; // what the driver gets instead
};

static void place_member(struct prepared *graph, const struct member *old, struct member *new) {
    const struct reason *reason = WHY(graph_outgrown);
    struct set set = {0};
    unsigned place = 0;
    bool fits = old->save && new->save->bytes <= old->room;
    if (!fits && ((place = hook_find_place(graph)) == MOST_SETS ||
                  !(set.slab = hook_hold(new->save->bytes, 0, &reason)))) {
        if (old->save && new->save->demand) // no room for a larger set: shrink the logs to the old place
            hook_size_logs(new->save, old->room);
        fits = old->save && new->save->bytes <= old->room;
        if (!fits) {
            hook_strip_member(new, reason);
            return;
        }
    }
    if (fits) {
        new->save->offset = old->save->offset;
        new->room = old->room;
        new->set = old->set;
    } else {
        set.bytes = new->save->bytes;
        new->set = place;
        graph->sets[place] = set;
    }
    const struct slab *slab = graph->sets[new->set].slab;
    hook_point_at_buffers(new->save, slab ? hook_slab_address(slab) + new->save->offset : 0);
}

// Choose probes for the kernel that a node is about to get. The call's arguments aren't changed yet.
static void before_kernel(struct frame *frame, const CUDA_KERNEL_NODE_PARAMS *kernel, bool has_kernel) {
    struct prepared *graph = hook_probing ? hook_lock_prepared(frame_arg(frame, 0)) : NULL;
    const struct member *old = graph ? hook_find_member(graph, frame_arg(frame, 1)) : NULL;
    struct changed *changed = old && !graph->updated ? calloc(1, sizeof(*changed)) : NULL;
    if (!changed) {
        if (graph && (old || graph->updated))
            graph->lost = WHY(graph_changed);
        if (graph)
            hook_unlock_prepared(graph);
        return;
    }
    struct graph_node node = {.handle = (void *)old->node,
                              .type = CU_GRAPH_NODE_TYPE_KERNEL,
                              .depth = old->depth,
                              .unconditional = old->unconditional};
    memcpy(&node.kernel, kernel, has_kernel ? sizeof(*kernel) : offsetof(CUDA_KERNEL_NODE_PARAMS, kern));
    int mode = hook_relaxed_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
    hook_make_member(&changed->member, &node, graph->context);
    changed->member.disabled = old->disabled;
    changed->member.named = old->named;
    hook_check_constants(graph->members, &changed->member);
    if (changed->member.save)
        place_member(graph, old, &changed->member);
    hook_relaxed_mode(mode);
    changed->graph = graph;
    changed->params = frame_arg(frame, 2);
    frame_leave_note(frame, NOTE_CHANGED, changed);
}

static void after_kernel(struct frame *frame) {
    struct changed *changed = frame_note(frame, NOTE_CHANGED);
    if (!changed)
        return;
    struct prepared *graph = changed->graph;
    frame_set_arg(frame, 2, changed->params);
    if ((CUresult)frame->result != CUDA_SUCCESS && changed->member.save) {
        hook_strip_member(&changed->member, WHY(node_refused));
        frame->result = hook_call_again(frame);
    }
    if ((CUresult)frame->result == CUDA_SUCCESS && hook_own_members(graph)) {
        struct member *member = hook_find_member(graph, changed->member.named), was = *member;
        *member = changed->member;
        changed->member.save = NULL;
        hook_strip_member(&was, NULL);
    }
    hook_strip_member(&changed->member, NULL);
    hook_unlock_prepared(graph);
    free(changed);
}

// cuGraphExecKernelNodeSetParams(exec, node, params)
void hook_before_exec_kernel(struct frame *frame) {
    bool has_kernel = strcmp(frame->slot->symbol, "cuGraphExecKernelNodeSetParams") != 0;
    CUDA_KERNEL_NODE_PARAMS params = {0};
    if (hook_read((const void *)frame_arg(frame, 2), &params,
                  has_kernel ? sizeof(params) : offsetof(CUDA_KERNEL_NODE_PARAMS, kern)))
        before_kernel(frame, &params, has_kernel);
    struct changed *changed = frame_note(frame, NOTE_CHANGED);
    if (!changed || !changed->member.save)
        return;
    changed->given.kernel = hook_probed_params(&changed->member);
    frame_set_arg(frame, 2, (uint64_t)&changed->given.kernel);
}

void hook_after_exec_kernel(struct frame *frame) { after_kernel(frame); }

// Prepare for a node that is about to write to other memory. If the program's call then fails, some kernels
// have lost their probes for nothing; we accept that.
static void before_write(const struct frame *frame, struct written written) {
    struct prepared *graph = hook_probing ? hook_lock_prepared(frame_arg(frame, 0)) : NULL;
    if (!graph)
        return;
    int mode = hook_relaxed_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
    hook_restore_readers(graph, &written);
    hook_relaxed_mode(mode);
    hook_unlock_prepared(graph);
}

// cuGraphExecMemcpyNodeSetParams, cuGraphExecMemsetNodeSetParams(exec, node, params, context)
void hook_before_exec_copy(struct frame *frame) {
    CUDA_MEMCPY3D copy;
    if (hook_read((const void *)frame_arg(frame, 2), &copy, sizeof(copy)))
        before_write(frame, hook_written_by_copy(frame_arg(frame, 1), &copy));
}

void hook_before_exec_set(struct frame *frame) {
    CUDA_MEMSET_NODE_PARAMS_v2 set;
    if (hook_read((const void *)frame_arg(frame, 2), &set, sizeof(set)))
        before_write(frame, hook_written_by_set(frame_arg(frame, 1), &set));
}

// cuGraphExecNodeSetParams(exec, node, params)
void hook_before_exec_node(struct frame *frame) {
    CUgraphNodeParams copy, *params = &copy;
    if (!hook_read((const void *)frame_arg(frame, 2), &copy, sizeof(copy)))
        return;
    if (params->type == CU_GRAPH_NODE_TYPE_GRAPH)
        hook_before_child(frame, (uint64_t)params->graph.graph);
    if (params->type == CU_GRAPH_NODE_TYPE_MEMCPY)
        before_write(frame, hook_written_by_copy(frame_arg(frame, 1), &params->memcpy.copyParams));
    if (params->type == CU_GRAPH_NODE_TYPE_MEMSET)
        before_write(frame, hook_written_by_set(frame_arg(frame, 1), &params->memset));
    if (params->type != CU_GRAPH_NODE_TYPE_KERNEL)
        return;
    before_kernel(frame, &params->kernel, true);
    struct changed *changed = frame_note(frame, NOTE_CHANGED);
    if (!changed || !changed->member.save)
        return;
    changed->given = *params;
    changed->given.kernel = hook_probed_params(&changed->member);
    frame_set_arg(frame, 2, (uint64_t)&changed->given);
}

void hook_after_exec_node(struct frame *frame) {
    hook_after_child(frame); // each handler reads only its own kind of note
    after_kernel(frame);
}

// cuGraphNodeSetEnabled(exec, node, enabled)
void hook_after_node_enabled(struct frame *frame) {
    struct prepared *graph = hook_probing && (CUresult)frame->result == CUDA_SUCCESS
                                 ? hook_lock_prepared(frame_arg(frame, 0))
                                 : NULL;
    if (!graph)
        return;
    if (graph->updated)
        graph->lost = WHY(graph_changed);
    if (hook_find_member(graph, frame_arg(frame, 1)) && hook_own_members(graph))
        hook_find_member(graph, frame_arg(frame, 1))->disabled = !(unsigned)frame_arg(frame, 2);
    hook_unlock_prepared(graph);
}

// -- Packed parameters -----------------------------------------------------
//
// A program can pass a kernel node's parameters packed into one block (`extra`). The driver doesn't return
// such a block when we read the graph later, so we pass the parameters one by one (`kernelParams`) instead.

struct unpacked {
    struct save *save;
    unsigned argument;       // index of the argument that points to the parameters
    uint64_t params;         // the program's argument, restored after the call
    CUgraphNodeParams given; // what the driver gets instead
};

// cuGraphAddKernelNode, cuGraphAddNode(&node, graph, dependencies, count, params), where cuGraphAddNode_v2
// has an argument for edge data before the count; cuGraphKernelNodeSetParams, cuGraphNodeSetParams(node,
// params)
void hook_before_packed(struct frame *frame) {
    const char *symbol = frame->slot->symbol;
    bool any = !strstr(symbol, "Kernel");
    unsigned argument = strstr(symbol, "Set") ? 1 : strstr(symbol, "AddNode_v") ? 5 : 4;
    bool whole = any || strstr(symbol, "_v2");
    CUgraphNodeParams copy = {0}, *params = &copy;
    CUDA_KERNEL_NODE_PARAMS *kernel = any ? &params->kernel : (void *)params;
    size_t size = any ? sizeof(*params) : whole ? sizeof(*kernel) : offsetof(CUDA_KERNEL_NODE_PARAMS, kern);
    if (!hook_probing || !hook_read((const void *)frame_arg(frame, argument), &copy, size) ||
        (any && params->type != CU_GRAPH_NODE_TYPE_KERNEL) || !kernel->extra || kernel->kernelParams)
        return;
    struct probed *probed = hook_find_entry((uint64_t)(kernel->func || !whole ? kernel->func : kernel->kern));
    if (!probed || !hook_hold_probed(probed))
        return;
    struct unpacked *unpacked = probed->woven && !probed->refused ? calloc(1, sizeof(*unpacked)) : NULL;
    struct launch launch = {.extra = kernel->extra};
    if (unpacked)
        unpacked->save = hook_new_save(probed, &launch);
    hook_let_probed_go(probed);
    if (!unpacked || !unpacked->save) {
        free(unpacked);
        return;
    }
    CUDA_KERNEL_NODE_PARAMS *given = any ? &unpacked->given.kernel : (void *)&unpacked->given;
    unpacked->given = copy;
    given->kernelParams = unpacked->save->arguments;
    given->extra = NULL;
    unpacked->argument = argument;
    unpacked->params = frame_arg(frame, argument);
    frame_set_arg(frame, argument, (uint64_t)&unpacked->given);
    frame_leave_note(frame, NOTE_UNPACKED, unpacked);
}

void hook_after_packed(struct frame *frame) {
    struct unpacked *unpacked = frame_note(frame, NOTE_UNPACKED);
    if (!unpacked)
        return;
    frame_set_arg(frame, unpacked->argument, unpacked->params);
    hook_free_save(unpacked->save);
    free(unpacked);
}
