// Streams: their handles, issuing operations, and waiting for them. An operation goes into the stream's queue
// (queue.c), or becomes a graph node if the stream is being captured (capture.c). Work in the legacy default
// stream waits for earlier work in all blocking streams of its context, and vice versa.

#include "queue.h"

_Static_assert(sizeof(struct stream) <= OBJECT_SIZE, "fits");

static void end_stream(struct object *object) {
    struct stream *stream = (struct stream *)object;
    sim_leave_capture(stream);
    if (stream->queue)
        sim_close_queue(stream->queue);
}

AT_END(STREAM, end_stream)

static struct context *context_of(const struct stream *stream) {
    return (struct context *)stream->object.owner;
}

// Issue an operation. Like NVIDIA's driver, wait if too many are pending. That releases the lock, so pointers
// to objects that were looked up before may be invalid afterwards.
CUresult sim_issue(struct stream *stream, struct operation *operation) {
    enum { MOST = 1024 };
    const struct reference is = sim_refer(stream);
    while (is_there(is) && !stream->capture && stream->queue->count >= MOST)
        sim_wait_for(stream->queue->first);
    CUresult status = is_there(is) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
    if (!status && stream->capture) {
        if (operation->type != CU_GRAPH_NODE_TYPE_GRAPH)
            return sim_capture(stream, operation);
        status = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED; // a graph was launched, then the capture began
    }
    if (!status)
        status = sim_implicit(stream);
    if (!status)
        status = sim_error_of(context_of(stream));
    if (!status)
        return sim_push(stream->queue, operation, NULL);
    sim_end_operation(operation);
    return status;
}

// Wait for the work in the stream, and everything ahead of it.
CUresult sim_wait(struct stream *stream) {
    struct context *context = context_of(stream);
    struct reference is = sim_refer(context);
    if (stream->capture || !context->busy)
        return sim_error_of(context);
    if (stream == context->legacy) {
        CUresult status =
            sim_push(stream->queue, &(struct operation){.type = CU_GRAPH_NODE_TYPE_EMPTY}, NULL);
        if (status)
            return status;
    }
    if (stream->queue->first)
        sim_wait_for(stream->queue->last);
    return is_there(is) ? sim_error_of(context) : CUDA_ERROR_CONTEXT_IS_DESTROYED;
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
    if (sim_fault_status)
        return sim_fault_status;
    sim_delete(stream);
    return CUDA_SUCCESS;
}

// Return an error if a stream can't be waited for.
static CUresult check(struct stream *stream) {
    if (!stream)
        return CUDA_ERROR_INVALID_HANDLE;
    if (stream->capture)
        return sim_refuse_capture(stream);
    CUresult status = sim_implicit(stream);
    status = status ? status : sim_unsafe();
    return status ? status : sim_error_of(context_of(stream));
}

API cuStreamSynchronize(void *handle) {
    IN_CONTEXT;
    struct stream *stream = sim_stream(context, handle);
    CUresult status = check(stream);
    return status ? status : sim_wait(stream);
}

API cuStreamQuery(void *handle) {
    IN_CONTEXT;
    struct stream *stream = sim_stream(context, handle);
    CUresult status = check(stream);
    return status || !sim_is_busy(stream->queue) ? status : CUDA_ERROR_NOT_READY;
}

#define GETTER(name, type, value, check)                                                                     \
    API name(void *handle, type *found) {                                                                    \
        IN_CONTEXT;                                                                                          \
        struct stream *stream = sim_stream(context, handle);                                                 \
        if (!stream || !found)                                                                               \
            return stream ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;                            \
        CUresult status = stream->capture ? check(stream) : CUDA_SUCCESS;                                    \
        if (!status)                                                                                         \
            *found = value;                                                                                  \
        return status;                                                                                       \
    }

static CUresult check_capture(const struct stream *stream) {
    return stream->capture->invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
}

// Which of these end a capture was found by trying them on an H200.
GETTER(cuStreamGetFlags, unsigned, stream->flags, sim_refuse_capture)
GETTER(cuStreamGetPriority, int, stream->priority, check_capture)
GETTER(cuStreamGetCtx, void *, stream->object.owner, check_capture)
GETTER(cuStreamGetId, unsigned long long, stream->object.serial, sim_refuse_capture)
GETTER(cuStreamGetDevice, CUdevice, 0, sim_refuse_capture)

static CUresult call(void *handle, void (*function)(void *), void (*callback)(void *, CUresult, void *),
                     void *data) {
    IN_CONTEXT;
    struct stream *stream = sim_stream(context, handle);
    if (!stream || (!function && !callback))
        return stream ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    if (callback && stream->capture)
        return sim_refuse_capture(stream);
    return sim_issue(stream, &(struct operation){.type = CU_GRAPH_NODE_TYPE_HOST,
                                                 .host = {function, data, callback, handle}});
}

API cuLaunchHostFunc(void *stream, void (*function)(void *), void *data) {
    return call(stream, function, NULL, data);
}

// `mode` chooses how the driver's thread waits before it calls the function (spinning or blocking). It has no
// effect here.
API cuLaunchHostFunc_v2(void *stream, void (*function)(void *), void *data, unsigned mode) {
    enum { SPINWAIT = 1 };
    return mode > SPINWAIT ? CUDA_ERROR_INVALID_VALUE : call(stream, function, NULL, data);
}

API cuStreamAddCallback(void *stream, void (*function)(void *, CUresult, void *), void *data,
                        unsigned flags) {
    return flags ? CUDA_ERROR_INVALID_VALUE : call(stream, NULL, function, data);
}

// Contexts

API cuCtxSynchronize(void) {
    IN_CONTEXT;
    if ((entered_ = sim_refuse_captures(context)))
        return entered_;
    struct reference is = sim_refer(context);
    sim_drain(context, false);
    return is_there(is) ? sim_error_of(context) : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

API cuCtxSynchronize_v2(void *handle) {
    LOCKED;
    struct context *context = is_kind(handle, CONTEXT) ? handle : NULL;
    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    CUresult status = sim_refuse_captures(context);
    struct reference is = sim_refer(context);
    if (!status)
        sim_drain(context, false);
    return status ? status : is_there(is) ? sim_error_of(context) : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}
