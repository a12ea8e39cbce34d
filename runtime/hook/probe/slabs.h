// The memory of a context for buffers, in slabs. All under the lock of ours.h.

#ifndef GPT_SLABS_H
#define GPT_SLABS_H

#include "hook/watch/watch.h"
#include "slab.h"

struct pool {
    struct pool *next;
    struct reference reference;
    uint64_t context, stream;
    uint64_t memory;      // the pool of the driver
    char *stage;          // goes with the context
    uint64_t bytes, most; // of all slabs, and the scratch
    uint64_t reserved;    // what its memory had at its largest
    uint64_t scratch, scratch_size;
    bool furnished;
    uint64_t mover; // mover.h
    char *zeros;    // in pinned memory, or NULL

    // A claim looks through these two, and not through the thousand slabs that may be draining or held.
    struct slab_list in_use;   // open or full
    struct slab_list ready;    // the first one for the longest time
    struct slab_list draining; // in the order in which they were sent back
    uint64_t sent;             // so many were
    uint64_t held, largest;    // bytes of those that graphs have, and of one that had the most
    unsigned issuing;          // launches that have a place in one and are not in the stream yet
};

bool hook_begin_memory(struct pool *pool); // in the current context
char *hook_make_zeros(void);               // for the current context
bool hook_free_memory(struct pool *pool);  // what is not in use; false if there was none
struct slab *hook_new_slab(struct pool *pool, uint64_t size, bool copied); // ready, or NULL
bool hook_has_room(struct pool *pool, uint64_t size); // for a new one: others go, if need be

// A ready one of so many bytes: of no more than `enough`, or the smallest. It stays in the list.
struct slab *hook_ready_slab(const struct pool *pool, uint64_t bytes, uint64_t enough, bool copied);

#endif
