// Stream memory operations, which write a value to memory or wait for one, and attributes of streams.

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sim.h"

struct value_operation {
    CUdeviceptr address;
    uint64_t value;
    unsigned size, flags; // bytes; CU_STREAM_WAIT_VALUE_*
};

static uint64_t read_value(const struct value_operation *operation) {
    return operation->size == 8 ? __atomic_load_n((uint64_t *)operation->address, __ATOMIC_ACQUIRE)
                                : __atomic_load_n((uint32_t *)operation->address, __ATOMIC_ACQUIRE);
}

static bool is_reached(const struct value_operation *operation, uint64_t value) {
    bool wide = operation->size == 8;
    uint64_t wanted = operation->value, mask = wide ? UINT64_MAX : UINT32_MAX;
    switch (operation->flags & 3) {
    case CU_STREAM_WAIT_VALUE_GEQ:
        return wide ? (int64_t)(value - wanted) >= 0 : (int32_t)(uint32_t)(value - wanted) >= 0;
    case CU_STREAM_WAIT_VALUE_EQ:
        return value == wanted;
    case CU_STREAM_WAIT_VALUE_AND:
        return value & wanted;
    }
    return ~(value | wanted) & mask;
}

static void wait_value(void *data) {
    while (!is_reached(data, read_value(data)))
        usleep(50);
}

static void write_value(void *data) {
    const struct value_operation *operation = data;
    if (operation->size == 8)
        __atomic_store_n((uint64_t *)operation->address, operation->value, __ATOMIC_RELEASE);
    else
        __atomic_store_n((uint32_t *)operation->address, (uint32_t)operation->value, __ATOMIC_RELEASE);
}

// These can't be captured.
static CUresult issue(void *handle, void (*function)(void *), CUdeviceptr address, uint64_t value,
                      unsigned size, unsigned flags) {
    const unsigned known = function == wait_value ? CU_STREAM_WAIT_VALUE_NOR | CU_STREAM_WAIT_VALUE_FLUSH
                                                  : CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER;
    IN_CONTEXT;
    struct stream *stream = sim_stream(context, handle);
    if (!stream)
        return CUDA_ERROR_INVALID_HANDLE;
    if (stream->capture && stream->capture->invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (flags & ~known || address % size || !sim_range(address, size))
        return CUDA_ERROR_INVALID_VALUE;
    if (stream->capture)
        return CUDA_ERROR_NOT_SUPPORTED;
    struct value_operation *made = malloc(sizeof(*made));
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *made = (struct value_operation){address, size == 8 ? value : (uint32_t)value, size, flags};
    return sim_issue(stream, &(struct operation){.type = CU_GRAPH_NODE_TYPE_HOST,
                                                 .owned = made,
                                                 .host = {.function = function, .data = made}});
}

#define VALUE(name, function, type)                                                                          \
    API cuStream##name##_v2(void *stream, CUdeviceptr address, type value, unsigned flags) {                 \
        return issue(stream, function, address, value, sizeof(type), flags);                                 \
    }                                                                                                        \
    API cuStream##name(void *stream, CUdeviceptr address, type value, unsigned flags) {                      \
        return cuStream##name##_v2(stream, address, value, flags);                                           \
    }

VALUE(WriteValue32, write_value, uint32_t)
VALUE(WriteValue64, write_value, uint64_t)
VALUE(WaitValue32, wait_value, uint32_t)
VALUE(WaitValue64, wait_value, uint64_t)

union operation_params { // CUstreamBatchMemOpParams
    uint32_t operation;
    struct {
        uint32_t operation;
        CUdeviceptr address;
        uint64_t value;
        uint32_t flags;
        CUdeviceptr alias;
    } with_value;
    uint64_t pad[6];
};

API cuStreamBatchMemOp_v2(void *stream, unsigned count, const union operation_params *params,
                          unsigned flags) {
    enum { MOST = 255 };
    if (flags || (count && !params) || count > MOST)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult status = CUDA_SUCCESS;
    for (unsigned i = 0; i < count && !status; i++) {
        const union operation_params *at = &params[i];
        bool wide = at->operation == CU_STREAM_MEM_OP_WAIT_VALUE_64 ||
                    at->operation == CU_STREAM_MEM_OP_WRITE_VALUE_64;
        bool wait = at->operation == CU_STREAM_MEM_OP_WAIT_VALUE_64 ||
                    at->operation == CU_STREAM_MEM_OP_WAIT_VALUE_32;
        if (wait || wide || at->operation == CU_STREAM_MEM_OP_WRITE_VALUE_32)
            status = issue(stream, wait ? wait_value : write_value, at->with_value.address,
                           at->with_value.value, wide ? 8 : 4, at->with_value.flags);
        else if (at->operation != CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES &&
                 at->operation != CU_STREAM_MEM_OP_BARRIER)
            status = CUDA_ERROR_INVALID_VALUE; // these two have nothing to do
    }
    return status;
}

API cuStreamBatchMemOp(void *stream, unsigned count, const union operation_params *params, unsigned flags) {
    return cuStreamBatchMemOp_v2(stream, count, params, flags);
}

// Attributes, of which only the priority means anything here.

static CUresult find(struct stream **stream, void *handle, int attribute, const void *value) {
    IN_CONTEXT;
    *stream = sim_stream(context, handle);
    if (!*stream || !value)
        return *stream ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    static const bool known[] = {[CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW] = true,
                                 [CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY] = true,
                                 [CU_LAUNCH_ATTRIBUTE_PRIORITY] = true,
                                 [CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP] = true,
                                 [CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN] = true};
    bool is = attribute >= 0 && (size_t)attribute < sizeof(known) && known[attribute];
    return is ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API cuStreamGetAttribute(void *handle, int attribute, void *value) {
    struct stream *stream;
    CUresult status = find(&stream, handle, attribute, value);
    if (status)
        return status;
    memset(value, 0, sizeof(((CUlaunchAttribute *)0)->value));
    if (attribute == CU_LAUNCH_ATTRIBUTE_PRIORITY)
        *(int *)value = stream->priority;
    return CUDA_SUCCESS;
}

API cuStreamSetAttribute(void *handle, int attribute, const void *value) {
    struct stream *stream;
    CUresult status = find(&stream, handle, attribute, value);
    if (!status && attribute != CU_LAUNCH_ATTRIBUTE_PRIORITY)
        status = sim_check_attribute(attribute, value);
    if (!status && attribute == CU_LAUNCH_ATTRIBUTE_PRIORITY)
        stream->priority = *(const int *)value;
    return status;
}

API cuStreamCopyAttributes(void *to, void *from) {
    int priority[16];
    CUresult status = cuStreamGetAttribute(from, CU_LAUNCH_ATTRIBUTE_PRIORITY, priority);
    return status ? status : cuStreamSetAttribute(to, CU_LAUNCH_ATTRIBUTE_PRIORITY, priority);
}

CUresult cuStreamGetCtx(void *handle, void **of);
API cuStreamGetCtx_v2(void *stream, void **context, void **green) {
    if (green)
        *green = NULL;
    void *unused;
    return cuStreamGetCtx(stream, context ? context : &unused);
}
