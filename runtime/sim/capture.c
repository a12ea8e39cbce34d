// Stream capture: while a stream is being captured, its operations become nodes of a graph instead of
// running. A capture begins in one stream. Another stream joins when it waits for an event recorded in the
// capture. Before the capture ends, the first stream must wait for all streams that joined. A call that isn't
// allowed during a capture invalidates it.

#include <stdlib.h>
#include <string.h>

#include "graph.h"

static struct capture *captures;
static uint64_t ids;
static __thread int thread_mode; // CU_STREAM_CAPTURE_MODE_*

static struct capture *find(uint64_t id) {
    struct capture *capture = captures;
    while (capture && capture->id != id)
        capture = capture->next;
    return capture;
}

static bool set_nodes(struct nodes *to, struct node *const *nodes, size_t count) {
    struct node **copy = malloc((count + 1) * sizeof(*copy));
    if (!copy)
        return false;
    if (count)
        memcpy(copy, nodes, count * sizeof(*copy));
    free(to->nodes);
    *to = (struct nodes){copy, count};
    return true;
}

static bool add_nodes(struct nodes *to, struct node *const *nodes, size_t count) {
    struct node **larger = realloc(to->nodes, (to->count + count + 1) * sizeof(*larger));
    if (!larger)
        return false;
    to->nodes = larger;
    for (size_t i = 0; i < count; i++) {
        size_t at = 0;
        while (at < to->count && larger[at] != nodes[i])
            at++;
        if (at == to->count)
            larger[to->count++] = nodes[i];
    }
    return true;
}

static void join(struct stream *stream, struct capture *capture) {
    stream->capture = capture;
    stream->next = capture->streams;
    capture->streams = stream;
}

static void leave(struct stream *stream) {
    free(stream->last.nodes);
    stream->last = (struct nodes){0};
    stream->capture = NULL;
}

static void end(struct capture *capture, bool keep) {
    capture->graph->captures--;
    if (!keep && !capture->given)
        sim_delete(capture->graph);
    for (struct stream *stream = capture->streams; stream; stream = stream->next)
        leave(stream);
    struct capture **at = &captures;
    while (*at != capture)
        at = &(*at)->next;
    *at = capture->next;
    free(capture->left.nodes);
    free(capture);
}

void sim_leave_capture(struct stream *stream) {
    struct capture *capture = stream->capture;
    if (!capture)
        return;
    if (capture->origin != stream && !add_nodes(&capture->left, stream->last.nodes, stream->last.count))
        capture->invalid = true;
    struct stream **at = &capture->streams;
    while (*at != stream)
        at = &(*at)->next;
    *at = stream->next;
    leave(stream);
    if (capture->origin == stream)
        end(capture, false);
}

