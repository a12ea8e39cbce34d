// Handlers of look-ups: a function that is looked up is asked for with probes in it (pending.c), and waited
// for.

#include <string.h>

#include "driver_calls.h"
#include "hook/watch/watch.h"
#include "hook/write/write.h"
#include "probe.h"

static void look_up(uint64_t handle, const char *name, bool waits) {
    struct object_view view;
    const struct order *order = hook_order();
    bool asks = order->identity && atomic_load(&hook_recording);
    hook_finish_lookups();
    if (!name || !hook_object_look(handle, &view))
        return;
    asks &=
        view.kind != OBJECT_KERNEL || hook_current_context(); // else there is no device yet that it is for
    struct looked_up function = {.handle = handle,
                                 .module = view.parent,
                                 .context = view.kind == OBJECT_KERNEL ? 0 : view.context,
                                 .reference = view.reference,
                                 .function = view.id,
                                 .order = order->number,
                                 .is_kernel = view.kind == OBJECT_KERNEL};
    hook_know(&function, name, asks);
    if (!asks || hook_find_probed(handle))
        return;
    if (!hook_is_wanted(name, order)) {
        hook_refuse(&function, "");
        return;
    }
    hook_ask_for(&function, name);
    if (waits)
        hook_await(handle);
}

static uint64_t out(const struct frame *frame) {
    const uint64_t *handle = (const uint64_t *)frame->args[0];
    return hook_probing && (CUresult)frame->rax == CUDA_SUCCESS && handle ? *handle : 0;
}

// cuModuleGetFunction, cuLibraryGetKernel
void hook_after_function(struct frame *frame) {
    if (out(frame))
        look_up(out(frame), (const char *)frame->args[2], true);
}

// cuKernelGetFunction
void hook_after_kernel_function(struct frame *frame) {
    if (!out(frame))
        return;
    hook_finish_lookups();
    hook_enter_function(out(frame), frame->args[1]);
}

// What was enumerated is asked for ahead.
static void look_up_all(struct frame *frame, const char *counter, const char *namer) {
    const uint64_t *handles = (const uint64_t *)frame->args[0];
    CUresult (*count_of)(unsigned *, uint64_t) = hook_driver_function(counter);
    CUresult (*name_of)(const char **, uint64_t) = hook_driver_function(namer);
    unsigned count = 0;
    if (!hook_probing || (CUresult)frame->rax != CUDA_SUCCESS || !handles || !count_of || !name_of ||
        count_of(&count, frame->args[2]))
        return;
    for (unsigned i = 0; i < count && i < (unsigned)frame->args[1]; i++) {
        const char *name = NULL;
        if (!name_of(&name, handles[i]))
            look_up(handles[i], name, false);
    }
}

void hook_after_functions(struct frame *frame) {
    look_up_all(frame, "cuModuleGetFunctionCount", "cuFuncGetName");
}

void hook_after_kernels(struct frame *frame) {
    look_up_all(frame, "cuLibraryGetKernelCount", "cuKernelGetName");
}
