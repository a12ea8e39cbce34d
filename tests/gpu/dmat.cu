// Kernels for dmat.py: six access patterns to global memory that are common in programs.

#define TILE 16

extern "C" __global__ void vadd(const float *x, float *y, const int *at, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        y[i] += x[i];
}

extern "C" __global__ void gather(const float *x, float *y, const int *at, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        y[i] = x[at[i]];
}

// One block per row of n values.
extern "C" __global__ void softmax(const float *x, float *y, const int *at, int n) {
    __shared__ float part[256];
    const float *row = x + (size_t)blockIdx.x * n;
    float most = -1e30f, sum = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        most = fmaxf(most, row[i]);
    part[threadIdx.x] = most;
    __syncthreads();
    for (int half = blockDim.x / 2; half; half /= 2) {
        if (threadIdx.x < half)
            part[threadIdx.x] = fmaxf(part[threadIdx.x], part[threadIdx.x + half]);
        __syncthreads();
    }
    most = part[0];
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        sum += __expf(row[i] - most);
    part[threadIdx.x] = sum;
    __syncthreads();
    for (int half = blockDim.x / 2; half; half /= 2) {
        if (threadIdx.x < half)
            part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
    }
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        y[(size_t)blockIdx.x * n + i] = __expf(row[i] - most) / part[0];
}

// Every other value of a row: strided accesses, in two passes.
extern "C" __global__ void strided(const float *x, float *y, const int *at, int n) {
    const float *row = x + (size_t)blockIdx.x * 2 * n;
    float sum = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        sum += row[2 * i];
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        y[(size_t)blockIdx.x * n + i] = row[2 * i] - sum;
}

// n by n values, a block of 32 by 8 threads for each tile of 32 by 32.
extern "C" __global__ void transpose(const float *x, float *y, const int *at, int n) {
    __shared__ float tile[32][33];
    int column = blockIdx.x * 32 + threadIdx.x, row = blockIdx.y * 32 + threadIdx.y;
    for (int k = 0; k < 32; k += 8)
        tile[threadIdx.y + k][threadIdx.x] = x[(size_t)(row + k) * n + column];
    __syncthreads();
    column = blockIdx.y * 32 + threadIdx.x, row = blockIdx.x * 32 + threadIdx.y;
    for (int k = 0; k < 32; k += 8)
        y[(size_t)(row + k) * n + column] = tile[threadIdx.x][threadIdx.y + k];
}

// The square of an n by n matrix, in tiles.
extern "C" __global__ void matmul(const float *x, float *y, const int *at, int n) {
    __shared__ float a[TILE][TILE], b[TILE][TILE];
    int row = blockIdx.y * TILE + threadIdx.y, column = blockIdx.x * TILE + threadIdx.x;
    float sum = 0;
    for (int k = 0; k < n; k += TILE) {
        a[threadIdx.y][threadIdx.x] = x[(size_t)row * n + k + threadIdx.x];
        b[threadIdx.y][threadIdx.x] = x[(size_t)(k + threadIdx.y) * n + column];
        __syncthreads();
        for (int j = 0; j < TILE; j++)
            sum += a[threadIdx.y][j] * b[j][threadIdx.x];
        __syncthreads();
    }
    y[(size_t)row * n + column] = sum;
}
