// Events. Recording an event in a stream makes it refer to the last operation in that stream at the time. The
// event is complete when that operation is.

#include <stdlib.h>

#include "queue.h"

_Static_assert(sizeof(struct event) <= OBJECT_SIZE, "fits");

static void end_event(struct object *object) {
    struct event *event = (struct event *)object;
    free(event->last.nodes);
    if (event->pending)
        sim_release_work(event->pending);
}

AT_END(EVENT, end_event)

static struct event *find_event(void *event) { return is_kind(event, EVENT) ? event : NULL; }

API cuEventCreate(void **event, unsigned flags) {
    IN_CONTEXT;
    enum { INTERPROCESS = 4, ALL = 7 };
    if (!event || flags & ~(unsigned)ALL || (flags & INTERPROCESS && !(flags & CU_EVENT_DISABLE_TIMING)))
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
    if (sim_fault_status)
        return sim_fault_status;
    sim_delete(event);
    return CUDA_SUCCESS;
}

// Return the work that an event refers to, or NULL if that's complete.
static struct work *pending(struct event *event) {
    if (event->pending && event->pending->done) {
        event->time = event->reached ? event->reached : event->pending->time;
        sim_release_work(event->pending);
        event->pending = NULL;
    }
    return event->pending;
}

// Record an event: make it refer to the last work in the stream.
void sim_record(struct event *event, struct stream *stream) {
    if (event->pending)
        sim_release_work(event->pending);
    event->capture = 0;
    event->reached = 0;
    event->time = sim_now();
    event->pending = stream->queue->first ? sim_hold_work(stream->queue->last) : NULL;
}

CUresult sim_wait_event(struct stream *stream, struct event *event) {
    struct work *work = pending(event);
    return work ? sim_push(stream->queue, &(struct operation){.type = CU_GRAPH_NODE_TYPE_EMPTY}, work)
                : CUDA_SUCCESS;
}

API cuEventRecordWithFlags(void *handle, void *stream_handle, unsigned flags) {
    IN_CONTEXT;
    struct event *event = find_event(handle);
    struct stream *stream = sim_stream(context, stream_handle);
    if (!event || !stream || event->object.owner != stream->object.owner)
        return CUDA_ERROR_INVALID_HANDLE; // one of them belongs to another context
    if (flags & ~1u)
        return CUDA_ERROR_INVALID_VALUE;
    if (flags && !stream->capture)
        return CUDA_ERROR_ILLEGAL_STATE; // for a node of a graph, which there isn't
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
    if (flags & ~1u)
        return CUDA_ERROR_INVALID_VALUE;
    if (stream->capture && flags & 1)
        return sim_issue(
            stream, &(struct operation){.type = CU_GRAPH_NODE_TYPE_WAIT_EVENT, .event = sim_refer(event)});
    if (stream->capture || sim_is_captured(event))
        return sim_capture_wait(stream, event);
    if (event->capture)
        return CUDA_ERROR_INVALID_VALUE; // the event belongs to a capture that has ended
    CUresult status = sim_implicit(stream);
    return status ? status : sim_wait_event(stream, event);
}

static CUresult check_event(const struct event *event) {
    if (!event)
        return CUDA_ERROR_INVALID_HANDLE;
    CUresult broken = sim_error_of((struct context *)event->object.owner);
    return broken ? broken : event->capture ? sim_refuse_event(event) : sim_unsafe();
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
        sim_wait_for(event->pending);
    return status || !is_there(of) ? status : sim_error_of(of.object);
}

API cuEventElapsedTime_v2(float *ms, void *start, void *end) {
    LOCKED;
    struct event *first = find_event(start), *last = find_event(end);
    if (first && last && (first->capture || last->capture))
        return sim_is_captured(first) || sim_is_captured(last) ? CUDA_ERROR_CAPTURED_EVENT
                                                               : CUDA_ERROR_INVALID_VALUE;
    if (!first || !last || !ms || (first->flags | last->flags) & CU_EVENT_DISABLE_TIMING || !first->time ||
        !last->time)
        return CUDA_ERROR_INVALID_HANDLE; // or was never recorded
    if (pending(first) || pending(last))
        return CUDA_ERROR_NOT_READY;
    *ms = (float)((double)(int64_t)(last->time - first->time) / 1e6);
    return CUDA_SUCCESS;
}
