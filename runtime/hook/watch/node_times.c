// How long each node of a graph takes (--node-times 1/N). The driver can tell when a replay began and ended,
// but not when its nodes did. So every Nth replay launches a second executable graph in place of the
// program's: a clone of its source graph, with a stamp between any two nodes (node_copy.c). It runs the same
// nodes in the same order, at the same point of the stream. The program's results are the same; the replay
// just takes longer.
//
// The driver never runs an executable graph twice at the same time, in whatever streams it's launched.
// Programs may depend on that, so the second graph must not run at the same time as the first one either:
//
//   last replay, in   next replay             what we do
//   first,  same      second (its turn)       launch the second graph: the stream orders them
//   first,  other     second (its turn)       launch the first graph, and the second one later
//   second, same      either                  nothing: the stream orders them
//   second, other     first                   make the stream wait for the end of the second graph
//
// We clone the source graph as soon as the program instantiates or updates the first graph, because the
// program may destroy the source graph right after. The clone is instantiated one replay before its turn.
// When the program changes a node of the first graph, we make the same change in the second. streams.c reads
// the events of the nodes when it reads the replay's own. Until then, the second graph isn't launched again.

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "abi/cuda.h"
#include "hook/write/write.h"
#include "node_times.h"
#include "watch.h"

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

static struct timed_graph *find(uint64_t exec, bool remove) {
    if (!hook_watched)
        return NULL;
    pthread_mutex_lock(&hook_watched->timing);
    struct timed_graph **at = bucket_of(exec), *found;
    while (*at && (*at)->exec != exec)
        at = &(*at)->next;
    if ((found = *at) && remove)
        *at = found->next;
    pthread_mutex_unlock(&hook_watched->timing);
    return found;
}

static void release(struct timed_graph *graph) {
    if (!graph || atomic_fetch_sub(&graph->users, 1) > 1)
        return;
    hook_end_timed_graph(graph);
}

static void refuse(uint64_t exec, const struct reason *reason) {
    HOOK_WRITE(untimed, .exec = exec, .at = hook_now(), .code = hook_str(reason->code),
               .detail = hook_str(reason->detail));
}

static void give_up(struct timed_graph *graph, const struct reason *reason) {
    refuse(graph->exec, reason);
    graph->refused = true;
}

static bool instantiate(struct timed_graph *graph) {
    const struct reason *why = graph->second || graph->refused ? NULL : hook_instantiate_copy(graph);
    if (why)
        give_up(graph, why);
    return graph->second && !graph->refused;
}

// Make a new copy for an executable graph that was just instantiated or updated.
static void replace(uint64_t exec, void *source, uint64_t flags, bool updated) {
    const struct reason *reason = NULL;
    if (!hook_this_thread() || !hook_node_copies_setup() || !hook_streams_setup())
        return;
    struct timed_graph *before = find(exec, true), *graph;
    bool disabled = false;
    for (uint32_t i = 0; updated && before && i < before->count; i++)
        disabled |= before->nodes[i].disabled; // an update leaves them disabled
    int mode = hook_stream_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
    graph = disabled ? NULL : hook_make_timed_graph(exec, source, flags, &reason);
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
    if (i == graph->count) { // after an update, for example: the program still uses the first graph's handles
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

static uint64_t time_of(const struct timed_graph *graph, uint32_t node) {
    return graph->stamps ? hook_between_stamps(graph->stamps, node, node + 1)
                         : between(graph->events[node], graph->events[node + 1]);
}

// Return the time between two notes without a node in between.
static uint64_t pause_of(const struct timed_graph *graph) {
    return graph->stamps ? hook_between_stamps(graph->stamps, graph->count, graph->count + PAUSES) / PAUSES
                         : time_of(graph, graph->count);
}

static void read_times(const struct operation *operation, uint64_t begin) {
    struct timed_graph *graph = operation->nodes;
    struct found {
        uint64_t types[PIECE], functions[PIECE], threads[PIECE], calls[PIECE], begins[PIECE],
            durations[PIECE], early[PIECE];
    } *found = begin ? hook_map_nodes(sizeof(*found)) : NULL;
    size_t count = 0;
    uint64_t at = 0, pause = found ? pause_of(graph) : 0;
    for (uint32_t i = 0; found && i < graph->count; i++) {
        const struct timed_node *node = &graph->nodes[i];
        uint64_t took = time_of(graph, i);
        if (!node->disabled && node->type != CU_GRAPH_NODE_TYPE_EMPTY) {
            found->types[count] = (uint64_t)node->type;
            found->functions[count] = node->function;
            found->threads[count] = node->origin.thread;
            found->calls[count] = node->origin.call;
            found->early[count] = node->early;
            found->begins[count] = at;
            found->durations[count++] = took;
        }
        at += took;
        if (count == PIECE || (count && i == graph->count - 1)) {
            HOOK_WRITE(node_times, .exec = graph->exec, .thread = operation->thread, .start = operation->call,
                       .begin = begin, .pause = pause, .types = {found->types, count},
                       .functions = {found->functions, count}, .threads = {found->threads, count},
                       .calls = {found->calls, count}, .early = {found->early, count},
                       .begins = {found->begins, count}, .durations = {found->durations, count});
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
    return hook_is_alive(graph->of_context) && hook_current_context() == graph->context;
}

// The legacy stream can't be captured, and asking about it may break another stream's capture.
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
    if (frame->note.kind != NOTE_NONE) { // the graph has probes, and graph_replay.c has claimed this call
        graph->untracked = true;
        return;
    }
    if (graph->was_second && other && hook_is_alive(graph->of_context) && !is_captured(stream)) {
        int mode = hook_stream_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
        hook_wait_for_copy(graph, stream);
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
    if (second && (CUresult)frame->result != CUDA_SUCCESS) { // the copy wasn't launched: launch the original
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
        hook_upload_copy(graph, stream);
    hook_stream_mode(mode);
}
