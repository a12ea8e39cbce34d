// Graphs whose nodes are timed (--node-times). Private to node_times.c and node_copy.c.

#ifndef GPT_NODE_TIMES_H
#define GPT_NODE_TIMES_H

#include "watch.h"

struct timed_node {
    void *handle, *copy; // the node in the program's graph, and in our clone
    uint32_t function;   // id of the function that it launches, or 0
    int type;
    bool disabled, early; // early: in the program's graph, it may begin before its predecessor ends
    struct origin origin;
};

struct timed_graph {
    struct timed_graph *next;
    _Atomic unsigned users; // 1 for the table, and 1 while a measured replay hasn't been read
    uint64_t exec;
    struct reference of_context;
    uint64_t context, flags;
    void *graph, *second;  // the clone, and its executable graph, which is NULL until its turn is near
    void *ran;             // event after the second graph's last replay
    uint64_t replays, due; // replays so far; the number of the replay that launches the second graph next
    uint64_t stream;       // stream of the last replay
    uint32_t thread;       // thread of the last replay, which matters for a per-thread default stream
    bool has_run, was_second,
        is_second;        // was_second: the last replay launched the second graph; is_second: this one
    bool untracked;       // the last replay had probes, so we don't know its stream
    bool refused;         // nothing is timed any more; it stays in the table to keep replays in order
    _Atomic bool pending; // its events haven't been read yet
    size_t size;          // mapped bytes
    uint32_t count;
    void **events;              // count + 2, of which all but the first are NULL if there are stamps
    struct hook_stamps *stamps; // or NULL: count + 1, and PAUSES more
    struct timed_node nodes[];
};

// -- node_stamps.c ---------------------------------------------------------

enum { PAUSES = 8 }; // stamps at the end without nodes in between: the timer may advance in large steps

void *hook_map_nodes(size_t size); // zeroed memory for munmap, or NULL
// Return memory for this many stamps in the current context, or NULL.
struct hook_stamps *hook_take_stamps(struct reference context, uint32_t count);
void hook_give_stamps(struct hook_stamps *stamps);
// Add a node that stores the timer. `after` is the node before it, or points to NULL.
CUresult hook_add_stamp(void **node, void *graph, void *const *after, const struct hook_stamps *stamps,
                        uint32_t place);
uint64_t hook_between_stamps(const struct hook_stamps *stamps, uint32_t begin, uint32_t end); // time stamps

// -- node_copy.c -----------------------------------------------------------

bool hook_node_copies_setup(void); // false if the driver lacks a function
// Clone the source graph of an executable graph, with events between its nodes. Returns NULL if its nodes
// can't be timed, and then sets `reason`, unless it has no nodes or memory ran out.
struct timed_graph *hook_make_timed_graph(uint64_t exec, void *source, uint64_t flags,
                                          const struct reason **reason);
void hook_end_timed_graph(struct timed_graph *graph);
const struct reason *hook_instantiate_copy(struct timed_graph *graph); // why the driver refuses, or NULL
void hook_upload_copy(const struct timed_graph *graph, uint64_t stream);
void hook_wait_for_copy(const struct timed_graph *graph, uint64_t stream);

#endif
