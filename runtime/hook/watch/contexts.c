// Handlers of the functions that create and destroy contexts. Destroying a context unloads everything in it.
// A primary context ends when nobody retains it any more; after a reset it's a new one.

#include <stdatomic.h>
#include <string.h>

#include "abi/cuda.h"
#include "hook/write/write.h"
#include "watch.h"

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
