// A program of the CUDA runtime API, for test_cudart.py: each call once, with a result that can be checked.

#include <cooperative_groups.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>

static int failed;

// Prints what's wrong, and goes on.
#define IS(expression, expected)                                                                             \
    do {                                                                                                     \
        long long found = (long long)(expression), wanted = (long long)(expected);                           \
        if (found != wanted) {                                                                               \
            printf("line %d: %s: %lld, not %lld\n", __LINE__, #expression, found, wanted);                   \
            failed++;                                                                                        \
        }                                                                                                    \
    } while (0)
#define OK(call) IS(call, cudaSuccess)

__device__ int variable[1000];
__constant__ double constant = 2.5;
__managed__ int managed[4] = {1, 2, 3, 4};

__global__ void reverse(float *x) {
    extern __shared__ float copy[];
    copy[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = copy[blockDim.x - 1 - threadIdx.x];
}
template <class T> __global__ void fill(T *x, T value) { x[threadIdx.x] = value; }
__global__ void add_constant(double *x) { *x += constant + variable[1]; }
__global__ void times_ten() { managed[threadIdx.x] *= 10; }
__global__ void meet(int *x) {
    atomicAdd(x, 1);
    cooperative_groups::this_grid().sync();
    if (cooperative_groups::this_grid().thread_rank() == 0)
        x[1] = x[0];
}
static void CUDART_CB count(void *counter) { ++*(int *)counter; }

static void devices() {
    int devices, device = 7, value;
    cudaDeviceProp properties;
    OK(cudaGetDeviceCount(&devices));
    OK(cudaGetDevice(&device));
    IS(device, 0);
    OK(cudaGetDeviceProperties(&properties, 0));
    OK(cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, 0));
    IS(properties.multiProcessorCount, value);
    IS(properties.warpSize, 32);
    IS(properties.maxThreadsDim[2], 64);
    IS(properties.maxGridSize[0], 2147483647);
    IS(properties.unifiedAddressing, 1);
    IS(cudaDeviceEnablePeerAccess(0, 0), cudaErrorPeerAccessUnsupported);
    IS(cudaMemcpyPeer(&value, 0, &value, devices, 4), cudaErrorInvalidDevice);
    IS(cudaMemcpyPeerAsync(&value, -1, &value, 0, 4, 0), cudaErrorInvalidDevice);
    IS(cudaStreamAddCallback(0, NULL, NULL, 1), cudaErrorInvalidValue);
    IS(cudaSetDevice(devices), cudaErrorInvalidDevice);
    IS(cudaPeekAtLastError(), cudaErrorInvalidDevice);
    IS(cudaGetLastError(), cudaErrorInvalidDevice);
    OK(cudaGetLastError());
    IS(strcmp(cudaGetErrorName(cudaErrorMemoryAllocation), "cudaErrorMemoryAllocation"), 0);
    IS(strcmp(cudaGetErrorString(cudaErrorIllegalAddress), "an illegal memory access was encountered"), 0);
    OK(cudaRuntimeGetVersion(&value));
    IS(value / 1000, 13);
}

static void kernels(float *x, float *host, bool simulated) {
    for (int i = 0; i < 256; i++)
        host[i] = i;
    OK(cudaMemcpy(x, host, 1024, cudaMemcpyHostToDevice));
    reverse<<<1, 256, 1024>>>(x);
    OK(cudaMemcpy(host, x, 1024, cudaMemcpyDefault));
    IS(host[0], 255);
    fill<float><<<1, 256>>>(x, 7);
    OK(cudaMemcpy(host, x, 1024, cudaMemcpyDeviceToHost));
    IS(host[9], 7);
    reverse<<<1, 2048>>>(x);
    IS(cudaGetLastError(), cudaErrorInvalidValue);
    reverse<<<0, 1>>>(x);
    IS(cudaGetLastError(), cudaErrorInvalidValue);
    reverse<<<1, 32, 1 << 20>>>(x);
    IS(cudaGetLastError(), cudaErrorInvalidValue);
    OK(cudaFuncSetAttribute(reverse, cudaFuncAttributeMaxDynamicSharedMemorySize, 100000));
    reverse<<<1, 256, 100000>>>(x);
    OK(cudaGetLastError());
    cudaFuncAttributes attributes;
    OK(cudaFuncGetAttributes(&attributes, reverse));
    IS(attributes.maxDynamicSharedSizeBytes, 100000);
    IS(attributes.maxThreadsPerBlock, 1024);
    IS(attributes.ptxVersion * 10, (int[]){__CUDA_ARCH_LIST__}[0]); // not that of PTX: CUB relies on it
    int blocks, grid, block;
    OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, reverse, 1024, 0));
    IS(blocks, 2);
    OK(cudaOccupancyMaxPotentialBlockSize(&grid, &block, reverse, 0, 0));
    void *arguments[] = {&x};
    IS(cudaLaunchKernel((void *)host, 1, 1, arguments, 0, 0), cudaErrorInvalidResourceHandle);
    if (simulated) // CUDA 13 takes the low 32 bits: the kernel runs without its shared memory
        IS(cudaLaunchKernel((void *)reverse, 1, 1, arguments, 1ull << 32, 0), cudaErrorInvalidValue);
    cudaGetLastError();
    cudaLaunchConfig_t config = {};
    config.gridDim = 1, config.blockDim = 32, config.dynamicSmemBytes = 128;
    OK(cudaLaunchKernelEx(&config, reverse, x));
    int *counts;
    OK(cudaMallocManaged(&counts, 8));
    counts[0] = counts[1] = 0;
    void *pointers[] = {&counts};
    OK(cudaLaunchCooperativeKernel((void *)meet, 2, 32, pointers, 0, 0));
    OK(cudaDeviceSynchronize());
    IS(counts[1], 64);
}

