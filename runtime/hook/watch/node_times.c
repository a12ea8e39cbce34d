// How long each node of a graph takes (--node-times 1/N). The driver tells when a replay began and ended, but
// not its nodes. So every Nth replay launches a second executable graph in place of the program's: a clone of
// its source graph, with an event between any two nodes. It runs the same nodes in the same order and in the
// same place of the stream, so the program notices nothing but the time of the events.
//
// The order must be linear: nodes that run at the same time would share what's between two events. Other
// graphs are refused (`untimed` records), as are graphs with nodes that can't be cloned or that have more
// than one effect: memory, conditional and child nodes, host functions.
//
// The driver runs an executable graph once at a time, in whatever streams it's launched. The second one must
// keep that order with the first:
//
//   last replay, in   next replay             what we do
//   first,  same      second (its turn)       replace it: the stream orders them
//   first,  other     second (its turn)       leave it, and replace a later one
//   second, same      either                  nothing: the stream orders them
//   second, other     first                   let the stream wait for the second one
//
// We build the second graph when the program instantiates or updates the first: it may destroy the source
// graph right after. We instantiate it one replay before its turn. Changes of single nodes are repeated on
// it. streams.c reads the events when it reads the replay's own, and until then its turn doesn't come again.

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "abi/cuda.h"
#include "hook/write/write.h"
#include "watch.h"

struct timed_node {
    void *handle, *copy; // in the program's graph and in ours
    uint32_t function;   // its id, for a kernel
    int type;
    bool disabled;
    struct origin origin;
};

struct timed_graph {
    struct timed_graph *next;
    _Atomic unsigned users; // the table, and the replay that is measured
    uint64_t exec;
    struct reference of_context;
    uint64_t context, flags;
    void *graph, *second; // the clone, and its executable graph; NULL until its turn is near
    void *ran;            // event after the last replay that was replaced
    uint64_t replays, due;
    uint64_t stream; // where the last replay ran
    uint32_t thread; // its thread, as the stream may be a per-thread one
    bool has_run, was_second, is_second, untracked;
    bool refused;         // it stays in the table only for the order of its replays
    _Atomic bool pending; // its events aren't read yet
    size_t size;          // mapped bytes
    uint32_t count;
    void **events; // count + 2
    struct timed_node nodes[];
};

static struct {
    CUresult (*edges)(void *, void **, void **, size_t *), (*clone)(void **, void *),
        (*in_clone)(void **, void *, void *);
    CUresult (*remove)(void *, void *const *, void *const *, size_t),
        (*add)(void *, void *const *, void *const *, size_t);
    CUresult (*add_event)(void **, void *, void *const *, size_t, void *);
    CUresult (*instantiate)(void **, void *, unsigned long long), (*upload)(void *, void *);
    CUresult (*destroy_exec)(void *), (*destroy_graph)(void *), (*destroy_event)(void *);
    CUresult (*wait)(void *, void *, unsigned);
} cu;

static bool find_all(void) {
#define FIND(member, name) (cu.member = (__typeof__(cu.member))(uintptr_t)hook_driver_function(name))
    return FIND(edges, "cuGraphGetEdges") && FIND(clone, "cuGraphClone") &&
           FIND(in_clone, "cuGraphNodeFindInClone") && FIND(remove, "cuGraphRemoveDependencies") &&
           FIND(add, "cuGraphAddDependencies") && FIND(add_event, "cuGraphAddEventRecordNode") &&
           FIND(instantiate, "cuGraphInstantiateWithFlags") && FIND(upload, "cuGraphUpload") &&
           FIND(destroy_exec, "cuGraphExecDestroy") && FIND(destroy_graph, "cuGraphDestroy") &&
           FIND(destroy_event, "cuEventDestroy_v2") && FIND(wait, "cuStreamWaitEvent");
#undef FIND
}

// -- The table, by executable graph ------------------------------------------

enum { BUCKETS = TIMED_BUCKETS };

static struct timed_graph **bucket_of(uint64_t exec) {
    return &hook_watched->timed_graphs[(exec * 0x9e3779b97f4a7c15u >> 32) % BUCKETS];
}

