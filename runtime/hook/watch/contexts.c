// Handlers of the functions that create and destroy contexts. Destroying a context unloads everything in it.
// A primary context ends when nobody retains it any more; after a reset it's a new one.

#include <stdatomic.h>
#include <string.h>

#include "abi/cuda.h"
#include "hook/write/write.h"
#include "watch.h"

struct context_calls hook_context_calls;

static bool find_calls(void) {
    struct context_calls *calls = &hook_context_calls;
    calls->get = (__typeof__(calls->get))(uintptr_t)hook_driver_function("cuCtxGetCurrent");
    calls->push = (__typeof__(calls->push))(uintptr_t)hook_driver_function("cuCtxPushCurrent_v2");
    calls->pop = (__typeof__(calls->pop))(uintptr_t)hook_driver_function("cuCtxPopCurrent_v2");
    return calls->get && calls->push && calls->pop;
}

bool hook_find_context_calls(void) {
    static _Atomic int found;
    return hook_find_once(&found, find_calls);
}

// The current context

// A launch with probes needs the current context, and the driver is asked for it only once: after that, a
// thread remembers it. A call that sets a thread's context makes that thread forget it, and a call that may
// end a context makes all threads forget theirs. These calls are watched, from the program's start, only if
// kernels may get probes; otherwise nothing is remembered. If a program changes contexts behind our back, by
// a function that we don't know, a launch with the wrong kernel fails and is repeated without probes.
static TLS struct {
    uint64_t context, ends;
} remembered;

static _Atomic uint64_t ends = 1;
static _Atomic bool remembers;

static void forget_current(void) { remembered.ends = 0; }

void hook_remember_contexts(bool on) {
    atomic_store(&remembers, on);
    atomic_fetch_add(&ends, 1);
}

// The query has no side effect that the program could see.
uint64_t hook_current_context(void) {
    uint64_t now = atomic_load_explicit(&ends, memory_order_acquire), context = 0;
    if (LIKELY(remembered.ends == now))
        return remembered.context;
    if (!hook_find_context_calls() || hook_context_calls.get(&context) != CUDA_SUCCESS)
        return 0;
    remembered.context = context;
    remembered.ends = context && atomic_load_explicit(&remembers, memory_order_relaxed) ? now : 0;
    return context;
}

// For our own calls in another context
CUresult hook_push_context(uint64_t context) {
    forget_current();
    return hook_find_context_calls() ? hook_context_calls.push(context) : CUDA_ERROR_NOT_FOUND;
}

void hook_pop_context(void) {
    uint64_t unused;
    hook_context_calls.pop(&unused);
    forget_current();
}

// cuCtxSetCurrent, cuCtxCreate and so on. A call that fails may have set it, too.
void hook_after_context_set(struct frame *frame) {
    (void)frame;
    forget_current();
}

// cuCtxDestroy, cuDevicePrimaryCtxReset and so on
void hook_after_context_end(struct frame *frame) {
    (void)frame;
    atomic_fetch_add(&ends, 1);
}

static void add_context(uint64_t handle, bool made) {
    hook_object_add(&(struct object_facts){.kind = OBJECT_CONTEXT, .handle = handle, .made = made});
}

// cuDevicePrimaryCtxRetain
void hook_on_context_retained(struct frame *frame) {
    const uint64_t *context = (const uint64_t *)frame_arg(frame, 0);
    uint64_t device = (uint32_t)frame_arg(frame, 1);
    if (context && device < MAX_DEVICES) {
        atomic_store(&hook_watched->primary[device], *context);
        add_context(*context, false);
    }
    hook_see_device((CUdevice)device);
}

// cuCtxCreate
void hook_on_context_made(struct frame *frame) {
    const uint64_t *context = (const uint64_t *)frame_arg(frame, 0);
    if (context)
        add_context(*context, true);
    CUresult (*current)(CUdevice *) = hook_driver_function("cuCtxGetDevice");
    CUdevice device;
    if (current && current(&device) == CUDA_SUCCESS)
        hook_see_device(device);
}

// The call may end a context, so read its GPU times first.
void hook_before_context_gone(struct frame *frame) {
    struct thread *thread = hook_this_thread();
    frame->note = (struct note){NOTE_GENERATION, {.number = hook_object_generation()}};
    if (thread)
        hook_gpu_read(thread);
    hook_forget_streams(hook_context_that_ends(frame));
}

uint64_t hook_context_that_ends(const struct frame *frame) {
    uint32_t device = (uint32_t)frame_arg(frame, 0);
    if (!strncmp(frame->slot->symbol, "cuCtxDestroy", strlen("cuCtxDestroy")))
        return frame_arg(frame, 0);
    return device < MAX_DEVICES ? atomic_load(&hook_watched->primary[device]) : 0;
}

// cuCtxDestroy
void hook_on_context_destroyed(struct frame *frame) {
    hook_object_context_gone(frame_arg(frame, 0), frame_note_number(frame, NOTE_GENERATION));
}

// cuDevicePrimaryCtxReset
void hook_on_context_reset(struct frame *frame) {
    uint32_t device = (uint32_t)frame_arg(frame, 0);
    if (device < MAX_DEVICES)
        hook_object_context_gone(atomic_load(&hook_watched->primary[device]),
                                 frame_note_number(frame, NOTE_GENERATION));
}

// cuDevicePrimaryCtxRelease
void hook_on_context_released(struct frame *frame) {
    CUresult (*get_state)(CUdevice, unsigned *, int *) = hook_driver_function("cuDevicePrimaryCtxGetState");
    unsigned flags;
    int active = 0;
    if (!get_state || get_state((CUdevice)frame_arg(frame, 0), &flags, &active) != CUDA_SUCCESS || !active)
        hook_on_context_reset(frame);
}
