// The functions that there are, as cuGetProcAddress is asked for them and as they are exported.

#include "sim.h"

// A version is that of CUDA with which this function took the name; 0: it always had it.
#define FUNCTION(name, suffix, since) {#name, #name #suffix, since, (void *)name##suffix},
#define DECLARE(name, suffix, since) CUresult name##suffix(void);

// clang-format off
#define FUNCTIONS(X) \
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
    X(cuCtxSynchronize, , 0) \
    X(cuCtxGetApiVersion, , 0) \
    X(cuCtxGetStreamPriorityRange, , 0) \
    X(cuGetErrorName, , 0) \
    X(cuGetErrorString, , 0) \
    X(cuMemAlloc, _v2, 0) \
    X(cuMemAllocAsync, , 0) \
    X(cuMemAllocManaged, , 0) \
    X(cuMemAllocPitch, _v2, 0) \
    X(cuMemFree, _v2, 0) \
    X(cuMemFreeAsync, , 0) \
    X(cuMemHostAlloc, , 0) \
    X(cuMemAllocHost, _v2, 0) \
    X(cuMemFreeHost, , 0) \
    X(cuMemHostRegister, _v2, 0) \
    X(cuMemHostUnregister, , 0) \
    X(cuMemHostGetDevicePointer, _v2, 0) \
    X(cuMemGetInfo, _v2, 0) \
    X(cuMemGetAddressRange, _v2, 0) \
    X(cuMemcpyHtoD, _v2, 0) \
    X(cuMemcpyDtoH, _v2, 0) \
    X(cuMemcpyDtoD, _v2, 0) \
    X(cuMemcpyHtoDAsync, _v2, 0) \
    X(cuMemcpyDtoHAsync, _v2, 0) \
    X(cuMemcpyDtoDAsync, _v2, 0) \
    X(cuMemcpy, , 0) \
    X(cuMemcpyAsync, , 0) \
    X(cuMemcpy2D, _v2, 0) \
    X(cuMemcpy2DUnaligned, _v2, 0) \
    X(cuMemcpy2DAsync, _v2, 0) \
    X(cuMemsetD8, _v2, 0) \
    X(cuMemsetD16, _v2, 0) \
    X(cuMemsetD32, _v2, 0) \
    X(cuMemsetD8Async, , 0) \
    X(cuMemsetD16Async, , 0) \
    X(cuMemsetD32Async, , 0) \
    X(cuStreamCreateWithPriority, , 0) \
    X(cuStreamCreate, , 0) \
    X(cuStreamDestroy, _v2, 0) \
    X(cuStreamSynchronize, , 0) \
    X(cuStreamQuery, , 0) \
    X(cuStreamGetFlags, , 0) \
    X(cuStreamGetPriority, , 0) \
    X(cuStreamIsCapturing, , 0) \
    X(cuThreadExchangeStreamCaptureMode, , 0) \
    X(cuStreamWaitEvent, , 0) \
    X(cuLaunchHostFunc, , 0) \
    X(cuStreamAddCallback, , 0) \
    X(cuEventCreate, , 0) \
    X(cuEventDestroy, _v2, 0) \
    X(cuEventRecord, , 0) \
    X(cuEventRecordWithFlags, , 0) \
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
    X(cuLaunchKernel, , 0) \
    X(cuLaunchCooperativeKernel, , 0) \
    X(cuLaunchKernelEx, , 0) \
    X(cuGetExportTable, , 0) \
    X(cuGetProcAddress, , 0) \
    X(cuGetProcAddress, _v2, 12000)
// clang-format on

FUNCTIONS(DECLARE)

const struct sim_function sim_functions[] = {FUNCTIONS(FUNCTION){0}};