static void put(struct timed_graph *graph) {
    pthread_mutex_lock(&hook_watched->timing);
    graph->next = *bucket_of(graph->exec);
    *bucket_of(graph->exec) = graph;
    pthread_mutex_unlock(&hook_watched->timing);
}

static struct timed_graph *find(uint64_t exec, bool take) {
    if (!hook_watched)
        return NULL;
    pthread_mutex_lock(&hook_watched->timing);
    struct timed_graph **at = bucket_of(exec), *found;
    while (*at && (*at)->exec != exec)
        at = &(*at)->next;
    if ((found = *at) && take)
        *at = found->next;
    pthread_mutex_unlock(&hook_watched->timing);
    return found;
}

static void *map(size_t size) {
    void *found = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (found != MAP_FAILED)
        return found;
    hook_miss_graph();
    return NULL;
}

static void release(struct timed_graph *graph) {
    if (!graph || atomic_fetch_sub(&graph->users, 1) > 1)
        return;
    if (hook_is_alive(graph->of_context)) { // otherwise they were destroyed with it
        int mode = hook_stream_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
        if (graph->second)
            cu.destroy_exec(graph->second);
        if (graph->graph)
            cu.destroy_graph(graph->graph);
        for (uint32_t i = 0; i < graph->count + 2; i++)
            if (graph->events[i])
                cu.destroy_event(graph->events[i]);
        if (graph->ran)
            cu.destroy_event(graph->ran);
        hook_stream_mode(mode);
    }
    munmap(graph, graph->size);
}

static void refuse(uint64_t exec, const struct reason *reason) {
    HOOK_WRITE(untimed, .exec = exec, .at = hook_now(), .code = hook_str(reason->code));
}

static void give_up(struct timed_graph *graph, const struct reason *reason) {
    refuse(graph->exec, reason);
    graph->refused = true;
}

// -- The second graph --------------------------------------------------------

struct collected {
    struct timed_graph *graph; // NULL: only count them
    uint32_t count, room;
    const struct reason *reason;
};

static const struct reason *reason_of(int type) {
    switch (type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
    case CU_GRAPH_NODE_TYPE_MEMCPY:
    case CU_GRAPH_NODE_TYPE_MEMSET:
    case CU_GRAPH_NODE_TYPE_EMPTY:
        return NULL;
    case CU_GRAPH_NODE_TYPE_HOST:
        return WHY(nodes_host);
    case CU_GRAPH_NODE_TYPE_GRAPH:
        return WHY(nodes_child);
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:
        return WHY(nodes_conditional);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
        return WHY(nodes_memory);
    default:
        return WHY(nodes_other);
    }
}

static bool collect(const struct graph_node *found, void *with) {
    struct collected *all = with;
    if ((all->reason = reason_of(found->type)))
        return false;
    if (all->graph && all->count < all->room) {
        const CUDA_KERNEL_NODE_PARAMS *kernel = &found->kernel;
        uint64_t handle = (uint64_t)(kernel->func ? kernel->func : kernel->kern);
        all->graph->nodes[all->count] =
            (struct timed_node){.handle = found->handle,
                                .function = handle ? hook_ask_function(handle) : 0,
                                .type = found->type,
                                .origin = hook_origin_of((uint64_t)found->handle)};
    }
    all->count++;
    return true;
}

static int compare_handles(const void *one, const void *two) {
    uintptr_t a = (uintptr_t)((const struct timed_node *)one)->handle,
              b = (uintptr_t)((const struct timed_node *)two)->handle;
    return a < b ? -1 : a > b;
}

static uint32_t index_of(const struct timed_graph *graph, void *handle) {
    const struct timed_node key = {.handle = handle}, *found;
    found = bsearch(&key, graph->nodes, graph->count, sizeof(key), compare_handles);
    return found ? (uint32_t)(found - graph->nodes) : graph->count;
}

