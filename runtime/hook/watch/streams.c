#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "abi/cuda.h"
#include "hook/write/write.h"
#include "watch.h"

struct stream_functions hook_cu;

static bool find_all(void) {
#define FIND(member, name)                                                                                   \
    (hook_cu.member = (__typeof__(hook_cu.member))(uintptr_t)hook_driver_function(name))
    (void)FIND(get_device, "cuCtxGetDevice"); // without this function, assume the first device
    (void)FIND(context_of, "cuStreamGetCtx");
    return FIND(create_stream, "cuStreamCreate") && FIND(is_capturing, "cuStreamIsCapturing") &&
           FIND(exchange_mode, "cuThreadExchangeStreamCaptureMode") && FIND(create, "cuEventCreate") &&
           FIND(record, "cuEventRecord") && FIND(query, "cuEventQuery") &&
           (FIND(elapsed, "cuEventElapsedTime_v2") || FIND(elapsed, "cuEventElapsedTime"));
#undef FIND
}

bool hook_streams_setup(void) {
    static _Atomic int found;
    return hook_find_once(&found, find_all);
}

uint64_t hook_stream_of(const struct frame *frame) {
    const struct slot *slot = frame->slot;
    uint64_t stream = 0;
    switch (slot->layout) {
    case LAYOUT_LAUNCH:
        stream = frame->launch.stream;
        break;
    case LAYOUT_MEMORY:
    case LAYOUT_OBJECT: {
        uint8_t where = slot->values[slot->layout == LAYOUT_MEMORY ? 3 : 1];
        stream = where & ARG_IN ? frame_arg(frame, where & ARG_MASK) : 0;
        break;
    }
    }
    size_t size = strlen(slot->symbol);
    if (!stream && size > 5 &&
        (!strcmp(slot->symbol + size - 5, "_ptsz") || !strcmp(slot->symbol + size - 5, "_ptds")))
        stream = 2; // CU_STREAM_PER_THREAD
    return stream;
}

// Known streams, in sets of eight. A stream whose set is full replaces another one, which is forgotten until
// the driver accepts it again. The bits above an address hold a tag of the stream's context, or 0 if it isn't
// known, so that only streams of a context that ends are forgotten.
enum { WAYS = 8, TAG = 48 };
static const uint64_t factor = 0x9e3779b97f4a7c15u;
static _Atomic uint64_t known[512][WAYS];

static _Atomic uint64_t *set_of(uint64_t stream) { return known[stream * factor >> 55]; }

static uint64_t tag_of(uint64_t context) { return context ? context * factor >> TAG | 1 : 0; }

static bool is_of(uint64_t word, uint64_t stream) { return word % (1ull << TAG) == stream; }

bool hook_stream_is_known(uint64_t stream) {
    if (stream <= CU_STREAM_PER_THREAD_HANDLE)
        return true;
    _Atomic uint64_t *set = set_of(stream);
    for (int i = 0; i < WAYS; i++)
        if (is_of(atomic_load_explicit(&set[i], memory_order_relaxed), stream))
            return true;
    return false;
}

void hook_know_stream(uint64_t stream) {
    static _Atomic unsigned turn;
    void *context = NULL;
    if (hook_stream_is_known(stream) || stream >> TAG)
        return;
    if (!hook_streams_setup() || !hook_cu.context_of ||
        hook_cu.context_of((void *)(uintptr_t)stream, &context))
        context = NULL;
    uint64_t word = stream | tag_of((uint64_t)(uintptr_t)context) << TAG;
    _Atomic uint64_t *set = set_of(stream);
    for (int i = 0; i < WAYS; i++) {
        uint64_t none = 0;
        if (atomic_compare_exchange_strong(&set[i], &none, word))
            return;
    }
    atomic_store_explicit(&set[atomic_fetch_add(&turn, 1) % WAYS], word, memory_order_relaxed);
}

static void forget_stream(uint64_t stream) {
    _Atomic uint64_t *set = set_of(stream);
    for (int i = 0; i < WAYS; i++) {
        uint64_t word = atomic_load_explicit(&set[i], memory_order_relaxed);
        if (is_of(word, stream))
            atomic_compare_exchange_strong(&set[i], &word, 0);
    }
}

void hook_forget_streams(uint64_t context) {
    uint64_t tag = tag_of(context);
    for (size_t i = 0; i < sizeof(known) / sizeof(**known); i++) {
        _Atomic uint64_t *place = &known[i / WAYS][i % WAYS];
        uint64_t word = atomic_load_explicit(place, memory_order_relaxed);
        if (word && (!tag || !(word >> TAG) || word >> TAG == tag))
            atomic_compare_exchange_strong(place, &word, 0);
    }
}

