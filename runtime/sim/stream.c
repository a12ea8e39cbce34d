// Streams and events. What is put into a stream is done at once.

#include <stdlib.h>
#include <time.h>

#include "sim.h"

struct stream {
    struct handle handle;
    unsigned flags;
};

struct event {
    struct handle handle;
    struct timespec time;
};

static bool is_stream(const void *stream) { // null, legacy and per-thread default streams are streams too
    return (uintptr_t)stream < 3 || is_kind(stream, STREAM);
}

API cuStreamCreateWithPriority(void **stream, unsigned flags, int priority) {
    (void)priority;
    struct stream *made = calloc(1, sizeof(*made));
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    made->handle.kind = STREAM;
    made->flags = flags;
    *stream = made;
    return CUDA_SUCCESS;
}

API cuStreamCreate(void **stream, unsigned flags) { return cuStreamCreateWithPriority(stream, flags, 0); }

API cuStreamDestroy_v2(void *stream) {
    if (!is_kind(stream, STREAM))
        return CUDA_ERROR_INVALID_HANDLE;
    ((struct handle *)stream)->kind = 0;
    free(stream);
    return CUDA_SUCCESS;
}

API cuStreamSynchronize(void *stream) { return is_stream(stream) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE; }

API cuStreamQuery(void *stream) { return is_stream(stream) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE; }

API cuStreamGetFlags(void *stream, unsigned *flags) {
    *flags = is_kind(stream, STREAM) ? ((struct stream *)stream)->flags : 0;
    return CUDA_SUCCESS;
}

API cuStreamGetPriority(void *stream, int *priority) {
    (void)stream;
    *priority = 0;
    return CUDA_SUCCESS;
}

API cuStreamIsCapturing(void *stream, int *status) {
    (void)stream;
    *status = 0;
    return CUDA_SUCCESS;
}

API cuThreadExchangeStreamCaptureMode(int *mode) {
    static __thread int mine;
    int old = mine;
    mine = *mode;
    *mode = old;
    return CUDA_SUCCESS;
}

API cuStreamWaitEvent(void *stream, void *event, unsigned flags) {
    (void)flags;
    return is_stream(stream) && is_kind(event, EVENT) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

API cuLaunchHostFunc(void *stream, void (*function)(void *), void *data) {
    if (!is_stream(stream))
        return CUDA_ERROR_INVALID_HANDLE;
    function(data);
    return CUDA_SUCCESS;
}

API cuStreamAddCallback(void *stream, void (*function)(void *, CUresult, void *), void *data,
                        unsigned flags) {
    (void)flags;
    if (!is_stream(stream))
        return CUDA_ERROR_INVALID_HANDLE;
    function(stream, CUDA_SUCCESS, data);
    return CUDA_SUCCESS;
}

API cuEventCreate(void **event, unsigned flags) {
    (void)flags;
    struct event *made = calloc(1, sizeof(*made));
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    made->handle.kind = EVENT;
    *event = made;
    return CUDA_SUCCESS;
}

API cuEventDestroy_v2(void *event) {
    if (!is_kind(event, EVENT))
        return CUDA_ERROR_INVALID_HANDLE;
    ((struct handle *)event)->kind = 0;
    free(event);
    return CUDA_SUCCESS;
}

API cuEventRecord(void *event, void *stream) {
    if (!is_kind(event, EVENT) || !is_stream(stream))
        return CUDA_ERROR_INVALID_HANDLE;
    clock_gettime(CLOCK_MONOTONIC, &((struct event *)event)->time);
    return CUDA_SUCCESS;
}

API cuEventRecordWithFlags(void *event, void *stream, unsigned flags) {
    (void)flags;
    return cuEventRecord(event, stream);
}

API cuEventQuery(void *event) { return is_kind(event, EVENT) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE; }

API cuEventSynchronize(void *event) {
    return is_kind(event, EVENT) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

API cuEventElapsedTime_v2(float *ms, void *start, void *end) {
    if (!is_kind(start, EVENT) || !is_kind(end, EVENT))
        return CUDA_ERROR_INVALID_HANDLE;
    const struct timespec *a = &((struct event *)start)->time, *b = &((struct event *)end)->time;
    if (!a->tv_sec || !b->tv_sec)
        return CUDA_ERROR_INVALID_HANDLE; // was never recorded
    *ms = (float)((double)(b->tv_sec - a->tv_sec) * 1e3 + (double)(b->tv_nsec - a->tv_nsec) / 1e6);
    return CUDA_SUCCESS;
}
