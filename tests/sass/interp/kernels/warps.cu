// Lanes that talk to each other, and blocks: votes, shuffles, matches, barriers, shared memory, atomics.

typedef unsigned u32;
typedef unsigned long long u64;

#define NUMBER (blockIdx.x * blockDim.x + threadIdx.x)
#define ALL 0xffffffffu

extern "C" __global__ void votes(const u32 *in, u32 *out, int n) {
    u32 i = NUMBER, a = in[i], *to = out + 8 * i;
    to[0] = __ballot_sync(ALL, a & 1);
    to[1] = __any_sync(ALL, (a & 0xff) == 3) + 2 * __all_sync(ALL, a > 5);
    to[2] = __match_any_sync(ALL, a & 3);
    int same;
    to[3] = __match_all_sync(ALL, a >> 32 % (n | 1), &same) + (u32)same;
    to[4] = __reduce_add_sync(ALL, a) + __reduce_max_sync(ALL, a) + (u32)__reduce_min_sync(ALL, (int)a);
    to[5] = __reduce_xor_sync(ALL, a) ^ __reduce_and_sync(ALL, a | 0xf0) ^ __reduce_or_sync(ALL, a & 0xf);
    if (a & 2)
        to[6] = __activemask() + (u32)__popc(__ballot_sync(__activemask(), a & 4));
    else
        to[6] = __match_any_sync(__activemask(), a & 12);
    to[7] = (u32)(__match_any_sync(ALL, (u64)a << 40 >> 41 & 3));
}

extern "C" __global__ void shuffles(const u32 *in, u32 *out, int n) {
    u32 i = NUMBER, a = in[i], *to = out + 8 * i;
    to[0] = __shfl_sync(ALL, a, a & 31);
    to[1] = __shfl_down_sync(ALL, a, 5) + __shfl_up_sync(ALL, a, 3);
    to[2] = __shfl_xor_sync(ALL, a, 9) + __shfl_xor_sync(ALL, a, 3, 8);
    to[3] = __shfl_down_sync(ALL, a, 2, 16) ^ __shfl_up_sync(ALL, a, n & 7, 8);
    to[4] = __shfl_sync(ALL, a, 3, 4);
    u64 x = (u64)a << 32 | i;
    x += __shfl_xor_sync(ALL, x, 16);
    to[5] = (u32)(x >> 32), to[6] = (u32)x;
    u32 r;
    asm volatile("{.reg .pred p; shfl.sync.down.b32 %0|p, %1, 20, 31, -1; @!p mov.b32 %0, 77;}"
                 : "=r"(r)
                 : "r"(a));
    to[7] = r;
}

extern "C" __global__ void reduction(const u32 *in, u32 *out, int n) {
    __shared__ u32 part[256];
    u32 mine = 0;
    for (u32 k = threadIdx.x; k < 1024; k += blockDim.x)
        mine += in[k] >> (blockIdx.x & 7);
    part[threadIdx.x] = mine;
    __syncthreads();
    for (u32 step = blockDim.x / 2; step >= 32; step /= 2) {
        if (threadIdx.x < step)
            part[threadIdx.x] += part[threadIdx.x + step];
        __syncthreads();
    }
    if (threadIdx.x < 32) {
        mine = part[threadIdx.x];
        for (int step = 16; step; step /= 2)
            mine += __shfl_down_sync(ALL, mine, step);
        if (threadIdx.x == 0)
            out[blockIdx.x] = mine;
    }
}

extern "C" __global__ void blockwide(const u32 *in, u32 *out, int n) {
    u32 i = NUMBER, a = in[i];
    u32 counted = __syncthreads_count(a & 1), both = __syncthreads_and(a > 3), one = __syncthreads_or(a == n);
    out[2 * i] = counted * 4 + (both ? 2 : 0) + (one ? 1 : 0);
    __shared__ u32 box[64];
    if (threadIdx.x < 64) { // two warps with a barrier of their own
        box[threadIdx.x] = a;
        asm volatile("bar.sync 3, 64;" ::: "memory");
        a += box[63 - threadIdx.x];
    }
    if (threadIdx.x / 32 == 1)
        asm volatile("bar.arrive 4, 64;" ::: "memory");
    if (threadIdx.x / 32 == 0)
        asm volatile("bar.sync 4, 64;" ::: "memory");
    out[2 * i + 1] = a;
}

