// When kernels, copies and memsets ran on the GPU (--gpu-time): an event before each and one behind, in the
// same stream, taken from a pool and read when both are done, which nobody waits for.
//
// A timeline belongs to a thread and a context, so nothing is locked: only the handler at exit looks at the
// timelines of other threads, and leaves one alone that is in use. Its clock are base events: each is
// recorded in a stream that has nothing else, at a known time; all is told relative to one that is at most a
// second old. While any stream is captured the driver forbids most of what is called here, unless the thread
// says that it knows (relaxed mode). Work in a stream that is captured is not timed, for it does not run.

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "cuda_abi.h"
#include "hook.h"

#define PENDING 1024
#define BASES 4

struct base {
    void *event; // NULL: none
    uint64_t stamp;
    unsigned users;
};

struct operation {
    struct base *base;
    void *start, *end;
    uint64_t call, stream;
    uint32_t api, function, thread;
    enum { RUNNING, ISSUED, FAILED } state;
};

struct timeline {
    struct timeline *next; // of this thread
    struct timeline *next_of_all;
    struct thread *thread;
    void *context;
    void *stream;
    atomic_bool busy;
    struct reference reference; // to the context
    struct base bases[BASES], *base;
    unsigned first, count, spares;
    struct operation pending[PENDING];
    void *spare[2 * PENDING];
};

bool hook_gpu_time;

static struct {
    CUresult (*get_context)(void **), (*push_context)(void *), (*pop_context)(void **);
    CUresult (*create_stream)(void **, unsigned), (*is_capturing)(void *, int *), (*exchange_mode)(int *);
    CUresult (*create)(void **, unsigned), (*record)(void *, void *), (*query)(void *);
    CUresult (*elapsed)(float *, void *, void *);
} cu;

static bool find_functions(void) {
    static _Atomic int found; // 0: not looked for, 1: all there, -1: not
    if (!found) {
#define FIND(member, name) (cu.member = (__typeof__(cu.member))(uintptr_t)hook_driver_function(name))
        found = FIND(get_context, "cuCtxGetCurrent") && FIND(push_context, "cuCtxPushCurrent_v2") &&
                        FIND(pop_context, "cuCtxPopCurrent_v2") && FIND(create_stream, "cuStreamCreate") &&
                        FIND(is_capturing, "cuStreamIsCapturing") &&
                        FIND(exchange_mode, "cuThreadExchangeStreamCaptureMode") &&
                        FIND(create, "cuEventCreate") && FIND(record, "cuEventRecord") &&
                        FIND(query, "cuEventQuery") &&
                        (FIND(elapsed, "cuEventElapsedTime_v2") || FIND(elapsed, "cuEventElapsedTime"))
                    ? 1
                    : -1;
    }
    return found > 0;
}

// Timelines

static void end_at_exit(void);

