// Called by a watched stub before and after the real function: writes a row for the call, and runs the
// function's handlers.
//
// We take a row and store its `start` before the call, so that a call that never returns is visible. The rest
// is filled in afterwards, `duration` last. The row is looked up again at that point, because callbacks, a
// fork or an exception in between may have moved the thread to another chunk.

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "abi/cuda.h"
#include "entry.h"
#include "hook/probe/driver_calls.h"
#include "hook/probe/probe.h"
#include "hook/watch/watch.h"
#include "hook/write/write.h"
#include "stub.h"

// Arguments

static uint64_t read_argument(const struct frame *frame, uint8_t where) {
    if (where & ARG_IN)
        return frame_arg(frame, where & ARG_MASK);
    if (where & ARG_OUT) {
        const uint64_t *out = (const uint64_t *)frame_arg(frame, where & ARG_MASK);
        return out ? *out : 0;
    }
    return 0;
}

// Read it only after the driver accepted the call, which it may reject without looking at what `args[0]`
// points to.
static void read_copy(struct row_memory *row, const struct frame *frame, bool deep) {
    const CUDA_MEMCPY3D *copy3 = (const void *)frame_arg(frame, 0);
    const CUDA_MEMCPY2D *copy2 = (const void *)frame_arg(frame, 0);
    if (deep) {
        row->to = copy3->dstMemoryType == CU_MEMORYTYPE_HOST ? (uint64_t)copy3->dstHost : copy3->dstDevice;
        row->from = copy3->srcMemoryType == CU_MEMORYTYPE_HOST ? (uint64_t)copy3->srcHost : copy3->srcDevice;
        row->bytes = copy3->WidthInBytes * copy3->Height * copy3->Depth;
    } else {
        row->to = copy2->dstMemoryType == CU_MEMORYTYPE_HOST ? (uint64_t)copy2->dstHost : copy2->dstDevice;
        row->from = copy2->srcMemoryType == CU_MEMORYTYPE_HOST ? (uint64_t)copy2->srcHost : copy2->srcDevice;
        row->bytes = copy2->WidthInBytes * copy2->Height;
    }
}

static void read_memory(struct row_memory *row, const struct frame *frame, const struct slot *slot) {
    row->to = slot->values[0] & ARG_IN ? read_argument(frame, slot->values[0]) : 0;
    row->from = read_argument(frame, slot->values[1]);
    row->bytes = slot->values[2] & ARG_IN ? read_argument(frame, slot->values[2]) : 0;
    row->stream = read_argument(frame, slot->values[3]);
    switch (slot->special) {
    case SPECIAL_TIMES_2:
    case SPECIAL_TIMES_4:
        row->bytes *= slot->special == SPECIAL_TIMES_2 ? 2 : 4;
        break;
    case SPECIAL_AREA_1:
    case SPECIAL_AREA_2:
    case SPECIAL_AREA_4:
        row->bytes = frame_arg(frame, 3) * frame_arg(frame, 4) << (slot->special - SPECIAL_AREA_1);
        break;
    default:
        break;
    }
}

