// Tensor operations of each generation, barriers and floating point: where the built-in probes have something
// to do.

extern "C" __global__ void warp_mma(const unsigned *a, unsigned *c, int n) {
    unsigned x = a[threadIdx.x], y = 0, z = 0;
    for (int i = 0; i < n; i++)
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3}, {%4}, {%0, %1};"
                     : "+r"(y), "+r"(z)
                     : "r"(x), "r"(x), "r"(x));
    c[threadIdx.x] = y ^ z;
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
extern "C" __global__ void group_mma(const unsigned long long *a, float *c, int n) {
    float d[4] = {};
    asm volatile("wgmma.fence.sync.aligned;");
    asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 0;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "l"(a[0]), "l"(a[1]));
    asm volatile("wgmma.commit_group.sync.aligned;\n wgmma.wait_group.sync.aligned 0;");
    c[threadIdx.x] = d[0] + d[1] + d[2] + d[3];
}
#endif

#ifdef __CUDA_ARCH_FEAT_SM100_ALL
extern "C" __global__ void block_mma(const unsigned long long *a, unsigned kind, unsigned tensor) {
    if (!threadIdx.x)
        asm volatile("{\n .reg .pred %%p;\n setp.ne.u32 %%p, %3, 0;\n"
                     " tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, %%p;\n}" ::"r"(tensor),
                     "l"(a[0]), "l"(a[1]), "r"(kind));
}
#endif

extern "C" __global__ void normalize(const float *x, float *y, int n) {
    __shared__ float sums[32];
    float sum = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        sum += x[blockIdx.x * n + i] * x[blockIdx.x * n + i];
    for (int i = 16; i; i /= 2)
        sum += __shfl_xor_sync(~0u, sum, i);
    sums[threadIdx.x / 32] = sum;
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        y[blockIdx.x * n + i] = x[blockIdx.x * n + i] / sums[i % (blockDim.x / 32)];
}

extern "C" __global__ void halves(const float4 *x, double *y, const unsigned char *z) {
    float4 value = x[threadIdx.x];
    y[threadIdx.x] = value.x * (double)value.w + z[threadIdx.x];
}

extern "C" __global__ void nothing() {}
