// The driver's functions that probing needs.

#ifndef GPT_DRIVER_CALLS_H
#define GPT_DRIVER_CALLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "abi/cuda.h"

#define PROBE_CALLS(CALL)                                                                                    \
    CALL(load_module, "cuModuleLoadData", uint64_t *, const void *)                                          \
    CALL(unload_module, "cuModuleUnload", uint64_t)                                                          \
    CALL(get_function, "cuModuleGetFunction", uint64_t *, uint64_t, const char *)                            \
    CALL(get_variable, "cuModuleGetGlobal_v2", CUdeviceptr *, size_t *, uint64_t, const char *)              \
    CALL(load_library, "cuLibraryLoadData", uint64_t *, const void *, int *, void **, unsigned, int *,       \
         void **, unsigned)                                                                                  \
    CALL(unload_library, "cuLibraryUnload", uint64_t)                                                        \
    CALL(get_kernel, "cuLibraryGetKernel", uint64_t *, uint64_t, const char *)                               \
    CALL(get_library_variable, "cuLibraryGetGlobal", CUdeviceptr *, size_t *, uint64_t, const char *)        \
    CALL(kernel_function, "cuKernelGetFunction", uint64_t *, uint64_t)                                       \
    CALL(get_attribute, "cuFuncGetAttribute", int *, int, uint64_t)                                          \
    CALL(get_kernel_attribute, "cuKernelGetAttribute", int *, int, uint64_t, CUdevice)                       \
    CALL(set_attribute, "cuFuncSetAttribute", uint64_t, int, int)                                            \
    CALL(set_kernel_attribute, "cuKernelSetAttribute", int, int, uint64_t, CUdevice)                         \
    CALL(set_cache, "cuFuncSetCacheConfig", uint64_t, int)                                                   \
    CALL(set_kernel_cache, "cuKernelSetCacheConfig", uint64_t, int, CUdevice)                                \
    CALL(occupancy, "cuOccupancyMaxActiveBlocksPerMultiprocessor", int *, uint64_t, int, size_t)             \
    CALL(active_clusters, "cuOccupancyMaxActiveClusters", int *, uint64_t, const CUlaunchConfig *)           \
    CALL(cluster_size, "cuOccupancyMaxPotentialClusterSize", int *, uint64_t, const CUlaunchConfig *)        \
    CALL(get_device, "cuCtxGetDevice", CUdevice *)                                                           \
    CALL(device_attribute, "cuDeviceGetAttribute", int *, int, CUdevice)                                     \
    CALL(exchange_mode, "cuThreadExchangeStreamCaptureMode", int *)                                          \
    CALL(stream_context, "cuStreamGetCtx", uint64_t, uint64_t *)                                             \
    CALL(is_capturing, "cuStreamIsCapturing", uint64_t, int *)                                               \
    CALL(create_stream, "cuStreamCreate", uint64_t *, unsigned)                                              \
    CALL(wait_event, "cuStreamWaitEvent", uint64_t, uint64_t, unsigned)                                      \
    CALL(wait_stream, "cuStreamSynchronize", uint64_t)                                                       \
    CALL(create_event, "cuEventCreate", uint64_t *, unsigned)                                                \
    CALL(destroy_event, "cuEventDestroy_v2", uint64_t)                                                       \
    CALL(record, "cuEventRecord", uint64_t, uint64_t)                                                        \
    CALL(query, "cuEventQuery", uint64_t)                                                                    \
    CALL(free_memory, "cuMemGetInfo_v2", size_t *, size_t *)                                                 \
    CALL(create_pool, "cuMemPoolCreate", uint64_t *, const CUmemPoolProps *)                                 \
    CALL(set_pool, "cuMemPoolSetAttribute", uint64_t, int, void *)                                           \
    CALL(trim_pool, "cuMemPoolTrimTo", uint64_t, size_t)                                                     \
    CALL(alloc, "cuMemAllocFromPoolAsync", CUdeviceptr *, size_t, uint64_t, uint64_t)                        \
    CALL(free, "cuMemFreeAsync", CUdeviceptr, uint64_t)                                                      \
    CALL(alloc_host, "cuMemAllocHost_v2", void **, size_t)                                                   \
    CALL(clear, "cuMemsetD8Async", CUdeviceptr, unsigned char, size_t, uint64_t)                             \
    CALL(copy_back, "cuMemcpyDtoHAsync_v2", void *, CUdeviceptr, size_t, uint64_t)                           \
    CALL(copy_to, "cuMemcpyHtoDAsync_v2", CUdeviceptr, const void *, size_t, uint64_t)                       \
    CALL(copy, "cuMemcpyDtoDAsync_v2", CUdeviceptr, CUdeviceptr, size_t, uint64_t)                           \
    CALL(launch, "cuLaunchKernel", uint64_t, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,     \
         unsigned, uint64_t, void **, void **)                                                               \
    CALL(set_node, "cuGraphKernelNodeSetParams_v2", uint64_t, const CUDA_KERNEL_NODE_PARAMS *)               \
    CALL(set_exec_node, "cuGraphExecKernelNodeSetParams_v2", uint64_t, uint64_t,                             \
         const CUDA_KERNEL_NODE_PARAMS *)                                                                    \
    CALL(get_node_attribute, "cuGraphKernelNodeGetAttribute", uint64_t, int, void *)                         \
    CALL(set_node_attribute, "cuGraphKernelNodeSetAttribute", uint64_t, int, const void *)                   \
    CALL(get_copy, "cuGraphMemcpyNodeGetParams", void *, CUDA_MEMCPY3D *)                                    \
    CALL(get_set, "cuGraphMemsetNodeGetParams", void *, CUDA_MEMSET_NODE_PARAMS_v2 *)

struct probe_calls {
#define CALL(member, name, ...) CUresult (*member)(__VA_ARGS__);
    PROBE_CALLS(CALL)
#undef CALL
};
extern struct probe_calls hook_do;

bool hook_find_probe_calls(void); // false if the driver lacks one
int hook_relaxed_mode(int mode);  // sets this thread's capture mode and returns the previous one

// Look up a variable in a module or a library.
bool hook_find_variable(bool is_kernel, uint64_t module, const char *name, uint64_t *address, size_t *size);

// The program's call once more.

struct frame;
uint64_t hook_call_again(const struct frame *frame); // repeats the call; returns the result
// Return the index of the launch's argument with the size of shared memory. If it's 0, the size is in the
// configuration of the launch, which is the first argument.
unsigned hook_place_of_shared(const struct frame *frame);
// Replace the function and the parameters of a launch.
void hook_pass_arguments(struct frame *frame, uint64_t function, void **params, void **extra);
// Repeat the launch with another function and these parameters. Returns false if the driver refuses it.
bool hook_launch_as(struct frame *frame, uint64_t function, void **params);

#endif
