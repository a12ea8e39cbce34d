// A piece of device memory, as slabs.c, pool.c and writer.c have it.

#ifndef GPT_SLAB_H
#define GPT_SLAB_H

#include <sys/queue.h>

#include "cuda_abi.h"
#include "pool.h"

struct slab {
    TAILQ_ENTRY(slab) link; // of those of its pool that are in use, ready, or draining
    struct pool *pool;
    struct slab *later; // of those that are to be written
    uint64_t address, size, used;
    uint64_t number;        // of those of its pool that were sent back
    uint64_t event;         // in its stream, after the last launch
    uint64_t done;          // in ours: it is ready to be written to
    uint64_t stream;        // that has places in it
    uint32_t thread;        // of the default stream of a thread: which one
    unsigned issuing;       // launches that have a place and are not in the stream yet
    bool known_ready;       // by the host; else its event says when
    bool copied;            // it has copies of what graphs wrote, and need not be clear for those
    uint64_t context, ours; // where it is, and the stream that clears it
    char **stage, **zeros;  // of its context: for the thread that writes, and to clear it with
    CUresult failed;        // of the device: it is not used again
    enum { SLAB_READY, SLAB_OPEN, SLAB_FULL, SLAB_DRAINING, SLAB_HELD, SLAB_DEAD } state;
    struct save *saves, *last;
};

TAILQ_HEAD(slab_list, slab);

// The slab may leave the list meanwhile.
#define EACH_SLAB(slab, list)                                                                                \
    for (struct slab *slab = TAILQ_FIRST(list), *next; slab && (next = TAILQ_NEXT(slab, link), true);        \
         slab = next)

CUresult hook_zero_slab(const struct slab *slab, uint64_t bytes); // its first ones, in our stream
void hook_slab_back(struct slab *slab);                           // what was in it is written

#endif
