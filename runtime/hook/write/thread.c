// Threads that write. Each has a chunk of its own. Chunks are as large as the thread has shown to need: its
// first has 4 KiB, the next four times as much. One that has used half of a larger chunk makes the next one
// before a call that waits for the GPU, so that no launch has to.

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "chunk.h"
#include "write.h"

TLS struct thread *hook_thread;
TLS const void *hook_calling;
TLS bool hook_in_vfork;
static pthread_key_t exit_key;

struct mapped hook_next_chunk(struct thread *thread, uint32_t size) {
    struct mapped spare = thread->spare;
    if (spare.size < size)
        return hook_new_chunk(size, 0);
    thread->spare = (struct mapped){0};
    return spare;
}

static void retire(struct thread *thread, struct mapped *chunk) {
    if (chunk->start) {
        if ((uintptr_t)thread->in_flight - (uintptr_t)chunk->start < chunk->size)
            thread->in_flight = NULL;
        atomic_store_explicit(&mapped_tail(*chunk)->closed, 1, memory_order_release);
        hook_unmap(chunk->start, chunk->size);
    }
    *chunk = (struct mapped){0};
}

// Smaller chunks are made as fast as they are looked for, and most threads end with them. Of earlier ones the
// last stays mapped, or all that are smaller than the largest; to give them back takes time, too.
void hook_make_spare(struct thread *thread) {
    size_t size = thread->chunk.size;
    if (size < 64 << 10 || thread->used < size / 2 || thread->spare.start)
        return;
    HOOK_CALM; // a handler that launches may take it
    thread->spare = hook_new_chunk(hook_chunk_after((uint32_t)size), 0);
    for (int i = 1; i < EARLIER && thread->earlier[0].size == CHUNK_MAX; i++)
        retire(thread, &thread->earlier[i]);
}

bool hook_use_chunk(struct thread *thread, struct mapped chunk) {
    if (!chunk.start)
        return false;
    retire(thread, &thread->earlier[EARLIER - 1]);
    thread->in_flight = hook_call_in_flight(thread);
    memmove(&thread->earlier[1], &thread->earlier[0], (EARLIER - 1) * sizeof(struct mapped));
    thread->earlier[0] = thread->chunk;
    thread->chunk = chunk;
    thread->used = 0;
    for (int i = 0; i < LAYOUTS; i++)
        thread->batches[i].end = thread->batches[i].next = NULL;
    return true;
}

// Their beginning and end

// A thread that ends leaves its chunk to the next that begins.
static void leave_thread(void *state) {
    struct thread *thread = state;
    hook_thread = NULL;
    thread->in_flight = NULL;
    if (thread->pid != atomic_load(&hook_live->pid))
        return;
    if (atomic_exchange(&hook_live->pool_lock, 1))
        return;
    thread->next = hook_live->pool;
    hook_live->pool = thread;
    atomic_store(&hook_live->pool_lock, 0);
}

struct thread *hook_new_thread(void) {
    struct thread *thread = NULL;
    if (!atomic_exchange(&hook_live->pool_lock, 1)) { // it is never waited for
        thread = hook_live->pool;
        if (thread)
            hook_live->pool = thread->next;
        atomic_store(&hook_live->pool_lock, 0);
    }
    if (!thread) {
        thread = mmap(NULL, sizeof(*thread), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (thread == MAP_FAILED) {
            hook_fail("memory", errno);
            return NULL;
        }
    }
    for (int i = 0; i < LAYOUTS; i++)
        thread->batches[i] = (struct batch){.rows = 16};
    thread->tid = (uint32_t)syscall(SYS_gettid);
    pthread_setspecific(exit_key, thread);
    return thread;
}

// It takes none of the program's signals; that of a trace which somebody truncated is its own (bus.c).
bool hook_start_thread(void *(*work)(void *)) {
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    sigdelset(&all, SIGBUS);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool started = !pthread_create(&thread, NULL, work, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (started)
        pthread_detach(thread);
    return started;
}

void hook_threads_setup(void) { pthread_key_create(&exit_key, leave_thread); }
