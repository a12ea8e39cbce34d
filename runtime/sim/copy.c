// Copies and memsets: which arguments are checked, what runs in the stream, and when the call returns. A one-
// or two-dimensional copy is treated as a three-dimensional one.

#include <stdlib.h>
#include <string.h>

#include "sim.h"

// The source or destination of a copy. Without a pitch, rows follow each other; without a height, planes do.
struct end {
    uint32_t type;
    const void *host;
    uint64_t device;
    size_t x, y, z, pitch, height;
};

static struct end source_of(const CUDA_MEMCPY3D *c) {
    return (struct end){c->srcMemoryType, c->srcHost, c->srcDevice, c->srcXInBytes,
                        c->srcY,          c->srcZ,    c->srcPitch,  c->srcHeight};
}

static struct end destination_of(const CUDA_MEMCPY3D *c) {
    return (struct end){c->dstMemoryType, c->dstHost, c->dstDevice, c->dstXInBytes,
                        c->dstY,          c->dstZ,    c->dstPitch,  c->dstHeight};
}

static size_t pitch_of(const CUDA_MEMCPY3D *c, const struct end *end) {
    return end->pitch ? end->pitch : c->WidthInBytes;
}

static size_t height_of(const CUDA_MEMCPY3D *c, const struct end *end) {
    return end->height ? end->height : c->Height;
}

// Return where a row begins, counted from the end's address.
static size_t row_of(const CUDA_MEMCPY3D *c, const struct end *end, size_t z, size_t y) {
    return ((end->z + z) * height_of(c, end) + end->y + y) * pitch_of(c, end) + end->x;
}

// Return the number of bytes from the first one touched to the last, or SIZE_MAX if that overflows.
static size_t extent(const CUDA_MEMCPY3D *c, const struct end *end) {
    size_t rows, bytes;
    if (__builtin_mul_overflow(c->Depth - 1, height_of(c, end), &rows) ||
        __builtin_add_overflow(rows, c->Height - 1, &rows) ||
        __builtin_mul_overflow(rows, pitch_of(c, end), &bytes) ||
        __builtin_add_overflow(bytes, c->WidthInBytes, &bytes))
        return SIZE_MAX;
    return bytes;
}

static bool is_device(uint64_t start, uint64_t size, bool node) {
    return sim_range(start, size) || (node && sim_is_graph_memory(start, size));
}

// Return whether an address that may be the host's isn't device memory that is too small or was freed.
static bool is_any(uint64_t start, uint64_t size, bool node) {
    const struct range *range = sim_range(start, 1);
    if (range ? range->type == PINNED || range->type == REGISTERED : !(node && sim_is_graph_memory(start, 1)))
        return node || !sim_is_gone(start);
    return is_device(start, size, node);
}

