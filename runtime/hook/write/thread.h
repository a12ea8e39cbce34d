// A thread that writes: its chunk, and the batches of rows in it.

#ifndef GPT_THREAD_H
#define GPT_THREAD_H

#include "compiler.h"
#include "counts.h"
#include "layout.h"
#include "live.h"

#define MAX_QUERIES 32 // that one process can count
#define EARLIER 4      // chunks of a thread that stay mapped beside the one that it writes

// Rows of one layout inside the chunk. A signal handler may make calls too, between any two instructions of a
// call: a row is taken by one instruction, and where it is not below `end` then, it is none. A call
// that is interrupted right there by a handler that begins a batch may take its row for one of that: so there
// is one more after `end`.
struct batch {
    unsigned char *next, *end;
    uint32_t rows; // of the batch after it
};

struct mapped { // a chunk; all zero if there is none
    unsigned char *start;
    size_t size;
};

struct thread {
    uint32_t pid, tid; // pid is that of struct live, else this is the state of another process
    struct mapped chunk;
    struct batch batches[LAYOUTS];
    struct mapped earlier[EARLIER];     // the newest first: calls in flight have rows there
    struct count *queries[MAX_QUERIES]; // by slot->query; the first stands for none
    struct mapped spare;                // the next chunk, if it was made before it is needed
    const struct row *in_flight;        // the innermost call when the chunk before this one was full
    uint32_t used;                      // bytes of the chunk's data
    struct counter *counters;
    uint32_t counters_mask, counters_used; // the mask is one less than their number, a power of two
    struct stream_queue *timelines;
    struct thread *next; // in the pool
};

extern TLS struct thread *hook_thread;
extern TLS const void *hook_calling;    // frame of the call that this thread makes; stale if that was left
extern TLS bool hook_in_vfork;          // this thread is a vfork child, in its parent's memory
struct thread *hook_begin_thread(void); // the slow way of hook_this_thread

// Whose chunk to write; NULL if nothing is recorded.
static inline struct thread *hook_this_thread(void) {
    struct thread *thread = hook_thread;
    if (LIKELY(thread && thread->pid == atomic_load_explicit(&hook_live->pid, memory_order_relaxed)))
        return thread;
    return hook_begin_thread();
}

void hook_threads_setup(void);
struct thread *hook_new_thread(void);                                // of this process, or NULL
bool hook_use_chunk(struct thread *thread, struct mapped chunk);     // false: it is none
struct mapped hook_next_chunk(struct thread *thread, uint32_t size); // of so many bytes at least
bool hook_start_thread(void *(*work)(void *));                       // of ours, in the program
void hook_make_spare(struct thread *thread);                         // in a call that takes its time anyway

#endif
