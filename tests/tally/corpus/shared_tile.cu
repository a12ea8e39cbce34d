template <int T> __global__ void gemm(const float *A, const float *B, float *C, int N) {
    __shared__ float a[T][T], b[T][T + 1];
    int r = blockIdx.y * T + threadIdx.y, c = blockIdx.x * T + threadIdx.x;
    float s = 0;
    for (int t = 0; t < N / T; t++) {
        a[threadIdx.y][threadIdx.x] = A[r * N + t * T + threadIdx.x];
        b[threadIdx.y][threadIdx.x] = B[(t * T + threadIdx.y) * N + c];
        __syncthreads();
#pragma unroll
        for (int k = 0; k < T; k++)
            s += a[threadIdx.y][k] * b[k][threadIdx.x];
        __syncthreads();
    }
    C[r * N + c] = s;
}
template __global__ void gemm<16>(const float *, const float *, float *, int);
template __global__ void gemm<32>(const float *, const float *, float *, int);
