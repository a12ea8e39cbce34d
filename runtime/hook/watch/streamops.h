// What goes into streams and runs there later: which stream that is, whether it is captured, events before
// and after it, and what is pending.
//
// A queue belongs to a thread and a context, so nothing is locked: only the thread that ends the process
// looks at the queues of other threads, and leaves one alone that is in use.

#ifndef GPT_STREAMOPS_H
#define GPT_STREAMOPS_H

#include <stdatomic.h>

#include "call.h"
#include "cuda_abi.h"
#include "hook/write/write.h"

struct thread;

#define STREAM_PENDING 1024 // operations of a queue that have not been read

enum operation_state { STREAM_DONE, STREAM_RUNNING, STREAM_ISSUED };

struct operation {
    void *start, *end; // events in its stream
    uint64_t call;     // its time stamp
    uint64_t stream;
    const struct frame *owner; // while the call runs
    struct base *base;         // of the user of the queue
    uint32_t api, function, thread;
    bool probed;
    _Atomic enum operation_state state; // a thread that ends the process may look while the call comes back
};

struct stream_queue {
    struct stream_queue *next; // of this thread
    struct stream_queue *next_of_all;
    struct thread *thread;
    uint64_t context;
    uint32_t device;            // ordinal
    struct reference reference; // to the context: all that the queue holds goes with it
    atomic_bool busy;
    unsigned first, count, spares;
    struct operation pending[STREAM_PENDING]; // oldest first
    void *spare[2 * STREAM_PENDING];          // events
};

// Those of one user, each of `size` bytes that begin with a struct stream_queue.
struct stream_queues {
    struct stream_queue **of_thread;
    struct stream_queue *_Atomic *all;
    size_t size;
};

// Functions of the driver; hook_streams_setup returns false if one of them is missing.
struct stream_functions {
    CUresult (*get_context)(void **), (*get_device)(CUdevice *), (*push_context)(void *),
        (*pop_context)(void **);
    CUresult (*create_stream)(void **, unsigned), (*is_capturing)(void *, int *), (*exchange_mode)(int *);
    CUresult (*create)(void **, unsigned), (*record)(void *, void *), (*query)(void *);
    CUresult (*elapsed)(float *, void *, void *);
};
extern struct stream_functions hook_cu;
bool hook_streams_setup(void);

uint64_t hook_stream_of(const struct frame *frame); // as the driver takes it; 0: the legacy default stream

// Streams that the driver made or took: no other one is passed to it before the program's own call, which it
// may refuse without a look at the stream.
bool hook_stream_is_known(uint64_t stream);
void hook_know_stream(uint64_t stream);
void hook_forget_streams(uint64_t stream); // 0: all of them
extern handler hook_on_stream, hook_before_stream_gone;

// While a stream of the program is captured the driver forbids most of what is called here, and ends the
// capture, unless the thread says that it knows (relaxed mode). Returns the mode before.
int hook_stream_mode(int mode);

// The queue of the thread in its current context, claimed: to be given back. NULL: none, or in use. Where it
// does not exist it is made if `make`, and is zero after what struct stream_queue holds.
struct stream_queue *hook_stream_claim(const struct stream_queues *queues, struct thread *thread, bool make);
void hook_stream_release(struct stream_queue *queue);

void *hook_stream_event(struct stream_queue *queue); // one that is not in use, or NULL

// An operation whose call is about to be made, after its first event; NULL if it is captured, which does
// not run, or if there is no room.
struct operation *hook_stream_begin(struct stream_queue *queue, const struct frame *frame);
// The call is back: the event after it, if it was done.
void hook_stream_end(struct operation *operation, const struct frame *frame, bool done);

// Takes those off that have ended; waits for none. `see` may look at both events.
void hook_stream_read(struct stream_queue *queue,
                      void (*see)(struct stream_queue *queue, struct operation *operation, bool ended));

#endif
