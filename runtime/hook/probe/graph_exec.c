// Handlers of the calls that make an executable graph, or change it as a whole. While the driver reads the
// program's graph, it contains the kernels with probes, see graph_nodes.c. After the call, these handlers run
// before all others, so the others see the graph as the program built it.

#include <stdlib.h>
#include <string.h>

#include "driver_calls.h"
#include "graphs.h"
#include "hook/watch/watch.h"

enum { DEVICE_LAUNCH = 4, MOST_FLAGS = 4096 };

struct insertion { // probes that are in a graph during a call
    struct turn turn;
    struct members *members;
    struct set set;
    struct prepared *graph; // locked; NULL unless the call changes a single node of an executable graph
    uint64_t node;
    unsigned place; // the set's index in the graph
    unsigned order; // the order that the probes were chosen for
    uint64_t context;
    uint64_t mover; // the context's mover
};

static void strip_all(struct members *members, const struct reason *reason) {
    for (size_t i = 0; i < members->count; i++)
        if (members->all[i].save)
            hook_strip_member(&members->all[i], reason);
}

static bool has_probes(const struct members *members) {
    for (size_t i = 0; i < members->count; i++)
        if (members->all[i].save)
            return true;
    return false;
}

struct wanted {
    uint64_t graph;
    const struct reason *refuse;  // why the graph gets no probes, or NULL
    const struct members *around; // for a child graph, the members of the executable graph
    bool updates;                 // it's for cuGraphExecUpdate
    unsigned place;               // index for its set
    uint64_t context;             // the executable graph's; 0: the current one
    uint64_t replaced;            // size of the buffers that the executable graph has so far
};

static void insert(struct insertion *made, const struct wanted *wanted) {
    const struct reason *refuse = wanted->refuse;
    made->members = hook_read_graph((void *)wanted->graph, made->context, wanted->around,
                                    wanted->updates || wanted->around != NULL);
    if (made->members && refuse)
        strip_all(made->members, refuse);
    if (made->members && has_probes(made->members)) {
        do {
            made->set.bytes = hook_place_members(made->members, wanted->place);
            made->set.slab = made->set.bytes ? hook_hold(made->set.bytes, wanted->replaced, &refuse) : NULL;
        } while (made->set.bytes && !made->set.slab && hook_shrink_members(made->members));
        if (made->set.bytes && !made->set.slab)
            strip_all(made->members, refuse);
        else
            hook_point_members(made->members, made->set.slab ? hook_slab_address(made->set.slab) : 0);
        hook_insert_probes(made->members);
        made->mover = hook_mover();
    }
}

// Return whether a handle points to readable memory. The driver crashes on an invalid handle, and the
// program's own call may fail because of another argument before the driver looks at the graph. Then our
// question must not crash either.
static bool is_readable(uint64_t graph) {
    uint64_t word;
    return hook_read((const void *)graph, &word, sizeof(word));
}

// Put probes into the program's graph. If the user hasn't chosen any probes yet, the graph is read all the
// same, so that its launches can be counted as launches without probes later. Returns NULL if the graph has
// no kernels or can't be read.
static struct insertion *begin_insertion(const struct wanted *wanted) {
    if (!is_readable(wanted->graph))
        return NULL;
    uint64_t current = hook_current_context(), context = wanted->context ? wanted->context : current;
    struct insertion *made = context ? calloc(1, sizeof(*made)) : NULL;
    if (context && !made)
        hook_miss_graph();
    if (!made)
        return NULL;
    *made = (struct insertion){.order = hook_order()->number, .place = wanted->place, .context = context};
    if (!hook_begin_turn(&made->turn, wanted->graph)) {
        free(made);
        return NULL;
    }
    bool there = context == current || !hook_push_context(context);
    int mode = hook_relaxed_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
    if (there)
        insert(made, wanted);
    hook_relaxed_mode(mode);
    if (there && context != current)
        hook_pop_context();
    if (made->members)
        return made;
    hook_end_turn(&made->turn);
    free(made);
    return NULL;
}

// Restore the program's graph after the call. If the call failed, repeat it with the restored graph: it may
// work without probes, and if not, the program gets the error that it would have got without us. Returns
// whether the call succeeded.
static bool end_insertion(struct frame *frame, struct insertion *insertion) {
    int mode = hook_relaxed_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
    hook_restore_kernels(insertion->members);
    hook_relaxed_mode(mode);
    hook_end_turn(&insertion->turn);
    if ((CUresult)frame->result != CUDA_SUCCESS && has_probes(insertion->members)) {
        frame->result = hook_call_again(frame);
        strip_all(insertion->members, WHY(graph_refused));
    }
    if (!has_probes(insertion->members))
        hook_free_set(&insertion->set);
    hook_call_without_buffers(frame);
    return (CUresult)frame->result == CUDA_SUCCESS;
}

