// Variants of functions for programs that use the per-thread default stream: _ptsz for functions with a
// stream argument, _ptds for functions without one.

#include "sim.h"

#define PER_THREAD(name, suffix, parameters, ...)                                                            \
    CUresult name parameters;                                                                                \
    API name##suffix parameters {                                                                            \
        sim_per_thread = true;                                                                               \
        CUresult result_ = name(__VA_ARGS__);                                                                \
        sim_per_thread = false;                                                                              \
        return result_;                                                                                      \
    }

PER_THREAD(cuMemcpy, _ptds, (CUdeviceptr to, CUdeviceptr from, size_t size), to, from, size)
PER_THREAD(cuMemcpyHtoD_v2, _ptds, (CUdeviceptr to, const void *from, size_t size), to, from, size)
PER_THREAD(cuMemcpyDtoH_v2, _ptds, (void *to, CUdeviceptr from, size_t size), to, from, size)
PER_THREAD(cuMemcpyDtoD_v2, _ptds, (CUdeviceptr to, CUdeviceptr from, size_t size), to, from, size)
PER_THREAD(cuMemcpy2D_v2, _ptds, (const CUDA_MEMCPY2D *copy), copy)
PER_THREAD(cuMemcpy2DUnaligned_v2, _ptds, (const CUDA_MEMCPY2D *copy), copy)
PER_THREAD(cuMemcpy3D_v2, _ptds, (const CUDA_MEMCPY3D *copy), copy)
PER_THREAD(cuMemcpyAsync, _ptsz, (CUdeviceptr to, CUdeviceptr from, size_t size, void *stream), to, from,
           size, stream)
PER_THREAD(cuMemcpyHtoDAsync_v2, _ptsz, (CUdeviceptr to, const void *from, size_t size, void *stream), to,
           from, size, stream)
PER_THREAD(cuMemcpyDtoHAsync_v2, _ptsz, (void *to, CUdeviceptr from, size_t size, void *stream), to, from,
           size, stream)
PER_THREAD(cuMemcpyDtoDAsync_v2, _ptsz, (CUdeviceptr to, CUdeviceptr from, size_t size, void *stream), to,
           from, size, stream)
PER_THREAD(cuMemcpy2DAsync_v2, _ptsz, (const CUDA_MEMCPY2D *copy, void *stream), copy, stream)
PER_THREAD(cuMemcpy3DAsync_v2, _ptsz, (const CUDA_MEMCPY3D *copy, void *stream), copy, stream)
PER_THREAD(cuMemsetD8_v2, _ptds, (CUdeviceptr to, unsigned char value, size_t items), to, value, items)
PER_THREAD(cuMemsetD2D8_v2, _ptds,
           (CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height), to, pitch, value,
           width, height)
PER_THREAD(cuMemsetD8Async, _ptsz, (CUdeviceptr to, unsigned char value, size_t items, void *stream), to,
           value, items, stream)
PER_THREAD(cuMemsetD2D8Async, _ptsz,
           (CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height, void *stream), to,
           pitch, value, width, height, stream)
PER_THREAD(cuMemsetD16_v2, _ptds, (CUdeviceptr to, unsigned short value, size_t items), to, value, items)
PER_THREAD(cuMemsetD2D16_v2, _ptds,
           (CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height), to, pitch,
           value, width, height)
PER_THREAD(cuMemsetD16Async, _ptsz, (CUdeviceptr to, unsigned short value, size_t items, void *stream), to,
           value, items, stream)
PER_THREAD(cuMemsetD2D16Async, _ptsz,
           (CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height, void *stream),
           to, pitch, value, width, height, stream)
PER_THREAD(cuMemsetD32_v2, _ptds, (CUdeviceptr to, unsigned value, size_t items), to, value, items)
PER_THREAD(cuMemsetD2D32_v2, _ptds,
           (CUdeviceptr to, size_t pitch, unsigned value, size_t width, size_t height), to, pitch, value,
           width, height)
PER_THREAD(cuMemsetD32Async, _ptsz, (CUdeviceptr to, unsigned value, size_t items, void *stream), to, value,
           items, stream)