extern "C" __global__ void globals(const u32 *in, u32 *out, int n) {
    u32 i = NUMBER, a = in[i];
    atomicAdd(&out[a & 15], a >> 5);
    atomicMin((int *)&out[16 + (a & 15)], (int)a);
    atomicMax(&out[32 + (a & 15)], a);
    atomicAnd(&out[48 + (a & 3)], a | 1);
    atomicOr(&out[52 + (a & 3)], a & 0xff);
    atomicXor(&out[56 + (a & 3)], a);
    atomicInc(&out[60 + (a & 1)], 100);
    atomicDec(&out[62 + (a & 1)], 50);
    atomicAdd((u64 *)&out[64 + 2 * (a & 3)], (u64)a << 8);
    atomicMax((long long *)&out[72], (long long)(int)a << 20);
    atomicAdd((float *)&out[80 + (a & 7)], (float)(a & 0xff));
    atomicAdd((double *)&out[96], (double)(a & 0xfff));
    u32 before = atomicAdd(&out[128 + i], a);
    u32 swapped = atomicExch(&out[128 + i], before ^ a);
    out[1024 + i] = swapped + atomicCAS(&out[128 + i], before ^ a, 5u);
    u64 *wide = (u64 *)&out[4096] + i;
    *wide = a;
    out[2048 + i] = (u32)atomicCAS(wide, (u64)a, (u64)a << 9) + (u32)atomicExch(wide, 3ull);
}

extern "C" __global__ void shared(const u32 *in, u32 *out, int n) {
    __shared__ u32 bins[64];
    __shared__ float sums[8];
    __shared__ u64 wide[4];
    u32 i = NUMBER, a = in[i];
    if (threadIdx.x < 64)
        bins[threadIdx.x] = threadIdx.x < 48 ? 0 : ALL;
    if (threadIdx.x < 8)
        sums[threadIdx.x] = 0, wide[threadIdx.x & 3] = 7;
    __syncthreads();
    atomicAdd(&bins[a & 15], 1);
    atomicMax(&bins[16 + (a & 15)], a);
    atomicXor(&bins[32 + (a & 15)], a >> 3);
    atomicMin(&bins[48 + (a & 15)], a);
    atomicAdd(&sums[a & 7], (float)(a & 63));
    atomicAdd(&wide[a & 3], (u64)a << 13);
    __syncthreads();
    atomicCAS(&bins[a & 63], 1u, 2u);
    __syncthreads();
    if (threadIdx.x < 64)
        out[blockIdx.x * 128 + threadIdx.x] = bins[threadIdx.x];
    if (threadIdx.x < 8)
        out[blockIdx.x * 128 + 64 + threadIdx.x] = (u32)sums[threadIdx.x];
    if (threadIdx.x < 4)
        *(u64 *)&out[blockIdx.x * 128 + 80 + 2 * threadIdx.x] = wide[threadIdx.x];
}

extern "C" __global__ void groups(const u32 *in, u32 *out, int n) { // a vote of those that are there
    u32 i = NUMBER, a = in[i] & 7;
    u32 same = __match_any_sync(ALL, a), lane = threadIdx.x & 31;
    u32 old = 0;
    if ((u32)__ffs(same) - 1 == lane)
        old = atomicAdd(&out[a], (u32)__popc(same));
    old = __shfl_sync(same, old, __ffs(same) - 1);
    atomicAdd(&out[16], 1); // which ptxas lets one lane do for all
    out[64 + i] = __popc(same & ((1u << lane) - 1)) + (old & 0);
}
