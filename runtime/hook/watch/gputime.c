// When kernels, copies and memsets ran on the GPU (--gpu-time): an event before each and one after, in the
// same stream (streamops.h), read when both are done, without waiting for that.
//
// The clock of a queue are base events: each is recorded in a stream that has nothing else, at a known time;
// all times are relative to one that is at most a second old.

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "cuda_abi.h"
#include "hook/write/write.h"
#include "watch.h"

#define BASES 4

struct base {
    void *event; // NULL: none
    uint64_t stamp;
    unsigned users;
};

struct timeline {
    struct stream_queue queue;
    void *stream;
    struct base bases[BASES], *base;
};

bool hook_gpu_time;

static struct timeline *claim(struct thread *thread, bool make) {
    struct stream_queues queues = {&thread->timelines, &hook_watched->timelines, sizeof(struct timeline)};
    return hook_streams_setup() ? (struct timeline *)hook_stream_claim(&queues, thread, make) : NULL;
}

// Records the event at a time that is known well: not while the driver prepares its first use, or the thread
// is put aside. Returns the time, or 0. Waits 0.1 ms a try at most: the stream may share its way with a busy
// one.
static uint64_t record_now(const struct timeline *timeline, void *event, uint64_t second) {
    for (int tries = 0; tries < 10; tries++) {
        uint64_t start = hook_now(), end;
        if (hook_cu.record(event, timeline->stream) != CUDA_SUCCESS)
            return 0;
        CUresult status;
        do {
            status = hook_cu.query(event);
            end = hook_now();
        } while (status == CUDA_ERROR_NOT_READY && end - start < second / 10000);
        if (status == CUDA_SUCCESS && end - start < second / 50000)
            return start + (end - start) / 2;
    }
    return 0;
}

// A new base once the last is a second old.
static void renew_base(struct timeline *timeline) {
    uint64_t now = hook_now(), second = hook_has_tsc ? hook_tsc_hz() : 1000000000;
    if (timeline->base && now - timeline->base->stamp < second)
        return;
    if (!timeline->stream && hook_cu.create_stream(&timeline->stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS)
        return;
    struct base *base = timeline->bases;
    while (base < timeline->bases + BASES && (base->users || base == timeline->base))
        base++;
    if (base < timeline->bases + BASES &&
        (base->event || (base->event = hook_stream_event(&timeline->queue))) &&
        (now = record_now(timeline, base->event, second))) {
        base->stamp = now;
        timeline->base = base;
    }
}

// Reading

static uint64_t stamps(float ms) {
    double ns = ms > 0 ? (double)ms * 1e6 : 0;
    return (uint64_t)(hook_has_tsc ? ns * (double)hook_tsc_hz() / 1e9 : ns);
}

static void see(struct stream_queue *queue, struct operation *operation, bool ended) {
    float start, duration;
    struct row_gpu *row = NULL;
    if (ended && hook_cu.elapsed(&start, operation->base->event, operation->start) == CUDA_SUCCESS &&
        hook_cu.elapsed(&duration, operation->start, operation->end) == CUDA_SUCCESS)
        row = hook_new_gpu_row(queue->thread);
    if (row) {
        row->duration = stamps(duration);
        row->call = operation->call;
        row->api = operation->api;
        row->function = operation->function;
        row->thread = operation->thread;
        row->probed = operation->probed;
        row->stream = operation->stream;
        row->device = queue->device;
        uint64_t base = operation->base->stamp;
        atomic_store_explicit(&row->begin, start < 0 ? base - stamps(-start) : base + stamps(start),
                              memory_order_release);
    }
    operation->base->users--;
}

static void end_at_exit(void) {
    struct thread *thread = hook_this_thread();
    for (struct stream_queue *queue = thread ? atomic_load(&hook_watched->timelines) : NULL; queue;
         queue = queue->next_of_all) {
        if (!hook_is_alive(queue->reference) || atomic_exchange(&queue->busy, true))
            continue;
        void *unused;
        if (hook_cu.push_context((void *)queue->context) == CUDA_SUCCESS) {
            queue->thread = thread; // which writes the rows
            hook_stream_read(queue, see);
            hook_cu.pop_context(&unused);
        } // and nobody else uses it any more
    }
}

// Calls

void hook_gpu_begin(struct frame *frame) {
    HOOK_CALM;
    int error = errno;
    struct timeline *timeline =
        hook_stream_is_known(hook_stream_of(frame)) ? claim(frame->thread, true) : NULL;
    if (timeline) {
        int mode = hook_stream_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
        if (timeline->queue.count > STREAM_PENDING / 8)
            hook_stream_read(&timeline->queue, see);
        renew_base(timeline);
        if (timeline->base && (frame->timed = hook_stream_begin(&timeline->queue, frame))) {
            frame->timed->base = timeline->base;
            timeline->base->users++;
        }
        hook_stream_mode(mode);
        hook_stream_release(&timeline->queue);
        static atomic_flag registered =
            ATOMIC_FLAG_INIT; // after the driver's own handlers, so it runs before them
        if (!atomic_flag_test_and_set(&registered))
            atexit(end_at_exit);
    }
    errno = error;
}

void hook_gpu_end(struct frame *frame, bool done) {
    HOOK_CALM;
    int error = errno;
    struct operation *operation = frame->timed;
    if (operation->owner == frame) {
        operation->call = frame->start;
        operation->thread = frame->thread->tid;
        operation->probed = frame->probed;
        operation->function = frame->slot->layout == LAYOUT_LAUNCH && frame->counter ? frame->counter->id : 0;
        hook_stream_end(operation, frame, done);
    }
    errno = error;
}

void hook_gpu_read(struct thread *thread) {
    if (!thread->timelines)
        return;
    HOOK_CALM;
    int error = errno;
    struct timeline *timeline = claim(thread, false);
    if (timeline) {
        int mode = hook_stream_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
        hook_stream_read(&timeline->queue, see);
        hook_stream_mode(mode);
        hook_stream_release(&timeline->queue);
    }
    errno = error;
}
