// Graphs with probes: their nodes, executable graphs, and their launches. Private to graph_*.c and saves.c.

#ifndef GPT_PROBE_GRAPHS_H
#define GPT_PROBE_GRAPHS_H

#include "probe.h"

// -- graph_lock.c ----------------------------------------------------------

// Exclusive access to a graph.

struct turn {
    struct turn *next;
    uint64_t graph;
    pthread_t thread;
};

// Wait while another thread has the graph. Returns false if this thread already has it: we're in its signal
// handler.
bool hook_begin_turn(struct turn *turn, uint64_t graph);
void hook_end_turn(struct turn *turn);

// -- graph_nodes.c ---------------------------------------------------------

// The kernel nodes of a graph, and which of them get probes.

// A node of an executable graph: a kernel, or a child graph.
struct member {
    uint64_t node;  // in the program's graph
    uint64_t named; // in the graph by which the program names it: after an update, still the first graph
    unsigned depth;
    bool is_graph, sure, disabled;
    uint32_t function; // id in the trace, or 0 if unknown
    uint32_t block[3], shared;
    struct choice choice;
    const struct reason *reason; // why it runs without probes
    struct save *save;           // parameters and buffers; NULL without probes
    uint64_t room;               // bytes from save->offset on
    unsigned set;                // index of the set that has its buffers
    CUDA_KERNEL_NODE_PARAMS own; // the program's; pointers inside aren't copied
};

struct written { // a range that a copy or memset node writes
    uint64_t node, start, end;
};

// The nodes of an executable graph. They don't change while they have more than one user.
struct members {
    _Atomic unsigned users;
    size_t count, room;
    struct member *all;
    struct written *written;
    size_t written_count, written_room;
    bool unnamed;  // the program can't name these nodes in calls on the executable graph
    struct tally { // a replay's launches without probes
        uint32_t function;
        const struct reason *reason;
        uint64_t launches;
    } *tallies;
    size_t tally_count, saves; // saves: how many members have one
    bool is_tallied;
    unsigned order; // the order that they were tallied for
};

// Read a graph. Its members have saves without a place yet. Returns NULL if it has no kernel or memory runs
// out. `around` has the members of the enclosing graph, or is NULL.
struct members *hook_read_graph(void *graph, uint64_t context, const struct members *around, bool unnamed);
struct members *hook_copy_members(const struct members *members);
// Return launches without probes by reason. `order` is the order of the graph's probes, `now` the current
// one.
const struct tally *hook_tally(struct members *members, unsigned order, unsigned now);

// Make a member from a node.
void hook_make_member(struct member *member, const struct graph_node *node, uint64_t context);
void hook_strip_member(struct member *member, const struct reason *reason); // remove its probes

// Memory written by nodes: a member that reads a copied constant from it can't have probes.
struct written hook_written_by_set(uint64_t node, const CUDA_MEMSET_NODE_PARAMS_v2 *set);
struct written hook_written_by_copy(uint64_t node, const CUDA_MEMCPY3D *copy);
bool hook_add_written(struct members *members, const struct written *written); // false if memory runs out
bool hook_is_copied(const struct member *member, const struct written *written);
void hook_check_constants(const struct members *members, struct member *member);

uint64_t hook_place_members(struct members *members, unsigned set); // returns the bytes of all buffers
bool hook_shrink_members(struct members *members); // give all logs their least size; false if they have it
void hook_point_members(struct members *members, uint64_t address); // point at the buffers

// The parameters of a node with probes and without.
CUDA_KERNEL_NODE_PARAMS hook_probed_params(const struct member *member);
struct packed { // for a node with packed parameters
    void *extra[5];
    size_t size;
};
CUDA_KERNEL_NODE_PARAMS hook_own_params(const struct member *member, struct packed *packed);

// Put kernels with probes into the program's graph, or put the program's kernels back. A node that the driver
// refuses to change stays as it is.
void hook_dress(struct members *members);
void hook_undress(struct members *members);

// -- graph_replay.c --------------------------------------------------------

// Executable graphs with probes in them.

enum { MOST_SETS = 8 };

struct prepared { // an executable graph
    struct prepared *next;
    uint64_t exec;
    _Atomic unsigned users;
    bool going;           // it is being destroyed
    pthread_mutex_t lock; // guards the fields below; calls that launch or change the graph hold it
    uint64_t context;
    struct reference of_context;
    struct members *members;
    struct set {
        struct slab *slab; // or NULL
        uint64_t bytes;
    } sets[MOST_SETS];
    uint64_t mover;            // the kernel that copies and clears
    const struct reason *lost; // why its buffers are useless from now on, or NULL
    unsigned order;            // the order that its probes come from
    bool updated;              // updated from another graph: the program still names nodes by the first one
    bool has_run;
    uint64_t stream; // stream in which it ran last
    uint32_t thread; // the thread, if that is a per-thread default stream
    uint64_t ended;  // value of hook_streams_ended at that time
    // For the launch in progress
    struct slab *slab;
    uint64_t offset;
    const struct reason *no_room;
    unsigned now;         // the current order
    bool captured, quiet; // quiet: don't record it
    bool unknown;         // we didn't know its stream before
};

struct prepared *hook_take_prepared(uint64_t exec); // locked, or NULL
void hook_put_prepared(struct prepared *graph);

void hook_put_on(struct prepared *graph); // adds the graph to the table
// Remove a graph from the table, or return NULL. With `going`, only if it is being destroyed.
struct prepared *hook_take_off(uint64_t exec, bool going);
void hook_mark_exec_going(uint64_t exec, bool going);
void hook_release_prepared(struct prepared *graph);

// Call these on a locked graph.

struct member *hook_find_member(const struct prepared *graph, uint64_t node);
bool hook_own_members(struct prepared *graph); // stops sharing them; false if memory runs out
unsigned
hook_find_place(struct prepared *graph); // a free index for another set, freeing unused sets; or MOST_SETS
void hook_let_set_go(struct set *set);
void hook_lose_sets(struct prepared *graph, const struct reason *reason);

struct replay { // a launch, for the thread that writes
    struct members *members;
    uint64_t exec, start, stream;
    uint32_t thread;
    CUdevice device;
    uint64_t starts[MOST_SETS]; // where each set begins in the slab
};

// -- saves.c ---------------------------------------------------------------

void hook_drop_members(struct members *members);

// -- graph_exec.c ----------------------------------------------------------

// Bracket a call that assigns a graph to a node of an executable graph, named by its first two arguments.
void hook_before_child(struct frame *frame, uint64_t graph);
void hook_after_child(struct frame *frame);

// A node of a locked executable graph is about to write here: put back the program's kernels where ours have
// copies of that memory.
void hook_take_back_copies(struct prepared *graph, const struct written *written);

#endif