static struct timeline *new_timeline(struct thread *thread, void *context) {
    struct timeline *made =
        mmap(NULL, sizeof(*made), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED)
        return NULL;
    made->thread = thread;
    made->context = context;
    made->reference =
        hook_object_add(&(struct object_facts){.kind = OBJECT_CONTEXT, .handle = (uint64_t)context});
    if (cu.create_stream(&made->stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS) {
        munmap(made, sizeof(*made));
        return NULL;
    }
    made->next = thread->timelines;
    thread->timelines = made;
    struct timeline *head = atomic_load(&hook_live->timelines);
    do
        made->next_of_all = head;
    while (!atomic_compare_exchange_weak(&hook_live->timelines, &head, made));
    static atomic_flag registered =
        ATOMIC_FLAG_INIT; // after the driver's own handlers, so it runs before them
    if (!atomic_flag_test_and_set(&registered))
        atexit(end_at_exit);
    return made;
}

// The timeline of the current context.
static struct timeline *current_timeline(struct thread *thread, bool make) {
    void *context = NULL;
    if (cu.get_context(&context) != CUDA_SUCCESS || !context)
        return NULL;
    for (struct timeline *timeline = thread->timelines; timeline; timeline = timeline->next)
        if (timeline->context == context && hook_is_alive(timeline->reference))
            return timeline;
    return make ? new_timeline(thread, context) : NULL;
}

static void *take_event(struct timeline *timeline) {
    void *event = NULL;
    if (timeline->spares)
        return timeline->spare[--timeline->spares];
    return cu.create(&event, 0) == CUDA_SUCCESS ? event : NULL;
}

static void give_event(struct timeline *timeline, void *event) {
    if (event && timeline->spares < 2 * PENDING)
        timeline->spare[timeline->spares++] = event;
}

// Records the event at a time that is known well: not while the driver prepares its first use, or the thread
// is put aside. Gives the time, or 0. Waits 0.1 ms a try at most: the stream may share its way with a busy
// one.
static uint64_t record_now(const struct timeline *timeline, void *event, uint64_t second) {
    for (int tries = 0; tries < 10; tries++) {
        uint64_t start = hook_now(), end;
        if (cu.record(event, timeline->stream) != CUDA_SUCCESS)
            return 0;
        CUresult status;
        do {
            status = cu.query(event);
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
    struct base *base = timeline->bases;
    while (base < timeline->bases + BASES && (base->users || base == timeline->base))
        base++;
    if (base < timeline->bases + BASES && (base->event || (base->event = take_event(timeline))) &&
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

// Takes the oldest operation off. Gives false where it is still to be waited for.
static bool read_oldest(struct timeline *timeline) {
    struct operation *operation = &timeline->pending[timeline->first % PENDING];
    bool stuck = operation->state == RUNNING; // an exception may have left the call
    if (stuck && timeline->count < PENDING)
        return false;
    float start, duration;
    if (operation->state == ISSUED) {
        CUresult status = cu.query(operation->end);
        if (status == CUDA_ERROR_NOT_READY)
            return false;
        if (status == CUDA_SUCCESS &&
            cu.elapsed(&start, operation->base->event, operation->start) == CUDA_SUCCESS &&
            cu.elapsed(&duration, operation->start, operation->end) == CUDA_SUCCESS) {
            struct row_gpu *row = hook_new_gpu_row(timeline->thread);
            if (row) {
                row->duration = stamps(duration);
                row->call = operation->call;
                row->api = operation->api;
                row->function = operation->function;
                row->thread = operation->thread;
                row->stream = operation->stream;
                uint64_t base = operation->base->stamp;
                atomic_store_explicit(&row->begin, start < 0 ? base - stamps(-start) : base + stamps(start),
                                      memory_order_release);
            }
        }
    }
    if (!stuck) {
        give_event(timeline, operation->start);
        give_event(timeline, operation->end);
    }
    operation->base->users--;
    timeline->first++;
    timeline->count--;
    return true;
}

static void read_all(struct timeline *timeline) {
    while (timeline->count && read_oldest(timeline))
        ;
}

// Own calls must not end a capture of the program.
static int relax(int mode) {
    cu.exchange_mode(&mode);
    return mode;
}

static void end_at_exit(void) {
    struct thread *thread = hook_this_thread();
    for (struct timeline *timeline = thread ? atomic_load(&hook_live->timelines) : NULL; timeline;
         timeline = timeline->next_of_all) {
        if (!hook_is_alive(timeline->reference) || atomic_exchange(&timeline->busy, true))
            continue;
        void *unused;
        if (cu.push_context(timeline->context) == CUDA_SUCCESS) {
            timeline->thread = thread; // which writes the rows
            read_all(timeline);
            cu.pop_context(&unused);
        } // and nobody else uses it any more
    }
}

// Calls

static void *stream_of(const struct frame *frame) {
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
    return (void *)stream;
}

static void begin(struct frame *frame, struct timeline *timeline) {
    void *stream = stream_of(frame);
    int capturing = 0;
    if (cu.is_capturing(stream, &capturing) != CUDA_SUCCESS || capturing)
        return;
    int mode = relax(CU_STREAM_CAPTURE_MODE_RELAXED);
    if (timeline->count > PENDING / 8)
        read_all(timeline);
    renew_base(timeline);
    void *start = NULL, *end = NULL;
    if (timeline->base && timeline->count < PENDING && (start = take_event(timeline)) &&
        (end = take_event(timeline)) && cu.record(start, stream) == CUDA_SUCCESS) {
        frame->timed = &timeline->pending[(timeline->first + timeline->count++) % PENDING];
        *frame->timed = (struct operation){.base = timeline->base,
                                           .start = start,
                                           .end = end,
                                           .stream = (uint64_t)stream,
                                           .api = frame->slot->id};
        timeline->base->users++;
    } else {
        give_event(timeline, start);
        give_event(timeline, end);
    }
    relax(mode);
}

void hook_gpu_begin(struct frame *frame) {
    if (!find_functions())
        return;
    int error = errno;
    struct timeline *timeline = current_timeline(frame->thread, true);
    if (timeline && !atomic_exchange(&timeline->busy, true)) {
        begin(frame, timeline);
        atomic_store(&timeline->busy, false);
    }
    errno = error;
}

void hook_gpu_end(struct frame *frame, bool done) {
    struct operation *operation = frame->timed;
    int error = errno;
    operation->call = frame->start;
    operation->thread = frame->thread->tid;
    operation->function = frame->slot->flags & SLOT_COUNTED && frame->counter ? frame->counter->id : 0;
    bool issued = done && cu.record(operation->end, stream_of(frame)) == CUDA_SUCCESS;
    operation->state = issued ? ISSUED : FAILED;
    errno = error;
}

void hook_gpu_read(struct thread *thread) {
    if (!thread->timelines)
        return;
    int error = errno;
    struct timeline *timeline = current_timeline(thread, false);
    if (timeline && !atomic_exchange(&timeline->busy, true)) {
        int mode = relax(CU_STREAM_CAPTURE_MODE_RELAXED);
        read_all(timeline);
        relax(mode);
        atomic_store(&timeline->busy, false);
    }
    errno = error;
}
