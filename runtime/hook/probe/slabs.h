// The memory of a context for buffers, in slabs. All under the lock of pool.c.

#ifndef GPT_SLABS_H
#define GPT_SLABS_H

#include "hook/watch/objects.h"
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
    struct slab *slabs;
};

bool hook_begin_memory(struct pool *pool);                    // in the current context
char *hook_make_zeros(void);                                  // for the current context
bool hook_free_memory(struct pool *pool);                     // what is not in use; false if there was none
struct slab *hook_new_slab(struct pool *pool, uint64_t size); // clear once its event has come, or NULL
void hook_free_slab(struct pool *pool, struct slab *slab);
struct slab *hook_clear_slab(struct pool *pool, uint64_t bytes); // the smallest that does and nobody uses
bool hook_has_room(struct pool *pool, uint64_t size);            // for a new one: others go, if need be

#endif