// cuStreamCreate, cuStreamCreateWithPriority, cuGreenCtxStreamCreate
void hook_on_stream(struct frame *frame) {
    if (frame_arg(frame, 0))
        hook_know_stream(*(const uint64_t *)frame_arg(frame, 0));
}

// cuStreamDestroy
void hook_before_stream_gone(struct frame *frame) {
    if (frame_arg(frame, 0) > CU_STREAM_PER_THREAD_HANDLE)
        forget_stream(frame_arg(frame, 0));
}

int hook_stream_mode(int mode) {
    hook_cu.exchange_mode(&mode);
    return mode;
}

// Queues

// Reuse a queue whose context is gone, or make a new one.
static struct stream_queue *new_queue(const struct stream_queues *queues) {
    struct stream_queue *queue = *queues->of_thread;
    while (queue && (hook_is_alive(queue->reference) || atomic_exchange(&queue->busy, true)))
        queue = queue->next;
    if (queue) {
        const struct stream_queue old = {.next = queue->next, .next_of_all = queue->next_of_all};
        memset((char *)queue + offsetof(struct stream_queue, thread), 0,
               offsetof(struct stream_queue, busy) - offsetof(struct stream_queue, thread));
        size_t rest = offsetof(struct stream_queue, first);
        memset((char *)queue + rest, 0, queues->size - rest);
        queue->next = old.next;
        queue->next_of_all = old.next_of_all;
        return queue;
    }
    queue = mmap(NULL, queues->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (queue == MAP_FAILED)
        return NULL;
    atomic_store(&queue->busy, true);
    queue->next = *queues->of_thread;
    *queues->of_thread = queue;
    struct stream_queue *head = atomic_load(queues->all);
    do
        queue->next_of_all = head;
    while (!atomic_compare_exchange_weak(queues->all, &head, queue));
    return queue;
}

struct stream_queue *hook_stream_claim(const struct stream_queues *queues, struct thread *thread, bool make) {
    uint64_t context = hook_current_context();
    CUdevice device = 0;
    if (!context)
        return NULL;
    struct stream_queue *queue = *queues->of_thread;
    while (queue && (queue->context != context || !hook_is_alive(queue->reference)))
        queue = queue->next;
    if (queue)
        return atomic_exchange(&queue->busy, true) ? NULL : queue;
    if (!make || !(queue = new_queue(queues)))
        return NULL;
    queue->thread = thread;
    if (hook_cu.get_device && hook_cu.get_device(&device) == CUDA_SUCCESS)
        queue->device = (uint32_t)device;
    queue->context = context;
    queue->reference = hook_object_add(&(struct object_facts){.kind = OBJECT_CONTEXT, .handle = context});
    return queue;
}

void hook_stream_release(struct stream_queue *queue) { atomic_store(&queue->busy, false); }

// Operations

void *hook_stream_event(struct stream_queue *queue) {
    void *event = NULL;
    if (queue->spares)
        return queue->spare[--queue->spares];
    return hook_cu.create(&event, 0) == CUDA_SUCCESS ? event : NULL;
}

static void give_event(struct stream_queue *queue, void *event) {
    if (event && queue->spares < 2 * STREAM_PENDING)
        queue->spare[queue->spares++] = event;
}

struct operation *hook_stream_begin(struct stream_queue *queue, const struct frame *frame) {
    uint64_t stream = hook_stream_of(frame);
    int capturing = 0;
    if (queue->count == STREAM_PENDING || hook_cu.is_capturing((void *)stream, &capturing) != CUDA_SUCCESS ||
        capturing)
        return NULL;
    void *start = hook_stream_event(queue), *end = start ? hook_stream_event(queue) : NULL;
    if (!end || hook_cu.record(start, (void *)stream) != CUDA_SUCCESS) {
        give_event(queue, start);
        give_event(queue, end);
        return NULL;
    }
    struct operation *operation = &queue->pending[(queue->first + queue->count++) % STREAM_PENDING];
    *operation = (struct operation){.start = start,
                                    .end = end,
                                    .stream = stream,
                                    .owner = frame,
                                    .api = frame->slot->id,
                                    .state = STREAM_RUNNING};
    return operation;
}

void hook_stream_end(struct operation *operation, const struct frame *frame, bool done) {
    if (operation->state != STREAM_RUNNING || operation->owner != frame)
        return; // the wait was given up
    if (!done || hook_cu.record(operation->end, (void *)operation->stream) != CUDA_SUCCESS)
        operation->end = NULL;
    operation->state = STREAM_ISSUED;
}

void hook_stream_read(struct stream_queue *queue,
                      void (*see)(struct stream_queue *queue, struct operation *operation, bool ended)) {
    for (unsigned i = 0; i < queue->count; i++) {
        struct operation *operation = &queue->pending[(queue->first + i) % STREAM_PENDING];
        CUresult status = CUDA_SUCCESS;
        if (operation->state == STREAM_DONE)
            continue;
        if (operation->state == STREAM_RUNNING) {
            // The call may have been left by an exception or siglongjmp, so its slot is reused when no other
            // is free.
            if (i || queue->count < STREAM_PENDING)
                continue;
        } else if (operation->end && (status = hook_cu.query(operation->end)) == CUDA_ERROR_NOT_READY)
            break;
        bool back = operation->state == STREAM_ISSUED;
        see(queue, operation, back && operation->end && status == CUDA_SUCCESS);
        if (back) {
            give_event(queue, operation->start);
            give_event(queue, operation->end);
        }
        operation->state = STREAM_DONE;
    }
    while (queue->count && queue->pending[queue->first % STREAM_PENDING].state == STREAM_DONE) {
        queue->first++;
        queue->count--;
    }
}

// -- GPU times -------------------------------------------------------------
//
// When kernels, copies and memsets ran on the GPU (--gpu-time): we record an event before and after each in
// its stream (watch.h), and read both once they're done, without waiting.
//
// Base events are the clock of a queue: each is recorded in a stream that has nothing else in it, at a known
// time. All times are relative to a base event that is at most a second old.

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
uint64_t hook_node_times;

static struct timeline *claim(struct thread *thread, bool make) {
    struct stream_queues queues = {&thread->timelines, &hook_watched->timelines, sizeof(struct timeline)};
    return hook_streams_setup() ? (struct timeline *)hook_stream_claim(&queues, thread, make) : NULL;
}

// Record the event at a time that we know precisely: not while the driver prepares its first use, or the
// thread is preempted. Returns the time, or 0. Each attempt waits 0.1 ms at most, because the stream may
// share hardware with a busy one.
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

// Record a new base once the last one is a second old.
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
        return;
    }
    static atomic_flag said = ATOMIC_FLAG_INIT;
    if (!timeline->base && !atomic_flag_test_and_set(&said))
        hook_say("--gpu-time", "an event in an idle stream takes over 20 us",
                 "kernels and copies have no GPU times as long as that's so");
}