static void give_up(struct insertion *insertion) {
    hook_free_set(&insertion->set);
    hook_drop_members(insertion->members);
}

// After an update, the program still uses the handles of the first graph's nodes, and disabled nodes stay
// disabled. We match old and new nodes by position, which is good enough for counting them.
static void copy_names(struct prepared *graph, const struct members *before) {
    struct members *now = graph->members;
    for (size_t i = 0; i < before->count; i++) {
        if (before->all[i].disabled)
            graph->lost = WHY(graph_disabled);
        if (before->count != now->count)
            continue;
        now->all[i].named = before->all[i].named;
        now->all[i].disabled = before->all[i].disabled;
    }
}

static void install(uint64_t exec, const struct insertion *insertion, bool updated) {
    struct prepared *old = hook_remove_prepared(exec, false), *made = calloc(1, sizeof(*made));
    if (!made) {
        struct set set = insertion->set;
        hook_miss_graph();
        hook_free_set(&set);
        hook_drop_members(insertion->members);
    } else {
        *made =
            (struct prepared){.exec = exec, .users = 1, .members = insertion->members, .updated = updated};
        pthread_mutex_init(&made->lock, NULL);
        made->context = insertion->context;
        made->mover = insertion->mover;
        made->of_context =
            hook_object_add(&(struct object_facts){.kind = OBJECT_CONTEXT, .handle = made->context});
        made->sets[0] = insertion->set;
        made->order = insertion->order;
        if (updated && old)
            copy_names(made, old->members);
        hook_add_prepared(made);
    }
    if (old)
        hook_release_prepared(old);
}

// cuGraphInstantiate(&exec, graph, flags), where older versions have a pointer in place of the flags;
// cuGraphInstantiateWithParams(&exec, graph, params)
void hook_before_instantiate(struct frame *frame) {
    if (!hook_probing || !frame_arg(frame, 0) || !hook_find_probe_calls())
        return;
    uint64_t flags = frame_arg(frame, 2);
    CUDA_GRAPH_INSTANTIATE_PARAMS params;
    if (strstr(frame->slot->symbol, "WithParams"))
        flags = hook_read((const void *)flags, &params, sizeof(params)) ? params.flags : 0;
    else if (flags >= MOST_FLAGS)
        flags = 0;
    const struct reason *refuse = flags & DEVICE_LAUNCH ? WHY(graph_on_device) : NULL;
    frame_leave_note(frame, NOTE_INSERTION,
                     begin_insertion(&(struct wanted){.graph = frame_arg(frame, 1), .refuse = refuse}));
}

void hook_after_instantiate(struct frame *frame) {
    struct insertion *insertion = frame_note(frame, NOTE_INSERTION);
    if (!insertion)
        return;
    if (end_insertion(frame, insertion))
        install(*(const uint64_t *)frame_arg(frame, 0), insertion, false);
    else
        give_up(insertion);
    free(insertion);
}

static void forget(uint64_t exec) {
    struct prepared *found = hook_remove_prepared(exec, false);
    if (found)
        hook_release_prepared(found);
}

// cuGraphExecUpdate(exec, graph, ...)
void hook_before_exec_update(struct frame *frame) {
    struct prepared *graph = hook_probing ? hook_lock_prepared(frame_arg(frame, 0)) : NULL;
    struct wanted wanted = {
        .graph = frame_arg(frame, 1), .updates = true, .context = graph ? graph->context : 0};
    for (int i = 0; graph && i < MOST_SETS; i++)
        wanted.replaced += graph->sets[i].slab ? graph->sets[i].slab->size : 0;
    if (graph)
        hook_unlock_prepared(graph);
    if (hook_probing && hook_find_probe_calls())
        frame_leave_note(frame, NOTE_INSERTION, begin_insertion(&wanted));
}

void hook_after_exec_update(struct frame *frame) {
    struct insertion *insertion = frame_note(frame, NOTE_INSERTION);
    if (!insertion) { // the new nodes have no probes
        if (hook_probing && (CUresult)frame->result == CUDA_SUCCESS)
            forget(frame_arg(frame, 0));
        return;
    }
    if (end_insertion(frame, insertion))
        install(frame_arg(frame, 0), insertion, true);
    else
        give_up(insertion);
    free(insertion);
}

