// The demo's library: two kernels in two fatbin regions, laid out as nvcc does for two source files, and the
// host code that runs them. The code that nvcc generates for `__global__` and `<<<>>>` is written out here,
// so that neither a C++ compiler nor a CUDA header is needed. Before main, each region and its kernel are
// registered with the CUDA runtime, which loads a region when its kernel is first launched.

#include "demo.h"

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

// Declarations of the parts of the CUDA runtime that we need.
typedef struct {
    unsigned x, y, z;
} dim3;
enum { cudaSuccess = 0, cudaErrorInsufficientDriver = 35, cudaErrorNoDevice = 100 };
enum { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2 };
int cudaGetDeviceCount(int *count);
int cudaMalloc(void **memory, size_t size);
int cudaFree(void *memory);
int cudaMemcpy(void *to, const void *from, size_t size, int kind);
int cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared,
                     void *stream);
int cudaDeviceSynchronize(void);
const char *cudaGetErrorString(int status);
void **__cudaRegisterFatBinary(const void *wrapper);
void __cudaRegisterFatBinaryEnd(void **region);
void __cudaUnregisterFatBinary(void **region);
void __cudaRegisterFunction(void **region, const void *function, void *device_function, const char *name,
                            int most, void *thread, void *block, void *block_size, void *grid_size,
                            int *warp_size);

// Filled by the linker from .nvFatBinSegment, in the order in which the regions were given to the library.
struct wrapper {
    uint32_t magic, version;
    const void *data, *more;
};
extern const struct wrapper fatbin_wrappers[] __attribute__((visibility("hidden")));

// Indexed by region. The address of a kernel's name here identifies the kernel in the program.
static const char *const kernels[] = {"_Z12matrixMulGPUPKfS0_Pfi", "_Z14setScalarItemsPffi"};
enum region { MATMUL, FILL, REGIONS };
static void **regions[REGIONS];

__attribute__((constructor)) static void make_known(void) {
    for (int i = 0; i < REGIONS; i++) {
        regions[i] = __cudaRegisterFatBinary(&fatbin_wrappers[i]);
        __cudaRegisterFunction(regions[i], &kernels[i], NULL, kernels[i], -1, NULL, NULL, NULL, NULL, NULL);
        __cudaRegisterFatBinaryEnd(regions[i]);
    }
}

__attribute__((destructor)) static void forget(void) {
    for (int i = 0; i < REGIONS; i++)
        __cudaUnregisterFatBinary(regions[i]);
}

// A call that returns false has reported its error; the calls that follow it in a chain of && are skipped.
static int worked(const char *call, int status) {
    if (status)
        fprintf(stderr, "demo: %s: %s\n", call, cudaGetErrorString(status));
    return !status;
}
#define OK(call) worked(#call, call)

static int launch(enum region region, dim3 blocks, dim3 threads, void **arguments) {
    return OK(cudaLaunchKernel(&kernels[region], blocks, threads, arguments, 0, NULL)) &&
           OK(cudaDeviceSynchronize());
}

static int matmul(void) {
    enum { N = 100, SIZE = N * N * sizeof(float), SIDE = 16, BLOCKS = (N + SIDE - 1) / SIDE };
    static float a[N][N], b[N][N], c[N][N];
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++) // small integers, which floats add and multiply exactly
            a[i][j] = i + j, b[i][j] = i - j;

    void *da = NULL, *db = NULL, *dc = NULL;
    int n = N;
    void *arguments[] = {&da, &db, &dc, &n};
    int ok = OK(cudaMalloc(&da, SIZE)) && OK(cudaMalloc(&db, SIZE)) && OK(cudaMalloc(&dc, SIZE)) &&
             OK(cudaMemcpy(da, a, SIZE, cudaMemcpyHostToDevice)) &&
             OK(cudaMemcpy(db, b, SIZE, cudaMemcpyHostToDevice)) &&
             launch(MATMUL, (dim3){BLOCKS, BLOCKS, 1}, (dim3){SIDE, SIDE, 1}, arguments) &&
             OK(cudaMemcpy(c, dc, SIZE, cudaMemcpyDeviceToHost));
    for (int i = 0; ok && i < N * N; i++) {
        float sum = 0;
        for (int k = 0; k < N; k++)
            sum += a[i / N][k] * b[k][i % N];
        ok = c[i / N][i % N] == sum;
        if (!ok)
            fprintf(stderr, "demo: wrong product at row %d, column %d\n", i / N, i % N);
    }
    cudaFree(da), cudaFree(db), cudaFree(dc);
    return ok;
}

static int fill(void) {
    enum { COUNT = 1000 };
    static float items[COUNT];
    void *memory = NULL;
    float value = 42;
    int count = COUNT;
    void *arguments[] = {&memory, &value, &count};
    int ok = OK(cudaMalloc(&memory, sizeof(items))) &&
             launch(FILL, (dim3){2, 1, 1}, (dim3){16, 1, 1}, arguments) &&
             OK(cudaMemcpy(items, memory, sizeof(items), cudaMemcpyDeviceToHost));
    for (int i = 0; ok && i < COUNT; i++) {
        ok = items[i] == value;
        if (!ok)
            fprintf(stderr, "demo: item %d is wrong\n", i);
    }
    cudaFree(memory);
    return ok;
}

// A deliberate bug: the kernel gets a larger number of items than its memory can hold.
static int overrun(void) {
    void *memory = NULL;
    float value = 42;
    int count = 1000;
    void *arguments[] = {&memory, &value, &count};
    int ok = OK(cudaMalloc(&memory, 900 * sizeof(float))) &&
             launch(FILL, (dim3){2, 1, 1}, (dim3){16, 1, 1}, arguments);
    cudaFree(memory);
    return ok;
}

static enum demo_status on_device(int (*work)(void)) {
    int count, status = cudaGetDeviceCount(&count);
    if (status == cudaErrorInsufficientDriver || status == cudaErrorNoDevice) {
        fprintf(stderr, "demo: no CUDA driver: %s\n", cudaGetErrorString(status));
        return DEMO_NO_DRIVER;
    }
    return work() ? DEMO_OK : DEMO_FAILED;
}

enum demo_status demo_matmul(void) { return on_device(matmul); }

enum demo_status demo_fill(void) { return on_device(fill); }

enum demo_status demo_overrun(void) { return on_device(overrun); }