// Reading

uint64_t hook_stamps_of(float ms) {
    double ns = ms > 0 ? (double)ms * 1e6 : 0;
    return (uint64_t)(hook_has_tsc ? ns * (double)hook_tsc_hz() / 1e9 : ns);
}

// Return the time stamp at which an event was reached, or 0.
static uint64_t stamp_of(const struct base *base, void *event) {
    float ms;
    if (hook_cu.elapsed(&ms, base->event, event) != CUDA_SUCCESS)
        return 0;
    return ms < 0 ? base->stamp - hook_stamps_of(-ms) : base->stamp + hook_stamps_of(ms);
}

static void see(struct stream_queue *queue, struct operation *operation, bool ended) {
    float duration;
    uint64_t begin = ended ? stamp_of(operation->base, operation->start) : 0;
    struct row_gpu *row = NULL;
    if (begin && hook_cu.elapsed(&duration, operation->start, operation->end) == CUDA_SUCCESS)
        row = hook_new_gpu_row(queue->thread);
    if (row) {
        row->duration = hook_stamps_of(duration);
        row->call = operation->call;
        row->api = operation->api;
        row->function = operation->function;
        row->thread = operation->thread;
        row->probed = operation->probed;
        row->stream = operation->stream;
        row->device = queue->device;
        atomic_store_explicit(&row->begin, begin, memory_order_release);
    }
    if (operation->ended) // may write a record, and so move the thread to another chunk
        operation->ended(operation, begin ? stamp_of(operation->base, operation->first_event) : 0);
    operation->base->users--;
}

static void end_at_exit(void) {
    struct thread *thread = hook_this_thread();
    for (struct stream_queue *queue = thread ? atomic_load(&hook_watched->timelines) : NULL; queue;
         queue = queue->next_of_all) {
        if (!hook_is_alive(queue->reference) || atomic_exchange(&queue->busy, true))
            continue;
        if (hook_push_context(queue->context) == CUDA_SUCCESS) {
            queue->thread = thread; // this thread writes the rows
            hook_stream_read(queue, see);
            hook_pop_context();
        } // and nobody else uses it any more
    }
}

// Calls

void hook_gpu_begin(struct frame *frame) {
    HOOK_HOLD_SIGNALS;
    int error = errno;
    struct timeline *timeline =
        hook_stream_is_known(hook_stream_of(frame)) ? claim(frame->thread, true) : NULL;
    if (timeline) {
        int mode = hook_stream_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
        // A graph's nodes can't be timed again before they are read.
        bool nodes = hook_node_times && frame->slot->layout == LAYOUT_OBJECT;
        if (timeline->queue.count > STREAM_PENDING / 8 || nodes)
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
    HOOK_HOLD_SIGNALS;
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
    HOOK_HOLD_SIGNALS;
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
