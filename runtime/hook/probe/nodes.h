// The kernel nodes of a graph, and those of them that get probes.

#ifndef GPT_NODES_H
#define GPT_NODES_H

#include "choice.h"
#include "cuda_abi.h"
#include "hook/watch/watch.h"
#include "pool.h"

// A node of an executable graph: a kernel, or one with a graph inside.
struct member {
    uint64_t node;  // in the program's graph
    uint64_t named; // in the graph by which the program names it: after an update that of before
    unsigned depth;
    bool is_graph, sure, disabled;
    uint32_t function; // id in the trace; 0: it is not known
    uint32_t block[3], shared;
    struct choice choice;
    const char *reason;          // why it runs without probes; empty: it is not counted
    struct save *save;           // its parameters and buffers; NULL without probes
    uint64_t room;               // bytes from save->offset on
    unsigned set;                // what its buffers are in
    CUDA_KERNEL_NODE_PARAMS own; // the program's, but for what the pointers lead to
};

struct written { // by a node that copies or sets memory
    uint64_t node, start, end;
};

// The nodes of an executable graph. They stay as they are while somebody else has them too.
struct members {
    _Atomic unsigned users;
    size_t count, room;
    struct member *all;
    struct written *written;
    size_t written_count, written_room;
    bool unnamed;  // the program does not name these nodes to the executable graph
    struct tally { // launches without probes of a replay
        uint32_t function;
        const char *reason;
        uint64_t launches;
    } *tallies;
    size_t tally_count, saves; // saves: how many have one
    bool is_tallied;
    unsigned order; // by which they were counted
};

// Reads a graph. Its nodes have saves without a place. NULL: it has no kernel, or memory ran out. `around`
// are those of the graph that it goes into, or NULL.
struct members *hook_read_graph(void *graph, uint64_t context, const struct members *around, bool unnamed);
struct members *hook_copy_members(const struct members *members);
void hook_drop_members(struct members *members);
// By the order by which they have probes, and that of now.
const struct tally *hook_tally(struct members *members, unsigned order, unsigned now);

// Makes a member of a node.
void hook_make_member(struct member *member, const struct graph_node *node, uint64_t context);
void hook_strip_member(struct member *member, const char *reason); // it has no probes

// Memory that nodes write to: a member that has a copy of it cannot have probes.
struct written hook_written_by_set(uint64_t node, const CUDA_MEMSET_NODE_PARAMS_v2 *set);
struct written hook_written_by_copy(uint64_t node, const CUDA_MEMCPY3D *copy);
bool hook_add_written(struct members *members, const struct written *written); // false without memory
bool hook_is_copied(const struct member *member, const struct written *written);
void hook_check_constants(const struct members *members, struct member *member);
extern const char hook_writes_constant[]; // a reason

uint64_t hook_place_members(struct members *members, unsigned set); // bytes of all buffers
void hook_point_members(struct members *members, uint64_t address); // where these are

// The parameters of a node with probes, and without.
CUDA_KERNEL_NODE_PARAMS hook_probed_params(const struct member *member);
struct packed { // for a node whose parameters are
    void *extra[5];
    size_t size;
};
CUDA_KERNEL_NODE_PARAMS hook_own_params(const struct member *member, struct packed *packed);

// Puts the kernels with probes into the program's graph, and the program's back. A node that the driver
// refuses stays as it is.
void hook_dress(struct members *members);
void hook_undress(struct members *members);

#endif