// This is the only place that knows the arguments of functions that launch.
static struct launch decode_launch(const struct frame *frame, const struct slot *slot) {
    if (slot->special == SPECIAL_LAUNCH_EX) {
        CUlaunchConfig config;
        struct launch launch = {.function = frame_arg(frame, 1),
                                .params = (void **)frame_arg(frame, 2),
                                .extra = (void **)frame_arg(frame, 3)};
        if (!hook_read((const void *)frame_arg(frame, 0), &config, sizeof(config)))
            return launch;
        launch.stream = (uint64_t)config.hStream;
        launch.shared = config.sharedMemBytes;
        memcpy(launch.grid, &config.gridDimX, sizeof(launch.grid));
        memcpy(launch.block, &config.blockDimX, sizeof(launch.block));
        CUlaunchAttribute attribute;
        for (uint32_t i = 0; config.attrs && i < config.numAttrs && i < 64 &&
                             hook_read(&config.attrs[i], &attribute, sizeof(attribute));
             i++) {
            if (attribute.id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
                memcpy(launch.cluster, &attribute.value.clusterDim, sizeof(launch.cluster));
            else if (attribute.id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE)
                launch.cooperative = attribute.value.cooperative != 0;
        }
        return launch;
    }
    if (slot->special == SPECIAL_LAUNCH_OLD) {
        bool grid = strcmp(slot->symbol, "cuLaunch") != 0,
             stream = !strcmp(slot->symbol, "cuLaunchGridAsync");
        return (struct launch){
            .function = frame_arg(frame, 0),
            .stream = stream ? frame_arg(frame, 3) : 0,
            .grid = {grid ? (uint32_t)frame_arg(frame, 1) : 1, grid ? (uint32_t)frame_arg(frame, 2) : 1, 1}};
    }
    struct launch launch = {
        .function = frame_arg(frame, 0),
        .stream = frame_arg(frame, 8),
        .grid = {(uint32_t)frame_arg(frame, 1), (uint32_t)frame_arg(frame, 2), (uint32_t)frame_arg(frame, 3)},
        .block = {(uint32_t)frame_arg(frame, 4), (uint32_t)frame_arg(frame, 5),
                  (uint32_t)frame_arg(frame, 6)},
        .shared = (uint32_t)frame_arg(frame, 7),
        .params = (void **)frame_arg(frame, 9),
        .cooperative = slot->special == SPECIAL_LAUNCH_COOPERATIVE,
    };
    if (!launch.cooperative)
        launch.extra = (void **)frame_arg(frame, 10);
    return launch;
}

static inline void read_launch(struct row_launch *row, const struct launch *launch) {
    row->stream = launch->stream;
    row->shared = launch->shared;
    for (int i = 0; i < 3; i++) {
        row->grid[i] = launch->grid[i];
        row->block[i] = (uint16_t)launch->block[i];
        row->cluster[i] = (uint8_t)launch->cluster[i];
    }
    row->cooperative = launch->cooperative;
}

// Return how many words of stack arguments to copy, an even number. For an unknown function, that's the most
// it may have, except that we don't read past the page into an unmapped one: a coroutine may have called from
// the top of its stack.
static uint64_t stack_words(const struct frame *frame) {
    if (LIKELY(frame->slot->words < STACK_WORDS))
        return (uint64_t)frame->slot->words;
    uintptr_t start = (uintptr_t)frame->registers.stack, end = start + STACK_WORDS * sizeof(uint64_t);
    if (LIKELY((start ^ (end - 1)) < 4096))
        return STACK_WORDS;
    char byte;
    return hook_peek((const void *)(end - 1), &byte, 1)
               ? STACK_WORDS
               : ((end - 1) / 4096 * 4096 - start) / sizeof(uint64_t) & ~1ul;
}

// Take a row, and fill it in from the arguments.
static struct row *new_row(const struct frame *frame, const struct slot *slot) {
    struct row *row = (struct row *)hook_take_row(frame->thread, slot->layout);
    if (UNLIKELY(!row))
        return NULL;
    row->api = slot->id;
    switch (slot->layout) {
    case LAYOUT_OBJECT: {
        struct row_object *object = (struct row_object *)row;
        object->object = slot->values[0] & ARG_IN ? read_argument(frame, slot->values[0]) : 0;
        object->stream = read_argument(frame, slot->values[1]);
        break;
    }
    case LAYOUT_MEMORY:
        read_memory((struct row_memory *)row, frame, slot);
        break;
    case LAYOUT_LAUNCH:
        ((struct row_launch *)row)->function = frame->counter ? frame->counter->id : 0;
        read_launch((struct row_launch *)row, &frame->launch);
        break;
    }
    return row;
}

// Counts

static __attribute__((noinline)) struct count *add_counter(struct thread *thread, uint64_t function) {
    struct object_view view;
    if (!hook_object_look(function, &view) || !view.id)
        return NULL;
    return hook_add_counter(thread, function, false, view.id, view.reference);
}

// Return the counter of a launched function, or NULL if we don't know the function.
static inline struct count *counter_of(struct thread *thread, uint64_t function) {
    struct count *row = hook_find_counter(thread, function);
    return LIKELY(row) ? row : add_counter(thread, function);
}

static inline bool is_counted_launch(const struct frame *frame) {
    return frame->slot->layout == LAYOUT_LAUNCH && !(frame->flags & SLOT_UNCOUNTED);
}

// A function that was never looked up by name has a counter too. A captured launch isn't counted, but its row
// names the function.
static void count_launch(struct frame *frame, struct thread *thread, bool captured) {
    uint64_t key = frame->launch.function;
    if (UNLIKELY(!frame->counter) && hook_ask_function(key))
        frame->counter = counter_of(thread, key);
    if (frame->counter && !captured)
        hook_count(frame->counter, frame->start);
    if (frame->counter && frame->probed && !hook_settings.memusage)
        hook_count_probed(frame->counter);
}

// Count a thread's first query of its kind here; the stub counts the others in the same row.
static void count_query(struct thread *thread, struct slot *slot, uint64_t now) {
    static _Atomic uint32_t used = 1;
    // Two threads may each assign an index; then one stays unused.
    if (!__atomic_load_n(&slot->query, __ATOMIC_RELAXED)) {
        uint32_t number = atomic_fetch_add(&used, 1);
        if (number >= MAX_QUERIES) {
            atomic_store(&used, MAX_QUERIES);
            __atomic_and_fetch(&slot->on, (uint16_t)~(SLOT_COUNTED | SLOT_QUERY), __ATOMIC_SEQ_CST);
            hook_use_flags(slot);
            return;
        }
        __atomic_store_n(&slot->query, (uint8_t)number, __ATOMIC_RELEASE);
    }
    static const _Atomic uint64_t for_ever = 1;
    struct count *row = hook_find_counter(thread, (uint64_t)slot);
    if (!row)
        row = hook_add_counter(thread, (uint64_t)slot, true, slot->id, (struct reference){&for_ever, 1});
    if (row)
        hook_count(row, now);
    thread->queries[__atomic_load_n(&slot->query, __ATOMIC_ACQUIRE)] = row;
}

// What the stub calls

static void run_with_signals(handler *handler, struct frame *frame) {
    int error = errno;
    if (UNLIKELY(hook_probing))
        hook_find_probe_calls(); // this handler may be the first to need them
    handler(frame);
    errno = error;
}

static void run(handler *handler, struct frame *frame) {
    HOOK_HOLD_SIGNALS;
    run_with_signals(handler, frame);
}

static void run_probing(handler *handler, struct frame *frame) {
    if (frame->slot->known->signals)
        run_with_signals(handler, frame);
    else
        run(handler, frame);
}

// Return the id for the row of a captured call, or 0 if the call wasn't captured. This may write a record and
// so move the thread to another chunk, so don't call it while holding a row.
static uint32_t find_captured(struct frame *frame) {
    HOOK_HOLD_SIGNALS;
    int error = errno;
    uint32_t id = hook_is_captured(hook_stream_of(frame)) ? hook_captured_id(frame->slot) : 0;
    if (id)
        hook_keep_captured(frame);
    errno = error;
    return id;
}

// Return the driver's function. Handlers call it too, without the stub's registers, so it's resolved here.
static void *find_real(struct slot *slot) {
    void *real = __atomic_load_n(&slot->real, __ATOMIC_ACQUIRE);
    if (LIKELY(real != (void *)hook_resolve))
        return real;
    hook_resolve_slot(slot); // the first call of a directly linked function: resolve it
    return __atomic_load_n(&slot->real, __ATOMIC_ACQUIRE);
}

uint64_t hook_enter(struct frame *frame) {
    struct slot *slot = frame->slot;
    frame->real = find_real(slot);
    frame->flags = __atomic_load_n(&slot->flags, __ATOMIC_RELAXED);
    struct thread *thread = hook_this_thread();
    frame->row = NULL;
    frame->counter = NULL;
    frame->thread = thread;
    frame->timed = NULL;
    frame->note.kind = NOTE_NONE;
    frame->probed = false;
    frame->off = frame->flags & SLOT_UNCOUNTED;
    frame->outer = hook_calling > (const void *)frame ? hook_calling : NULL;
    hook_calling = frame;
    if (slot->layout == LAYOUT_LAUNCH)
        frame->launch = decode_launch(frame, slot);
    if (LIKELY(thread)) {
        if (UNLIKELY(atomic_load_explicit(&slot->announced, memory_order_relaxed) != thread->pid))
            hook_announce(slot);
        if (UNLIKELY(frame->flags & SLOT_SYNC))
            hook_make_spare(thread);
        if (is_counted_launch(frame))
            frame->counter = counter_of(thread, frame->launch.function);
        if (frame->flags & SLOT_RECORDED)
            frame->row = new_row(frame, slot);
    }
    if (UNLIKELY(frame->flags & SLOT_BEFORE)) {
        if (slot->known->before)
            run(slot->known->before, frame);
        if (slot->known->probe_before)
            run_probing(slot->known->probe_before, frame);
        frame->real = frame->real ? frame->real : (void *)hook_give_answer;
    }
    if (UNLIKELY(frame->flags & SLOT_TIMED) && thread && frame->real != (void *)hook_give_answer)
        hook_gpu_begin(
            frame); // right before the call: on an idle GPU, anything in between would count as GPU time
    if (UNLIKELY(frame->flags & SLOT_REPLAY) && frame->real != (void *)hook_give_answer)
        run(hook_before_timed_replay, frame);
    frame->start = hook_now();
    if (frame->row)
        atomic_store_explicit(&frame->row->start, frame->start, memory_order_release);
    return stack_words(frame);
}

// Fill in the fields known after a successful return.
static void read_results(struct row *row, const struct frame *frame, const struct slot *slot) {
    struct row_memory *memory = (struct row_memory *)row;
    switch (slot->layout) {
    case LAYOUT_MEMORY:
        if (slot->values[0] & ARG_OUT)
            memory->to = read_argument(frame, slot->values[0]);
        if (slot->special == SPECIAL_COPY_2D || slot->special == SPECIAL_COPY_3D)
            read_copy(memory, frame, slot->special == SPECIAL_COPY_3D);
        if (slot->special == SPECIAL_PITCH) // bytes a row, as the driver chose them, and rows
            memory->bytes = read_argument(frame, ARG_OUT | 1) * frame_arg(frame, 3);
        break;
    case LAYOUT_OBJECT:
        if (slot->values[0] & ARG_OUT)
            ((struct row_object *)row)->object = read_argument(frame, slot->values[0]);
        break;
    case LAYOUT_LAUNCH:
        if (frame->counter)
            ((struct row_launch *)row)->function = frame->counter->id;
        break;
    }
}

static bool is_mapped(const struct thread *thread, const struct row *row) {
    bool found = (uintptr_t)row - (uintptr_t)thread->chunk.start < thread->chunk.size;
    for (int i = 0; i < EARLIER && !found; i++)
        found = (uintptr_t)row - (uintptr_t)thread->earlier[i].start < thread->earlier[i].size;
    return found;
}

void hook_leave(struct frame *frame) {
    uint64_t now = hook_now();
    struct slot *slot = frame->slot;
    struct thread *thread = hook_thread;
    if (UNLIKELY(thread != frame->thread))
        thread = NULL;
    if (UNLIKELY((CUresult)frame->result == CUDA_ERROR_OUT_OF_MEMORY) && slot->known &&
        slot->known->allocates)
        run(hook_call_without_buffers, frame);
    if (UNLIKELY(frame->flags & SLOT_AFTER) && slot->known->first)
        run_probing(slot->known->probe_after, frame); // it may repeat the call
    if (UNLIKELY(frame->note.kind == NOTE_TIMED))
        run(hook_after_timed_replay, frame);
    bool done = (CUresult)frame->result == CUDA_SUCCESS;
    uint32_t captured =
        UNLIKELY(hook_is_capturing()) && done && thread && slot->capturable ? find_captured(frame) : 0;
    if (frame->flags & SLOT_QUERY && thread)
        count_query(thread, slot, frame->start);
    else if (is_counted_launch(frame) && thread && done)
        count_launch(frame, thread, captured);
    struct row *row = frame->row;
    if (row && thread && is_mapped(thread, row) &&
        LIKELY(atomic_load_explicit(&row->start, memory_order_relaxed) == frame->start)) {
        row->result = (int32_t)frame->result;
        if (UNLIKELY(captured))
            row->api = captured;
        if (done)
            read_results(row, frame, slot);
        uint64_t duration = now - frame->start;
        atomic_store_explicit(&row->duration, duration ? duration : 1, memory_order_release);
    }
    if (UNLIKELY(frame->flags & SLOT_STACK) && row && thread)
        run(frame->flags & SLOT_PYTHON ? hook_on_python_site : hook_on_site, frame);
    if (UNLIKELY(frame->timed) && thread)
        hook_gpu_end(frame, done);
    if (UNLIKELY(frame->flags & SLOT_SYNC) && thread)
        hook_gpu_read(thread);
    if (UNLIKELY(!done) && (slot->on_return || slot->layout == LAYOUT_LAUNCH ||
                            (CUresult)frame->result == CUDA_ERROR_ILLEGAL_INSTRUCTION))
        run(hook_on_failure, frame);
    if (done && slot->on_return)
        run(slot->on_return, frame);
    if (UNLIKELY(frame->flags & (SLOT_TIMED | SLOT_AFTER)) && done)
        hook_know_stream(hook_stream_of(frame));
    if (UNLIKELY(frame->flags & SLOT_AFTER) && !slot->known->first)
        run(slot->known->probe_after, frame);
    if (UNLIKELY(frame->flags & SLOT_SYNC) && hook_has_probed())
        run(hook_after_wait, frame);
    hook_calling = frame->outer;
}
