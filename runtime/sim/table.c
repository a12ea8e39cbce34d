// The functions that there are, as cuGetProcAddress is asked for them.

#include "sim.h"

// A version is that of CUDA with which this function took the name; 0: it always had it.
// Some have a variant for programs whose default stream is that of the thread.
#define FUNCTION(name, suffix, since) {#name, since, (void *)name##suffix, NULL},
#define BOTH(name, suffix, since, variant)                                                                   \
    {#name, since, (void *)name##suffix, (void *)name##suffix##variant},
#define DECLARE(name, suffix, since) CUresult name##suffix(void);
#define DECLARE_BOTH(name, suffix, since, variant) CUresult name##suffix(void), name##suffix##variant(void);

// clang-format off
#define FUNCTIONS(X, P) \
    X(cuInit, , 0) \
    X(cuDriverGetVersion, , 0) \
    X(cuDeviceGetCount, , 0) \
    X(cuDeviceGet, , 0) \
    X(cuDeviceGetName, , 0) \
    X(cuDeviceGetUuid, _v2, 0) \
    X(cuDeviceTotalMem, _v2, 0) \
    X(cuDeviceGetAttribute, , 0) \
    X(cuDevicePrimaryCtxRetain, , 0) \
    X(cuDevicePrimaryCtxRelease, _v2, 0) \
    X(cuDevicePrimaryCtxReset, _v2, 0) \
    X(cuDevicePrimaryCtxSetFlags, _v2, 0) \
    X(cuDevicePrimaryCtxGetState, , 0) \
    X(cuCtxSetCurrent, , 0) \
    X(cuCtxGetCurrent, , 0) \
    X(cuCtxPushCurrent, _v2, 0) \
    X(cuCtxPopCurrent, _v2, 0) \
    X(cuCtxCreate, _v2, 3020) \
    X(cuCtxCreate, _v4, 13000) \
    X(cuCtxDestroy, _v2, 0) \
    X(cuCtxGetDevice, , 0) \
    X(cuCtxGetDevice, _v2, 13000) \
    X(cuCtxGetId, , 0) \
    X(cuCtxSynchronize, , 0) \
    X(cuCtxGetApiVersion, , 0) \
    X(cuCtxGetStreamPriorityRange, , 0) \
    X(cuGetErrorName, , 0) \
    X(cuGetErrorString, , 0) \
    X(cuMemAlloc, _v2, 0) \
    P(cuMemAllocAsync, , 0, _ptsz) \
    X(cuMemAllocManaged, , 0) \
    X(cuMemAllocPitch, _v2, 0) \
    X(cuMemFree, _v2, 0) \
    P(cuMemFreeAsync, , 0, _ptsz) \
    X(cuMemHostAlloc, , 0) \
    X(cuMemAllocHost, _v2, 0) \
    X(cuMemFreeHost, , 0) \
    X(cuMemHostRegister, _v2, 0) \
    X(cuMemHostUnregister, , 0) \
    X(cuMemHostGetDevicePointer, _v2, 0) \
    X(cuMemGetInfo, _v2, 0) \
    X(cuMemGetAddressRange, _v2, 0) \
    P(cuMemcpyHtoD, _v2, 0, _ptds) \
    P(cuMemcpyDtoH, _v2, 0, _ptds) \
    P(cuMemcpyDtoD, _v2, 0, _ptds) \
    P(cuMemcpyHtoDAsync, _v2, 0, _ptsz) \
    P(cuMemcpyDtoHAsync, _v2, 0, _ptsz) \
    P(cuMemcpyDtoDAsync, _v2, 0, _ptsz) \
    P(cuMemcpy, , 0, _ptds) \
    P(cuMemcpyAsync, , 0, _ptsz) \
    P(cuMemcpy2D, _v2, 0, _ptds) \
    P(cuMemcpy2DUnaligned, _v2, 0, _ptds) \
    P(cuMemcpy2DAsync, _v2, 0, _ptsz) \
    P(cuMemcpy3D, _v2, 0, _ptds) \
    P(cuMemcpy3DAsync, _v2, 0, _ptsz) \
    P(cuMemsetD8, _v2, 0, _ptds) \
    P(cuMemsetD16, _v2, 0, _ptds) \
    P(cuMemsetD32, _v2, 0, _ptds) \
    P(cuMemsetD8Async, , 0, _ptsz) \
    P(cuMemsetD16Async, , 0, _ptsz) \
    P(cuMemsetD32Async, , 0, _ptsz) \
    P(cuMemsetD2D8, _v2, 0, _ptds) \
    P(cuMemsetD2D16, _v2, 0, _ptds) \
    P(cuMemsetD2D32, _v2, 0, _ptds) \
    P(cuMemsetD2D8Async, , 0, _ptsz) \
    P(cuMemsetD2D16Async, , 0, _ptsz) \
    P(cuMemsetD2D32Async, , 0, _ptsz) \
    X(cuStreamCreateWithPriority, , 0) \
    X(cuStreamCreate, , 0) \
    X(cuStreamDestroy, _v2, 0) \
    P(cuStreamSynchronize, , 0, _ptsz) \
    P(cuStreamQuery, , 0, _ptsz) \
    P(cuStreamGetFlags, , 0, _ptsz) \
    P(cuStreamGetPriority, , 0, _ptsz) \
    P(cuStreamGetCtx, , 0, _ptsz) \
    P(cuStreamGetId, , 0, _ptsz) \
    P(cuStreamGetDevice, , 0, _ptsz) \
    P(cuStreamIsCapturing, , 0, _ptsz) \
    P(cuStreamBeginCapture, _v2, 10010, _ptsz) \
    X(cuStreamBeginCaptureToGraph, , 0) \
    P(cuStreamEndCapture, , 0, _ptsz) \
    P(cuStreamGetCaptureInfo, , 10010, _ptsz) \
    P(cuStreamGetCaptureInfo, _v2, 11030, _ptsz) \
    X(cuStreamGetCaptureInfo, _v3, 12030) \
    X(cuStreamUpdateCaptureDependencies, , 11030) \
    X(cuStreamUpdateCaptureDependencies, _v2, 12030) \
    X(cuThreadExchangeStreamCaptureMode, , 0) \
    P(cuStreamWaitEvent, , 0, _ptsz) \
    P(cuLaunchHostFunc, , 0, _ptsz) \
    P(cuStreamAddCallback, , 0, _ptsz) \
    X(cuEventCreate, , 0) \
    X(cuEventDestroy, _v2, 0) \
    P(cuEventRecord, , 0, _ptsz) \
    P(cuEventRecordWithFlags, , 0, _ptsz) \
    X(cuEventQuery, , 0) \
    X(cuEventSynchronize, , 0) \
    X(cuEventElapsedTime, _v2, 12080) \
    X(cuModuleLoadData, , 0) \
    X(cuModuleLoadDataEx, , 0) \
    X(cuModuleLoadFatBinary, , 0) \
    X(cuModuleLoad, , 0) \
    X(cuModuleUnload, , 0) \
    X(cuModuleGetFunction, , 0) \
    X(cuModuleGetLoadingMode, , 0) \
    X(cuModuleGetGlobal, _v2, 0) \
    X(cuLibraryLoadData, , 0) \
    X(cuLibraryLoadFromFile, , 0) \
    X(cuLibraryUnload, , 0) \
    X(cuLibraryGetKernel, , 0) \
    X(cuLibraryGetKernelCount, , 0) \
    X(cuLibraryEnumerateKernels, , 0) \
    X(cuLibraryGetModule, , 0) \
    X(cuLibraryGetGlobal, , 0) \
    X(cuLibraryGetManaged, , 0) \
    X(cuModuleGetFunctionCount, , 0) \
    X(cuModuleEnumerateFunctions, , 0) \
    X(cuKernelGetFunction, , 0) \
    X(cuKernelGetLibrary, , 0) \
    X(cuFuncGetModule, , 0) \
    X(cuFuncGetName, , 0) \
    X(cuKernelGetName, , 0) \
    X(cuFuncGetAttribute, , 0) \
    X(cuFuncSetAttribute, , 0) \
    X(cuFuncGetParamInfo, , 0) \
    X(cuKernelGetAttribute, , 0) \
    X(cuKernelSetAttribute, , 0) \
    X(cuKernelGetParamInfo, , 0) \
    P(cuLaunchKernel, , 0, _ptsz) \
    P(cuLaunchCooperativeKernel, , 0, _ptsz) \
    P(cuLaunchKernelEx, , 0, _ptsz) \
    X(cuGraphCreate, , 0) \
    X(cuGraphDestroy, , 0) \
    X(cuGraphClone, , 0) \
    X(cuGraphNodeFindInClone, , 0) \
    X(cuGraphAddNode, , 12020) \
    X(cuGraphAddNode, _v2, 12030) \
    X(cuGraphConditionalHandleCreate, , 0) \
    X(cuGraphAddKernelNode, , 10000) \
    X(cuGraphAddKernelNode, _v2, 12000) \
    X(cuGraphAddMemcpyNode, , 0) \
    X(cuGraphAddMemsetNode, , 0) \
    X(cuGraphAddHostNode, , 0) \
    X(cuGraphAddChildGraphNode, , 0) \
    X(cuGraphAddEmptyNode, , 0) \
    X(cuGraphAddEventRecordNode, , 0) \
    X(cuGraphAddEventWaitNode, , 0) \
    X(cuGraphDestroyNode, , 0) \
    X(cuGraphNodeGetType, , 0) \
    X(cuGraphGetNodes, , 0) \
    X(cuGraphGetRootNodes, , 0) \
    X(cuGraphGetEdges, , 10000) \
    X(cuGraphGetEdges, _v2, 12030) \
    X(cuGraphNodeGetDependencies, , 10000) \
    X(cuGraphNodeGetDependencies, _v2, 12030) \
    X(cuGraphNodeGetDependentNodes, , 10000) \
    X(cuGraphNodeGetDependentNodes, _v2, 12030) \
    X(cuGraphAddDependencies, , 10000) \
    X(cuGraphAddDependencies, _v2, 12030) \
    X(cuGraphRemoveDependencies, , 10000) \
    X(cuGraphRemoveDependencies, _v2, 12030) \
    X(cuGraphChildGraphNodeGetGraph, , 0) \
    X(cuGraphKernelNodeGetParams, , 10000) \
    X(cuGraphKernelNodeGetParams, _v2, 12000) \
    X(cuGraphKernelNodeSetParams, , 10000) \
    X(cuGraphKernelNodeSetParams, _v2, 12000) \
    X(cuGraphExecKernelNodeSetParams, , 10000) \
    X(cuGraphExecKernelNodeSetParams, _v2, 12000) \
    X(cuGraphMemcpyNodeGetParams, , 0) \
    X(cuGraphMemcpyNodeSetParams, , 0) \
    X(cuGraphExecMemcpyNodeSetParams, , 0) \
    X(cuGraphMemsetNodeGetParams, , 0) \
    X(cuGraphMemsetNodeSetParams, , 0) \
    X(cuGraphExecMemsetNodeSetParams, , 0) \
    X(cuGraphHostNodeGetParams, , 0) \
    X(cuGraphHostNodeSetParams, , 0) \
    X(cuGraphExecHostNodeSetParams, , 0) \
    X(cuGraphEventRecordNodeGetEvent, , 0) \
    X(cuGraphEventRecordNodeSetEvent, , 0) \
    X(cuGraphExecEventRecordNodeSetEvent, , 0) \
    X(cuGraphEventWaitNodeGetEvent, , 0) \
    X(cuGraphEventWaitNodeSetEvent, , 0) \
    X(cuGraphExecEventWaitNodeSetEvent, , 0) \
    X(cuGraphNodeSetParams, , 0) \
    X(cuGraphExecNodeSetParams, , 0) \
    X(cuGraphExecChildGraphNodeSetParams, , 0) \
    X(cuGraphInstantiate, , 10000) \
    X(cuGraphInstantiate, _v2, 11000) \
    X(cuGraphInstantiate, WithFlags, 12000) \
    X(cuGraphInstantiateWithFlags, , 0) \
    P(cuGraphInstantiateWithParams, , 0, _ptsz) \
    X(cuGraphExecGetFlags, , 0) \
    X(cuGraphExecUpdate, , 10020) \
    X(cuGraphExecUpdate, _v2, 12000) \
    X(cuGraphNodeSetEnabled, , 0) \
    X(cuGraphNodeGetEnabled, , 0) \
    P(cuGraphUpload, , 0, _ptsz) \
    P(cuGraphLaunch, , 0, _ptsz) \
    X(cuGraphExecDestroy, , 0) \
    X(cuGetExportTable, , 0) \
    X(cuGetProcAddress, , 0) \
    X(cuGetProcAddress, _v2, 12000)
// clang-format on

FUNCTIONS(DECLARE, DECLARE_BOTH)

const struct sim_function sim_functions[] = {FUNCTIONS(FUNCTION, BOTH){0}};
