// Queues of work, for streams and events. A queue outlives the handle of its stream.

#ifndef GPT_SIM_QUEUE_H
#define GPT_SIM_QUEUE_H

#include "sim.h"

struct work {
    struct work *next;   // in the queue
    unsigned references; // references from the queue, from events, and from waiting work
    bool done;
    uint64_t number;       // position among all work ever issued
    uint64_t issued, time; // ns; when it was done
    struct operation operation;
    size_t count;
    struct work *before[]; // in other streams
};

struct queue {
    struct queue *next;
    struct context *context; // NULL: is gone
    unsigned flags;
    bool has_thread, is_closed;
    size_t count;
    struct work *first, *last;
    pthread_cond_t wake;
};

struct queue *sim_open_queue(struct context *context, unsigned flags); // NULL if there is no memory
void sim_close_queue(struct queue *queue);                             // its pending work is still done
bool sim_is_busy(const struct queue *queue); // for the legacy default stream: or any queue it waits for
// Put an operation into a queue, to come after `event` as well if that isn't NULL. Takes over the operation.
CUresult sim_push(struct queue *queue, struct operation *operation, struct work *event);
void sim_wait_for(struct work *work); // without the lock
struct work *sim_hold_work(struct work *work);
void sim_release_work(struct work *work);
uint64_t sim_now(void); // ns

#endif
