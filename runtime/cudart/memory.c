// Memory: allocation, copies, memsets, and attributes of addresses.

#include "box.h"

// Allocation. A size of 0 is not an error, and allocates nothing.

static int allocate(uint64_t *found, size_t size) {
    if (!found)
        return cudaErrorInvalidValue;
    *found = 0;
    return size ? DRIVER(cuMemAlloc_v2, (uint64_t *, size_t), found, size) : cudaSuccess;
}

static int allocate_host(void **found, size_t size, unsigned flags) {
    if (!found)
        return cudaErrorInvalidValue;
    *found = NULL;
    return size ? DRIVER(cuMemHostAlloc, (void **, size_t, unsigned), found, size, flags) : cudaSuccess;
}

static int allocate_rows(uint64_t *found, size_t *pitch, size_t width, size_t height) {
    if (!found || !pitch)
        return cudaErrorInvalidValue;
    *found = *pitch = 0;
    return width && height ? DRIVER(cuMemAllocPitch_v2, (uint64_t *, size_t *, size_t, size_t, unsigned),
                                    found, pitch, width, height, 4)
                           : cudaSuccess;
}

static int allocate_box(struct pitched *found, struct extent extent) {
    if (!found)
        return cudaErrorInvalidValue;
    size_t height;
    if (__builtin_mul_overflow(extent.height, extent.depth, &height))
        return cudaErrorMemoryAllocation;
    found->width = extent.width, found->height = extent.height;
    return allocate_rows((uint64_t *)&found->memory, &found->pitch, extent.width, height);
}

DEFINE(cudaMalloc, (uint64_t *found, size_t size), allocate(found, size))
DEFINE(cudaMallocManaged, (uint64_t *found, size_t size, unsigned flags),
       DRIVER(cuMemAllocManaged, (uint64_t *, size_t, unsigned), found, size, flags))
DEFINE(cudaMallocHost, (void **found, size_t size), allocate_host(found, size, 0))
DEFINE(cudaHostAlloc, (void **found, size_t size, unsigned flags), allocate_host(found, size, flags))
DEFINE(cudaMallocPitch, (uint64_t *found, size_t *pitch, size_t width, size_t height),
       allocate_rows(found, pitch, width, height))
DEFINE(cudaMalloc3D, (struct pitched * found, struct extent extent), allocate_box(found, extent))
DEFINE(cudaFree, (uint64_t memory), memory ? DRIVER(cuMemFree_v2, (uint64_t), memory) : cudaSuccess)
DEFINE(cudaFreeHost, (void *memory), memory ? DRIVER(cuMemFreeHost, (void *), memory) : cudaSuccess)
DEFINE(cudaMemGetInfo, (size_t *free, size_t *total),
       DRIVER(cuMemGetInfo_v2, (size_t *, size_t *), free, total))
DEFINE(cudaHostRegister, (void *memory, size_t size, unsigned flags),
       DRIVER(cuMemHostRegister_v2, (void *, size_t, unsigned), memory, size, flags))
DEFINE(cudaHostUnregister, (void *memory), DRIVER(cuMemHostUnregister, (void *), memory))
DEFINE(cudaHostGetDevicePointer, (uint64_t *found, void *memory, unsigned flags),
       DRIVER(cuMemHostGetDevicePointer_v2, (uint64_t *, void *, unsigned), found, memory, flags))
DEFINE(cudaHostGetFlags, (unsigned *flags, void *memory),
       DRIVER(cuMemHostGetFlags, (unsigned *, void *), flags, memory))

// Copies. The driver has a function for each direction; `variant` is the suffix for the per-thread default
// stream.