// cuGraphExecChildGraphNodeSetParams(exec, node, graph) and the like
void hook_before_child(struct frame *frame, uint64_t graph) {
    struct prepared *found = hook_probing ? hook_lock_prepared(frame_arg(frame, 0)) : NULL;
    if (!found)
        return;
    if (!is_readable(graph)) { // the call will fail without changing anything
        hook_unlock_prepared(found);
        return;
    }
    unsigned place = hook_find_place(found);
    const struct member *node = hook_find_member(found, frame_arg(frame, 1));
    const struct reason *refuse = place == MOST_SETS             ? WHY(graph_outgrown)
                                  : node && !node->unconditional ? WHY(graph_conditional)
                                                                 : NULL;
    struct wanted wanted = {graph, refuse, found->members, false, place, found->context, 0};
    struct insertion *insertion = found->updated ? NULL : begin_insertion(&wanted);
    if (!insertion)
        found->lost = WHY(graph_changed);
    if (!insertion)
        hook_unlock_prepared(found);
    else
        insertion->graph = found, insertion->node = frame_arg(frame, 1);
    frame_leave_note(frame, NOTE_INSERTION, insertion);
}

void hook_restore_readers(struct prepared *graph, const struct written *written) {
    if (written->start == written->end)
        return;
    bool own = hook_own_members(graph);
    if (!own || !hook_add_written(graph->members, written))
        graph->lost = WHY(no_memory);
    for (size_t i = 0; i < graph->members->count; i++) {
        struct member *member = &graph->members->all[i];
        struct packed packed;
        if (!hook_is_copied(member, written))
            continue;
        CUDA_KERNEL_NODE_PARAMS params = hook_own_params(member, &packed);
        hook_do.set_exec_node(graph->exec, member->named, &params);
        if (own)
            hook_strip_member(member, WHY(writes_constant));
    }
}

// Replace the members inside a child graph node by the new graph's. CUDA requires that both graphs
// have the same nodes, so their number is equal; otherwise return false.
static bool exchange(struct insertion *insertion) {
    const struct member *node = hook_find_member(insertion->graph, insertion->node);
    struct members *new = insertion->members;
    if (!node || !hook_own_members(insertion->graph))
        return false;
    node = hook_find_member(insertion->graph, insertion->node);
    struct members *members = insertion->graph->members;
    size_t first = (size_t)(node - members->all) + 1, count = 0;
    while (first + count < members->count && members->all[first + count].depth > node->depth)
        count++;
    if (count != new->count)
        return false;
    for (size_t i = 0; i < count; i++) {
        struct member *old = &members->all[first + i], was = *old;
        *old = new->all[i];
        old->node = was.node, old->named = was.named;
        old->depth = was.depth, old->disabled = was.disabled, old->unconditional = was.unconditional;
        new->all[i].save = NULL;
        hook_strip_member(&was, NULL);
    }
    for (size_t i = 0; i < new->written_count; i++)
        hook_restore_readers(insertion->graph, &new->written[i]);
    return true;
}

void hook_after_child(struct frame *frame) {
    struct insertion *insertion = frame_note(frame, NOTE_INSERTION);
    if (!insertion)
        return;
    struct prepared *graph = insertion->graph;
    if (end_insertion(frame, insertion)) {
        if (insertion->place < MOST_SETS)
            graph->sets[insertion->place] = insertion->set;
        insertion->set = (struct set){0};
        if (!exchange(insertion))
            graph->lost = WHY(graph_unknown);
    }
    give_up(insertion);
    hook_unlock_prepared(graph);
    free(insertion);
}

void hook_before_exec_child(struct frame *frame) { hook_before_child(frame, frame_arg(frame, 2)); }
void hook_after_exec_child(struct frame *frame) { hook_after_child(frame); }

// cuGraphExecDestroy(exec). Another thread may get the same handle for a new graph before this call returns,
// so the graph is marked before the call, and only a marked one is removed after it.

void hook_before_exec_gone(struct frame *frame) {
    if (hook_probing)
        hook_mark_exec_destroyed(frame_arg(frame, 0), true);
}

void hook_after_exec_gone(struct frame *frame) {
    struct prepared *graph = NULL;
    if (hook_probing && (CUresult)frame->result != CUDA_SUCCESS)
        hook_mark_exec_destroyed(frame_arg(frame, 0), false);
    else if (hook_probing && (graph = hook_remove_prepared(frame_arg(frame, 0), true)))
        hook_release_prepared(graph);
}
