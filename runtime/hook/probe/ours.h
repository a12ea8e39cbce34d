// What is ours in each context: a pool of slabs, with a stream, the kernel that moves, and scratch memory.

#ifndef GPT_OURS_H
#define GPT_OURS_H

#include <pthread.h>

#include "slabs.h"

extern pthread_mutex_t hook_pools_lock; // of all pools, and of the slabs in them
struct pool *hook_first_pool(void);     // then its `next` ones; NULL: there is none
struct pool *
hook_find_pool(uint64_t context); // which is the current one, under the lock; NULL: there is none

// Of the current context.
uint64_t hook_our_stream(void);        // in which no kernel is; 0: there is none
void hook_furnish(void);               // once, where the program itself loads
uint64_t hook_mover(void);             // mover.h; 0: there is none
bool hook_make_scratch(uint64_t size); // once; false without room for it
bool hook_flush(uint64_t stream);      // the L2 cache, by setting that memory

#endif
