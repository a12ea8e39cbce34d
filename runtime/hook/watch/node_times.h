// Graphs whose nodes are timed. Private to node_times.c and node_copy.c.

#ifndef GPT_NODE_TIMES_H
#define GPT_NODE_TIMES_H

#include "watch.h"

struct timed_node {
    void *handle, *copy; // in the program's graph and in ours
    uint32_t function;   // its id, for a kernel
    int type;
    bool disabled, early; // early: it may begin before the node before it ends
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

// -- node_copy.c -----------------------------------------------------------

void *hook_map_nodes(size_t size); // zeroed memory for munmap, or NULL
bool hook_node_copies_setup(void); // false if the driver lacks a function
// Copy a graph that an executable graph was made from. Returns NULL if its nodes can't be timed, and sets
// `reason` unless it has no nodes or memory ran out.
struct timed_graph *hook_make_timed_graph(uint64_t exec, void *source, uint64_t flags,
                                          const struct reason **reason);
void hook_end_timed_graph(struct timed_graph *graph);
const struct reason *hook_instantiate_copy(struct timed_graph *graph); // why the driver refuses, or NULL
void hook_upload_copy(const struct timed_graph *graph, uint64_t stream);
void hook_wait_for_copy(const struct timed_graph *graph, uint64_t stream);

#endif