PER_THREAD(cuMemsetD2D32Async, _ptsz,
           (CUdeviceptr to, size_t pitch, unsigned value, size_t width, size_t height, void *stream), to,
           pitch, value, width, height, stream)
PER_THREAD(cuMemAllocAsync, _ptsz, (CUdeviceptr * memory, size_t size, void *stream), memory, size, stream)
PER_THREAD(cuMemAllocFromPoolAsync, _ptsz, (CUdeviceptr * memory, size_t size, void *pool, void *stream),
           memory, size, pool, stream)
PER_THREAD(cuMemPrefetchAsync, _ptsz, (CUdeviceptr address, size_t size, CUdevice device, void *stream),
           address, size, device, stream)
PER_THREAD(cuMemPrefetchAsync_v2, _ptsz,
           (CUdeviceptr address, size_t size, CUmemLocation location, unsigned flags, void *stream), address,
           size, location, flags, stream)
PER_THREAD(cuStreamAttachMemAsync, _ptsz, (void *stream, CUdeviceptr address, size_t size, unsigned flags),
           stream, address, size, flags)
PER_THREAD(cuMemcpyPeer, _ptds,
           (CUdeviceptr to, void *to_context, CUdeviceptr from, void *from_context, size_t size), to,
           to_context, from, from_context, size)
PER_THREAD(cuMemcpyPeerAsync, _ptsz,
           (CUdeviceptr to, void *to_context, CUdeviceptr from, void *from_context, size_t size,
            void *stream),
           to, to_context, from, from_context, size, stream)
PER_THREAD(cuMemcpy3DPeer, _ptds, (const CUDA_MEMCPY3D *copy), copy)
PER_THREAD(cuMemcpy3DPeerAsync, _ptsz, (const CUDA_MEMCPY3D *copy, void *stream), copy, stream)
PER_THREAD(cuMemFreeAsync, _ptsz, (CUdeviceptr memory, void *stream), memory, stream)
PER_THREAD(cuStreamGetCtx_v2, _ptsz, (void *stream, void **context, void **green), stream, context, green)
PER_THREAD(cuStreamGetAttribute, _ptsz, (void *stream, int attribute, void *value), stream, attribute, value)
PER_THREAD(cuStreamSetAttribute, _ptsz, (void *stream, int attribute, const void *value), stream, attribute,
           value)
PER_THREAD(cuStreamCopyAttributes, _ptsz, (void *to, void *from), to, from)
PER_THREAD(cuStreamWriteValue32, _ptsz, (void *stream, CUdeviceptr address, uint32_t value, unsigned flags),
           stream, address, value, flags)
PER_THREAD(cuStreamWriteValue32_v2, _ptsz,
           (void *stream, CUdeviceptr address, uint32_t value, unsigned flags), stream, address, value, flags)
PER_THREAD(cuStreamWaitValue32, _ptsz, (void *stream, CUdeviceptr address, uint32_t value, unsigned flags),
           stream, address, value, flags)
PER_THREAD(cuStreamWaitValue32_v2, _ptsz, (void *stream, CUdeviceptr address, uint32_t value, unsigned flags),
           stream, address, value, flags)
PER_THREAD(cuStreamWriteValue64, _ptsz, (void *stream, CUdeviceptr address, uint64_t value, unsigned flags),
           stream, address, value, flags)
PER_THREAD(cuStreamWriteValue64_v2, _ptsz,
           (void *stream, CUdeviceptr address, uint64_t value, unsigned flags), stream, address, value, flags)
PER_THREAD(cuStreamWaitValue64, _ptsz, (void *stream, CUdeviceptr address, uint64_t value, unsigned flags),
           stream, address, value, flags)
PER_THREAD(cuStreamWaitValue64_v2, _ptsz, (void *stream, CUdeviceptr address, uint64_t value, unsigned flags),
           stream, address, value, flags)
PER_THREAD(cuStreamBatchMemOp, _ptsz, (void *stream, unsigned count, const void *params, unsigned flags),
           stream, count, params, flags)
PER_THREAD(cuStreamBatchMemOp_v2, _ptsz, (void *stream, unsigned count, const void *params, unsigned flags),
           stream, count, params, flags)
