// Computes how many blocks a multiprocessor of the device would hold, with the formulas of the CUDA occupancy
// calculator, for the compute capabilities that it lists.

#include "sim.h"

static uint64_t round_up(uint64_t number, uint64_t to) { return (number + to - 1) / to * to; }

// Return how much shared memory a block of a function uses, with this much dynamic memory.
static uint64_t shared_of(const struct function *function, size_t dynamic) {
    uint64_t unit = sim_major >= 8 ? 128 : 256;
    uint64_t fixed = (uint64_t)sim_function_attribute(function, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES);
    return round_up(fixed + dynamic +
                        (uint64_t)sim_attribute(CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK),
                    unit);
}

uint64_t sim_resident_blocks(const struct function *function, uint64_t threads, size_t dynamic) {
    enum { WARP = 32, REGISTER_UNIT = 256, PARTITIONS = 4 };
    uint64_t warps = round_up(threads, WARP) / WARP, most;
    if (!threads || threads > (uint64_t)sim_attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK) ||
        dynamic > (uint64_t)sim_function_attribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES))
        return 0;
    uint64_t blocks = (uint64_t)sim_attribute(CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR);
    most = (uint64_t)sim_attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR) / WARP / warps;
    blocks = most < blocks ? most : blocks;
    uint64_t registers = (uint64_t)sim_function_attribute(function, CU_FUNC_ATTRIBUTE_NUM_REGS);
    if (registers) {
        most = (uint64_t)sim_attribute(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR) /
               round_up(registers * WARP, REGISTER_UNIT) / PARTITIONS * PARTITIONS / warps;
        blocks = most < blocks ? most : blocks;
    }
    uint64_t shared = shared_of(function, dynamic);
    most = shared ? (uint64_t)sim_attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR) / shared
                  : blocks;
    return most < blocks ? most : blocks;
}

static struct function *find(void *function) {
    return is_kind(function, FUNCTION) || is_kind(function, KERNEL) ? function : NULL;
}

API cuOccupancyMaxActiveBlocksPerMultiprocessor(int *count, void *function, int threads, size_t dynamic) {
    LOCKED;
    if (sim_fault_status)
        return sim_fault_status;
    if (!find(function))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!count || threads <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    *count = (int)sim_resident_blocks(function, (uint64_t)threads, dynamic);
    return CUDA_SUCCESS;
}

API cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *count, void *function, int threads,
                                                         size_t dynamic, unsigned flags) {
    if (flags > 1)
        return CUDA_ERROR_INVALID_VALUE;
    return cuOccupancyMaxActiveBlocksPerMultiprocessor(count, function, threads, dynamic);
}

static int find_most_threads(void *function) {
    LOCKED;
    return find(function) ? sim_function_attribute(function, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK) : 0;
}

// Return the block size with which most threads are resident. Block sizes are multiples of a warp; if several
// are equally good, return the largest.
API cuOccupancyMaxPotentialBlockSize(int *grid, int *block, void *handle, size_t (*dynamic_of)(int),
                                     size_t dynamic, int limit) {
    if (!grid || !block || !handle || limit < 0)
        return CUDA_ERROR_INVALID_VALUE;
    int most = find_most_threads(handle), best = 0, blocks = 0, count,
        warp = sim_attribute(CU_DEVICE_ATTRIBUTE_WARP_SIZE);
    CUresult status = most ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
    if (status)
        return status;
    most = limit > 0 && limit < most ? limit : most;
    for (int threads = (most + warp - 1) / warp * warp; threads > 0; threads -= warp) {
        int size = threads < most ? threads : most;
        status = cuOccupancyMaxActiveBlocksPerMultiprocessor(&count, handle, size,
                                                             dynamic_of ? dynamic_of(size) : dynamic);
        if (status)
            return status;
        if (count * size > best * blocks)
            best = size, blocks = count;
    }
    *block = best;
    *grid = blocks * sim_attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    return CUDA_SUCCESS;
}

API cuOccupancyMaxPotentialBlockSizeWithFlags(int *grid, int *block, void *function,
                                              size_t (*dynamic_of)(int), size_t dynamic, int limit,
                                              unsigned flags) {
    if (flags > 1)
        return CUDA_ERROR_INVALID_VALUE;
    return cuOccupancyMaxPotentialBlockSize(grid, block, function, dynamic_of, dynamic, limit);
}

API cuOccupancyAvailableDynamicSMemPerBlock(size_t *size, void *function, int blocks, int threads) {
    LOCKED;
    if (!find(function))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!size || blocks <= 0 || threads <= 0 ||
        blocks > sim_attribute(CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR))
        return CUDA_ERROR_INVALID_VALUE;
    uint64_t unit = sim_major >= 8 ? 128 : 256;
    uint64_t all = (uint64_t)sim_attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
    uint64_t each = all / (uint64_t)blocks / unit * unit, fixed = shared_of(function, 0);
    uint64_t most = (uint64_t)sim_attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
    *size = each < fixed ? 0 : each - fixed < most ? each - fixed : most;
    return CUDA_SUCCESS;
}

// Clusters of more than one block aren't supported.

static bool has_blocks(const CUlaunchConfig *config) {
    return config->gridDimX && config->gridDimY && config->gridDimZ && config->blockDimX &&
           config->blockDimY && config->blockDimZ;
}

API cuOccupancyMaxPotentialClusterSize(int *size, void *function, const CUlaunchConfig *config) {
    LOCKED;
    if (!size || !config || !find(function))
        return CUDA_ERROR_INVALID_VALUE;
    *size = 1;
    return has_blocks(config) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API cuOccupancyMaxActiveClusters(int *count, void *function, const CUlaunchConfig *config) {
    LOCKED;
    if (!count || !config || !find(function) || !has_blocks(config))
        return CUDA_ERROR_INVALID_VALUE;
    uint64_t threads = (uint64_t)config->blockDimX * config->blockDimY * config->blockDimZ;
    *count = (int)sim_resident_blocks(function, threads, config->sharedMemBytes) *
             sim_attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    for (uint32_t i = 0; i < config->numAttrs; i++) {
        const CUlaunchAttribute *at = &config->attrs[i];
        if (at->id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION &&
            at->value.clusterDim.x * at->value.clusterDim.y * at->value.clusterDim.z > 1)
            *count = 0;
    }
    return CUDA_SUCCESS;
}
