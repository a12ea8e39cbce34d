// Kernels without calls: loops, divergent branches, shared memory, votes, shuffles, atomics, wide and narrow
// accesses.

extern "C" __global__ void saxpy(float a, const float *x, float *y, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        y[i] = a * x[i] + y[i];
}

extern "C" __global__ void wide(const float4 *x, double2 *y, unsigned char *z, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    float4 v = x[i];
    y[i] = make_double2(v.x * v.y, v.z - v.w);
    z[i] = (unsigned char)v.x;
}

extern "C" __global__ void reduce(const float *x, float *sum, int n) {
    __shared__ float part[256];
    float mine = 0;
    for (int i = threadIdx.x; i < n; i += 256)
        mine += x[i];
    part[threadIdx.x] = mine;
    __syncthreads();
    for (int step = 128; step >= 32; step /= 2) {
        if (threadIdx.x < step)
            part[threadIdx.x] += part[threadIdx.x + step];
        __syncthreads();
    }
    if (threadIdx.x < 32) {
        float value = part[threadIdx.x];
        for (int step = 16; step; step /= 2)
            value += __shfl_down_sync(~0u, value, step);
        if (threadIdx.x == 0)
            atomicAdd(sum, value);
    }
}

extern "C" __global__ void histogram(const int *x, unsigned *bins, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    while (i < n) {
        int v = x[i];
        if (v & 1) {
            unsigned same = __match_any_sync(__activemask(), v);
            if (__ffs(same) - 1 == (threadIdx.x & 31))
                atomicAdd(&bins[v & 63], __popc(same));
        } else if (v & 2) {
            for (int k = 0; k < (v & 15); k++)
                bins[64 + (threadIdx.x & 31)] ^= v + k;
        }
        i += 32 * (1 + (v & 3));
    }
}

extern "C" __global__ void nested(int *x, int depth, int n) {
    int a = x[threadIdx.x], total = 0;
    for (int i = 0; i < n; i++) {
        if (a > i) {
            if (a & 4) {
                total += x[(a + i) & 255];
                if (total > depth)
                    break;
            } else {
                do
                    total ^= a++;
                while (total & depth);
            }
        } else
            total += __ballot_sync(~0u, a == i);
        __syncwarp();
    }
    x[threadIdx.x] = total;
}

extern "C" __global__ void matrix(const float *a, const float *b, float *c, int n) {
    __shared__ float left[16][17], right[16][17];
    int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
    float sum = 0;
    for (int at = 0; at < n; at += 16) {
        left[threadIdx.y][threadIdx.x] = a[row * n + at + threadIdx.x];
        right[threadIdx.y][threadIdx.x] = b[(at + threadIdx.y) * n + column];
        __syncthreads();
#pragma unroll
        for (int k = 0; k < 16; k++)
            sum += left[threadIdx.y][k] * right[k][threadIdx.x];
        __syncthreads();
    }
    c[row * n + column] = sum;
}

extern "C" __global__ void polynomial(const double *x, double *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    double v = i < n ? x[i] : 0, power = 1, sum = 0;
    for (int k = 0; k < 20; k++, power *= v)
        sum += k % 3 ? power : -power * 0.5;
    if (i < n)
        y[i] = sum + exp2f((float)v) + rsqrtf((float)v);
}
