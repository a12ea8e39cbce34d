// Probes in CUDA graphs: the nodes that get them, the executable graphs, and their launches ("replays").
// Private to graph_*.c and saves.c.

#ifndef GPT_PROBE_GRAPHS_H
#define GPT_PROBE_GRAPHS_H

#include "probe.h"

// -- graph_lock.c ----------------------------------------------------------

// A lock on one graph, held by one thread.
struct turn {
    struct turn *next;
    uint64_t graph;
    pthread_t thread;
};

// Lock a graph, and wait while another thread holds it. Returns false if this thread already holds it, which
// means that we're in a signal handler that interrupted it.
bool hook_begin_turn(struct turn *turn, uint64_t graph);
void hook_end_turn(struct turn *turn);

// -- graph_nodes.c ---------------------------------------------------------

// The kernel nodes of a graph, and which of them get probes.

// A node of an executable graph: a kernel, or a child graph.
struct member {
    uint64_t node; // in the program's graph
    uint64_t
        named; // the handle that the program uses for it: even after an update, the node of the first graph
    unsigned depth;                         // how many graphs enclose the node's
    bool is_graph, unconditional, disabled; // unconditional: not in the body of a conditional node
    uint32_t function;                      // id in the trace, or 0 if unknown
    uint32_t block[3], shared;
    struct choice choice;
    const struct reason *reason; // why it runs without probes
    struct save *save;           // parameters and buffers; NULL without probes
    uint64_t room;               // size of its buffers, which begin at save->offset
    unsigned set;                // index of the set that contains its buffers
    CUDA_KERNEL_NODE_PARAMS own; // the program's parameters; what they point to isn't copied
};

struct written { // the memory that a copy or memset node writes to
    uint64_t node, start, end;
};

// The nodes of an executable graph. Replays that are still being drained share them with the graph, so they
// may only be changed while they have a single user.
struct members {
    _Atomic unsigned users;
    size_t count, room;
    struct member *all;
    struct written *written;
    size_t written_count, written_room;
    bool unnamed;  // the program has no handles with which it could change these nodes
    struct tally { // how often each replay launches a function without probes
        uint32_t function;
        const struct reason *reason;
        uint64_t launches;
    } *tallies;
    size_t tally_count, saves; // saves: how many members have one
    bool is_tallied;
    unsigned order; // the tallies hold while this order (the user's choice of probes) is the current one
};

// Read the nodes of a graph and choose their probes. Their buffers have no addresses yet. Returns NULL if the
// graph has no kernel or memory runs out. For a child graph, `around` has the members of the enclosing graph.
struct members *hook_read_graph(void *graph, uint64_t context, const struct members *around, bool unnamed);
struct members *hook_copy_members(const struct members *members);
// Return how many launches without probes each replay has, by function and reason. `order` is the order that
// the graph got its probes for, `now` the current one.
const struct tally *hook_tally(struct members *members, unsigned order, unsigned now);

void hook_make_member(struct member *member, const struct graph_node *node, uint64_t context);
void hook_strip_member(struct member *member, const struct reason *reason); // remove its probes

// Memory that nodes write to. A kernel with probes has its own copies of the program's constants, and a node
// that writes to the original wouldn't update them. So a kernel whose constants a node writes gets no probes.
struct written hook_written_by_set(uint64_t node, const CUDA_MEMSET_NODE_PARAMS_v2 *set);
struct written hook_written_by_copy(uint64_t node, const CUDA_MEMCPY3D *copy);
bool hook_add_written(struct members *members, const struct written *written);   // false if memory runs out
bool hook_is_copied(const struct member *member, const struct written *written); // has copies of this memory
void hook_check_constants(const struct members *members, struct member *member);

uint64_t hook_place_members(struct members *members, unsigned set); // assign offsets; returns the total size
bool hook_shrink_members(struct members *members); // reduce all logs to their minimum; false if none shrank
void hook_point_members(struct members *members, uint64_t address); // set the buffers' addresses

// The parameters of a node with probes and without.
CUDA_KERNEL_NODE_PARAMS hook_probed_params(const struct member *member);
struct packed { // the memory that `extra` of a node with packed parameters points to
    void *extra[5];
    size_t size;
};
CUDA_KERNEL_NODE_PARAMS hook_own_params(const struct member *member, struct packed *packed);

// Replace the kernels in the program's graph by those with probes, and put the program's back. If the driver
// refuses a node's kernel with probes, the node keeps the program's.
void hook_insert_probes(struct members *members);
void hook_restore_kernels(struct members *members);

// -- graph_replay.c --------------------------------------------------------

// Executable graphs with probes in them.

enum { MOST_SETS = 8 };

struct prepared { // an executable graph in our table, see graph_replay.c
    struct prepared *next;
    uint64_t exec;
    _Atomic unsigned users;
    bool destroyed;       // the program is in the call that destroys it
    pthread_mutex_t lock; // guards the fields below; calls that launch or change the graph hold it
    uint64_t context;
    struct reference of_context;
    struct members *members;
    struct set {
        struct slab *slab; // or NULL
        uint64_t bytes;
    } sets[MOST_SETS];
    uint64_t mover;            // the kernel that copies the buffers and clears them, see mover.c
    const struct reason *lost; // why its buffers can't be used any more, or NULL
    unsigned order;            // the order that it got its probes for
    bool updated;              // cuGraphExecUpdate has replaced its nodes
    bool has_run;
    uint64_t stream; // stream of the last replay
    uint32_t thread; // thread of the last replay, which matters for a per-thread default stream
    uint64_t ended;  // value of hook_streams_ended at that time
    // For the launch in progress
    struct slab *slab;
    uint64_t offset;
    const struct reason *no_room;
    unsigned now;         // the current order
    bool captured, quiet; // quiet: recording is off, or no probes are wanted now
    bool unknown;         // no earlier call has shown that its stream's handle is valid
};

struct prepared *hook_lock_prepared(uint64_t exec); // NULL if the graph has no entry
void hook_unlock_prepared(struct prepared *graph);

void hook_add_prepared(struct prepared *graph); // adds the graph to the table
// Remove a graph from the table and return it, or NULL. With `destroyed`, only a graph that is marked so: the
// handle may already belong to a new one.
struct prepared *hook_remove_prepared(uint64_t exec, bool destroyed);
void hook_mark_exec_destroyed(uint64_t exec, bool destroyed);
void hook_release_prepared(struct prepared *graph);

// Call these on a locked graph.

struct member *hook_find_member(const struct prepared *graph, uint64_t node);
bool hook_own_members(struct prepared *graph); // copy the members if they're shared; false if memory runs out
// Free the sets that no node uses. Returns a free index for another set, or MOST_SETS.
unsigned hook_find_place(struct prepared *graph);
void hook_free_set(struct set *set);
void hook_abandon_sets(struct prepared *graph, const struct reason *reason);

struct replay { // one launch of the graph, as the writing thread needs it
    struct members *members;
    uint64_t exec, start, stream;
    uint32_t thread;
    CUdevice device;
    uint64_t starts[MOST_SETS]; // where each set begins in the slab
};

// -- saves.c ---------------------------------------------------------------

void hook_drop_members(struct members *members);

// -- graph_exec.c ----------------------------------------------------------

// Called around a call that replaces a child graph. Its first two arguments are the executable graph and the
// node.
void hook_before_child(struct frame *frame, uint64_t graph);
void hook_after_child(struct frame *frame);

// A node of a locked executable graph will write to this memory from now on. Where a kernel with probes has
// copies of it, put the program's kernel back.
void hook_restore_readers(struct prepared *graph, const struct written *written);

#endif