PER_THREAD(cuStreamSynchronize, _ptsz, (void *stream), stream)
PER_THREAD(cuStreamQuery, _ptsz, (void *stream), stream)
PER_THREAD(cuStreamGetFlags, _ptsz, (void *stream, unsigned *flags), stream, flags)
PER_THREAD(cuStreamGetPriority, _ptsz, (void *stream, int *priority), stream, priority)
PER_THREAD(cuStreamGetCtx, _ptsz, (void *stream, void **context), stream, context)
PER_THREAD(cuStreamGetId, _ptsz, (void *stream, unsigned long long *id), stream, id)
PER_THREAD(cuStreamGetDevice, _ptsz, (void *stream, CUdevice *device), stream, device)
PER_THREAD(cuStreamIsCapturing, _ptsz, (void *stream, int *status), stream, status)
PER_THREAD(cuStreamBeginCapture_v2, _ptsz, (void *stream, int mode), stream, mode)
PER_THREAD(cuStreamEndCapture, _ptsz, (void *stream, void **graph), stream, graph)
PER_THREAD(cuStreamGetCaptureInfo, _ptsz, (void *stream, int *status, uint64_t *id), stream, status, id)
PER_THREAD(cuStreamGetCaptureInfo_v2, _ptsz,
           (void *stream, int *status, uint64_t *id, void **graph, void *const **nodes, size_t *count),
           stream, status, id, graph, nodes, count)
PER_THREAD(cuStreamGetCaptureInfo_v3, _ptsz,
           (void *stream, int *status, uint64_t *id, void **graph, void *const **nodes,
            const CUgraphEdgeData **edges, size_t *count),
           stream, status, id, graph, nodes, edges, count)
PER_THREAD(cuStreamBeginCapture, _ptsz, (void *stream), stream)
PER_THREAD(cuStreamBeginCaptureToGraph, _ptsz,
           (void *stream, void *graph, void *const *nodes, const CUgraphEdgeData *edges, size_t count,
            int mode),
           stream, graph, nodes, edges, count, mode)
PER_THREAD(cuStreamUpdateCaptureDependencies, _ptsz,
           (void *stream, void *const *nodes, size_t count, unsigned flags), stream, nodes, count, flags)
PER_THREAD(cuStreamUpdateCaptureDependencies_v2, _ptsz,
           (void *stream, void *const *nodes, const CUgraphEdgeData *edges, size_t count, unsigned flags),
           stream, nodes, edges, count, flags)
PER_THREAD(cuStreamWaitEvent, _ptsz, (void *stream, void *event, unsigned flags), stream, event, flags)
PER_THREAD(cuLaunchHostFunc, _ptsz, (void *stream, void (*function)(void *), void *data), stream, function,
           data)
PER_THREAD(cuLaunchHostFunc_v2, _ptsz, (void *stream, void (*function)(void *), void *data, unsigned mode),
           stream, function, data, mode)
PER_THREAD(cuStreamAddCallback, _ptsz,
           (void *stream, void (*function)(void *, CUresult, void *), void *data, unsigned flags), stream,
           function, data, flags)
PER_THREAD(cuEventRecord, _ptsz, (void *event, void *stream), event, stream)
PER_THREAD(cuEventRecordWithFlags, _ptsz, (void *event, void *stream, unsigned flags), event, stream, flags)
PER_THREAD(cuLaunchKernel, _ptsz,
           (void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
            unsigned shared, void *stream, void **params, void **extra),
           function, gx, gy, gz, bx, by, bz, shared, stream, params, extra)
PER_THREAD(cuLaunchCooperativeKernel, _ptsz,
           (void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
            unsigned shared, void *stream, void **params),
           function, gx, gy, gz, bx, by, bz, shared, stream, params)
PER_THREAD(cuLaunchKernelEx, _ptsz,
           (const CUlaunchConfig *config, void *function, void **params, void **extra), config, function,
           params, extra)
PER_THREAD(cuGraphLaunch, _ptsz, (void *exec, void *stream), exec, stream)
PER_THREAD(cuGraphUpload, _ptsz, (void *exec, void *stream), exec, stream)
PER_THREAD(cuGraphInstantiateWithParams, _ptsz,
           (void **exec, void *graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params), exec, graph, params)
