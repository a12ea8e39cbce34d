// Executable graphs with probes in them.

#ifndef GPT_PREPARED_H
#define GPT_PREPARED_H

#include <pthread.h>

#include "hook/watch/watch.h"
#include "nodes.h"
#include "slab.h"

enum { MOST_SETS = 8 };

struct prepared { // an executable graph
    struct prepared *next;
    uint64_t exec;
    _Atomic unsigned users;
    bool going;           // it is being destroyed
    pthread_mutex_t lock; // of what follows; a call that launches or changes the graph holds it
    uint64_t context;
    struct reference of_context;
    struct members *members;
    struct set {
        struct slab *slab; // or NULL
        uint64_t bytes;
    } sets[MOST_SETS];
    uint64_t mover;   // mover.h
    const char *lost; // why its buffers are of no use any more; NULL: they are
    unsigned order;   // by which it has probes
    bool updated;     // from another graph: the nodes that the program names are those of the first
    bool has_run;
    uint64_t stream; // where it ran last
    uint32_t thread; // of a thread's default stream
    uint64_t ended;  // hook_streams_ended by then
    // Of the launch that is being made
    struct slab *slab;
    uint64_t offset;
    const char *no_room;
    unsigned now;         // the order
    bool captured, quiet; // quiet: it is not recorded
};

struct prepared *hook_take_prepared(uint64_t exec); // locked, or NULL
void hook_put_prepared(struct prepared *graph);

void hook_put_on(struct prepared *graph); // the table
// Takes one off the table; NULL: there is none. With `going` only one that is being destroyed.
struct prepared *hook_take_off(uint64_t exec, bool going);
void hook_mark_exec_going(uint64_t exec, bool going);
void hook_release_prepared(struct prepared *graph);

// Of one that is locked

struct member *hook_find_member(const struct prepared *graph, uint64_t node);
bool hook_own_members(struct prepared *graph);    // nobody else has them then; false without memory
unsigned hook_find_place(struct prepared *graph); // for another set, of sets that no node uses; or MOST_SETS
void hook_let_set_go(struct set *set);
void hook_lose_sets(struct prepared *graph, const char *reason);

extern const char hook_outgrown[], hook_changed_late[]; // reasons

#endif
