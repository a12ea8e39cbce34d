// Streams and events. What is put into a stream is done at once.

#include <stdlib.h>
#include <time.h>

#include "sim.h"

_Static_assert(sizeof(struct stream) <= OBJECT_SIZE && sizeof(struct event) <= OBJECT_SIZE, "fit");

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

void sim_end_stream(struct object *object) { sim_leave_capture((struct stream *)object); }

void sim_end_event(struct object *object) { free(((struct event *)object)->last.nodes); }

struct stream *sim_add_stream(struct context *context, unsigned flags, int priority) {
    struct stream *made = sim_new(STREAM, context);
    if (made) {
        made->flags = flags;
        made->priority = priority;
    }
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
    if ((uintptr_t)handle <= CU_STREAM_LEGACY_HANDLE)
        return context->legacy;
    if ((uintptr_t)handle == CU_STREAM_PER_THREAD_HANDLE)
        return own_stream(context);
    bool there = is_kind(handle, STREAM) && ((struct object *)handle)->owner == &context->object;
    return there ? handle : NULL;
}

CUresult sim_issue(struct stream *stream, struct operation *operation) {
    if (stream->capture)
        return sim_capture(stream, operation);
    pthread_mutex_unlock(&sim_lock);
    CUresult status = sim_run(operation);
    sim_end_operation(operation);
    pthread_mutex_lock(&sim_lock);
    return status;
}

API cuStreamCreateWithPriority(void **stream, unsigned flags, int priority) {
    IN_CONTEXT;
    if (!stream)
        return CUDA_ERROR_INVALID_VALUE;
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
    return check(sim_stream(context, handle));
}

API cuStreamQuery(void *handle) {
    IN_CONTEXT;
    return check(sim_stream(context, handle));
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

void sim_reach(struct event *event) { event->time = now(); }

API cuEventRecordWithFlags(void *handle, void *stream_handle, unsigned flags) {
    IN_CONTEXT;
    struct event *event = find_event(handle);
    struct stream *stream = sim_stream(context, stream_handle);
    if (!event || !stream)
        return CUDA_ERROR_INVALID_HANDLE;
    if (stream->capture && !(flags & 1))
        return sim_capture_event(stream, event);
    event->capture = 0;
    return sim_issue(stream,
                     &(struct operation){.type = CU_GRAPH_NODE_TYPE_EVENT_RECORD, .event = sim_refer(event)});
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
    return CUDA_SUCCESS;
}

static CUresult check_event(const struct event *event) {
    if (!event)
        return CUDA_ERROR_INVALID_HANDLE;
    return event->capture ? CUDA_ERROR_CAPTURED_EVENT : sim_unsafe();
}

API cuEventQuery(void *event) {
    LOCKED;
    return check_event(find_event(event));
}

API cuEventSynchronize(void *event) {
    LOCKED;
    return check_event(find_event(event));
}

API cuEventElapsedTime_v2(float *ms, void *start, void *end) {
    LOCKED;
    const struct event *first = find_event(start), *last = find_event(end);
    if (!first || !last || !ms || (first->flags | last->flags) & CU_EVENT_DISABLE_TIMING || !first->time ||
        !last->time)
        return CUDA_ERROR_INVALID_HANDLE; // or was never recorded
    *ms = (float)((double)(int64_t)(last->time - first->time) / 1e6);
    return CUDA_SUCCESS;
}
