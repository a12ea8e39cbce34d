// Kernels: launches, attributes, occupancy.

#include "cudart.h"

// The launch configuration in <<<>>>, kept until the kernel's stub takes it.

enum { NESTED = 16 };
static __thread struct {
    struct configuration {
        dim3 grid, block;
        size_t shared;
        void *stream;
    } all[NESTED];
    unsigned count;
} pending;

__attribute__((visibility("default"))) unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block,
                                                                            size_t shared, void *stream) {
    if (pending.count == NESTED)
        return (unsigned)cudart_end(cudaErrorMissingConfiguration);
    pending.all[pending.count++] = (struct configuration){grid, block, shared, stream};
    return 0;
}

API __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void **stream) {
    if (!pending.count)
        return cudart_end(cudaErrorMissingConfiguration);
    struct configuration last = pending.all[--pending.count];
    *grid = last.grid, *block = last.block, *shared = last.shared, *stream = last.stream;
    return cudaSuccess;
}

// Launch a kernel. The driver's parameter for `shared` has only 32 bits, so a larger size is an error here.
// NVIDIA's runtime (CUDA 13, H200) ignores the upper bits.
static int launch(void *kernel, dim3 grid, dim3 block, void **args, size_t shared, void *stream,
                  bool cooperative) {
    if (!kernel) // __cudaGetKernel has set the error
        return cudart_last_error() ? cudart_last_error() : cudaErrorInvalidResourceHandle;
    if (shared > UINT32_MAX)
        return cudaErrorInvalidValue;
    if (cooperative)
        return DRIVER(
            cuLaunchCooperativeKernel,
            (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **),
            kernel, grid.x, grid.y, grid.z, block.x, block.y, block.z, (unsigned)shared, stream, args);
    return DRIVER(cuLaunchKernel,
                  (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *,
                   void **, void **),
                  kernel, grid.x, grid.y, grid.z, block.x, block.y, block.z, (unsigned)shared, stream, args,
                  NULL);
}

static int launch_function(const void *function, dim3 grid, dim3 block, void **args, size_t shared,
                           void *stream, bool cooperative) {
    void *kernel;
    int status = cudart_kernel(function, &kernel);
    return status ? status : launch(kernel, grid, block, args, shared, stream, cooperative);
}

// The launch configurations of cudaLaunchKernelExC and of the driver's cuLaunchKernelEx.

struct config {
    dim3 grid, block;
    size_t shared;
    void *stream, *attributes;
    unsigned count;
};

struct driver_config {
    dim3 grid, block;
    unsigned shared;
    void *stream, *attributes;
    unsigned count;
};

static struct driver_config of_config(const struct config *config, void *stream) {
    return (struct driver_config){config->grid, config->block,      (unsigned)config->shared,
                                  stream,       config->attributes, config->count};
}

static int launch_config(const struct config *config, const void *function, void **args, bool per_thread) {
    void *kernel;
    int status =
        config && config->shared <= UINT32_MAX ? cudart_kernel(function, &kernel) : cudaErrorInvalidValue;
    if (status)
        return status;
    struct driver_config given = of_config(config, per_thread ? PER_THREAD(config->stream) : config->stream);
    return DRIVER(cuLaunchKernelEx, (const struct driver_config *, void *, void **, void **), &given, kernel,
                  args, NULL);
}

#define LAUNCHES(suffix, of_stream, per_thread)                                                              \
    DEFINE(cudaLaunchKernel##suffix,                                                                         \
           (const void *function, dim3 grid, dim3 block, void **args, size_t shared, void *stream),          \
           launch_function(function, grid, block, args, shared, of_stream, false))                           \
    DEFINE(cudaLaunchCooperativeKernel##suffix,                                                              \
           (const void *function, dim3 grid, dim3 block, void **args, size_t shared, void *stream),          \
           launch_function(function, grid, block, args, shared, of_stream, true))                            \
    DEFINE(__cudaLaunchKernel##suffix,                                                                       \
           (void *kernel, dim3 grid, dim3 block, void **args, size_t shared, void *stream),                  \
           launch(kernel, grid, block, args, shared, of_stream, false))                                      \
    DEFINE(cudaLaunchKernelExC##suffix, (const struct config *config, const void *function, void **args),    \
           launch_config(config, function, args, per_thread))
LAUNCHES(, stream, false)
LAUNCHES(_ptsz, PER_THREAD(stream), true)

// Attributes

struct attributes { // struct cudaFuncAttributes
    size_t shared, constant, local;
    int threads, registers, ptx, binary, cache, dynamic, carveout;
    int needs_cluster, width, height, depth, scheduling, any_cluster, reserved[16];
};

