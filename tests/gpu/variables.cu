// Kernels that share their module's variables; tests/gpu/variables.py launches them in turn, some of them
// woven. Their results don't depend on the order of their threads.

__device__ int table[256] = {3, 1, 4, 1, 5};
__device__ int counter;
static __device__ float scale = 1.5f;
__device__ int *where = table + 3;
__managed__ int managed = 7;
__constant__ int factors[64];
__constant__ int fixed[4] = {2, 7, 1, 8};
__constant__ int *pointer = &counter;

__device__ __noinline__ int count(int by) {
    atomicAdd(&counter, by);
    return table[by & 255];
}

extern "C" __global__ void produce(int *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    atomicAdd(&table[i & 255], i * n);
    if (i == 0) {
        where = table + (n & 15);
        scale *= 1.25f;
        managed += n;
    }
    y[i] = n;
}

extern "C" __global__ void consume(int *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = table[(i + n) & 255] + 3 * *pointer + factors[i & 63] * fixed[n & 3] + (int)(scale * 16) + managed;
}

extern "C" __global__ void through(int *y, int n) { // a device function, and a string of the module's
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = count(i % 5 + n) + "variables"[(i + n) % 10];
}

extern "C" __global__ void follow(int *y,
                                  int n) { // an address that another kernel, or the initialiser, put there
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    atomicAdd(where, n);
    y[i] = (int)(where - table);
}