static CUresult check_end(const CUDA_MEMCPY3D *c, bool node, const struct end *end) {
    size_t width, height;
    if (__builtin_add_overflow(end->x, c->WidthInBytes, &width) || width > pitch_of(c, end))
        if (end->pitch || end->x)
            return CUDA_ERROR_INVALID_VALUE;
    if (end->height && (__builtin_add_overflow(end->y, c->Height, &height) || height > end->height))
        return CUDA_ERROR_INVALID_VALUE;
    uint64_t first = end->device + row_of(c, end, 0, 0), size = extent(c, end);
    bool is_there = false;
    switch (end->type) {
    case CU_MEMORYTYPE_HOST:
        is_there = end->host;
        break;
    case CU_MEMORYTYPE_UNIFIED:
        is_there = end->device && is_any(first, size, node);
        break;
    case CU_MEMORYTYPE_DEVICE:
        is_there = is_device(first, size, node);
        break;
    case CU_MEMORYTYPE_ARRAY:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    return is_there ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_check_copy(const CUDA_MEMCPY3D *c, bool node) {
    if (!c->WidthInBytes || !c->Height || !c->Depth)
        return CUDA_SUCCESS;
    const struct end from = source_of(c), to = destination_of(c);
    CUresult status = check_end(c, node, &to);
    return status ? status : check_end(c, node, &from);
}

void sim_run_copy(const CUDA_MEMCPY3D *c) {
    const struct end source = source_of(c), destination = destination_of(c);
    char *to = c->dstMemoryType == CU_MEMORYTYPE_HOST ? c->dstHost : (char *)c->dstDevice;
    const char *from = c->srcMemoryType == CU_MEMORYTYPE_HOST ? c->srcHost : (const char *)c->srcDevice;
    for (size_t z = 0; z < c->Depth && c->WidthInBytes; z++)
        for (size_t y = 0; y < c->Height; y++)
            memmove(to + row_of(c, &destination, z, y), from + row_of(c, &source, z, y), c->WidthInBytes);
}

// Where the source or destination of a copy is.
enum place { ON_DEVICE, IN_PINNED, IN_PAGEABLE };

static enum place place_of(uint32_t type, const void *host, uint64_t device) {
    const struct range *range = sim_range(type == CU_MEMORYTYPE_HOST ? (uint64_t)host : device, 1);
    return !range ? IN_PAGEABLE : range->type == PINNED || range->type == REGISTERED ? IN_PINNED : ON_DEVICE;
}

enum { STAGED = 1 << 20 }; // bytes: a call that copies more from pageable memory waits for its turn

// Copy the source to a buffer before the call returns, since the program may change it right after.
static bool stage(struct operation *operation) {
    CUDA_MEMCPY3D *c = &operation->copy, packed = *c;
    if (!(operation->owned = malloc(c->WidthInBytes * c->Height * c->Depth)))
        return false;
    packed.dstMemoryType = CU_MEMORYTYPE_HOST, packed.dstHost = operation->owned;
    packed.dstXInBytes = packed.dstY = packed.dstZ = 0;
    packed.dstPitch = c->WidthInBytes, packed.dstHeight = c->Height;
    sim_run_copy(&packed);
    c->srcMemoryType = CU_MEMORYTYPE_HOST, c->srcHost = operation->owned;
    c->srcXInBytes = c->srcY = c->srcZ = 0;
    c->srcPitch = c->WidthInBytes, c->srcHeight = c->Height;
    return true;
}

// Issue a copy. When the call returns follows "API synchronization behavior" in the driver's manual: pageable
// memory has been read or written, a copy from host to host is complete, and one from device to device may
// not have begun. For pinned memory, only an `async` call returns early. The calling thread accesses pageable
// memory itself, so a bad address faults in that thread, where the program may have a signal handler.
static CUresult copy(const CUDA_MEMCPY3D *c, void *handle, bool async) {
    IN_CONTEXT;
    struct stream *stream = sim_stream(context, handle);
    CUresult status = stream ? sim_check_copy(c, stream->capture) : CUDA_ERROR_INVALID_HANDLE;
    if (status || !c->WidthInBytes || !c->Height || !c->Depth)
        return status;
    struct operation operation = {.type = CU_GRAPH_NODE_TYPE_MEMCPY, .copy = *c};
    if (stream->capture)
        return sim_issue(stream, &operation);
    enum place to = place_of(c->dstMemoryType, c->dstHost, c->dstDevice);
    enum place from = place_of(c->srcMemoryType, c->srcHost, c->srcDevice);
    bool staged = from == IN_PAGEABLE && to == ON_DEVICE && // so it's no larger than device memory
                  c->WidthInBytes * c->Height * c->Depth <= STAGED;
    if (staged && !async && (status = sim_wait(stream)))
        return status;
    if (staged && !stage(&operation))
        return CUDA_ERROR_OUT_OF_MEMORY;
    operation.by_caller = !staged && (to == IN_PAGEABLE || from == IN_PAGEABLE);
    status = sim_issue(stream, &operation);
    bool waits = operation.by_caller || (to == IN_PINNED && (from != ON_DEVICE || !async)) ||
                 (from == IN_PINNED && !async);
    if (!status && waits)
        status = sim_wait(stream);
    if (!status && operation.by_caller) {
        pthread_mutex_unlock(&sim_lock);
        sim_run_copy(c);
        pthread_mutex_lock(&sim_lock);
    }
    return status;
}

static CUresult copy_flat(uint64_t to, uint32_t to_type, uint64_t from, uint32_t from_type, size_t size,
                          void *stream, bool async) {
    return copy(&(CUDA_MEMCPY3D){.dstMemoryType = to_type,
                                 .dstHost = (void *)to,
                                 .dstDevice = to,
                                 .srcMemoryType = from_type,
                                 .srcHost = (const void *)from,
                                 .srcDevice = from,
                                 .WidthInBytes = size,
                                 .Height = 1,
                                 .Depth = 1},
                stream, async);
}

enum { HOST = CU_MEMORYTYPE_HOST, GPU = CU_MEMORYTYPE_DEVICE, ANY = CU_MEMORYTYPE_UNIFIED };

API cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t size) {
    return copy_flat(to, GPU, (uint64_t)from, HOST, size, NULL, false);
}

API cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t size) {
    return copy_flat((uint64_t)to, HOST, from, GPU, size, NULL, false);
}

API cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t size) {
    return copy_flat(to, GPU, from, GPU, size, NULL, false);
}

API cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t size, void *stream) {
    return copy_flat(to, GPU, (uint64_t)from, HOST, size, stream, true);
}

API cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t size, void *stream) {
    return copy_flat((uint64_t)to, HOST, from, GPU, size, stream, true);
}

API cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t size, void *stream) {
    return copy_flat(to, GPU, from, GPU, size, stream, true);
}

API cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t size) {
    return copy_flat(to, ANY, from, ANY, size, NULL, false);
}

API cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t size, void *stream) {
    return copy_flat(to, ANY, from, ANY, size, stream, true);
}