static void variables() {
    void *address;
    size_t size;
    int values[1000] = {0, 40, 0, 1, 1};
    OK(cudaGetSymbolAddress(&address, variable));
    OK(cudaGetSymbolSize(&size, variable));
    IS(size, 4000);
    OK(cudaMemcpyToSymbol(variable, values, 4000));
    IS(cudaMemcpyToSymbol(variable, values, 4004), cudaErrorInvalidValue);
    IS(cudaMemcpyFromSymbol(values, variable, 8, 3996), cudaErrorInvalidValue);
    IS(cudaMemcpyToSymbol(values, values, 4), cudaErrorInvalidSymbol);
    IS(cudaMemcpyToSymbol(variable, values, 4, 0, cudaMemcpyDeviceToHost), cudaErrorInvalidMemcpyDirection);
    IS(cudaMemcpyFromSymbol(values, variable, 4, 0, cudaMemcpyHostToDevice), cudaErrorInvalidMemcpyDirection);
    OK(cudaMemcpyToSymbolAsync(variable, values, 4, 8, cudaMemcpyHostToDevice, 0));
    OK(cudaMemcpyFromSymbolAsync(&values[3], variable, 8, 4, cudaMemcpyDeviceToHost, 0));
    OK(cudaDeviceSynchronize());
    IS(values[3] == 40 && values[4] == 0, true);
    double *sum, result = 1;
    OK(cudaMalloc(&sum, 8));
    OK(cudaMemcpy(sum, &result, 8, cudaMemcpyHostToDevice));
    add_constant<<<1, 1>>>(sum);
    OK(cudaMemcpy(&result, sum, 8, cudaMemcpyDeviceToHost));
    IS(result * 10, 435);
    times_ten<<<1, 4>>>();
    OK(cudaDeviceSynchronize());
    IS(managed[3], 40);
    managed[3] = 5;
    times_ten<<<1, 4>>>();
    OK(cudaDeviceSynchronize());
    IS(managed[3], 50);
}

static void memory(float *x, float *host, bool simulated) {
    float *rows;
    size_t pitch, free_bytes, total;
    OK(cudaMallocPitch(&rows, &pitch, 100, 10));
    OK(cudaMemset2D(rows, pitch, 1, 100, 10));
    OK(cudaMemcpy2D(host, 100, rows, pitch, 100, 10, cudaMemcpyDeviceToHost));
    IS(((int *)host)[24], 0x01010101);
    IS(cudaMemcpy2D(host, 10, rows, pitch, 100, 10, cudaMemcpyDeviceToHost), cudaErrorInvalidPitchValue);
    cudaPointerAttributes where;
    OK(cudaPointerGetAttributes(&where, x));
    IS(where.type, cudaMemoryTypeDevice);
    IS(where.devicePointer == x, true);
    OK(cudaPointerGetAttributes(&where, host));
    IS(where.type, cudaMemoryTypeUnregistered);
    float *pinned, *none = host;
    OK(cudaMallocHost(&pinned, 64));
    OK(cudaPointerGetAttributes(&where, pinned));
    IS(where.type, cudaMemoryTypeHost);
    OK(cudaFreeHost(pinned));
    OK(cudaMalloc(&none, 0));
    IS(none == nullptr, true);
    OK(cudaFree(nullptr));
    IS(cudaFree((void *)12345), cudaErrorInvalidValue);
    IS(cudaMallocManaged(&none, 4, 77), cudaErrorInvalidValue);
    IS(cudaHostAlloc(&none, 4, 77), cudaErrorInvalidValue);
    OK(cudaMemGetInfo(&free_bytes, &total));
    IS(free_bytes <= total, true);
    cudaExtent extent = make_cudaExtent(64, 4, 2);
    cudaPitchedPtr box;
    OK(cudaMalloc3D(&box, extent));
    OK(cudaMemset3D(box, 3, extent));
    cudaMemcpy3DParms copy = {};
    copy.srcPtr = box, copy.extent = extent, copy.kind = cudaMemcpyDeviceToHost;
    copy.dstPtr = make_cudaPitchedPtr(host, 64, 64, 4);
    OK(cudaMemcpy3D(&copy));
    IS(((char *)host)[511], 3);
    if (simulated) // 2^64 rows
        IS(cudaMalloc3D(&box, make_cudaExtent(64, 1ull << 63, 2)), cudaErrorMemoryAllocation);
    cudaGetLastError();
}