CUresult sim_refuse_capture(struct stream *stream) {
    stream->capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult sim_unsafe(void) {
    CUresult status = CUDA_SUCCESS;
    for (struct capture *at = captures; at && thread_mode != CU_STREAM_CAPTURE_MODE_RELAXED; at = at->next) {
        bool own = pthread_equal(at->thread, pthread_self());
        bool other =
            at->mode == CU_STREAM_CAPTURE_MODE_GLOBAL && thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
        if (at->mode != CU_STREAM_CAPTURE_MODE_RELAXED && (own || other)) {
            at->invalid = true;
            status = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    }
    return status;
}

// Return whether a stream is the legacy one, and would wait for a blocking stream that is being captured.
static bool waits_for(const struct stream *stream, const struct capture *capture) {
    bool found = false;
    for (const struct stream *other = capture->streams; other; other = other->next)
        found |= other->object.owner == stream->object.owner && !(other->flags & CU_STREAM_NON_BLOCKING);
    return found && stream == ((const struct context *)stream->object.owner)->legacy;
}

CUresult sim_implicit(const struct stream *stream) {
    CUresult status = CUDA_SUCCESS;
    for (struct capture *at = captures; at; at = at->next)
        if (waits_for(stream, at)) {
            at->invalid = true;
            status = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
        }
    return status;
}

// Operations issued to a captured stream

CUresult sim_capture(struct stream *stream, struct operation *operation) {
    struct capture *capture = stream->capture;
    const struct nodes *last = &stream->last;
    if (capture->invalid) {
        sim_end_operation(operation);
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    struct node *node;
    if (sim_uses_freed(capture->graph, operation)) {
        sim_end_operation(operation);
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult status = sim_add_node(&node, capture->graph, last->nodes, last->count, operation);
    if (!status && !set_nodes(&stream->last, &node, 1))
        status = CUDA_ERROR_OUT_OF_MEMORY;
    capture->invalid = status;
    return status;
}

CUresult sim_capture_event(struct stream *stream, struct event *event) {
    if (stream->capture->invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    event->capture = stream->capture->id;
    return set_nodes(&event->last, stream->last.nodes, stream->last.count) ? CUDA_SUCCESS
                                                                           : CUDA_ERROR_OUT_OF_MEMORY;
}

// Make a stream wait for an event if either is part of a capture: the stream is being captured, or the event
// was recorded in a captured stream.
CUresult sim_capture_wait(struct stream *stream, struct event *event) {
    if (stream->capture && stream->capture->invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    struct capture *capture = find(event->capture);
    if (!capture) { // work that isn't captured
        stream->capture->invalid = true;
        return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    }
    if (capture->invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (stream->capture && stream->capture != capture) {
        capture->invalid = stream->capture->invalid = true;
        return CUDA_ERROR_STREAM_CAPTURE_MERGE;
    }
    if (!add_nodes(&stream->last, event->last.nodes, event->last.count))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!stream->capture)
        join(stream, capture);
    return CUDA_SUCCESS;
}

CUresult sim_refuse_event(const struct event *event) {
    struct capture *capture = find(event->capture);
    if (!capture)
        return CUDA_ERROR_INVALID_VALUE;
    capture->invalid = true;
    return CUDA_ERROR_CAPTURED_EVENT;
}

CUresult sim_refuse_captures(const struct context *context) {
    CUresult status = sim_unsafe();
    for (struct capture *at = captures; at; at = at->next)
        if (at->origin->object.owner == &context->object) {
            at->invalid = true;
            status = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    return status;
}

bool sim_is_captured(const struct event *event) { return event->capture && find(event->capture); }

// Beginning and end

// Return whether all of these nodes belong to the graph.
static bool are_of(void *const *nodes, size_t count, const struct graph *graph) {
    for (size_t i = 0; i < count; i++)
        if (!nodes || !is_kind(nodes[i], NODE) || ((struct object *)nodes[i])->owner != &graph->object)
            return false;
    return true;
}

static CUresult begin(void *handle, struct graph *graph, void *const *nodes, size_t count, int mode) {
    IN_CONTEXT;
    struct stream *stream = sim_stream(context, handle);
    if (!stream || mode < 0 || mode > CU_STREAM_CAPTURE_MODE_RELAXED ||
        (graph && (!is_kind(graph, GRAPH) || !are_of(nodes, count, graph))))
        return stream ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    if (stream == context->legacy)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (stream->capture)
        return CUDA_ERROR_ILLEGAL_STATE;
    struct capture *made = calloc(1, sizeof(*made));
    if (!made || !(made->graph = graph ? graph : sim_new(GRAPH, NULL)) ||
        !set_nodes(&stream->last, (struct node *const *)nodes, count)) {
        if (made && made->graph && !graph)
            sim_delete(made->graph);
        free(made);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    made->id = ++ids;
    made->mode = mode;
    made->thread = pthread_self();
    made->given = graph;
    made->graph->captures++;
    made->origin = stream;
    made->next = captures;
    captures = made;
    join(stream, made);
    return CUDA_SUCCESS;
}

API cuStreamBeginCapture_v2(void *stream, int mode) { return begin(stream, NULL, NULL, 0, mode); }

API cuStreamBeginCapture(void *stream) {
    return cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

API cuStreamBeginCaptureToGraph(void *stream, void *graph, void *const *nodes, const CUgraphEdgeData *edges,
                                size_t count, int mode) {
    (void)edges;
    return graph ? begin(stream, graph, nodes, count, mode) : CUDA_ERROR_INVALID_VALUE;
}

static bool are_marked(const struct nodes *nodes) {
    size_t i = 0;
    while (i < nodes->count && nodes->nodes[i]->mark)
        i++;
    return i == nodes->count;
}

// Return whether the stream in which the capture began waits for everything captured in the other streams.
static bool is_joined(const struct capture *capture) {
    const struct graph *graph = capture->graph;
    for (size_t i = 0; i < graph->count; i++)
        graph->nodes[i]->mark = 0;
    for (size_t i = 0; i < capture->origin->last.count; i++)
        capture->origin->last.nodes[i]->mark = 1;
    for (size_t i = graph->count; i--;) // nodes depend on older ones
        for (size_t j = 0; j < graph->nodes[i]->count; j++)
            graph->nodes[i]->before[j]->mark |= graph->nodes[i]->mark;
    for (const struct stream *stream = capture->streams; stream; stream = stream->next)
        if (!are_marked(&stream->last))
            return false;
    return are_marked(&capture->left);
}

API cuStreamEndCapture(void *handle, void **graph) {
    IN_CONTEXT;
    struct stream *stream = sim_stream(context, handle);
    if (!stream)
        return CUDA_ERROR_INVALID_HANDLE;
    struct capture *capture = stream->capture;
    if (!capture || !graph)
        return capture ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_ILLEGAL_STATE;
    if (capture->origin != stream) {
        capture->invalid = true;
        return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    }
    bool wrong =
        capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && !pthread_equal(capture->thread, pthread_self());
    CUresult status = wrong                 ? CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD
                      : capture->invalid    ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
                      : !is_joined(capture) ? CUDA_ERROR_STREAM_CAPTURE_UNJOINED
                                            : CUDA_SUCCESS;
    *graph = status ? NULL : capture->graph;
    end(capture, !status);
    return status;
}

static CUresult find_status(const struct stream *stream, int *status) {
    *status = !stream->capture           ? CU_STREAM_CAPTURE_STATUS_NONE
              : stream->capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                         : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    for (const struct capture *at = captures; at; at = at->next)
        if (waits_for(stream, at))
            return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT; // the capture goes on
    return CUDA_SUCCESS;
}

API cuStreamIsCapturing(void *handle, int *status) {
    IN_CONTEXT;
    struct stream *stream = sim_stream(context, handle);
    if (!stream || !status)
        return stream ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    return find_status(stream, status);
}

API cuStreamGetCaptureInfo_v3(void *handle, int *status, uint64_t *id, void **graph, void *const **nodes,
                              const CUgraphEdgeData **edges, size_t *count) {
    IN_CONTEXT;
    struct stream *stream = sim_stream(context, handle);
    if (!stream || !status)
        return stream ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    CUresult found = find_status(stream, status);
    if (found || *status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
        return found;
    if (id)
        *id = stream->capture->id;
    if (graph)
        *graph = stream->capture->graph;
    if (nodes)
        *nodes = (void *const *)stream->last.nodes;
    if (edges)
        *edges = NULL;
    if (count)
        *count = stream->last.count;
    return CUDA_SUCCESS;
}

API cuStreamGetCaptureInfo_v2(void *stream, int *status, uint64_t *id, void **graph, void *const **nodes,
                              size_t *count) {
    return cuStreamGetCaptureInfo_v3(stream, status, id, graph, nodes, NULL, count);
}

API cuStreamGetCaptureInfo(void *stream, int *status, uint64_t *id) {
    return cuStreamGetCaptureInfo_v3(stream, status, id, NULL, NULL, NULL, NULL);
}

API cuStreamUpdateCaptureDependencies_v2(void *handle, void *const *nodes, const CUgraphEdgeData *edges,
                                         size_t count, unsigned flags) {
    IN_CONTEXT;
    (void)edges;
    struct stream *stream = sim_stream(context, handle);
    if (!stream)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!stream->capture)
        return CUDA_ERROR_ILLEGAL_STATE;
    if (stream->capture->invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (flags > 1 || !are_of(nodes, count, stream->capture->graph))
        return CUDA_ERROR_INVALID_VALUE;
    struct node *const *given = (struct node *const *)nodes;
    bool done = flags & 1 ? set_nodes(&stream->last, given, count) : add_nodes(&stream->last, given, count);
    return done ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

API cuStreamUpdateCaptureDependencies(void *stream, void *const *nodes, size_t count, unsigned flags) {
    return cuStreamUpdateCaptureDependencies_v2(stream, nodes, NULL, count, flags);
}

API cuThreadExchangeStreamCaptureMode(int *mode) {
    if (!mode || *mode < 0 || *mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    int old = thread_mode;
    thread_mode = *mode;
    *mode = old;
    return CUDA_SUCCESS;
}