static int get_attributes(struct attributes *found, const void *function) {
    void *kernel;
    int status = found ? cudart_kernel(function, &kernel) : cudaErrorInvalidValue, value[16] = {0};
    for (int i = 0; !status && i < 16; i++) // in the order of CUfunction_attribute
        status =
            DRIVER(cuKernelGetAttribute, (int *, int, void *, int), &value[i], i, kernel, cudart_device());
    if (!status)
        *found = (struct attributes){
            (size_t)value[1], (size_t)value[2], (size_t)value[3], value[0],  value[4],  value[5],
            value[6],         value[7],         value[8],         value[9],  value[10], value[11],
            value[12],        value[13],        value[15],        value[14], {0}};
    return status;
}

static int set_attribute(const void *function, int attribute, int value) {
    void *kernel;
    int status = cudart_kernel(function, &kernel);
    return status ? status
                  : DRIVER(cuKernelSetAttribute, (int, int, void *, int), attribute, value, kernel,
                           cudart_device());
}

static int set_cache(const void *function, int cache) {
    void *kernel;
    int status = cudart_kernel(function, &kernel);
    return status ? status
                  : DRIVER(cuKernelSetCacheConfig, (void *, int, int), kernel, cache, cudart_device());
}

static int is_kernel(const void *function) {
    void *kernel;
    return cudart_kernel(function, &kernel);
}

static int get_name(const char **name, const void *function) {
    void *kernel;
    int status = name ? cudart_kernel(function, &kernel) : cudaErrorInvalidValue;
    return status ? status : DRIVER(cuKernelGetName, (const char **, void *), name, kernel);
}

static int get_parameter(const void *function, size_t index, size_t *offset, size_t *size) {
    void *kernel;
    int status = cudart_kernel(function, &kernel);
    return status ? status
                  : DRIVER(cuKernelGetParamInfo, (void *, size_t, size_t *, size_t *), kernel, index, offset,
                           size);
}

// Find the function of a kernel in this context.
static int function_of(void **found, const void *function) {
    void *kernel;
    int status = found ? cudart_kernel(function, &kernel) : cudaErrorInvalidValue;
    return status ? status : DRIVER(cuKernelGetFunction, (void **, void *), found, kernel);
}

DEFINE(cudaFuncGetAttributes, (struct attributes * found, const void *function),
       get_attributes(found, function))
DEFINE(cudaFuncSetAttribute, (const void *function, int attribute, int value),
       set_attribute(function, attribute, value))
DEFINE(cudaKernelSetAttributeForDevice, (void *kernel, int attribute, int value, int device),
       DRIVER(cuKernelSetAttribute, (int, int, void *, int), attribute, value, kernel, device))
DEFINE(cudaFuncSetCacheConfig, (const void *function, int cache), set_cache(function, cache))
DEFINE(cudaFuncSetSharedMemConfig, (const void *function, int config), ((void)config, is_kernel(function)))
DEFINE(cudaFuncGetName, (const char **name, const void *function), get_name(name, function))
DEFINE(cudaFuncGetParamInfo, (const void *function, size_t index, size_t *offset, size_t *size),
       get_parameter(function, index, offset, size))
DEFINE(cudaGetFuncBySymbol, (void **found, const void *function), function_of(found, function))

static int most_blocks(int *blocks, const void *function, int threads, size_t shared, unsigned flags) {
    void *here;
    int status = blocks ? function_of(&here, function) : cudaErrorInvalidValue;
    return status ? status
                  : DRIVER(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags,
                           (int *, void *, int, size_t, unsigned), blocks, here, threads, shared, flags);
}

static int most_shared(size_t *shared, const void *function, int blocks, int threads) {
    void *here;
    int status = shared ? function_of(&here, function) : cudaErrorInvalidValue;
    return status ? status
                  : DRIVER(cuOccupancyAvailableDynamicSMemPerBlock, (size_t *, void *, int, int), shared,
                           here, blocks, threads);
}

DEFINE(cudaOccupancyMaxActiveBlocksPerMultiprocessor,
       (int *blocks, const void *function, int threads, size_t shared),
       most_blocks(blocks, function, threads, shared, 0))
DEFINE(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags,
       (int *blocks, const void *function, int threads, size_t shared, unsigned flags),
       most_blocks(blocks, function, threads, shared, flags))
DEFINE(cudaOccupancyAvailableDynamicSMemPerBlock,
       (size_t *shared, const void *function, int blocks, int threads),
       most_shared(shared, function, blocks, threads))

#define CLUSTERS(name, driver)                                                                               \
    static int of_##driver(int *count, const void *function, const struct config *config) {                  \
        void *here;                                                                                          \
        int status = count && config ? function_of(&here, function) : cudaErrorInvalidValue;                 \
        if (status)                                                                                          \
            return status;                                                                                   \
        struct driver_config given = of_config(config, config->stream);                                      \
        return DRIVER(driver, (int *, void *, const struct driver_config *), count, here, &given);           \
    }                                                                                                        \
    DEFINE(name, (int *count, const void *function, const struct config *config),                            \
           of_##driver(count, function, config))
CLUSTERS(cudaOccupancyMaxPotentialClusterSize, cuOccupancyMaxPotentialClusterSize)
CLUSTERS(cudaOccupancyMaxActiveClusters, cuOccupancyMaxActiveClusters)