static void streams(float *x, float *host) {
    cudaStream_t stream;
    cudaEvent_t start, end;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaGraphNode_t node;
    int counted = 0;
    size_t nodes;
    float ms;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudaEventCreate(&start));
    OK(cudaEventCreateWithFlags(&end, cudaEventBlockingSync));
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    for (int i = 0; i < 3; i++)
        fill<float><<<1, 256, 0, stream>>>(x, i);
    OK(cudaStreamEndCapture(stream, &graph));
    float value = 9;
    void *arguments[] = {&x, &value};
    cudaKernelNodeParams parameters = {};
    parameters.func = (void *)fill<float>, parameters.gridDim = 1, parameters.blockDim = 8;
    parameters.kernelParams = arguments;
    OK(cudaGraphGetNodes(graph, nullptr, &nodes));
    IS(nodes, 3);
    cudaGraphNode_t all[3];
    OK(cudaGraphGetNodes(graph, all, &nodes));
    OK(cudaGraphAddKernelNode(&node, graph, all, 3, &parameters));
    OK(cudaGraphInstantiate(&exec, graph, 0));
    OK(cudaEventRecord(start, stream));
    OK(cudaGraphLaunch(exec, stream));
    OK(cudaLaunchHostFunc(stream, count, &counted));
    OK(cudaEventRecord(end, stream));
    OK(cudaEventSynchronize(end));
    IS(counted, 1);
    OK(cudaEventElapsedTime(&ms, start, end));
    OK(cudaMemcpy(host, x, 64, cudaMemcpyDeviceToHost));
    IS(host[7], 9);
    IS(host[8], 2);
    OK(cudaGraphKernelNodeGetParams(node, &parameters));
    IS(parameters.func == (void *)fill<float>, true);
    IS(parameters.blockDim.x, 8);
    cudaMemsetParams bytes = {x, 0, 1, 1, 64, 1};
    cudaMemcpy3DParms copy;
    OK(cudaGraphDestroy(graph));
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphCreate(&graph, 0));
    OK(cudaGraphAddMemsetNode(&all[0], graph, nullptr, 0, &bytes));
    OK(cudaGraphAddMemcpyNode1D(&all[1], graph, all, 1, host, x, 32, cudaMemcpyDeviceToHost));
    OK(cudaGraphMemcpyNodeGetParams(all[1], &copy));
    IS(copy.dstPtr.ptr == host && copy.srcPtr.ptr == x && copy.kind == cudaMemcpyDeviceToHost, true);
    OK(cudaGraphInstantiate(&exec, graph, 0));
    bytes.value = 2;
    OK(cudaGraphExecMemsetNodeSetParams(exec, all[0], &bytes));
    OK(cudaGraphExecMemcpyNodeSetParams1D(exec, all[1], host + 8, x, 4, cudaMemcpyDeviceToHost));
    OK(cudaGraphLaunch(exec, stream));
    OK(cudaStreamSynchronize(stream));
    IS(host[7], 9);
    IS(*(int *)&host[8], 0x02020202);
    IS(cudaStreamCreateWithFlags(&stream, 77), cudaErrorInvalidValue);
    OK(cudaMallocAsync(&x, 64, stream));
    OK(cudaMemsetAsync(x, 0, 64, stream));
    OK(cudaFreeAsync(x, stream));
    OK(cudaStreamSynchronize(stream));
    OK(cudaStreamQuery(stream));
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));
    OK(cudaStreamDestroy(stream));
}

int main(int argc, char **) {
    static float host[256];
    float *x;
    setvbuf(stdout, NULL, _IONBF, 0);
    devices();
    OK(cudaMalloc(&x, 1024));
    kernels(x, host, argc > 1);
    variables();
    memory(x, host, argc > 1);
    streams(x, host);
    OK(cudaDeviceReset());
    OK(cudaMalloc(&x, 1024));
    fill<float><<<1, 1>>>(x, 3);
    OK(cudaMemcpy(host, x, 4, cudaMemcpyDeviceToHost));
    IS(host[0], 3);
    if (argc > 1) { // CUDA doesn't promise this for managed memory
        int value;
        times_ten<<<1, 4>>>();
        OK(cudaDeviceSynchronize());
        IS(managed[3], 40); // as it was at first, and elsewhere
        OK(cudaMemcpyFromSymbol(&value, managed, 4, 8));
        IS(value, 30);
    }
    if (argc > 1) { // not an address of memory: on a GPU the rest of the process is lost
        fill<float><<<1, 1>>>((float *)0x10, 1);
        IS(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
        IS(cudaGetLastError(), cudaErrorIllegalAddress);
        IS(cudaMalloc(&x, 4), cudaErrorIllegalAddress);
        cudaDeviceReset(); // doesn't bring it back
        IS(cudaMalloc(&x, 4), cudaErrorIllegalAddress);
    }
    puts(failed ? "not OK" : "OK");
    return failed != 0;
}
