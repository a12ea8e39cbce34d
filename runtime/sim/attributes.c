// Device attributes. The limits are from the CUDA programming guide, for the compute capability.
// The clock rates and the cache size are an H200's. An attribute that isn't listed is 0, which means that the
// device doesn't have the feature.

#include <sched.h>
#include <string.h>

#include "sim.h"

static const int attributes[CU_DEVICE_ATTRIBUTE_MAX] = {
    [CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK] = 1024,
    [CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X] = 1024,
    [CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y] = 1024,
    [CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z] = 64,
    [CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X] = 2147483647,
    [CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y] = 65535,
    [CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z] = 65535,
    [CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK] = 49152,
    [CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY] = 65536,
    [CU_DEVICE_ATTRIBUTE_WARP_SIZE] = 32,
    [CU_DEVICE_ATTRIBUTE_MAX_PITCH] = 2147483647,
    [CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK] = 65536,
    [CU_DEVICE_ATTRIBUTE_CLOCK_RATE] = 1980000, // kHz
    [CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT] = 512,
    [CU_DEVICE_ATTRIBUTE_GPU_OVERLAP] = 1,
    [CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY] = 1,
    [CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS] = 1,
    [CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE] = 3201000,    // kHz
    [CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH] = 6144, // bits
    [CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE] = 62914560,
    [CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT] = 3,
    [CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING] = 1,
    [CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT] = 32,
    [CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR] = 65536,
    [CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY] = 1,
    [CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS] = 1,
    [CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM] = 1,
    [CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH] = 1,
    [CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS] = 1,
    [CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR] = 1,
    [CU_DEVICE_ATTRIBUTE_MEM_SYNC_DOMAIN_COUNT] = 1,
    [CU_DEVICE_ATTRIBUTE_NUMA_ID] = -1,
    [CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID] = -1,
    [CU_DEVICE_ATTRIBUTE_HOST_MEMORY_POOLS_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED] = 1,
};

// Attributes that depend on the compute capability. A row holds up to the capability of the next row.
static const struct family {
    int capability;
    int threads, blocks;      // the most that a multiprocessor holds
    int shared, shared_block; // KiB of a multiprocessor; KiB that a block may have
    int reserved;             // bytes in each block reserved for the system
    int doubles;              // float operations in the time of one double operation
} families[] = {
    {10, 1024, 8, 16, 16, 0, 8},         {20, 1536, 8, 48, 48, 0, 2},
    {30, 2048, 16, 48, 48, 0, 24},       {50, 2048, 32, 64, 48, 0, 32},
    {52, 2048, 32, 96, 48, 0, 32},       {53, 2048, 32, 64, 48, 0, 32},
    {60, 2048, 32, 64, 48, 0, 2},        {61, 2048, 32, 96, 48, 0, 32},
    {62, 2048, 32, 64, 48, 0, 32},       {70, 2048, 32, 96, 96, 0, 2},
    {75, 1024, 16, 64, 64, 0, 32},       {80, 2048, 32, 164, 163, 1024, 2},
    {86, 1536, 16, 100, 99, 1024, 32},   {87, 1536, 16, 164, 163, 1024, 32},
    {89, 1536, 24, 100, 99, 1024, 64},   {90, 2048, 32, 228, 227, 1024, 2},
    {103, 2048, 32, 228, 227, 1024, 64}, {110, 1536, 24, 228, 227, 1024, 64},
    {120, 1536, 24, 100, 99, 1024, 64},
};

unsigned sim_processors(void) {
    static unsigned count;
    cpu_set_t set;
    if (!count)
        count = !sched_getaffinity(0, sizeof(set), &set) ? (unsigned)CPU_COUNT(&set) : 1;
    return count;
}

int sim_attribute(int attribute) {
    int capability = 10 * sim_major + sim_minor;
    const struct family *family = families;
    while (family + 1 < families + sizeof(families) / sizeof(*families) && family[1].capability <= capability)
        family++;
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        return sim_major;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
        return sim_minor;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
        return (int)sim_processors();
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
        return family->threads;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR:
        return family->blocks;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR:
        return 1024 * family->shared;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
        return 1024 * family->shared_block;
    case CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK:
        return family->reserved;
    case CU_DEVICE_ATTRIBUTE_SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO:
        return family->doubles;
    }
    return attribute > 0 && attribute < CU_DEVICE_ATTRIBUTE_MAX ? attributes[attribute] : 0;
}

API cuDeviceGetAttribute(int *value, int attribute, CUdevice device) {
    LOCKED;
    if (device)
        return CUDA_ERROR_INVALID_DEVICE;
    if (!value || attribute <= 0 || attribute >= CU_DEVICE_ATTRIBUTE_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    *value = sim_attribute(attribute);
    return CUDA_SUCCESS;
}

API cuDeviceComputeCapability(int *major, int *minor, CUdevice device) {
    CUresult status = major && minor ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    if (!status)
        status = cuDeviceGetAttribute(major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
    return status ? status
                  : cuDeviceGetAttribute(minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
}

API cuDeviceGetProperties(CUdevprop *properties, CUdevice device) {
    LOCKED;
    if (device || !properties)
        return device ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE;
    *properties = (CUdevprop){
        .maxThreadsPerBlock = sim_attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK),
        .sharedMemPerBlock = sim_attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK),
        .totalConstantMemory = sim_attribute(CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY),
        .SIMDWidth = sim_attribute(CU_DEVICE_ATTRIBUTE_WARP_SIZE),
        .memPitch = sim_attribute(CU_DEVICE_ATTRIBUTE_MAX_PITCH),
        .regsPerBlock = sim_attribute(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK),
        .clockRate = sim_attribute(CU_DEVICE_ATTRIBUTE_CLOCK_RATE),
        .textureAlign = sim_attribute(CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT),
    };
    for (int i = 0; i < 3; i++) {
        properties->maxThreadsDim[i] = sim_attribute(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X + i);
        properties->maxGridSize[i] = sim_attribute(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X + i);
    }
    return CUDA_SUCCESS;
}

// Limits of contexts

static const uint64_t limits[CU_LIMIT_MAX] = {
    [CU_LIMIT_STACK_SIZE] = 1024,
    [CU_LIMIT_PRINTF_FIFO_SIZE] = 1 << 20,
    [CU_LIMIT_MALLOC_HEAP_SIZE] = 8 << 20,
    [CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT] = 2048,
    [CU_LIMIT_MAX_L2_FETCH_GRANULARITY] = 64,
};

uint64_t sim_limit(const struct context *context, int limit) {
    return context->limits[limit] ? context->limits[limit] : limits[limit];
}
