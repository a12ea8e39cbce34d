// A library with many kernels for several architectures. It computes a sum that must not change.
#include <cstdint>
template <int N> __global__ void mix(uint32_t *x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    uint32_t v = x[i];
    float f = v * 0x1p-32f;
#pragma unroll
    for (int k = 0; k < 24 + N % 9; k++) {
        v = v * (1664525u + N * 2 + k * 4) + 1013904223u + N;
        f = f * (0.5f + N * 0.001f) + __sinf(f + k) + (v >> 8) * 0x1p-24f;
    }
    x[i] = v ^ __float_as_uint(f);
}
template <int N> struct All {
    static void run(uint32_t *x, int n) {
        All<N - 1>::run(x, n);
        mix<N><<<(n + 255) / 256, 256>>>(x, n);
    }
};
template <> struct All<0> {
    static void run(uint32_t *, int) {}
};
extern "C" uint64_t work(int n) {
    uint32_t *x;
    if (cudaMallocManaged(&x, 4 * n))
        return 1;
    for (int i = 0; i < n; i++)
        x[i] = i * 2654435761u;
    All<COUNT>::run(x, n);
    if (cudaDeviceSynchronize() || cudaGetLastError())
        return 2;
    uint64_t sum = 0;
    for (int i = 0; i < n; i++)
        sum = sum * 31 + x[i];
    cudaFree(x);
    return sum;
}