static CUresult copy_2d(const CUDA_MEMCPY2D *c, void *stream, bool async) {
    if (!c)
        return CUDA_ERROR_INVALID_VALUE;
    return copy(&(CUDA_MEMCPY3D){.srcXInBytes = c->srcXInBytes,
                                 .srcY = c->srcY,
                                 .srcMemoryType = c->srcMemoryType,
                                 .srcHost = c->srcHost,
                                 .srcDevice = c->srcDevice,
                                 .srcPitch = c->srcPitch,
                                 .dstXInBytes = c->dstXInBytes,
                                 .dstY = c->dstY,
                                 .dstMemoryType = c->dstMemoryType,
                                 .dstHost = c->dstHost,
                                 .dstDevice = c->dstDevice,
                                 .dstPitch = c->dstPitch,
                                 .WidthInBytes = c->WidthInBytes,
                                 .Height = c->Height,
                                 .Depth = 1},
                stream, async);
}

API cuMemcpy2D_v2(const CUDA_MEMCPY2D *c) { return copy_2d(c, NULL, false); }

API cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *c) { return copy_2d(c, NULL, false); }

API cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *c, void *stream) { return copy_2d(c, stream, true); }

API cuMemcpy3D_v2(const CUDA_MEMCPY3D *c) { return c ? copy(c, NULL, false) : CUDA_ERROR_INVALID_VALUE; }

API cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *c, void *stream) {
    return c ? copy(c, stream, true) : CUDA_ERROR_INVALID_VALUE;
}

// Memsets

CUresult sim_check_set(const CUDA_MEMSET_NODE_PARAMS_v2 *s, bool node) {
    size_t row, size;
    if ((s->elementSize != 1 && s->elementSize != 2 && s->elementSize != 4) || s->dst % s->elementSize ||
        __builtin_mul_overflow(s->width, s->elementSize, &row) || (s->height > 1 && s->pitch < row))
        return CUDA_ERROR_INVALID_VALUE;
    if (!row || !s->height)
        return CUDA_SUCCESS;
    if (__builtin_mul_overflow(s->pitch, s->height - 1, &size) || __builtin_add_overflow(size, row, &size))
        return CUDA_ERROR_INVALID_VALUE;
    return is_device(s->dst, size, node) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

void sim_run_set(const CUDA_MEMSET_NODE_PARAMS_v2 *s) {
    for (size_t y = 0; y < s->height; y++) {
        char *to = (char *)s->dst + y * s->pitch;
        if (s->elementSize == 1)
            memset(to, (int)s->value, s->width);
        else
            for (size_t x = 0; x < s->width; x++)
                memcpy(to + x * s->elementSize, &s->value, s->elementSize);
    }
}

// Issue a memset. If the host can access the memory, the call returns after the memset, unless it's
// asynchronous.
static CUresult set(CUdeviceptr to, size_t pitch, uint32_t value, uint32_t item, size_t width, size_t height,
                    void *handle, bool async) {
    IN_CONTEXT;
    const CUDA_MEMSET_NODE_PARAMS_v2 s = {to, pitch, value, item, width, height, NULL};
    struct stream *stream = sim_stream(context, handle);
    CUresult status = !stream                      ? CUDA_ERROR_INVALID_HANDLE
                      : height > 1 && pitch % item ? CUDA_ERROR_INVALID_VALUE // each row must be aligned
                                                   : sim_check_set(&s, stream->capture);
    if (status || !width || !height)
        return status;
    const struct range *range = async ? NULL : sim_range(to, 1);
    bool waits = range && range->type != DEVICE && range->type != OF_GRAPH;
    status = sim_issue(stream, &(struct operation){.type = CU_GRAPH_NODE_TYPE_MEMSET, .set = s});
    return status || !waits ? status : sim_wait(stream);
}

#define SET(bits, type)                                                                                      \
    API cuMemsetD##bits##_v2(CUdeviceptr to, type value, size_t items) {                                     \
        return set(to, 0, value, bits / 8, items, 1, NULL, false);                                           \
    }                                                                                                        \
    API cuMemsetD##bits##Async(CUdeviceptr to, type value, size_t items, void *stream) {                     \
        return set(to, 0, value, bits / 8, items, 1, stream, true);                                          \
    }                                                                                                        \
    API cuMemsetD2D##bits##_v2(CUdeviceptr to, size_t pitch, type value, size_t width, size_t height) {      \
        return set(to, pitch, value, bits / 8, width, height, NULL, false);                                  \
    }                                                                                                        \
    API cuMemsetD2D##bits##Async(CUdeviceptr to, size_t pitch, type value, size_t width, size_t height,      \
                                 void *stream) {                                                             \
        return set(to, pitch, value, bits / 8, width, height, stream, true);                                 \
    }

SET(8, unsigned char)
SET(16, unsigned short)
SET(32, unsigned)
