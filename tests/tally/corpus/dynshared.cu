extern __shared__ unsigned char raw[];
__global__ void dyn(int *p) {
    int *s = (int *)raw;
    s[threadIdx.x] = p[threadIdx.x];
    __syncthreads();
    p[threadIdx.x] = s[blockDim.x - 1 - threadIdx.x];
}
extern __shared__ double dd[];
__global__ void dyn2(double *p) {
    dd[threadIdx.x] = p[threadIdx.x];
    __syncwarp();
    p[threadIdx.x] = dd[threadIdx.x ^ 1];
}
