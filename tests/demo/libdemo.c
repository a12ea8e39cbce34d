// The demo's library: two kernels in two fatbin regions, as nvcc packs two source files, and the host code
// that runs them. What nvcc leaves to cudart is written out here: a wrapper is handed to the driver on first
// use of its region, the kernel is looked up by its mangled name, and libcuda is found when it is needed.

#include "demo.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

// The CUDA driver API, as far as it is needed: no CUDA header has to be there to build this.
typedef struct library *CUlibrary;
typedef struct kernel *CUkernel;
typedef struct context *CUcontext;
typedef uintptr_t CUdeviceptr;

#define DRIVER_API(X)                                                                                        \
    X(cuInit, unsigned flags)                                                                                \
    X(cuGetErrorName, int status, const char **name)                                                         \
    X(cuDeviceGet, int *device, int ordinal)                                                                 \
    X(cuDevicePrimaryCtxRetain, CUcontext *context, int device)                                              \
    X(cuDevicePrimaryCtxRelease_v2, int device)                                                              \
    X(cuCtxSetCurrent, CUcontext context)                                                                    \
    X(cuCtxSynchronize, void)                                                                                \
    X(cuLibraryLoadData, CUlibrary *library, const void *code, int *jit_options, void **jit_values,          \
      unsigned jit_count, int *options, void **values, unsigned count)                                       \
    X(cuLibraryGetKernel, CUkernel *kernel, CUlibrary library, const char *name)                             \
    X(cuLibraryUnload, CUlibrary library)                                                                    \
    X(cuMemAlloc_v2, CUdeviceptr *memory, size_t size)                                                       \
    X(cuMemFree_v2, CUdeviceptr memory)                                                                      \
    X(cuMemcpyHtoD_v2, CUdeviceptr to, const void *from, size_t size)                                        \
    X(cuMemcpyDtoH_v2, void *to, CUdeviceptr from, size_t size)                                              \
    X(cuLaunchKernel, CUkernel kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,  \
      unsigned block_y, unsigned block_z, unsigned shared, void *stream, void **params, void **extra)

#define DECLARE(name, ...) static int (*name)(__VA_ARGS__);
DRIVER_API(DECLARE)

// Filled by the linker from .nvFatBinSegment, in the order in which the library was given its regions.
struct wrapper {
    uint32_t magic, version;
    const void *data, *more;
};
extern const struct wrapper fatbin_wrappers[] __attribute__((visibility("hidden")));
enum region { MATMUL, FILL };

static enum demo_status no_driver(const char *why) {
    fprintf(stderr, "demo: no CUDA driver: %s\n", why);
    return DEMO_NO_DRIVER;
}

static enum demo_status find_driver(void) {
    void *libcuda = dlopen("libcuda.so.1", RTLD_NOW);
    if (!libcuda)
        return no_driver(dlerror());
#define FIND(name, ...)                                                                                      \
    if (!(*(void **)&name = dlsym(libcuda, #name)))                                                          \
        return no_driver(dlerror());
    DRIVER_API(FIND)
    return cuInit(0) ? no_driver("no device that works") : DEMO_OK;
}

// A call that returns false has been reported; what follows it in a chain of && is skipped.
static int worked(const char *call, int status) {
    const char *name = "unknown error";
    if (status && cuGetErrorName(status, &name))
        name = "unknown error";
    if (status)
        fprintf(stderr, "demo: %s: %s\n", call, name);
    return !status;
}
#define OK(call) worked(#call, call)

static int launch(enum region region, const char *name, unsigned blocks_x, unsigned blocks_y, unsigned side,
                  void **params) {
    CUlibrary library = NULL;
    CUkernel kernel;
    int ok = OK(cuLibraryLoadData(&library, &fatbin_wrappers[region], NULL, NULL, 0, NULL, NULL, 0)) &&
             OK(cuLibraryGetKernel(&kernel, library, name)) &&
             OK(cuLaunchKernel(kernel, blocks_x, blocks_y, 1, side, side, 1, 0, NULL, params, NULL)) &&
             OK(cuCtxSynchronize());
    if (library)
        cuLibraryUnload(library);
    return ok;
}

static int matmul(void) {
    enum { N = 100, SIZE = N * N * sizeof(float), SIDE = 16, BLOCKS = (N + SIDE - 1) / SIDE };
    static float a[N][N], b[N][N], c[N][N];
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++) // small integers: floats add and multiply them exactly
            a[i][j] = i + j, b[i][j] = i - j;

    CUdeviceptr da = 0, db = 0, dc = 0;
    int n = N;
    void *params[] = {&da, &db, &dc, &n};
    int ok = OK(cuMemAlloc_v2(&da, SIZE)) && OK(cuMemAlloc_v2(&db, SIZE)) && OK(cuMemAlloc_v2(&dc, SIZE)) &&
             OK(cuMemcpyHtoD_v2(da, a, SIZE)) && OK(cuMemcpyHtoD_v2(db, b, SIZE)) &&
             launch(MATMUL, "_Z12matrixMulGPUPKfS0_Pfi", BLOCKS, BLOCKS, SIDE, params) &&
             OK(cuMemcpyDtoH_v2(c, dc, SIZE));
    for (int i = 0; ok && i < N * N; i++) {
        float sum = 0;
        for (int k = 0; k < N; k++)
            sum += a[i / N][k] * b[k][i % N];
        ok = c[i / N][i % N] == sum;
        if (!ok)
            fprintf(stderr, "demo: wrong product at row %d, column %d\n", i / N, i % N);
    }
    cuMemFree_v2(da), cuMemFree_v2(db), cuMemFree_v2(dc);
    return ok;
}

static int fill(void) {
    enum { COUNT = 1000 };
    static float items[COUNT];
    CUdeviceptr memory = 0;
    float value = 42;
    int count = COUNT;
    void *params[] = {&memory, &value, &count};
    int ok = OK(cuMemAlloc_v2(&memory, sizeof(items))) &&
             launch(FILL, "_Z14setScalarItemsPffi", 2, 1, 16, params) &&
             OK(cuMemcpyDtoH_v2(items, memory, sizeof(items)));
    for (int i = 0; ok && i < COUNT; i++) {
        ok = items[i] == value;
        if (!ok)
            fprintf(stderr, "demo: item %d is wrong\n", i);
    }
    cuMemFree_v2(memory);
    return ok;
}

static enum demo_status on_device(int (*work)(void)) {
    enum demo_status status = find_driver();
    if (status != DEMO_OK)
        return status;
    int device, ok = 0;
    CUcontext context;
    if (OK(cuDeviceGet(&device, 0)) && OK(cuDevicePrimaryCtxRetain(&context, device))) {
        ok = OK(cuCtxSetCurrent(context)) && work();
        cuDevicePrimaryCtxRelease_v2(device);
    }
    return ok ? DEMO_OK : DEMO_FAILED;
}

enum demo_status demo_matmul(void) { return on_device(matmul); }

enum demo_status demo_fill(void) { return on_device(fill); }