// Bring the nodes into the order in which they run. Returns false if that isn't linear.
static bool order(struct timed_graph *graph, void *source) {
    uint32_t count = graph->count, first = count, done = 0;
    size_t edges = count; // one more than expected, to notice it
    struct scratch {
        void *from, *to;
        uint32_t next;
        bool has_previous;
        struct timed_node node;
    } *scratch = map(count * sizeof(*scratch));
    void **ends = map((size_t)count * 2 * sizeof(*ends));
    bool good = scratch && ends;
    qsort(graph->nodes, count, sizeof(*graph->nodes), compare_handles);
    // The query fails for edges with data, as those to a kernel that may begin before its predecessor ends.
    good = good && cu.edges(source, ends, ends + count, &edges) == CUDA_SUCCESS && edges == count - 1;
    for (uint32_t i = 0; good && i < count; i++)
        scratch[i].next = count, scratch[i].node = graph->nodes[i];
    for (size_t i = 0; good && i < edges; i++) {
        uint32_t from = index_of(graph, ends[i]), to = index_of(graph, ends[count + i]);
        good = from < count && to < count && scratch[from].next == count && !scratch[to].has_previous;
        if (good)
            scratch[from].next = to, scratch[to].has_previous = true;
    }
    for (uint32_t i = 0; good && i < count; i++)
        first = scratch[i].has_previous ? first : i;
    for (uint32_t at = first; good && at < count; at = scratch[at].next)
        graph->nodes[done++] = scratch[at].node;
    if (scratch)
        munmap(scratch, count * sizeof(*scratch));
    if (ends)
        munmap(ends, (size_t)count * 2 * sizeof(*ends));
    return good && done == count;
}

