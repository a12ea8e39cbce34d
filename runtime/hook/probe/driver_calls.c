#include <stdatomic.h>

#include "driver_calls.h"
#include "hook/watch/watch.h"

// Stands for functions that the driver doesn't have, or that haven't been looked up yet. It fails, but at
// least no member is ever NULL.
static CUresult absent(void) { return CUDA_ERROR_NOT_FOUND; }

struct probe_calls hook_do = {
#define CALL(member, name, ...) .member = (__typeof__(hook_do.member))(uintptr_t)absent,
    PROBE_CALLS(CALL)
#undef CALL
};

static bool find_all(void) {
    bool all = true;
    void *found;
#define CALL(member, name, ...)                                                                              \
    if ((found = hook_driver_function(name)))                                                                \
        hook_do.member = (__typeof__(hook_do.member))(uintptr_t)found;                                       \
    all &= found != NULL;
    PROBE_CALLS(CALL)
#undef CALL
    return all;
}

bool hook_find_probe_calls(void) {
    static _Atomic int found;
    return hook_find_context_calls() && hook_find_once(&found, find_all);
}

int hook_relaxed_mode(int mode) {
    hook_do.exchange_mode(&mode);
    return mode;
}

bool hook_find_variable(bool is_kernel, uint64_t module, const char *name, CUdeviceptr *address,
                        size_t *size) {
    return (is_kernel ? hook_do.get_library_variable(address, size, module, name)
                      : hook_do.get_variable(address, size, module, name)) == CUDA_SUCCESS;
}

// -- The program's call again ----------------------------------------------

uint64_t hook_call_again(const struct frame *frame) {
    typedef CUresult general(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                             uint64_t, uint64_t, uint64_t, uint64_t);
    uint64_t a[12] = {0};
    for (unsigned i = 0; i < 12 && i < frame_arg_count(frame); i++)
        a[i] = frame_arg(frame, i);
    return (uint64_t)((general *)frame->real)(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9],
                                              a[10], a[11]);
}

// Where the function and the parameters are in the arguments of a call.
struct places {
    unsigned function, params, extra;
    bool has_extra;
    unsigned shared; // 0: in the configuration, which is the first
};

static struct places places_of(const struct frame *frame) {
    switch (frame->slot->special) {
    case SPECIAL_LAUNCH_EX:
        return (struct places){1, 2, 3, true, 0};
    case SPECIAL_LAUNCH_COOPERATIVE:
        return (struct places){0, 9, 0, false, 7};
    default:
        return (struct places){0, 9, 10, true, 7};
    }
}

unsigned hook_place_of_shared(const struct frame *frame) { return places_of(frame).shared; }

void hook_pass_arguments(struct frame *frame, uint64_t function, void **params, void **extra) {
    struct places places = places_of(frame);
    frame_set_arg(frame, places.function, function);
    frame_set_arg(frame, places.params, (uint64_t)params);
    if (places.has_extra)
        frame_set_arg(frame, places.extra, (uint64_t)extra);
}

bool hook_launch_as(struct frame *frame, uint64_t function, void **params) {
    hook_pass_arguments(frame, function, params, NULL);
    return hook_call_again(frame) == CUDA_SUCCESS;
}
