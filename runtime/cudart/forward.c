// Functions that only call a driver function with the same parameters: settings of contexts, streams, events,
// memory pools, graphs. Graph nodes whose parameters differ are in graph.c.

#include "cudart.h"

#define FORWARD(name, driver, parameters, ...)                                                               \
    DEFINE(name, parameters, DRIVER(driver, parameters, __VA_ARGS__))
// Also defines the variant for the per-thread default stream.
#define STREAMED(name, driver, parameters, ...)                                                              \
    FORWARD(name, driver, parameters, __VA_ARGS__)                                                           \
    FORWARD(name##_ptsz, driver##_ptsz, parameters, __VA_ARGS__)

#define EDGES void *const *from, void *const *to, const void *data, size_t count

// clang-format off
FORWARD(cudaDeviceSynchronize, cuCtxSynchronize, (void))
FORWARD(cudaDeviceSetLimit, cuCtxSetLimit, (int limit, size_t value), limit, value)
FORWARD(cudaDeviceGetLimit, cuCtxGetLimit, (size_t *value, int limit), value, limit)
FORWARD(cudaDeviceGetCacheConfig, cuCtxGetCacheConfig, (int *config), config)
FORWARD(cudaDeviceSetCacheConfig, cuCtxSetCacheConfig, (int config), config)
FORWARD(cudaDeviceGetSharedMemConfig, cuCtxGetSharedMemConfig, (int *config), config)
FORWARD(cudaDeviceSetSharedMemConfig, cuCtxSetSharedMemConfig, (int config), config)
FORWARD(cudaDeviceGetStreamPriorityRange, cuCtxGetStreamPriorityRange, (int *least, int *greatest), least, greatest)
FORWARD(cudaGetDeviceFlags, cuCtxGetFlags, (unsigned *flags), flags)
FORWARD(cudaCtxResetPersistingL2Cache, cuCtxResetPersistingL2Cache, (void))
FORWARD(cudaProfilerStart, cuProfilerStart, (void))
FORWARD(cudaProfilerStop, cuProfilerStop, (void))

FORWARD(cudaStreamCreateWithFlags, cuStreamCreate, (void **stream, unsigned flags), stream, flags)
FORWARD(cudaStreamCreateWithPriority, cuStreamCreateWithPriority, (void **stream, unsigned flags, int priority), stream, flags, priority)
FORWARD(cudaStreamDestroy, cuStreamDestroy_v2, (void *stream), stream)
STREAMED(cudaStreamSynchronize, cuStreamSynchronize, (void *stream), stream)
STREAMED(cudaStreamQuery, cuStreamQuery, (void *stream), stream)
STREAMED(cudaStreamWaitEvent, cuStreamWaitEvent, (void *stream, void *event, unsigned flags), stream, event, flags)
STREAMED(cudaStreamAddCallback, cuStreamAddCallback, (void *stream, void (*function)(void *, int, void *), void *data, unsigned flags), stream, function, data, flags)
STREAMED(cudaLaunchHostFunc, cuLaunchHostFunc, (void *stream, void (*function)(void *), void *data), stream, function, data)
STREAMED(cudaStreamGetPriority, cuStreamGetPriority, (void *stream, int *priority), stream, priority)
STREAMED(cudaStreamGetFlags, cuStreamGetFlags, (void *stream, unsigned *flags), stream, flags)
STREAMED(cudaStreamGetId, cuStreamGetId, (void *stream, unsigned long long *id), stream, id)
STREAMED(cudaStreamGetDevice, cuStreamGetDevice, (void *stream, int *device), stream, device)
STREAMED(cudaStreamCopyAttributes, cuStreamCopyAttributes, (void *to, void *from), to, from)
STREAMED(cudaStreamGetAttribute, cuStreamGetAttribute, (void *stream, int attribute, void *value), stream, attribute, value)
STREAMED(cudaStreamSetAttribute, cuStreamSetAttribute, (void *stream, int attribute, const void *value), stream, attribute, value)
STREAMED(cudaStreamAttachMemAsync, cuStreamAttachMemAsync, (void *stream, uint64_t memory, size_t size, unsigned flags), stream, memory, size, flags)
STREAMED(cudaStreamEndCapture, cuStreamEndCapture, (void *stream, void **graph), stream, graph)
STREAMED(cudaStreamIsCapturing, cuStreamIsCapturing, (void *stream, int *status), stream, status)
STREAMED(cudaStreamBeginCaptureToGraph, cuStreamBeginCaptureToGraph, (void *stream, void *graph, void *const *after, const void *data, size_t count, int mode), stream, graph, after, data, count, mode)
FORWARD(cudaStreamBeginCapture, cuStreamBeginCapture_v2, (void *stream, int mode), stream, mode)
FORWARD(cudaStreamBeginCapture_ptsz, cuStreamBeginCapture_v2_ptsz, (void *stream, int mode), stream, mode)
FORWARD(cudaStreamGetCaptureInfo, cuStreamGetCaptureInfo_v3, (void *stream, int *status, unsigned long long *id, void **graph, void ***after, void **data, size_t *count), stream, status, id, graph, after, data, count)
FORWARD(cudaStreamGetCaptureInfo_ptsz, cuStreamGetCaptureInfo_v3_ptsz, (void *stream, int *status, unsigned long long *id, void **graph, void ***after, void **data, size_t *count), stream, status, id, graph, after, data, count)
FORWARD(cudaStreamUpdateCaptureDependencies, cuStreamUpdateCaptureDependencies_v2, (void *stream, void **after, const void *data, size_t count, unsigned flags), stream, after, data, count, flags)
FORWARD(cudaStreamUpdateCaptureDependencies_ptsz, cuStreamUpdateCaptureDependencies_v2_ptsz, (void *stream, void **after, const void *data, size_t count, unsigned flags), stream, after, data, count, flags)
FORWARD(cudaThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode, (int *mode), mode)

FORWARD(cudaEventCreateWithFlags, cuEventCreate, (void **event, unsigned flags), event, flags)
FORWARD(cudaEventDestroy, cuEventDestroy_v2, (void *event), event)
FORWARD(cudaEventQuery, cuEventQuery, (void *event), event)
FORWARD(cudaEventSynchronize, cuEventSynchronize, (void *event), event)
FORWARD(cudaEventElapsedTime, cuEventElapsedTime_v2, (float *ms, void *start, void *end), ms, start, end)
STREAMED(cudaEventRecord, cuEventRecord, (void *event, void *stream), event, stream)
STREAMED(cudaEventRecordWithFlags, cuEventRecordWithFlags, (void *event, void *stream, unsigned flags), event, stream, flags)

STREAMED(cudaMallocAsync, cuMemAllocAsync, (uint64_t *memory, size_t size, void *stream), memory, size, stream)
STREAMED(cudaFreeAsync, cuMemFreeAsync, (uint64_t memory, void *stream), memory, stream)
STREAMED(cudaMallocFromPoolAsync, cuMemAllocFromPoolAsync, (uint64_t *memory, size_t size, void *pool, void *stream), memory, size, pool, stream)
FORWARD(cudaMemPoolCreate, cuMemPoolCreate, (void **pool, const void *properties), pool, properties)
FORWARD(cudaMemPoolDestroy, cuMemPoolDestroy, (void *pool), pool)
FORWARD(cudaMemPoolTrimTo, cuMemPoolTrimTo, (void *pool, size_t keep), pool, keep)
FORWARD(cudaMemPoolSetAttribute, cuMemPoolSetAttribute, (void *pool, int attribute, void *value), pool, attribute, value)
FORWARD(cudaMemPoolGetAttribute, cuMemPoolGetAttribute, (void *pool, int attribute, void *value), pool, attribute, value)
FORWARD(cudaMemPoolSetAccess, cuMemPoolSetAccess, (void *pool, const void *descriptions, size_t count), pool, descriptions, count)
FORWARD(cudaMemPoolGetAccess, cuMemPoolGetAccess, (int *flags, void *pool, void *location), flags, pool, location)
FORWARD(cudaMemGetDefaultMemPool, cuMemGetDefaultMemPool, (void **pool, void *location, int type), pool, location, type)
FORWARD(cudaMemGetMemPool, cuMemGetMemPool, (void **pool, void *location, int type), pool, location, type)
FORWARD(cudaMemSetMemPool, cuMemSetMemPool, (void *location, int type, void *pool), location, type, pool)

FORWARD(cudaGraphCreate, cuGraphCreate, (void **graph, unsigned flags), graph, flags)
FORWARD(cudaGraphDestroy, cuGraphDestroy, (void *graph), graph)
FORWARD(cudaGraphClone, cuGraphClone, (void **clone, void *graph), clone, graph)
FORWARD(cudaGraphNodeFindInClone, cuGraphNodeFindInClone, (void **node, void *original, void *clone), node, original, clone)
FORWARD(cudaGraphNodeGetType, cuGraphNodeGetType, (void *node, int *type), node, type)
FORWARD(cudaGraphGetNodes, cuGraphGetNodes, (void *graph, void **nodes, size_t *count), graph, nodes, count)
FORWARD(cudaGraphGetRootNodes, cuGraphGetRootNodes, (void *graph, void **nodes, size_t *count), graph, nodes, count)
FORWARD(cudaGraphGetEdges, cuGraphGetEdges_v2, (void *graph, void **from, void **to, void *data, size_t *count), graph, from, to, data, count)
FORWARD(cudaGraphNodeGetDependencies, cuGraphNodeGetDependencies_v2, (void *node, void **nodes, void *data, size_t *count), node, nodes, data, count)
FORWARD(cudaGraphNodeGetDependentNodes, cuGraphNodeGetDependentNodes_v2, (void *node, void **nodes, void *data, size_t *count), node, nodes, data, count)
FORWARD(cudaGraphAddDependencies, cuGraphAddDependencies_v2, (void *graph, EDGES), graph, from, to, data, count)
FORWARD(cudaGraphRemoveDependencies, cuGraphRemoveDependencies_v2, (void *graph, EDGES), graph, from, to, data, count)
FORWARD(cudaGraphDestroyNode, cuGraphDestroyNode, (void *node), node)
FORWARD(cudaGraphAddEmptyNode, cuGraphAddEmptyNode, (NODE), node, graph, after, count)
FORWARD(cudaGraphAddChildGraphNode, cuGraphAddChildGraphNode, (NODE, void *child), node, graph, after, count, child)
FORWARD(cudaGraphChildGraphNodeGetGraph, cuGraphChildGraphNodeGetGraph, (void *node, void **graph), node, graph)
FORWARD(cudaGraphAddHostNode, cuGraphAddHostNode, (NODE, const void *parameters), node, graph, after, count, parameters)
FORWARD(cudaGraphHostNodeGetParams, cuGraphHostNodeGetParams, (void *node, void *parameters), node, parameters)
FORWARD(cudaGraphHostNodeSetParams, cuGraphHostNodeSetParams, (void *node, const void *parameters), node, parameters)
FORWARD(cudaGraphMemsetNodeGetParams, cuGraphMemsetNodeGetParams, (void *node, void *parameters), node, parameters)
FORWARD(cudaGraphMemsetNodeSetParams, cuGraphMemsetNodeSetParams, (void *node, const void *parameters), node, parameters)
FORWARD(cudaGraphAddEventRecordNode, cuGraphAddEventRecordNode, (NODE, void *event), node, graph, after, count, event)
FORWARD(cudaGraphEventRecordNodeGetEvent, cuGraphEventRecordNodeGetEvent, (void *node, void **event), node, event)
FORWARD(cudaGraphEventRecordNodeSetEvent, cuGraphEventRecordNodeSetEvent, (void *node, void *event), node, event)
FORWARD(cudaGraphAddEventWaitNode, cuGraphAddEventWaitNode, (NODE, void *event), node, graph, after, count, event)
FORWARD(cudaGraphEventWaitNodeGetEvent, cuGraphEventWaitNodeGetEvent, (void *node, void **event), node, event)
FORWARD(cudaGraphEventWaitNodeSetEvent, cuGraphEventWaitNodeSetEvent, (void *node, void *event), node, event)
FORWARD(cudaGraphAddMemAllocNode, cuGraphAddMemAllocNode, (NODE, void *parameters), node, graph, after, count, parameters)
FORWARD(cudaGraphMemAllocNodeGetParams, cuGraphMemAllocNodeGetParams, (void *node, void *parameters), node, parameters)
FORWARD(cudaGraphAddMemFreeNode, cuGraphAddMemFreeNode, (NODE, uint64_t memory), node, graph, after, count, memory)
FORWARD(cudaGraphMemFreeNodeGetParams, cuGraphMemFreeNodeGetParams, (void *node, void *memory), node, memory)
FORWARD(cudaGraphKernelNodeCopyAttributes, cuGraphKernelNodeCopyAttributes, (void *to, void *from), to, from)
FORWARD(cudaGraphKernelNodeGetAttribute, cuGraphKernelNodeGetAttribute, (void *node, int attribute, void *value), node, attribute, value)
FORWARD(cudaGraphKernelNodeSetAttribute, cuGraphKernelNodeSetAttribute, (void *node, int attribute, const void *value), node, attribute, value)
FORWARD(cudaGraphInstantiate, cuGraphInstantiateWithFlags, (void **exec, void *graph, unsigned long long flags), exec, graph, flags)
FORWARD(cudaGraphInstantiateWithFlags, cuGraphInstantiateWithFlags, (void **exec, void *graph, unsigned long long flags), exec, graph, flags)
STREAMED(cudaGraphInstantiateWithParams, cuGraphInstantiateWithParams, (void **exec, void *graph, void *parameters), exec, graph, parameters)
FORWARD(cudaGraphExecDestroy, cuGraphExecDestroy, (void *exec), exec)
FORWARD(cudaGraphExecGetFlags, cuGraphExecGetFlags, (void *exec, unsigned long long *flags), exec, flags)
FORWARD(cudaGraphExecUpdate, cuGraphExecUpdate_v2, (void *exec, void *graph, void *result), exec, graph, result)
FORWARD(cudaGraphExecHostNodeSetParams, cuGraphExecHostNodeSetParams, (void *exec, void *node, const void *parameters), exec, node, parameters)
FORWARD(cudaGraphExecChildGraphNodeSetParams, cuGraphExecChildGraphNodeSetParams, (void *exec, void *node, void *child), exec, node, child)
FORWARD(cudaGraphExecEventRecordNodeSetEvent, cuGraphExecEventRecordNodeSetEvent, (void *exec, void *node, void *event), exec, node, event)
FORWARD(cudaGraphExecEventWaitNodeSetEvent, cuGraphExecEventWaitNodeSetEvent, (void *exec, void *node, void *event), exec, node, event)
FORWARD(cudaGraphNodeGetEnabled, cuGraphNodeGetEnabled, (void *exec, void *node, unsigned *enabled), exec, node, enabled)
FORWARD(cudaGraphNodeSetEnabled, cuGraphNodeSetEnabled, (void *exec, void *node, unsigned enabled), exec, node, enabled)
STREAMED(cudaGraphLaunch, cuGraphLaunch, (void *exec, void *stream), exec, stream)
STREAMED(cudaGraphUpload, cuGraphUpload, (void *exec, void *stream), exec, stream)
FORWARD(cudaUserObjectCreate, cuUserObjectCreate, (void **object, void *data, void (*destroy)(void *), unsigned count, unsigned flags), object, data, destroy, count, flags)
FORWARD(cudaUserObjectRetain, cuUserObjectRetain, (void *object, unsigned count), object, count)
FORWARD(cudaUserObjectRelease, cuUserObjectRelease, (void *object, unsigned count), object, count)
FORWARD(cudaGraphRetainUserObject, cuGraphRetainUserObject, (void *graph, void *object, unsigned count, unsigned flags), graph, object, count, flags)
FORWARD(cudaGraphReleaseUserObject, cuGraphReleaseUserObject, (void *graph, void *object, unsigned count), graph, object, count)
// clang-format on

// Functions that need more than a plain call of the driver

struct channel {
    int x, y, z, w, format;
};

__attribute__((visibility("default"))) struct channel cudaCreateChannelDesc(int x, int y, int z, int w,
                                                                            int format) {
    return (struct channel){x, y, z, w, format};
}

DEFINE(cudaStreamCreate, (void **stream), DRIVER(cuStreamCreate, (void **, unsigned), stream, 0))
DEFINE(cudaEventCreate, (void **event), DRIVER(cuEventCreate, (void **, unsigned), event, 0))

static int enable_peer(int device, unsigned flags) {
    void *context;
    int status = DRIVER(cuDevicePrimaryCtxRetain, (void **, int), &context, device);
    return status ? status : DRIVER(cuCtxEnablePeerAccess, (void *, unsigned), context, flags);
}

static int disable_peer(int device) {
    void *context;
    int status = DRIVER(cuDevicePrimaryCtxRetain, (void **, int), &context, device);
    return status ? status : DRIVER(cuCtxDisablePeerAccess, (void *), context);
}

DEFINE(cudaDeviceEnablePeerAccess, (int device, unsigned flags), enable_peer(device, flags))
DEFINE(cudaDeviceDisablePeerAccess, (int device), disable_peer(device))

struct location {
    int type, id;
};

DEFINE(cudaMemAdvise, (uint64_t memory, size_t size, int advice, struct location location),
       DRIVER(cuMemAdvise_v2, (uint64_t, size_t, int, struct location), memory, size, advice, location))
DEFINE(cudaMemPrefetchAsync,
       (uint64_t memory, size_t size, struct location location, unsigned flags, void *stream),
       DRIVER(cuMemPrefetchAsync_v2, (uint64_t, size_t, struct location, unsigned, void *), memory, size,
              location, flags, stream))
DEFINE(cudaMemPrefetchAsync_ptsz,
       (uint64_t memory, size_t size, struct location location, unsigned flags, void *stream),
       DRIVER(cuMemPrefetchAsync_v2, (uint64_t, size_t, struct location, unsigned, void *), memory, size,
              location, flags, PER_THREAD(stream)))

// The driver's own functions

#define ENTRY (const char *name, void **found, unsigned version, unsigned long long flags, int *status)
static int entry ENTRY {
    return DRIVER(cuGetProcAddress_v2, (const char *, void **, int, uint64_t, int *), name, found,
                  (int)version, flags, status);
}

DEFINE(cudaGetDriverEntryPointByVersion, ENTRY, entry(name, found, version, flags, status))
DEFINE(cudaGetDriverEntryPointByVersion_ptsz, ENTRY,
       entry(name, found, version, flags | (flags & 3 ? 0 : 2), status))
#define LATEST (const char *name, void **found, unsigned long long flags, int *status)
DEFINE(cudaGetDriverEntryPoint, LATEST, entry(name, found, 13000, flags, status))
DEFINE(cudaGetDriverEntryPoint_ptsz, LATEST, entry(name, found, 13000, flags | (flags & 3 ? 0 : 2), status))
