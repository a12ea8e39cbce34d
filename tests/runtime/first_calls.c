// A program that makes each call once, so that every call is the first of its function. WAY selects how it
// finds the functions. Its output is the same with and without the hook.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "abi/cuda.h"

#define LINKED 0
#define HANDLE 1
#define NEXT 2
#define DEFAULT 3
#define ADDRESS 4
#define COPIES 5

static void *driver;

static void *find_address(const char *name) {
    CUresult (*get)(const char *, void **, int, uint64_t, int *) = dlsym(driver, "cuGetProcAddress_v2");
    void *function = NULL;
    int status;
    get(name, &function, 13000, 0, &status);
    return function;
}

// A copy of the CUDA runtime looks up every function that it needs itself: the same name three times, once
// for the per-thread default stream.
static void *find_copy(const char *name) {
    static unsigned times;
    CUresult (*get)(const char *, void **, int, uint64_t, int *) = find_address("cuGetProcAddress");
    void *found[3] = {NULL, NULL, NULL};
    int status;
    for (int i = 0; i < 3; i++)
        get(name, &found[i], 13000, i == 2 ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM : 0, &status);
    return found[times++ % 3];
}

// The symbol, and its name without the version.
static void *find(const char *symbol, const char *name) {
    void *found = WAY == HANDLE    ? dlsym(driver, symbol)
                  : WAY == NEXT    ? dlsym(RTLD_NEXT, symbol)
                  : WAY == DEFAULT ? dlsym(RTLD_DEFAULT, symbol)
                  : WAY == ADDRESS ? find_address(name)
                                   : find_copy(name);
    if (!found)
        printf("%s is not there\n", symbol);
    return found;
}