// Clone the source graph, and put events before, between and after its nodes, and another one last.
static bool clone_graph(struct timed_graph *graph, void *source) {
    uint32_t count = graph->count;
    void **copies = map((size_t)count * sizeof(*copies));
    bool good = copies && cu.clone(&graph->graph, source) == CUDA_SUCCESS;
    for (uint32_t i = 0; good && i < count; i++) {
        struct timed_node *node = &graph->nodes[i];
        good = cu.in_clone(&node->copy, node->handle, graph->graph) == CUDA_SUCCESS;
        copies[i] = node->copy;
    }
    if (good && count > 1)
        good = cu.remove(graph->graph, copies, copies + 1, count - 1) == CUDA_SUCCESS;
    void *last = NULL, *event;
    for (uint32_t i = 0; good && i < count + 2; i++) {
        good = hook_cu.create(&graph->events[i], 0) == CUDA_SUCCESS &&
               cu.add_event(&event, graph->graph, &last, last != NULL, graph->events[i]) == CUDA_SUCCESS &&
               (i >= count || cu.add(graph->graph, &event, &copies[i], 1) == CUDA_SUCCESS);
        last = i < count ? copies[i] : event;
    }
    if (copies)
        munmap(copies, (size_t)count * sizeof(*copies));
    return good && hook_cu.create(&graph->ran, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS;
}

static bool instantiate(struct timed_graph *graph) {
    if (!graph->second && !graph->refused &&
        cu.instantiate(&graph->second, graph->graph, graph->flags) != CUDA_SUCCESS) {
        graph->second = NULL;
        give_up(graph, WHY(nodes_refused));
    }
    return graph->second && !graph->refused;
}

static struct timed_graph *make(uint64_t exec, void *source, uint64_t flags, const struct reason **reason) {
    void *context = NULL;
    struct collected all = {.reason = NULL};
    hook_walk_graph(source, collect, &all);
    *reason = flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH ? WHY(nodes_device) : all.reason;
    if (*reason || !all.count || hook_cu.get_context(&context) != CUDA_SUCCESS || !context)
        return NULL;
    size_t nodes = sizeof(struct timed_graph) + all.count * sizeof(struct timed_node);
    size_t size = nodes + (all.count + 2) * sizeof(void *);
    struct timed_graph *graph = map(size);
    if (!graph)
        return NULL;
    graph->users = 1;
    graph->size = size;
    graph->exec = exec;
    graph->events = (void **)((char *)graph + nodes);
    graph->context = (uint64_t)context;
    graph->of_context =
        hook_object_add(&(struct object_facts){.kind = OBJECT_CONTEXT, .handle = (uint64_t)context});
    graph->flags = flags & CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
    graph->count = all.count;
    graph->due = hook_node_times;
    all = (struct collected){.graph = graph, .room = all.count};
    hook_walk_graph(source, collect, &all);
    *reason = !order(graph, source)         ? WHY(nodes_parallel)
              : !clone_graph(graph, source) ? WHY(nodes_refused)
                                            : NULL;
    if (!*reason)
        return graph;
    release(graph);
    return NULL;
}

// Replace what we know about an executable graph, which has a new source.
static void replace(uint64_t exec, void *source, uint64_t flags, bool updated) {
    static _Atomic int found;
    const struct reason *reason = NULL;
    if (!hook_this_thread() || !hook_find_once(&found, find_all) || !hook_streams_setup())
        return;
    struct timed_graph *before = find(exec, true), *graph;
    bool disabled = false;
    for (uint32_t i = 0; updated && before && i < before->count; i++)
        disabled |= before->nodes[i].disabled; // an update leaves them disabled
    int mode = hook_stream_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
    graph = disabled ? NULL : make(exec, source, flags, &reason);
    reason = disabled ? WHY(nodes_changed) : reason;
    if (updated && before && graph) {
        void *ran = graph->ran;
        graph->ran = before->ran, before->ran = ran;
        graph->replays = before->replays, graph->due = before->due;
        graph->stream = before->stream, graph->thread = before->thread;
        graph->has_run = before->has_run, graph->was_second = before->was_second;
        graph->untracked = before->untracked;
    } else if (updated && before)
        graph = before, before = NULL, graph->refused = true;
    if (reason)
        refuse(exec, reason);
    if (graph)
        put(graph);
    if (graph && graph->replays + 1 >= graph->due)
        instantiate(graph);
    release(before);
    hook_stream_mode(mode);
}

void hook_time_nodes(uint64_t exec, void *graph, uint64_t flags) {
    if (hook_node_times)
        replace(exec, graph, flags, false);
}

void hook_time_other_nodes(uint64_t exec, void *graph) {
    if (hook_node_times)
        replace(exec, graph, 0, true);
}

// cuGraphExecDestroy(exec)
void hook_before_exec_destroyed(struct frame *frame) {
    if (hook_node_times)
        release(find(frame_arg(frame, 0), true));
    hook_before_gone(frame);
}

void hook_change_timed_node(const struct frame *frame, uint32_t function, int disabled) {
    typedef CUresult change(void *, void *, uint64_t, uint64_t);
    struct timed_graph *graph = hook_node_times ? find(frame_arg(frame, 0), false) : NULL;
    uint32_t i = 0;
    while (graph && i < graph->count && (uint64_t)graph->nodes[i].handle != frame_arg(frame, 1))
        i++;
    if (!graph || graph->refused)
        return;
    if (i == graph->count) { // after an update, for example, which leaves the names of the first graph
        give_up(graph, WHY(nodes_changed));
        return;
    }
    int mode = hook_stream_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
    if (instantiate(graph)) {
        struct timed_node *node = &graph->nodes[i];
        if (function)
            node->function = function;
        node->disabled = disabled < 0 ? node->disabled : disabled;
        if (((change *)frame->real)(graph->second, node->copy, frame_arg(frame, 2), frame_arg(frame, 3)))
            give_up(graph, WHY(nodes_changed));
    }
    hook_stream_mode(mode);
}

// -- Reading -----------------------------------------------------------------

enum { PIECE = 512 }; // nodes per record

static uint64_t between(void *one, void *two) {
    float ms = 0;
    return hook_cu.elapsed(&ms, one, two) == CUDA_SUCCESS ? hook_stamps_of(ms) : 0;
}

static void read_times(const struct operation *operation, uint64_t begin) {
    struct timed_graph *graph = operation->nodes;
    struct found {
        uint64_t types[PIECE], functions[PIECE], threads[PIECE], calls[PIECE], begins[PIECE],
            durations[PIECE];
    } *found = begin ? map(sizeof(*found)) : NULL;
    size_t count = 0;
    uint64_t at = 0,
             pause = found ? between(graph->events[graph->count], graph->events[graph->count + 1]) : 0;
    for (uint32_t i = 0; found && i < graph->count; i++) {
        const struct timed_node *node = &graph->nodes[i];
        uint64_t took = between(graph->events[i], graph->events[i + 1]);
        if (!node->disabled && node->type != CU_GRAPH_NODE_TYPE_EMPTY) {
            found->types[count] = (uint64_t)node->type;
            found->functions[count] = node->function;
            found->threads[count] = node->origin.thread;
            found->calls[count] = node->origin.call;
            found->begins[count] = at;
            found->durations[count++] = took;
        }
        at += took;
        if (count == PIECE || (count && i == graph->count - 1)) {
            HOOK_WRITE(node_times, .exec = graph->exec, .thread = operation->thread, .start = operation->call,
                       .begin = begin, .pause = pause, .types = {found->types, count},
                       .functions = {found->functions, count}, .threads = {found->threads, count},
                       .calls = {found->calls, count}, .begins = {found->begins, count},
                       .durations = {found->durations, count});
            count = 0;
        }
    }
    if (found)
        munmap(found, sizeof(*found));
    atomic_store(&graph->pending, false);
    release(graph);
}

// -- Replays -----------------------------------------------------------------

static bool is_other_stream(const struct timed_graph *graph, uint64_t stream, uint32_t thread) {
    return graph->untracked ||
           (graph->has_run &&
            (graph->stream != stream || (stream == CU_STREAM_PER_THREAD_HANDLE && graph->thread != thread)));
}

static bool is_here(const struct timed_graph *graph) {
    void *context = NULL;
    return hook_is_alive(graph->of_context) && hook_cu.get_context(&context) == CUDA_SUCCESS &&
           (uint64_t)context == graph->context;
}

// Legacy streams are never captured, and asking about them may break another stream's capture.
static bool is_captured(uint64_t stream) {
    int capturing = 0;
    return stream > CU_STREAM_LEGACY_HANDLE &&
           hook_cu.is_capturing((void *)stream, &capturing) == CUDA_SUCCESS && capturing;
}

void hook_before_timed_replay(struct frame *frame) {
    struct timed_graph *graph = find(frame_arg(frame, 0), false);
    if (!graph)
        return;
    uint64_t stream = hook_stream_of(frame);
    bool other = is_other_stream(graph, stream, frame->thread ? frame->thread->tid : 0);
    if (frame->note.kind != NOTE_NONE) { // it has probes: we don't see where it runs
        graph->untracked = true;
        return;
    }
    if (graph->was_second && other && hook_is_alive(graph->of_context) && !is_captured(stream)) {
        int mode = hook_stream_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
        cu.wait((void *)stream, graph->ran, 0);
        hook_stream_mode(mode);
    }
    frame_leave_note(frame, NOTE_TIMED, graph);
    graph->is_second = frame->timed && graph->second && !graph->refused && !graph->pending && !other &&
                       is_here(graph) && graph->replays + 1 >= graph->due;
    if (graph->is_second)
        frame_set_arg(frame, 0, (uint64_t)graph->second);
}

void hook_after_timed_replay(struct frame *frame) {
    typedef CUresult launch(uint64_t, uint64_t);
    struct timed_graph *graph = frame_note(frame, NOTE_TIMED);
    uint64_t stream = hook_stream_of(frame), passed = frame_arg(frame, 1);
    bool second = graph->is_second;
    graph->is_second = false;
    if (second)
        frame_set_arg(frame, 0, graph->exec);
    if (second && (CUresult)frame->result != CUDA_SUCCESS) { // it didn't run
        frame->result = ((launch *)frame->real)(graph->exec, passed);
        give_up(graph, WHY(nodes_refused));
    }
    second = second && !graph->refused;
    if ((CUresult)frame->result != CUDA_SUCCESS || is_captured(stream))
        return;
    int mode = hook_stream_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
    graph->replays++;
    graph->has_run = true, graph->was_second = second, graph->untracked = false;
    graph->stream = stream;
    graph->thread = frame->thread ? frame->thread->tid : 0;
    if (second) {
        graph->due = graph->replays + hook_node_times;
        hook_cu.record(graph->ran, (void *)stream);
        if (frame->timed->owner == frame) {
            atomic_store(&graph->pending, true);
            atomic_fetch_add(&graph->users, 1);
            frame->timed->nodes = graph;
            frame->timed->first_event = graph->events[0];
            frame->timed->ended = read_times;
        }
    } else if (!graph->second && graph->replays + 1 >= graph->due && is_here(graph) && instantiate(graph))
        cu.upload(graph->second, (void *)stream);
    hook_stream_mode(mode);
}
