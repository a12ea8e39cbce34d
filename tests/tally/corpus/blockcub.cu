#include <cub/cub.cuh>
__global__ void bk(int *p) {
    using R = cub::BlockReduce<int, 256>;
    using S = cub::BlockScan<int, 256>;
    using T = cub::BlockRadixSort<int, 256, 8>;
    __shared__ union {
        R::TempStorage r;
        S::TempStorage s;
        T::TempStorage t;
    } u;
    int v = p[threadIdx.x];
    int x = R(u.r).Sum(v);
    __syncthreads();
    S(u.s).ExclusiveSum(v, v);
    __syncthreads();
    int k[8];
    for (int i = 0; i < 8; i++)
        k[i] = p[threadIdx.x * 8 + i];
    T(u.t).Sort(k);
    for (int i = 0; i < 8; i++)
        p[threadIdx.x * 8 + i] = k[i] + x + v;
}
