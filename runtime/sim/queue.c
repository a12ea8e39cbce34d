// Queues of work, one per stream. A thread for each queue does the work in order, while the program
// continues. If the queue is empty, work that takes no time, such as recording an event, is done immediately
// by the caller.

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "queue.h"

static struct queue *queues;
static uint64_t numbers;
static pthread_cond_t finished = PTHREAD_COND_INITIALIZER; // some work

CUresult (*sim_run)(struct context *, struct operation *, uint64_t);
void (*sim_end_operation)(struct operation *);
bool (*sim_copy_operation)(struct operation *, const struct operation *);
void (*sim_after_work)(void);

CUresult sim_fault_status;

bool sim_note_fault(CUresult status) {
    switch (status) {
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_LAUNCH_FAILED:
        sim_fault_status = sim_fault_status ? sim_fault_status : status;
        return true;
    default:
        return false;
    }
}

uint64_t sim_now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static struct timespec as_timespec(uint64_t ns) {
    return (struct timespec){(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
}

struct work *sim_hold_work(struct work *work) {
    work->references++;
    return work;
}

void sim_release_work(struct work *work) {
    if (!--work->references)
        free(work);
}

static void finish(struct queue *queue, CUresult status) {
    struct work *work = queue->first;
    for (size_t i = 0; i < work->count; i++)
        sim_release_work(work->before[i]);
    sim_end_operation(&work->operation);
    work->done = true;
    work->time = sim_now();
    queue->first = work->next;
    queue->count--;
    if (queue->context) {
        queue->context->busy -= !queue->first;
        if (status && !sim_note_fault(status))
            queue->context->error = status;
    }
    sim_release_work(work);
    sim_after_work();
}

static void free_queue(struct queue *queue) {
    struct queue **at = &queues;
    while (*at != queue)
        at = &(*at)->next;
    *at = queue->next;
    free(queue);
}

struct queue *sim_open_queue(struct context *context, unsigned flags) {
    struct queue *made = calloc(1, sizeof(*made));
    if (!made)
        return NULL;
    *made = (struct queue){.next = queues, .context = context, .flags = flags};
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&made->wake, &clock);
    pthread_condattr_destroy(&clock);
    return queues = made;
}

void sim_close_queue(struct queue *queue) {
    queue->is_closed = true;
    if (queue->has_thread)
        pthread_cond_signal(&queue->wake);
    else
        free_queue(queue);
}

// Wait for work in the queue. Returns false after a second without any.
static bool wait_for_work(struct queue *queue) {
    struct timespec end = as_timespec(sim_now() + 1000000000);
    int status = 0;
    while (!queue->first && !queue->is_closed && !status)
        status = pthread_cond_timedwait(&queue->wake, &sim_lock, &end);
    return queue->first;
}

static void do_first(struct queue *queue) {
    struct work *work = queue->first;
    for (size_t i = 0; i < work->count; i++)
        while (!work->before[i]->done)
            pthread_cond_wait(&finished, &sim_lock);
    struct context *context = queue->context;
    bool broken = context && sim_error_of(context); // nothing runs in a broken context
    pthread_mutex_unlock(&sim_lock);
    // Recording an event takes no time: gpt-hook's --gpu-time needs events that show when other work ran.
    if (sim_delay && work->operation.type != CU_GRAPH_NODE_TYPE_EVENT_RECORD) {
        struct timespec due = as_timespec(work->issued + sim_delay);
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, NULL);
    }
    CUresult status = broken ? CUDA_SUCCESS : sim_run(context, &work->operation, work->number);
    if (!*sim_ready) // a child that the operation forked: the queue is its parent's
        pthread_exit(NULL);
    pthread_mutex_lock(&sim_lock);
    finish(queue, status);
    pthread_cond_broadcast(&finished);
}

static void *run(void *given) {
    struct queue *queue = given;
    pthread_mutex_lock(&sim_lock);
    while (wait_for_work(queue))
        do_first(queue);
    queue->has_thread = false;
    if (queue->is_closed)
        free_queue(queue);
    pthread_mutex_unlock(&sim_lock);
    return NULL;
}

// Start the thread with the program's signals blocked. If there can't be one now, say why.
static bool start(struct queue *queue) {
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&thread, NULL, run, queue);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if ((queue->has_thread = !error))
        pthread_detach(thread);
    else
        sim_say("cannot start a thread for a stream: %s", strerror(error));
    return queue->has_thread;
}

// Driver functions aren't cancellation points.
void sim_wait_for(struct work *work) {
    int before;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    sim_hold_work(work);
    while (!work->done)
        pthread_cond_wait(&finished, &sim_lock);
    sim_release_work(work);
    pthread_setcancelstate(before, NULL);
}

