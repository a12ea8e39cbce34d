#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

#include "cuda_abi.h"
#include "hook/write/write.h"
#include "watch.h"

struct stream_functions hook_cu;

static bool find_all(void) {
#define FIND(member, name)                                                                                   \
    (hook_cu.member = (__typeof__(hook_cu.member))(uintptr_t)hook_driver_function(name))
    (void)FIND(get_device, "cuCtxGetDevice"); // without it all is on the first one
    return FIND(get_context, "cuCtxGetCurrent") && FIND(push_context, "cuCtxPushCurrent_v2") &&
           FIND(pop_context, "cuCtxPopCurrent_v2") && FIND(create_stream, "cuStreamCreate") &&
           FIND(is_capturing, "cuStreamIsCapturing") &&
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

// Of two in one place the first is forgotten, and known again once the driver took it.
static _Atomic uint64_t known[4096];

static _Atomic uint64_t *place_of(uint64_t stream) { return &known[stream * 0x9e3779b97f4a7c15u >> 52]; }

bool hook_stream_is_known(uint64_t stream) {
    return stream <= CU_STREAM_PER_THREAD_HANDLE ||
           atomic_load_explicit(place_of(stream), memory_order_relaxed) == stream;
}

void hook_know_stream(uint64_t stream) {
    if (!hook_stream_is_known(stream))
        atomic_store_explicit(place_of(stream), stream, memory_order_relaxed);
}

void hook_forget_streams(uint64_t stream) {
    if (stream)
        atomic_compare_exchange_strong(place_of(stream), &stream, 0);
    for (size_t i = 0; !stream && i < sizeof(known) / sizeof(*known); i++)
        atomic_store_explicit(&known[i], 0, memory_order_relaxed);
}

// cuStreamCreate, cuStreamCreateWithPriority, cuGreenCtxStreamCreate
void hook_on_stream(struct frame *frame) {
    if (frame->args[0])
        hook_know_stream(*(const uint64_t *)frame->args[0]);
}

// cuStreamDestroy
void hook_before_stream_gone(struct frame *frame) {
    if (frame->args[0] > CU_STREAM_PER_THREAD_HANDLE)
        hook_forget_streams(frame->args[0]);
}

int hook_stream_mode(int mode) {
    hook_cu.exchange_mode(&mode);
    return mode;
}

// Queues

// One whose context is gone, for another context; else a new one.
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
    void *context = NULL;
    CUdevice device = 0;
    if (hook_cu.get_context(&context) != CUDA_SUCCESS || !context)
        return NULL;
    struct stream_queue *queue = *queues->of_thread;
    while (queue && (queue->context != (uint64_t)context || !hook_is_alive(queue->reference)))
        queue = queue->next;
    if (queue)
        return atomic_exchange(&queue->busy, true) ? NULL : queue;
    if (!make || !(queue = new_queue(queues)))
        return NULL;
    queue->thread = thread;
    if (hook_cu.get_device && hook_cu.get_device(&device) == CUDA_SUCCESS)
        queue->device = (uint32_t)device;
    queue->context = (uint64_t)context;
    queue->reference =
        hook_object_add(&(struct object_facts){.kind = OBJECT_CONTEXT, .handle = (uint64_t)context});
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
        return; // it was given up
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
            // The call may have been left, by an exception or siglongjmp: its place is needed in the end.
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
