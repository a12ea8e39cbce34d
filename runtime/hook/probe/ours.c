// What is looked for in a context is made where it is not there yet.

#include <stdlib.h>

#include "driver_calls.h"
#include "hook/watch/watch.h"
#include "probe.h"

pthread_mutex_t hook_pools_lock = PTHREAD_MUTEX_INITIALIZER;
static struct pool *pools;

struct pool *hook_first_pool(void) { return __atomic_load_n(&pools, __ATOMIC_ACQUIRE); }

struct pool *hook_find_pool(uint64_t context) {
    struct pool *pool = pools;
    while (pool && (pool->context != context || !hook_is_alive(pool->reference)))
        pool = pool->next;
    if (pool || !context || !(pool = calloc(1, sizeof(*pool))))
        return pool;
    pool->context = context;
    pool->reference = hook_object_add(&(struct object_facts){.kind = OBJECT_CONTEXT, .handle = context});
    if (!hook_begin_writing() || hook_do.create_stream(&pool->stream, CU_STREAM_NON_BLOCKING) ||
        !hook_begin_memory(pool)) {
        free(pool);
        return NULL;
    }
    TAILQ_INIT(&pool->in_use);
    TAILQ_INIT(&pool->ready);
    TAILQ_INIT(&pool->draining);
    pool->next = pools;
    __atomic_store_n(&pools, pool, __ATOMIC_RELEASE);
    return pool;
}

uint64_t hook_our_stream(void) {
    pthread_mutex_lock(&hook_pools_lock);
    struct pool *pool = hook_find_pool(hook_current_context());
    pthread_mutex_unlock(&hook_pools_lock);
    return pool ? pool->stream : 0;
}

// The driver may wait for kernels while it loads or pins memory, so that is not done under the lock.
void hook_furnish(void) {
    pthread_mutex_lock(&hook_pools_lock);
    struct pool *pool = hook_find_pool(hook_current_context());
    bool wanted = pool && !pool->furnished;
    if (pool)
        pool->furnished = true;
    pthread_mutex_unlock(&hook_pools_lock);
    if (!wanted)
        return;
    __atomic_store_n(&pool->zeros, hook_make_zeros(), __ATOMIC_RELEASE);
    __atomic_store_n(&pool->mover, hook_load_mover(), __ATOMIC_RELEASE);
}

uint64_t hook_mover(void) {
    pthread_mutex_lock(&hook_pools_lock);
    const struct pool *pool = hook_find_pool(hook_current_context());
    uint64_t mover = pool ? __atomic_load_n(&pool->mover, __ATOMIC_ACQUIRE) : 0;
    pthread_mutex_unlock(&hook_pools_lock);
    return mover;
}

// The L2 cache

bool hook_make_scratch(uint64_t size) {
    pthread_mutex_lock(&hook_pools_lock);
    struct pool *pool = hook_find_pool(hook_current_context());
    if (pool && !pool->scratch && hook_has_room(pool, size) &&
        !hook_do.alloc(&pool->scratch, size, pool->memory, pool->stream)) {
        pool->scratch_size = size;
        pool->bytes += size;
        hook_do.wait_stream(pool->stream); // other streams are to use it
    }
    bool made = pool && pool->scratch;
    pthread_mutex_unlock(&hook_pools_lock);
    return made;
}

bool hook_flush(uint64_t stream) {
    pthread_mutex_lock(&hook_pools_lock);
    const struct pool *pool = hook_find_pool(hook_current_context());
    bool done = pool && pool->scratch && !hook_do.clear(pool->scratch, 0, pool->scratch_size, stream);
    pthread_mutex_unlock(&hook_pools_lock);
    return done;
}
