// Streams and events. The work of a stream is done by a thread of its own, in order, and later than the call
// that issued it. What takes no time (an event) is done at once in a stream that has nothing to do.
//
// The legacy default stream waits for all blocking streams of its context, and they for it. An event stands
// for the work that it was last recorded with. The queue of a stream outlives its handle.

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "sim.h"

struct work {
    struct work *next;   // in the queue
    unsigned references; // of the queue, of events, of work that waits for it
    bool done;
    uint64_t number;       // of all work that there ever was
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

_Static_assert(sizeof(struct stream) <= OBJECT_SIZE && sizeof(struct event) <= OBJECT_SIZE, "fit");

static struct queue *queues;
static uint64_t numbers;
static unsigned forks;
static pthread_cond_t finished = PTHREAD_COND_INITIALIZER; // some work
__thread bool sim_in_host_function;

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static struct timespec as_timespec(uint64_t ns) {
    return (struct timespec){(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
}

// Work

static struct work *keep(struct work *work) {
    work->references++;
    return work;
}

static void drop(struct work *work) {
    if (!--work->references)
        free(work);
}

static void finish(struct queue *queue, CUresult status) {
    struct work *work = queue->first;
    for (size_t i = 0; i < work->count; i++)
        drop(work->before[i]);
    sim_end_operation(&work->operation);
    work->done = true;
    work->time = now();
    queue->first = work->next;
    queue->count--;
    if (queue->context) {
        queue->context->busy -= !queue->first;
        if (status)
            queue->context->error = status;
    }
    drop(work);
}

static void free_queue(struct queue *queue) {
    struct queue **at = &queues;
    while (*at != queue)
        at = &(*at)->next;
    *at = queue->next;
    free(queue);
}

// Waits for work in the queue. Returns false if there was none for a second.
static bool wait_for_work(struct queue *queue) {
    struct timespec end = as_timespec(now() + 1000000000);
    int status = 0;
    while (!queue->first && !queue->is_closed && !status)
        status = pthread_cond_clockwait(&queue->wake, &sim_lock, CLOCK_MONOTONIC, &end);
    return queue->first;
}

// Returns false in a child that the operation forked: nothing of this thread's is there.
static bool do_first(struct queue *queue) {
    struct work *work = queue->first;
    for (size_t i = 0; i < work->count; i++)
        while (!work->before[i]->done)
            pthread_cond_wait(&finished, &sim_lock);
    unsigned forked = forks;
    struct context *context = queue->context;
    bool broken = context && context->error; // nothing more runs in it
    pthread_mutex_unlock(&sim_lock);
    if (sim_delay) {
        struct timespec due = as_timespec(work->issued + sim_delay);
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, NULL);
    }
    CUresult status = broken ? CUDA_SUCCESS : sim_run(context, &work->operation);
    pthread_mutex_lock(&sim_lock);
    if (forks != forked)
        return false;
    finish(queue, status);
    pthread_cond_broadcast(&finished);
    return true;
}

static void *run(void *given) {
    struct queue *queue = given;
    pthread_mutex_lock(&sim_lock);
    bool here = true;
    while (here && wait_for_work(queue))
        here = do_first(queue);
    if (here) {
        queue->has_thread = false;
        if (queue->is_closed)
            free_queue(queue);
    }
    pthread_mutex_unlock(&sim_lock);
    return NULL;
}

// The thread gets no signal of the program's.
static bool start(struct queue *queue) {
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    queue->has_thread = !pthread_create(&thread, NULL, run, queue);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (queue->has_thread)
        pthread_detach(thread);
    return queue->has_thread;
}

// Waits without the lock. The functions of a driver are not cancellation points.
static void wait_for(struct work *work) {
    int before;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    keep(work);
    while (!work->done)
        pthread_cond_wait(&finished, &sim_lock);
    drop(work);
    pthread_setcancelstate(before, NULL);
}

// Waits for all that was issued before it was called; `all`: and for what is issued meanwhile.
void sim_drain(struct context *context, bool all) {
    uint64_t limit = all ? UINT64_MAX : numbers;
    for (struct queue *queue = context->busy ? queues : NULL; queue;)
        if (queue->context == context && queue->first && queue->first->number <= limit) {
            wait_for(queue->first);
            queue = queues;
        } else
            queue = queue->next;
}

// A forked child has no threads: the work that its parent has still to do is the parent's.
void sim_drop_work(void) {
    forks++;
    sim_forget_runs();
    sim_forget_readers();
    sim_in_host_function = false;
    finished = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
    for (struct queue *queue = queues, *next; queue; queue = next) {
        next = queue->next;
        queue->wake = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
        queue->has_thread = false;
        if (queue->first)
            keep(queue->first); // it may be running: a child forked there looks at it again
        while (queue->first)
            finish(queue, CUDA_SUCCESS);
        if (queue->is_closed)
            free_queue(queue);
    }
}

// Streams

void sim_end_stream(struct object *object) {
    struct stream *stream = (struct stream *)object;
    sim_leave_capture(stream);
    struct queue *queue = stream->queue;
    if (!queue)
        return;
    queue->is_closed = true;
    if (queue->has_thread)
        pthread_cond_signal(&queue->wake);
    else
        free_queue(queue);
}

// What is pending is not done for a context that is gone.
void sim_end_queues(const struct context *context) {
    for (struct queue *queue = queues; queue; queue = queue->next)
        if (queue->context == context)
            queue->context = NULL;
}

void sim_end_event(struct object *object) {
    struct event *event = (struct event *)object;
    free(event->last.nodes);
    if (event->pending)
        drop(event->pending);
}

struct stream *sim_add_stream(struct context *context, unsigned flags, int priority) {
    struct stream *made = sim_new(STREAM, context);
    struct queue *queue = made ? calloc(1, sizeof(*queue)) : NULL;
    if (!queue) {
        if (made)
            sim_delete(made);
        return NULL;
    }
    *queue =
        (struct queue){.next = queues, .context = context, .flags = flags, .wake = PTHREAD_COND_INITIALIZER};
    queues = made->queue = queue;
    made->flags = flags;
    made->priority = priority;
    return made;
}

// The default stream of the calling thread.
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
    bool there = is_kind(handle, STREAM) && ((struct object *)handle)->owner == &context->object;
    return there ? handle : NULL;
}

// Whether work in a stream waits for what is in the queue of another one: one of the two is the legacy
// default stream, the other a blocking one.
static bool is_before(const struct queue *queue, const struct stream *stream) {
    const struct queue *legacy = queue->context ? queue->context->legacy->queue : NULL;
    return queue->first && queue != stream->queue && legacy && queue->context == stream->queue->context &&
           !(queue->flags & CU_STREAM_NON_BLOCKING) && !(stream->flags & CU_STREAM_NON_BLOCKING) &&
           (queue == legacy || stream->queue == legacy);
}

// Puts an operation into the queue of a stream, to come after `event` as well. Takes the operation over.
static CUresult push(struct stream *stream, struct operation *operation, struct work *event) {
    struct queue *queue = stream->queue;
    size_t count = event != NULL;
    for (const struct queue *at = queue->context->busy ? queues : NULL; at; at = at->next)
        count += is_before(at, stream);
    bool instant = (operation->type == CU_GRAPH_NODE_TYPE_KERNEL && !sim_runs) ||
                   operation->type == CU_GRAPH_NODE_TYPE_EMPTY ||
                   operation->type == CU_GRAPH_NODE_TYPE_EVENT_RECORD;
    if (instant && !sim_delay && !queue->first && !count) {
        sim_end_operation(operation);
        return CUDA_SUCCESS;
    }
    struct work *work = calloc(1, sizeof(*work) + count * sizeof(*work->before));
    if (!work || (!queue->has_thread && !start(queue))) {
        free(work);
        sim_end_operation(operation);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    work->references = 1;
    work->number = ++numbers;
    work->issued = now();
    work->operation = *operation;
    if (event)
        work->before[work->count++] = keep(event);
    for (struct queue *at = work->count < count ? queues : NULL; at; at = at->next)
        if (is_before(at, stream))
            work->before[work->count++] = keep(at->last);
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

// Where too much is pending, waits as a driver does: what was looked up before may be gone after it.
CUresult sim_issue(struct stream *stream, struct operation *operation) {
    enum { MOST = 1024 };
    const struct reference is = sim_refer(stream);
    while (is_there(is) && !stream->capture && stream->queue->count >= MOST)
        wait_for(stream->queue->first);
    CUresult status = is_there(is) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
    if (!status && stream->capture) {
        if (operation->type != CU_GRAPH_NODE_TYPE_GRAPH)
            return sim_capture(stream, operation, NULL);
        status = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED; // a graph was launched, then the capture began
    }
    if (!status)
        status = sim_implicit(stream);
    if (!status)
        return push(stream, operation, NULL);
    sim_end_operation(operation);
    return status;
}

// Waits for what is in the stream, and what stands before it.
CUresult sim_wait(struct context *context, struct stream *stream) {
    struct reference is = sim_refer(context);
    if (stream->capture || !context->busy)
        return context->error;
    if (stream == context->legacy) {
        CUresult status = push(stream, &(struct operation){.type = CU_GRAPH_NODE_TYPE_EMPTY}, NULL);
        if (status)
            return status;
    }
    if (stream->queue->first)
        wait_for(stream->queue->last);
    return is_there(is) ? context->error : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

API cuStreamCreateWithPriority(void **stream, unsigned flags, int priority) {
    IN_CONTEXT;
    if (!stream || flags & ~CU_STREAM_NON_BLOCKING)
        return CUDA_ERROR_INVALID_VALUE;
    priority = priority > 0 ? 0 : priority < SIM_URGENT ? SIM_URGENT : priority;
    return (*stream = sim_add_stream(context, flags, priority)) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

API cuStreamCreate(void **stream, unsigned flags) { return cuStreamCreateWithPriority(stream, flags, 0); }

API cuStreamDestroy_v2(void *stream) {
    LOCKED;
    if (!is_kind(stream, STREAM))
        return CUDA_ERROR_INVALID_HANDLE;
    sim_delete(stream);
    return CUDA_SUCCESS;
}

// Whether a stream may be waited for.
static CUresult check(struct stream *stream) {
    if (!stream)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!stream->capture)
        return sim_unsafe();
    stream->capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

API cuStreamSynchronize(void *handle) {
    IN_CONTEXT;
    struct stream *stream = sim_stream(context, handle);
    CUresult status = check(stream);
    return status ? status : sim_wait(context, stream);
}

API cuStreamQuery(void *handle) {
    IN_CONTEXT;
    struct stream *stream = sim_stream(context, handle);
    CUresult status = check(stream);
    if (status)
        return status;
    for (const struct queue *at = context->busy ? queues : NULL; at; at = at->next)
        if (at->first && (at == stream->queue || (stream == context->legacy && is_before(at, stream))))
            return CUDA_ERROR_NOT_READY;
    return CUDA_SUCCESS;
}

API cuStreamGetFlags(void *handle, unsigned *flags) {
    IN_CONTEXT;
    struct stream *stream = sim_stream(context, handle);
    if (!stream || !flags)
        return stream ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    *flags = stream->flags;
    return CUDA_SUCCESS;
}

API cuStreamGetPriority(void *handle, int *priority) {
    IN_CONTEXT;
    struct stream *stream = sim_stream(context, handle);
    if (!stream || !priority)
        return stream ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    *priority = stream->priority;
    return CUDA_SUCCESS;
}

API cuStreamGetCtx(void *handle, void **of) {
    IN_CONTEXT;
    struct stream *stream = sim_stream(context, handle);
    if (!stream || !of)
        return stream ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    *of = context;
    return CUDA_SUCCESS;
}

API cuStreamGetId(void *handle, unsigned long long *id) {
    IN_CONTEXT;
    struct stream *stream = sim_stream(context, handle);
    if (!stream || !id)
        return stream ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    *id = stream->object.serial;
    return CUDA_SUCCESS;
}

API cuStreamGetDevice(void *handle, CUdevice *device) {
    IN_CONTEXT;
    struct stream *stream = sim_stream(context, handle);
    if (!stream || !device)
        return stream ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    *device = 0;
    return CUDA_SUCCESS;
}

static CUresult call(void *handle, void (*function)(void *), void (*callback)(void *, CUresult, void *),
                     void *data) {
    IN_CONTEXT;
    struct stream *stream = sim_stream(context, handle);
    if (!stream || (!function && !callback))
        return stream ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    if (callback && stream->capture)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    return sim_issue(stream, &(struct operation){.type = CU_GRAPH_NODE_TYPE_HOST,
                                                 .host = {function, data, callback, handle}});
}

API cuLaunchHostFunc(void *stream, void (*function)(void *), void *data) {
    return call(stream, function, NULL, data);
}

API cuStreamAddCallback(void *stream, void (*function)(void *, CUresult, void *), void *data,
                        unsigned flags) {
    (void)flags;
    return call(stream, NULL, function, data);
}

// Events

static struct event *find_event(void *event) { return is_kind(event, EVENT) ? event : NULL; }

API cuEventCreate(void **event, unsigned flags) {
    IN_CONTEXT;
    if (!event)
        return CUDA_ERROR_INVALID_VALUE;
    struct event *made = sim_new(EVENT, context);
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    made->flags = flags;
    *event = made;
    return CUDA_SUCCESS;
}

API cuEventDestroy_v2(void *event) {
    LOCKED;
    if (!find_event(event))
        return CUDA_ERROR_INVALID_HANDLE;
    sim_delete(event);
    return CUDA_SUCCESS;
}

// The work that an event waits for, or NULL: it has been reached.
static struct work *pending(struct event *event) {
    if (event->pending && event->pending->done) {
        event->time = event->pending->time;
        drop(event->pending);
        event->pending = NULL;
    }
    return event->pending;
}

// The event stands for what is last in the stream.
void sim_record(struct event *event, struct stream *stream) {
    if (event->pending)
        drop(event->pending);
    event->capture = 0;
    event->time = now();
    event->pending = stream->queue->first ? keep(stream->queue->last) : NULL;
}

CUresult sim_wait_event(struct stream *stream, struct event *event) {
    struct work *work = pending(event);
    return work ? push(stream, &(struct operation){.type = CU_GRAPH_NODE_TYPE_EMPTY}, work) : CUDA_SUCCESS;
}

API cuEventRecordWithFlags(void *handle, void *stream_handle, unsigned flags) {
    IN_CONTEXT;
    struct event *event = find_event(handle);
    struct stream *stream = sim_stream(context, stream_handle);
    if (!event || !stream)
        return CUDA_ERROR_INVALID_HANDLE;
    if (stream->capture && !(flags & 1))
        return sim_capture_event(stream, event);
    struct operation operation = {.type = CU_GRAPH_NODE_TYPE_EVENT_RECORD, .event = sim_refer(event)};
    CUresult status = sim_issue(stream, &operation);
    if (!status && !stream->capture && is_there(operation.event))
        sim_record(event, stream);
    return status;
}

API cuEventRecord(void *event, void *stream) { return cuEventRecordWithFlags(event, stream, 0); }

API cuStreamWaitEvent(void *stream_handle, void *handle, unsigned flags) {
    IN_CONTEXT;
    struct event *event = find_event(handle);
    struct stream *stream = sim_stream(context, stream_handle);
    if (!event || !stream)
        return CUDA_ERROR_INVALID_HANDLE;
    if (stream->capture && flags & 1)
        return sim_issue(
            stream, &(struct operation){.type = CU_GRAPH_NODE_TYPE_WAIT_EVENT, .event = sim_refer(event)});
    if (stream->capture || sim_is_captured(event))
        return sim_capture_wait(stream, event);
    return sim_wait_event(stream, event);
}

static CUresult check_event(const struct event *event) {
    if (!event)
        return CUDA_ERROR_INVALID_HANDLE;
    if (sim_in_host_function)
        return CUDA_ERROR_NOT_PERMITTED;
    CUresult broken = ((struct context *)event->object.owner)->error;
    return broken ? broken : event->capture ? CUDA_ERROR_CAPTURED_EVENT : sim_unsafe();
}

API cuEventQuery(void *handle) {
    LOCKED;
    struct event *event = find_event(handle);
    CUresult status = check_event(event);
    return status || !pending(event) ? status : CUDA_ERROR_NOT_READY;
}

API cuEventSynchronize(void *handle) {
    LOCKED;
    struct event *event = find_event(handle);
    CUresult status = check_event(event);
    struct reference of = sim_refer(event ? event->object.owner : NULL);
    if (!status && pending(event))
        wait_for(event->pending);
    return status || !is_there(of) ? status : ((struct context *)of.object)->error;
}

API cuEventElapsedTime_v2(float *ms, void *start, void *end) {
    LOCKED;
    struct event *first = find_event(start), *last = find_event(end);
    if (!first || !last || !ms || (first->flags | last->flags) & CU_EVENT_DISABLE_TIMING || !first->time ||
        !last->time)
        return CUDA_ERROR_INVALID_HANDLE; // or was never recorded
    if (pending(first) || pending(last))
        return CUDA_ERROR_NOT_READY;
    *ms = (float)((double)(int64_t)(last->time - first->time) / 1e6);
    return CUDA_SUCCESS;
}
