// The functions that the library exports. Each is a stub that checks whether the process has initialized the
// driver, which isn't needed for a few functions, and then jumps to the implementation, sim_NAME (sim.h does
// the renaming). A function without an implementation returns CUDA_ERROR_NOT_SUPPORTED, and prints a message
// the first time.

#include <stdio.h>

#include "say.h"
#include "sim.h"

__attribute__((aligned(SIM_PAGE))) char sim_ready[SIM_PAGE];

// clang-format off

// Functions that may be called at any time: before cuInit, and in callbacks.
#define ANYTIME(X) \
    X(cuInit) \
    X(cuDriverGetVersion) \
    X(cuGetErrorName) \
    X(cuGetErrorString) \
    X(cuGetProcAddress) \
    X(cuGetProcAddress_v2) \
    X(cuGetProcAddress_v2_ptsz) \
    X(cuGetExportTable) \
    X(cuLogsCurrent) \
    X(cuLogsDumpToFile) \
    X(cuLogsDumpToMemory) \
    X(cuLogsRegisterCallback) \
    X(cuLogsUnregisterCallback)

// Functions that may be called before cuInit.
#define BEFORE_INIT(X) \
    ANYTIME(X) \
    X(cuProfilerInitialize)

// Functions that a host function or callback may call. On an H200, the others return CUDA_ERROR_NOT_PERMITTED (800).
// Functions in the second list have a variant _ptsz.
#define IN_CALLBACK(X) \
    ANYTIME(X) \
    X(cuThreadExchangeStreamCaptureMode) \
    X(cuEventQuery) \
    X(cuEventDestroy) \
    X(cuEventDestroy_v2) \
    X(cuEventElapsedTime) \
    X(cuEventElapsedTime_v2)
#define ON_STREAM(X) \
    X(cuEventRecord) \
    X(cuEventRecordWithFlags) \
    X(cuStreamQuery) \
    X(cuStreamWaitEvent) \
    X(cuStreamAddCallback) \
    X(cuLaunchHostFunc) \
    X(cuLaunchHostFunc_v2) \
    X(cuLaunchKernel) \
    X(cuLaunchKernelEx) \
    X(cuLaunchCooperativeKernel) \
    X(cuGraphLaunch) \
    X(cuMemcpyAsync) \
    X(cuMemcpyHtoDAsync_v2) \
    X(cuMemcpyDtoHAsync_v2) \
    X(cuMemcpyDtoDAsync_v2) \
    X(cuMemcpy2DAsync_v2) \
    X(cuMemcpy3DAsync_v2) \
    X(cuMemsetD8Async) \
    X(cuMemsetD16Async) \
    X(cuMemsetD32Async) \
    X(cuMemsetD2D8Async) \
    X(cuMemsetD2D16Async) \
    X(cuMemsetD2D32Async)
// clang-format on

// Return whether this thread runs a host function. Called only while some thread does.
int sim_callbacks;
__thread bool sim_in_host_function;
__attribute__((used)) int sim_is_in_callback(void) { return sim_in_host_function; }

// Define the symbol of every function from these lists. It answers CUDA_ERROR_NOT_INITIALIZED or
// CUDA_ERROR_NOT_PERMITTED, or calls sim_NAME.
#include "arch_stubs.h"

static CUresult refuse(const char *name, bool *warned) {
    if (!__atomic_exchange_n(warned, true, __ATOMIC_RELAXED)) {
        char line[256];
        snprintf(line, sizeof(line), "libcuda.so.1: error: %s: not simulated: see gpt-sim(7)", name);
        gpt_write_line(line);
    }
    return CUDA_ERROR_NOT_SUPPORTED;
}

#define NAME(name)                                                                                           \
    __attribute__((weak, section("refused"))) API name(void) {                                               \
        static bool warned;                                                                                  \
        return refuse(#name, &warned);                                                                       \
    }
#define X(name, suffix, since, words) NAME(name##suffix)
#define P(name, suffix, since, variant, words) NAME(name##suffix) NAME(name##suffix##variant)
#include "abi/driver.h"

#define STUB(name) extern const char name##_stub[] __asm__(#name);
#define X(name, suffix, since, words) STUB(name##suffix)
#define P(name, suffix, since, variant, words) STUB(name##suffix) STUB(name##suffix##variant)
#include "abi/driver.h"

#define X(name, suffix, since, words) {#name, since, (void *)name##suffix##_stub, NULL},
#define P(name, suffix, since, variant, words)                                                               \
    {#name, since, (void *)name##suffix##_stub, (void *)name##suffix##variant##_stub},
const struct sim_function sim_functions[] = {
#include "abi/driver.h"
    // cuda.h gives this name these parameters since CUDA 12.0
    {"cuGraphInstantiate", 12000, (void *)cuGraphInstantiateWithFlags_stub, NULL},
    {0}};
