// What the runtime knows of the ABI of CUDA's driver, so that no CUDA header is needed to build it.
// tests/runtime/test_abi.py compares every value with cuda.h.

#ifndef GPT_CUDA_ABI_H
#define GPT_CUDA_ABI_H

#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef uint64_t CUdeviceptr;

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_STUB_LIBRARY = 34,
    CUDA_ERROR_INVALID_DEVICE = 101,
    CUDA_ERROR_INVALID_IMAGE = 200,
    CUDA_ERROR_INVALID_CONTEXT = 201,
    CUDA_ERROR_NO_BINARY_FOR_GPU = 209,
    CUDA_ERROR_FILE_NOT_FOUND = 301,
    CUDA_ERROR_INVALID_HANDLE = 400,
    CUDA_ERROR_NOT_FOUND = 500,
    CUDA_ERROR_NOT_READY = 600,
    CUDA_ERROR_ILLEGAL_INSTRUCTION = 715,
    CUDA_ERROR_NOT_SUPPORTED = 801,
};

enum {
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
};

enum {
    CU_STREAM_NON_BLOCKING = 1,
    CU_STREAM_CAPTURE_MODE_RELAXED = 2,
};

enum {
    CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM = 2,
};

enum {
    CU_LAUNCH_ATTRIBUTE_COOPERATIVE = 2,
    CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION = 4,
};

typedef struct {
    char bytes[16];
} CUuuid;

typedef struct {
    uint32_t id;
    uint32_t pad;
    union {
        char pad[64];
        uint32_t cooperative;
        struct {
            uint32_t x, y, z;
        } clusterDim;
    } value;
} CUlaunchAttribute;

typedef struct {
    uint32_t gridDimX, gridDimY, gridDimZ;
    uint32_t blockDimX, blockDimY, blockDimZ;
    uint32_t sharedMemBytes;
    void *hStream;
    const CUlaunchAttribute *attrs;
    uint32_t numAttrs;
} CUlaunchConfig;

enum { CU_MEMORYTYPE_HOST = 1 };

enum {
    CU_GRAPH_NODE_TYPE_KERNEL = 0,
    CU_GRAPH_NODE_TYPE_GRAPH = 4,
};

typedef struct {
    void *func;
    uint32_t gridDimX, gridDimY, gridDimZ;
    uint32_t blockDimX, blockDimY, blockDimZ;
    uint32_t sharedMemBytes;
    void **kernelParams, **extra;
    void *kern; // where func is NULL
    void *ctx;
} CUDA_KERNEL_NODE_PARAMS;

typedef struct {
    size_t srcXInBytes, srcY;
    uint32_t srcMemoryType;
    const void *srcHost;
    CUdeviceptr srcDevice;
    void *srcArray;
    size_t srcPitch;
    size_t dstXInBytes, dstY;
    uint32_t dstMemoryType;
    void *dstHost;
    CUdeviceptr dstDevice;
    void *dstArray;
    size_t dstPitch;
    size_t WidthInBytes, Height;
} CUDA_MEMCPY2D;

// CUDA_MEMCPY3D_PEER has contexts where the reserved members are.
typedef struct {
    size_t srcXInBytes, srcY, srcZ, srcLOD;
    uint32_t srcMemoryType;
    const void *srcHost;
    CUdeviceptr srcDevice;
    void *srcArray;
    void *reserved0;
    size_t srcPitch, srcHeight;
    size_t dstXInBytes, dstY, dstZ, dstLOD;
    uint32_t dstMemoryType;
    void *dstHost;
    CUdeviceptr dstDevice;
    void *dstArray;
    void *reserved1;
    size_t dstPitch, dstHeight;
    size_t WidthInBytes, Height, Depth;
} CUDA_MEMCPY3D;

// What stands for a fatbin where it is handed over: a wrapper. It leads to a region.
#define FATBIN_WRAPPER_MAGIC 0x466243b1u
#define FATBIN_MAGIC 0xba55ed50u

struct fatbin_wrapper {
    uint32_t magic, version;
    const void *data;
    void *more;
};

struct fatbin_region {
    uint32_t magic;
    uint16_t version, header_size;
    uint64_t size; // bytes after the header
};

enum { FATBIN_DEAD = 0, FATBIN_PTX = 1, FATBIN_CUBIN = 2 };

struct fatbin_element {
    uint16_t kind, version;
    uint32_t header_size;
    uint64_t payload_size;
    uint32_t packed_size, options_offset;
    uint16_t minor, major;
    uint32_t arch; // 90
    uint32_t name_offset, name_size;
    uint64_t flags;
};

#define FATBIN_PACKED (1u << 13 | 1u << 15) // LZ4, zstd
#define FATBIN_SUFFIX_A (1u << 20)
#define FATBIN_SUFFIX_F (1u << 21)

#endif
