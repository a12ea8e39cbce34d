// c = a * b, square matrices of n rows: one thread for each element of c.
__global__ void matrixMulGPU(const float *a, const float *b, float *c, int n) {
    int column = blockIdx.x * blockDim.x + threadIdx.x;
    int row = blockIdx.y * blockDim.y + threadIdx.y;
    if (row >= n || column >= n)
        return;
    float sum = 0;
    for (int i = 0; i < n; i++)
        sum += a[row * n + i] * b[i * n + column];
    c[row * n + column] = sum;
}