// Wait for all work issued before this call, in one context or in all of them (NULL). With `all`, wait until
// no work is left, including work issued in the meantime.
void sim_drain(struct context *context, bool all) {
    uint64_t limit = all ? UINT64_MAX : numbers;
    for (struct queue *queue = !context || context->busy ? queues : NULL; queue;)
        if ((!context || queue->context == context) && queue->first && queue->first->number <= limit) {
            sim_wait_for(queue->first);
            queue = queues;
        } else
            queue = queue->next;
}

uint64_t sim_next_work(void) { return numbers + 1; }

uint64_t sim_oldest_work(void) {
    uint64_t oldest = UINT64_MAX;
    for (const struct queue *at = queues; at; at = at->next)
        if (at->first && at->first->number < oldest)
            oldest = at->first->number;
    return oldest;
}

bool sim_wait_for_number(uint64_t number) {
    for (const struct queue *at = queues; at; at = at->next)
        for (struct work *work = at->first; work; work = work->next)
            if (work->number == number) {
                sim_wait_for(work);
                return true;
            }
    return false;
}

// Pending work is dropped if its context is gone.
void sim_end_queues(const struct context *context) {
    for (struct queue *queue = queues; queue; queue = queue->next)
        if (queue->context == context)
            queue->context = NULL;
}

// Return whether work in the other queue implicitly waits for this queue's. That's so if one of them belongs
// to the legacy default stream and the other to a blocking stream of the same context.
static bool is_before(const struct queue *queue, const struct queue *other) {
    const struct queue *legacy = queue->context ? queue->context->legacy->queue : NULL;
    return queue->first && queue != other && legacy && queue->context == other->context &&
           !(queue->flags & CU_STREAM_NON_BLOCKING) && !(other->flags & CU_STREAM_NON_BLOCKING) &&
           (queue == legacy || other == legacy);
}

bool sim_is_busy(const struct queue *queue) {
    const struct context *context = queue->context;
    for (const struct queue *at = context->busy ? queues : NULL; at; at = at->next)
        if (at->first && (at == queue || (queue == context->legacy->queue && is_before(at, queue))))
            return true;
    return false;
}

CUresult sim_push(struct queue *queue, struct operation *operation, struct work *event) {
    size_t count = event != NULL;
    for (const struct queue *at = queue->context->busy ? queues : NULL; at; at = at->next)
        count += is_before(at, queue);
    bool instant = operation->type == CU_GRAPH_NODE_TYPE_EVENT_RECORD ||
                   (!sim_delay && ((operation->type == CU_GRAPH_NODE_TYPE_KERNEL && !sim_runs) ||
                                   operation->type == CU_GRAPH_NODE_TYPE_EMPTY));
    if (instant && !queue->first && !count) {
        sim_end_operation(operation);
        return CUDA_SUCCESS;
    }
    struct work *work = calloc(1, sizeof(*work) + count * sizeof(*work->before));
    if (!work || (!queue->has_thread && !start(queue))) {
        CUresult status = work ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_ERROR_OUT_OF_MEMORY;
        free(work);
        sim_end_operation(operation);
        return status;
    }
    work->references = 1;
    work->number = ++numbers;
    work->issued = sim_now();
    work->operation = *operation;
    if (event)
        work->before[work->count++] = sim_hold_work(event);
    for (struct queue *at = work->count < count ? queues : NULL; at; at = at->next)
        if (is_before(at, queue))
            work->before[work->count++] = sim_hold_work(at->last);
    if (queue->first)
        queue->last->next = work;
    else {
        queue->first = work;
        queue->context->busy++;
        pthread_cond_signal(&queue->wake);
    }
    queue->last = work;
    queue->count++;
    return CUDA_SUCCESS;
}

// Streams

__thread bool sim_per_thread;

struct stream *sim_add_stream(struct context *context, unsigned flags, int priority) {
    struct stream *made = sim_new(STREAM, context);
    if (!made)
        return NULL;
    if (!(made->queue = sim_open_queue(context, flags))) {
        sim_delete(made);
        return NULL;
    }
    made->flags = flags;
    made->priority = priority;
    return made;
}

// Return the calling thread's default stream.
static struct stream *own_stream(struct context *context) {
    for (struct object *at = context->object.owned; at; at = at->older) {
        struct stream *stream = (struct stream *)at;
        if (at->kind == STREAM && stream->of_thread && pthread_equal(stream->thread, pthread_self()))
            return stream;
    }
    struct stream *made = sim_add_stream(context, 0, 0);
    if (made) {
        made->of_thread = true;
        made->thread = pthread_self();
    }
    return made;
}

struct stream *sim_stream(struct context *context, void *handle) {
    if ((uintptr_t)handle == CU_STREAM_PER_THREAD_HANDLE || (!handle && sim_per_thread))
        return own_stream(context);
    if ((uintptr_t)handle <= CU_STREAM_LEGACY_HANDLE)
        return context->legacy;
    return is_kind(handle, STREAM) ? handle : NULL; // in any context: its streams work like the current one's
}