#define COPY(name, variant, ...)                                                                             \
    ({                                                                                                       \
        int made = cudaErrorInvalidMemcpyDirection;                                                          \
        uint64_t target = (uint64_t)to, source = (uint64_t)from;                                             \
        if (!size)                                                                                           \
            made = (unsigned)kind <= cudaMemcpyDefault ? cudaSuccess : made;                                 \
        else if (kind == cudaMemcpyHostToDevice)                                                             \
            made = CALL_COPY(cuMemcpyHtoD##name##_v2##variant, __VA_ARGS__);                                 \
        else if (kind == cudaMemcpyDeviceToHost)                                                             \
            made = CALL_COPY(cuMemcpyDtoH##name##_v2##variant, __VA_ARGS__);                                 \
        else if (kind == cudaMemcpyDeviceToDevice)                                                           \
            made = CALL_COPY(cuMemcpyDtoD##name##_v2##variant, __VA_ARGS__);                                 \
        else if (kind == cudaMemcpyHostToHost || kind == cudaMemcpyDefault)                                  \
            made = CALL_COPY(cuMemcpy##name##variant, __VA_ARGS__);                                          \
        made;                                                                                                \
    })
#define CALL_COPY(function, ...)                                                                             \
    DRIVER(function, (uint64_t, uint64_t, size_t __VA_OPT__(, void *)), target, source,                      \
           size __VA_OPT__(, ) __VA_ARGS__)

static int copy_bytes(void *to, const void *from, size_t size, int kind) { return COPY(, , ); }

static int copy_ptds(void *to, const void *from, size_t size, int kind) { return COPY(, _ptds, ); }

static int copy_async(void *to, const void *from, size_t size, int kind, void *stream) {
    return COPY(Async, , stream);
}

DEFINE(cudaMemcpy, (void *to, const void *from, size_t size, int kind), copy_bytes(to, from, size, kind))
DEFINE(cudaMemcpy_ptds, (void *to, const void *from, size_t size, int kind), copy_ptds(to, from, size, kind))
DEFINE(cudaMemcpyAsync, (void *to, const void *from, size_t size, int kind, void *stream),
       copy_async(to, from, size, kind, stream))
DEFINE(cudaMemcpyAsync_ptsz, (void *to, const void *from, size_t size, int kind, void *stream),
       copy_async(to, from, size, kind, PER_THREAD(stream)))

// Host and device share one address space.

static int check_peers(int one, int other) {
    int count, status = DRIVER(cuDeviceGetCount, (int *), &count);
    bool there = !status && one >= 0 && one < count && other >= 0 && other < count;
    return status ? status : there ? cudaSuccess : cudaErrorInvalidDevice;
}

static int copy_peer(void *to, int to_device, const void *from, int from_device, size_t size) {
    int status = check_peers(to_device, from_device);
    return status ? status : copy_bytes(to, from, size, cudaMemcpyDeviceToDevice);
}

static int copy_peer_async(void *to, int to_device, const void *from, int from_device, size_t size,
                           void *stream) {
    int status = check_peers(to_device, from_device);
    return status ? status : copy_async(to, from, size, cudaMemcpyDeviceToDevice, stream);
}

DEFINE(cudaMemcpyPeer, (void *to, int to_device, const void *from, int from_device, size_t size),
       copy_peer(to, to_device, from, from_device, size))
DEFINE(cudaMemcpyPeerAsync,
       (void *to, int to_device, const void *from, int from_device, size_t size, void *stream),
       copy_peer_async(to, to_device, from, from_device, size, stream))

// Variables: get the address `offset` bytes into a variable, after checking that `count` bytes from there are
// inside it.

static int place_in(const void *symbol, size_t offset, size_t count, bool right_direction, void **place) {
    uint64_t address;
    size_t size;
    int status = right_direction ? cudart_variable(symbol, &address, &size) : cudaErrorInvalidMemcpyDirection;
    if (status)
        return status;
    *place = (void *)(address + offset);
    return offset > size || count > size - offset ? cudaErrorInvalidValue : cudaSuccess;
}

#define TO_SYMBOL const void *symbol, const void *from, size_t count, size_t offset, int kind
#define FROM_SYMBOL void *to, const void *symbol, size_t count, size_t offset, int kind
// `copy` takes `place`; `host_end` is its direction if the other end is in host memory.
#define IN_VARIABLE(host_end, copy)                                                                          \
    ({                                                                                                       \
        void *place;                                                                                         \
        bool right = kind == host_end || kind == cudaMemcpyDeviceToDevice || kind == cudaMemcpyDefault;      \
        int found = place_in(symbol, offset, count, right, &place);                                          \
        found ? found : copy;                                                                                \
    })
#define SYMBOL_COPIES(sync, async, copy, of_stream)                                                          \
    DEFINE(cudaMemcpyToSymbol##sync, (TO_SYMBOL),                                                            \
           IN_VARIABLE(cudaMemcpyHostToDevice, copy(place, from, count, kind)))                              \
    DEFINE(cudaMemcpyFromSymbol##sync, (FROM_SYMBOL),                                                        \
           IN_VARIABLE(cudaMemcpyDeviceToHost, copy(to, place, count, kind)))                                \
    DEFINE(cudaMemcpyToSymbolAsync##async, (TO_SYMBOL, void *stream),                                        \
           IN_VARIABLE(cudaMemcpyHostToDevice, copy_async(place, from, count, kind, of_stream)))             \
    DEFINE(cudaMemcpyFromSymbolAsync##async, (FROM_SYMBOL, void *stream),                                    \
           IN_VARIABLE(cudaMemcpyDeviceToHost, copy_async(to, place, count, kind, of_stream)))
SYMBOL_COPIES(, , copy_bytes, stream)
SYMBOL_COPIES(_ptds, _ptsz, copy_ptds, PER_THREAD(stream))

// Boxes

static struct end end_of(const struct pitched *memory, struct position at, int type) {
    return (struct end){
        at.x, at.y,          at.z,          0, type, memory->memory, (uint64_t)memory->memory, NULL,
        NULL, memory->pitch, memory->height};
}

int cudart_box(struct driver_box *made, const struct box *box) {
    static const int types[][2] = {
        {HOST, HOST}, {HOST, DEVICE}, {DEVICE, HOST}, {DEVICE, DEVICE}, {UNIFIED, UNIFIED}};
    if (!box)
        return cudaErrorInvalidValue;
    if (box->from_array || box->to_array)
        return cudaErrorNotSupported;
    if ((unsigned)box->kind > cudaMemcpyDefault)
        return cudaErrorInvalidMemcpyDirection;
    size_t width = box->extent.width;
    if (box->extent.height > 1 && (box->from.pitch < width || box->to.pitch < width))
        return cudaErrorInvalidPitchValue;
    *made = (struct driver_box){end_of(&box->from, box->from_at, types[box->kind][0]),
                                end_of(&box->to, box->to_at, types[box->kind][1]), box->extent.width,
                                box->extent.height, box->extent.depth};
    return cudaSuccess;
}

static bool is_empty(const struct driver_box *box) { return !box->width || !box->height || !box->depth; }

static int copy_box(const struct box *given, bool per_thread) {
    struct driver_box box;
    int status = cudart_box(&box, given);
    if (status || is_empty(&box))
        return status;
    return per_thread ? DRIVER(cuMemcpy3D_v2_ptds, (const struct driver_box *), &box)
                      : DRIVER(cuMemcpy3D_v2, (const struct driver_box *), &box);
}

static int copy_box_async(const struct box *given, void *stream) {
    struct driver_box box;
    int status = cudart_box(&box, given);
    if (status || is_empty(&box))
        return status;
    return DRIVER(cuMemcpy3DAsync_v2, (const struct driver_box *, void *), &box, stream);
}

struct box cudart_rows(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                       size_t height, int kind) {
    return (struct box){.from = {(void *)from, from_pitch, width, height},
                        .to = {to, to_pitch, width, height},
                        .extent = {width, height, 1},
                        .kind = kind};
}

#define ROWS                                                                                                 \
    (void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height, int kind)
#define ROWS_ASYNC                                                                                           \
    (void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height, int kind,  \
     void *stream)
#define THE_ROWS ((struct box[]){cudart_rows(to, to_pitch, from, from_pitch, width, height, kind)})
DEFINE(cudaMemcpy2D, ROWS, copy_box(THE_ROWS, false))
DEFINE(cudaMemcpy2D_ptds, ROWS, copy_box(THE_ROWS, true))
DEFINE(cudaMemcpy2DAsync, ROWS_ASYNC, copy_box_async(THE_ROWS, stream))
DEFINE(cudaMemcpy2DAsync_ptsz, ROWS_ASYNC, copy_box_async(THE_ROWS, PER_THREAD(stream)))
DEFINE(cudaMemcpy3D, (const struct box *box), copy_box(box, false))
DEFINE(cudaMemcpy3D_ptds, (const struct box *box), copy_box(box, true))
DEFINE(cudaMemcpy3DAsync, (const struct box *box, void *stream), copy_box_async(box, stream))
DEFINE(cudaMemcpy3DAsync_ptsz, (const struct box *box, void *stream), copy_box_async(box, PER_THREAD(stream)))

// Values

static int set(uint64_t to, int value, size_t size, bool per_thread) {
    if (!size)
        return cudaSuccess;
    return per_thread
               ? DRIVER(cuMemsetD8_v2_ptds, (uint64_t, unsigned char, size_t), to, (unsigned char)value, size)
               : DRIVER(cuMemsetD8_v2, (uint64_t, unsigned char, size_t), to, (unsigned char)value, size);
}

static int set_async(uint64_t to, int value, size_t size, void *stream) {
    return size ? DRIVER(cuMemsetD8Async, (uint64_t, unsigned char, size_t, void *), to, (unsigned char)value,
                         size, stream)
                : cudaSuccess;
}

// The driver sets one plane at a time.
static int set_box(struct pitched to, int value, struct extent extent, void *stream) {
    int status = cudaSuccess;
    for (size_t z = 0; !status && extent.width && extent.height && z < extent.depth; z++)
        status = DRIVER(cuMemsetD2D8Async, (uint64_t, size_t, unsigned char, size_t, size_t, void *),
                        (uint64_t)to.memory + z * to.pitch * to.height, to.pitch, (unsigned char)value,
                        extent.width, extent.height, stream);
    return status;
}

static struct pitched plane(void *memory, size_t pitch) { return (struct pitched){memory, pitch, 0, 0}; }

static struct extent wide(size_t width, size_t height) { return (struct extent){width, height, 1}; }

DEFINE(cudaMemset, (uint64_t to, int value, size_t size), set(to, value, size, false))
DEFINE(cudaMemset_ptds, (uint64_t to, int value, size_t size), set(to, value, size, true))
DEFINE(cudaMemsetAsync, (uint64_t to, int value, size_t size, void *stream),
       set_async(to, value, size, stream))
DEFINE(cudaMemsetAsync_ptsz, (uint64_t to, int value, size_t size, void *stream),
       set_async(to, value, size, PER_THREAD(stream)))
#define SET2D (void *to, size_t pitch, int value, size_t width, size_t height)
#define SET2D_ASYNC (void *to, size_t pitch, int value, size_t width, size_t height, void *stream)
DEFINE(cudaMemset2D, SET2D, set_box(plane(to, pitch), value, wide(width, height), NULL))
DEFINE(cudaMemset2D_ptds, SET2D, set_box(plane(to, pitch), value, wide(width, height), PER_THREAD(NULL)))
DEFINE(cudaMemset2DAsync, SET2D_ASYNC, set_box(plane(to, pitch), value, wide(width, height), stream))
DEFINE(cudaMemset2DAsync_ptsz, SET2D_ASYNC,
       set_box(plane(to, pitch), value, wide(width, height), PER_THREAD(stream)))
DEFINE(cudaMemset3D, (struct pitched to, int value, struct extent extent), set_box(to, value, extent, NULL))
DEFINE(cudaMemset3D_ptds, (struct pitched to, int value, struct extent extent),
       set_box(to, value, extent, PER_THREAD(NULL)))
DEFINE(cudaMemset3DAsync, (struct pitched to, int value, struct extent extent, void *stream),
       set_box(to, value, extent, stream))
DEFINE(cudaMemset3DAsync_ptsz, (struct pitched to, int value, struct extent extent, void *stream),
       set_box(to, value, extent, PER_THREAD(stream)))

// Attributes of addresses

struct where { // struct cudaPointerAttributes
    int type, device;
    void *on_device, *on_host;
    long reserved[8];
};

static int where(struct where *found, const void *address) {
    enum { TYPE = 2, ON_DEVICE = 3, ON_HOST = 4, MANAGED = 8, ORDINAL = 9, NOWHERE = -2 };
    if (!found)
        return cudaErrorInvalidValue;
    *found = (struct where){.device = NOWHERE, .on_host = (void *)address};
    int attributes[] = {TYPE, ORDINAL, ON_DEVICE, ON_HOST, MANAGED}, type = 0, device = NOWHERE;
    unsigned managed = 0;
    void *on_device = NULL, *on_host = NULL, *data[] = {&type, &device, &on_device, &on_host, &managed};
    int status = DRIVER(cuPointerGetAttributes, (unsigned, int *, void **, uint64_t), 5, attributes, data,
                        (uint64_t)address);
    if (!status && type)
        *found = (struct where){managed ? 3 : type, device, on_device, on_host, {0}};
    return status;
}

DEFINE(cudaPointerGetAttributes, (struct where * found, const void *address), where(found, address))