#if WAY == LINKED
#define DECLARE(symbol) CUresult symbol();
#define CALL(symbol, name, ...) printf("%s %d\n", #symbol, symbol(__VA_ARGS__))
#else
#define DECLARE(symbol)
#define CALL(symbol, name, ...)                                                                              \
    printf("%s %d\n", #symbol, ((CUresult (*)())find(#symbol, #name))(__VA_ARGS__))
#endif

#define SIZE ((size_t)4096)
DECLARE(cuInit)
DECLARE(cuDevicePrimaryCtxRetain)
DECLARE(cuCtxSetCurrent)
DECLARE(cuModuleLoadData)
DECLARE(cuModuleGetFunction)
DECLARE(cuModuleGetGlobal_v2)
DECLARE(cuMemAlloc_v2)
DECLARE(cuMemsetD32_v2)
DECLARE(cuMemHostRegister_v2)
DECLARE(cuMemcpyHtoD_v2)
DECLARE(cuMemcpyDtoH_v2)
DECLARE(cuMemcpyDtoHAsync_v2)
DECLARE(cuStreamCreate)
DECLARE(cuStreamSynchronize)
DECLARE(cuEventCreate)
DECLARE(cuEventRecord)
DECLARE(cuEventSynchronize)
DECLARE(cuLaunchKernel)
DECLARE(cuLaunchKernelEx)
DECLARE(cuLaunchHostFunc)
DECLARE(cuLaunchCooperativeKernel)
DECLARE(cuOccupancyMaxActiveBlocksPerMultiprocessor)
DECLARE(cuOccupancyMaxPotentialBlockSize)
DECLARE(cuFuncGetAttribute)
DECLARE(cuFuncSetCacheConfig)
DECLARE(cuStreamBeginCapture_v2)
DECLARE(cuStreamEndCapture)
DECLARE(cuGraphInstantiateWithFlags)
DECLARE(cuGraphLaunch)
DECLARE(cuGraphExecDestroy)
DECLARE(cuGraphDestroy)
DECLARE(cuCtxSynchronize)
DECLARE(cuModuleUnload)

static void called(void *data) { ++*(int *)data; }

static char text[1 << 16];
static unsigned items[1024];

#ifdef PLUGIN
int play(const char *path) {
#else
int main(int argc, char **argv) {
    const char *path = argv[argc - 1];
#endif
    void *context, *module, *function, *stream, *event, *graph, *exec;
    uint64_t memory, total;
    unsigned added = 5, count = 400, sum = 0;
    int blocks = 0, calls = 0, registers = 0;
    size_t size;
    void *params[] = {&memory, &added, &count};
    FILE *file = fopen(path, "r");
    if (!file || !fread(text, 1, sizeof(text) - 1, file))
        return 1;
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    CALL(cuInit, cuInit, 0);
    CALL(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, &context, 0);
    CALL(cuCtxSetCurrent, cuCtxSetCurrent, context);
    CALL(cuModuleLoadData, cuModuleLoadData, &module, text);
    CALL(cuModuleGetFunction, cuModuleGetFunction, &function, module, "scale");
    CALL(cuMemAlloc_v2, cuMemAlloc, &memory, SIZE);
    CALL(cuMemsetD32_v2, cuMemsetD32, memory, 7, SIZE / 4);
#ifdef FIRST_LAUNCH // the first of all calls that put work into a stream
    CALL(cuLaunchKernel, cuLaunchKernel, function, 6, 1, 1, 70, 1, 1, 0, NULL, params, NULL);
#endif
    CALL(cuStreamCreate, cuStreamCreate, &stream, 0);
    CALL(cuEventCreate, cuEventCreate, &event, 0);
    CUlaunchConfig config = {6, 1, 1, 70, 1, 1, 0, stream, NULL, 0};
    CALL(cuLaunchKernelEx, cuLaunchKernelEx, &config, function, params, NULL);
    CALL(cuLaunchCooperativeKernel, cuLaunchCooperativeKernel, function, 6, 1, 1, 70, 1, 1, 0, stream,
         params);
    CALL(cuEventRecord, cuEventRecord, event, stream);
    CALL(cuEventSynchronize, cuEventSynchronize, event);
#ifndef FIRST_LAUNCH
    CALL(cuLaunchKernel, cuLaunchKernel, function, 6, 1, 1, 70, 1, 1, 0, stream, params, NULL);
#endif
    CALL(cuLaunchHostFunc, cuLaunchHostFunc, stream, called, &calls);
    CALL(cuStreamSynchronize, cuStreamSynchronize, stream);
    CALL(cuMemcpyDtoH_v2, cuMemcpyDtoH, items, memory, SIZE);
    printf("%u %u %d\n", items[0], items[1023], calls);
    // Copies from pinned memory must be complete when the call returns: they may be in a stream that no other
    // stream waits for.
    CALL(cuMemHostRegister_v2, cuMemHostRegister, items, SIZE, 0);
    CALL(cuMemcpyHtoD_v2, cuMemcpyHtoD, memory, items, SIZE);
    CALL(cuOccupancyMaxActiveBlocksPerMultiprocessor, cuOccupancyMaxActiveBlocksPerMultiprocessor, &blocks,
         function, 64, (size_t)0);
    int least = 0, most = 0;
    CALL(cuOccupancyMaxPotentialBlockSize, cuOccupancyMaxPotentialBlockSize, &least, &most, function, NULL,
         (size_t)0, 0);
    CALL(cuFuncGetAttribute, cuFuncGetAttribute, &registers, 4, function);
    CALL(cuFuncSetCacheConfig, cuFuncSetCacheConfig, function, 1);
    printf("%d %d %d %d\n", blocks > 0, least > 0, most > 0, registers > 0);
    CALL(cuStreamBeginCapture_v2, cuStreamBeginCapture, stream, 2);
    CALL(cuLaunchKernelEx, cuLaunchKernelEx, &config, function, params, NULL);
    CALL(cuStreamEndCapture, cuStreamEndCapture, stream, &graph);
    CALL(cuGraphInstantiateWithFlags, cuGraphInstantiateWithFlags, &exec, graph, (uint64_t)0);
    CALL(cuGraphLaunch, cuGraphLaunch, exec, stream);
    CALL(cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync, items, memory, SIZE, stream);
    CALL(cuCtxSynchronize, cuCtxSynchronize, context); // the newest version takes a context
    CALL(cuModuleGetGlobal_v2, cuModuleGetGlobal, &total, &size, module, "total");
    CALL(cuMemcpyDtoH_v2, cuMemcpyDtoH, &sum, total, size);
    printf("%u %u %u\n", items[0], items[1023], sum);
    CALL(cuGraphExecDestroy, cuGraphExecDestroy, exec);
    CALL(cuGraphDestroy, cuGraphDestroy, graph);
    CALL(cuModuleUnload, cuModuleUnload, module);
    return 0;
}
