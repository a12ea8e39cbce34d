// Contexts. Modules, streams, events, memory and executable graphs belong to a context, and are freed when
// it's destroyed, or when the primary context is released or reset.

#include <string.h>

#include "sim.h"

static struct context *primary; // made once: its handle stays the same
static bool active;
static unsigned primary_flags;

enum { DEPTH = 64 };
static __thread struct reference current[DEPTH]; // a stack
static __thread unsigned depth;

static void end_context(struct object *object) {
    sim_end_queues((struct context *)object);
    sim_end_heap((struct context *)object);
    sim_end_graph_memory((struct context *)object);
    sim_free_all(object);
}

AT_END(CONTEXT, end_context)

static struct context *find(void *handle) { return is_kind(handle, CONTEXT) ? handle : NULL; }

CUresult sim_enter(struct context **context) {
    if (!depth)
        return CUDA_ERROR_INVALID_CONTEXT;
    *context = current[depth - 1].object;
    if (!is_there(current[depth - 1]) || (*context == primary && !active))
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    return sim_error_of(*context);
}

void sim_begin_callback(struct context *context) {
    LOCKED;
    current[0] = sim_refer(context);
    depth = context != NULL;
    sim_in_host_function = true;
    __atomic_fetch_add(&sim_callbacks, 1, __ATOMIC_RELAXED);
}

void sim_end_callback(void) {
    __atomic_fetch_sub(&sim_callbacks, 1, __ATOMIC_RELAXED);
    sim_in_host_function = false;
    depth = 0;
}

// Return whether a context's flags are valid. They may choose at most one way of waiting (spin, yield,
// block).
static bool are_flags(unsigned flags) {
    enum { SCHEDULING = 7, ALL = 255 };
    unsigned way = flags & SCHEDULING;
    return !(flags & ~(unsigned)ALL) && !(way & (way - 1));
}

// The primary context

// Wait for the work in the primary context and free everything in it, unless another thread retains it
// meanwhile.
static void end_primary(void) {
    active = false;
    primary->references = 0;
    sim_drain(primary, true);
    if (active)
        return;
    primary->error = CUDA_SUCCESS;
    memset(primary->limits, 0, sizeof(primary->limits));
    while (primary->object.owned)
        sim_delete(primary->object.owned);
    primary->legacy = NULL;
    primary->busy = 0;
    end_context(&primary->object);
}

API cuDevicePrimaryCtxRetain(void **context, CUdevice device) {
    LOCKED;
    if (device)
        return CUDA_ERROR_INVALID_DEVICE;
    if (!context)
        return CUDA_ERROR_INVALID_VALUE;
    if (sim_fault_status)
        return sim_fault_status;
    if (!primary && !(primary = sim_new(CONTEXT, NULL)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!primary->legacy && !(primary->legacy = sim_add_stream(primary, 0, 0)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    active = true;
    primary->references++;
    *context = primary;
    return CUDA_SUCCESS;
}

API cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    LOCKED;
    if (device)
        return CUDA_ERROR_INVALID_DEVICE;
    if (!active)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!--primary->references)
        end_primary();
    return CUDA_SUCCESS;
}

API cuDevicePrimaryCtxReset_v2(CUdevice device) {
    LOCKED;
    if (device)
        return CUDA_ERROR_INVALID_DEVICE;
    if (active)
        end_primary();
    return CUDA_SUCCESS;
}

API cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags) {
    LOCKED;
    if (device || !are_flags(flags))
        return device ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE;
    primary_flags = flags;
    return CUDA_SUCCESS;
}

API cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *is_active) {
    LOCKED;
    if (device || !flags || !is_active)
        return device ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE;
    *flags = primary_flags;
    *is_active = active;
    return CUDA_SUCCESS;
}

// The current context

API cuCtxSetCurrent(void *context) {
    LOCKED;
    if (context && !find(context))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!context) {
        depth -= depth > 0;
        return CUDA_SUCCESS;
    }
    depth += !depth;
    current[depth - 1] = sim_refer(context);
    return CUDA_SUCCESS;
}

API cuCtxGetCurrent(void **context) {
    LOCKED;
    if (!context)
        return CUDA_ERROR_INVALID_VALUE;
    *context = depth ? current[depth - 1].object : NULL;
    return CUDA_SUCCESS;
}

static CUresult push(void *context) {
    if (!find(context) || depth == DEPTH)
        return CUDA_ERROR_INVALID_CONTEXT;
    current[depth++] = sim_refer(context);
    return CUDA_SUCCESS;
}

API cuCtxPushCurrent_v2(void *context) {
    LOCKED;
    return context ? push(context) : CUDA_ERROR_INVALID_VALUE;
}

API cuCtxPopCurrent_v2(void **context) {
    LOCKED;
    if (!depth)
        return CUDA_ERROR_INVALID_CONTEXT;
    depth--;
    if (context)
        *context = current[depth].object;
    return CUDA_SUCCESS;
}

API cuCtxCreate_v2(void **context, unsigned flags, CUdevice device) {
    LOCKED;
    if (device)
        return CUDA_ERROR_INVALID_DEVICE;
    if (!context || depth == DEPTH || !are_flags(flags))
        return CUDA_ERROR_INVALID_VALUE;
    if (sim_fault_status)
        return sim_fault_status;
    struct context *made = sim_new(CONTEXT, NULL);
    if (!made || !(made->legacy = sim_add_stream(made, 0, 0))) {
        if (made)
            sim_delete(made);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    made->flags = flags;
    *context = made;
    return push(made);
}

API cuCtxCreate_v3(void **context, void *params, int count, unsigned flags, CUdevice device) {
    (void)params;
    return count ? CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY : cuCtxCreate_v2(context, flags, device);
}

API cuCtxCreate_v4(void **context, void *params, unsigned flags, CUdevice device) {
    (void)params;
    return cuCtxCreate_v2(context, flags, device);
}

API cuCtxDestroy_v2(void *handle) {
    LOCKED;
    struct context *context = find(handle);
    if (!context || context == primary)
        return handle ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_VALUE;
    struct reference is = sim_refer(context);
    if (depth && current[depth - 1].object == context)
        depth--;
    sim_drain(context, true);
    if (!is_there(is)) // another thread was faster
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    sim_delete(context);
    return CUDA_SUCCESS;
}

// The next call and cuCtxGetFlags work even after a fault.

API cuCtxGetDevice(CUdevice *device) {
    LOCKED;
    struct context *context;
    CUresult status = sim_enter(&context);
    if (status && status != sim_fault_status)
        return status;
    if (!device)
        return CUDA_ERROR_INVALID_VALUE;
    *device = 0;
    return CUDA_SUCCESS;
}

API cuCtxGetDevice_v2(CUdevice *device, void *context) {
    LOCKED;
    if (!device || !find(context))
        return device ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_VALUE;
    *device = 0;
    return CUDA_SUCCESS;
}

API cuCtxGetId(void *context, unsigned long long *id) {
    LOCKED;
    if (!id)
        return CUDA_ERROR_INVALID_VALUE;
    struct reference top = depth ? current[depth - 1] : (struct reference){0};
    if (context ? !find(context) : !is_there(top))
        return CUDA_ERROR_INVALID_CONTEXT;
    *id = context ? sim_refer(context).serial : top.serial;
    return CUDA_SUCCESS;
}

API cuCtxGetFlags(unsigned *flags) {
    LOCKED;
    struct context *context;
    CUresult status = sim_enter(&context);
    if (status && status != sim_fault_status)
        return status;
    if (!flags)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = context == primary ? primary_flags : context->flags;
    return CUDA_SUCCESS;
}

API cuCtxSetFlags(unsigned flags) {
    IN_CONTEXT;
    if (!are_flags(flags))
        return CUDA_ERROR_INVALID_VALUE;
    *(context == primary ? &primary_flags : &context->flags) = flags;
    return CUDA_SUCCESS;
}

API cuCtxGetApiVersion(void *context, unsigned *version) {
    (void)context;
    if (!version)
        return CUDA_ERROR_INVALID_VALUE;
    *version = 13000;
    return CUDA_SUCCESS;
}

API cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    IN_CONTEXT;
    if (least)
        *least = 0;
    if (greatest)
        *greatest = SIM_URGENT;
    return CUDA_SUCCESS;
}
