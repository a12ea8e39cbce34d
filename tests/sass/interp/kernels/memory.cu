// Loads and stores of every width and space, asynchronous copies, matrices.

typedef unsigned u32;
typedef unsigned long long u64;

#define NUMBER (blockIdx.x * blockDim.x + threadIdx.x)
#define ALL 0xffffffffu

__constant__ u32 numbers[32] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3};
__device__ u32 counters[4] = {11, 12, 13, 14};

extern "C" __global__ void widths(const u32 *in, u32 *out, int n) {
    u32 i = NUMBER;
    uint4 q = ((const uint4 *)in)[i & 255];
    uint2 d = ((const uint2 *)in)[(i * 3) & 511];
    int b = ((const signed char *)in)[(i * 5) & 4095];
    u32 ub = ((const unsigned char *)in)[(i * 7) & 4095], us = ((const unsigned short *)in)[(i * 9) & 2047];
    int s = ((const short *)in)[(i * 11) & 2047];
    ((uint4 *)out)[4 * i] = make_uint4(q.x + d.x, q.y ^ d.y, (u32)b + ub, (u32)s + us);
    ((uint2 *)out)[8 * i + 2] = make_uint2(q.z, q.w);
    ((unsigned char *)out)[64 * i + 24] = (unsigned char)q.x;
    ((unsigned short *)out)[32 * i + 13] = (unsigned short)q.y;
    out[16 * i + 8] = __ldg(in + (i & 1023)) + __ldcg(in + 3) + numbers[i & 31] + numbers[n & 31];
}

extern "C" __global__ void generic(const u32 *in, u32 *out, int n) {
    __shared__ u32 here[64];
    u32 i = NUMBER, a = in[i], mine[4] = {a, a + 1, a + 2, a + 3};
    if (threadIdx.x < 64)
        here[threadIdx.x] = in[threadIdx.x] + 1;
    __syncthreads();
    const u32 *from = a & 1 ? here + (a >> 1 & 63) : a & 2 ? in + (a >> 2 & 1023) : mine + (a >> 2 & 3);
    u32 r = *from;
    if ((a & 12) == 4)
        mine[a >> 4 & 3] = r;
    out[2 * i] = r + mine[a & 3];
    out[2 * i + 1] = __isShared(from) + 2 * __isGlobal(from) + 4 * __isLocal(from);
    __syncthreads();
    u32 *to = a & 1 ? here + (a & 62) : counters + (a & 2);
    atomicAdd(to, a & 1 ? 2 : 0);
    __syncthreads();
    if (threadIdx.x < 64)
        atomicAdd(&out[2048 + threadIdx.x], here[threadIdx.x] + counters[threadIdx.x & 3]);
}

extern "C" __global__ void tiles(const u32 *in, u32 *out, int n) {
    __shared__ u32 tile[32][33];
    extern __shared__ u32 more[];
    u32 x = threadIdx.x & 31, y = threadIdx.x / 32;
    for (u32 k = 0; k < 32; k += blockDim.x / 32)
        tile[y + k][x] = in[(y + k) * 32 + x];
    more[threadIdx.x] = x * y;
    __syncthreads();
    for (u32 k = 0; k < 32; k += blockDim.x / 32)
        out[blockIdx.x * 1024 + (y + k) * 32 + x] = tile[x][y + k] + more[threadIdx.x ^ 1];
    __syncthreads();
    ((unsigned char *)more)[threadIdx.x] = (unsigned char)tile[y][x];
    __syncthreads();
    uint4 *wide = (uint4 *)tile;
    if (threadIdx.x < 8)
        out[blockIdx.x * 1024 + threadIdx.x] += wide[threadIdx.x].y + ((signed char *)more)[threadIdx.x * 3] +
                                                ((unsigned short *)more)[threadIdx.x];
}

extern "C" __global__ void copies(const u32 *in, u32 *out, int n) {
    __shared__ __align__(16) u32 box[2][256];
    u32 t = threadIdx.x, sum = 0;
    for (int k = 0; k < n; k++) {
        u32 to = (u32)__cvta_generic_to_shared(&box[k & 1][t]);
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(in + ((t + 37 * k) & 1023))
                     : "memory");
        if (t < 32) {
            to = (u32)__cvta_generic_to_shared(&box[k & 1][128 + 4 * t]);
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(in + 4 * t),
                         "r"(8 + 8 * (t & 1))
                         : "memory");
        }
        asm volatile("cp.async.commit_group;\ncp.async.wait_group 0;" ::: "memory");
        __syncthreads();
        sum = sum * 3 + box[k & 1][(t * 5) & 255 & (k & 1 ? 127 : 255)];
    }
    out[NUMBER] = sum;
}

extern "C" __global__ void matrices(const u32 *in, u32 *out, int n) {
    __shared__ __align__(16) u32 a[32 * 4];
    u32 t = threadIdx.x & 31, r0, r1, r2, r3, s0, s1;
    u32 *to = out + 16 * NUMBER;
    if (threadIdx.x < 128)
        a[threadIdx.x] = in[threadIdx.x];
    __syncthreads();
    u32 from = (u32)__cvta_generic_to_shared(a + 4 * t);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3)
                 : "r"(from));
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
                 : "=r"(s0), "=r"(s1)
                 : "r"(from));
    to[0] = r0, to[1] = r1, to[2] = r2, to[3] = r3, to[4] = s0, to[5] = s1;
    __syncthreads();
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(from), "r"(r0),
                 "r"(r3)
                 : "memory");
    __syncthreads();
    to[6] = a[t], to[7] = a[t + 32];
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(to[8]) : "r"(r1));
}

// Numbers so small that no sum is rounded, whatever the order.
__device__ u32 half_pair(u32 bits) {
    const unsigned short some[8] = {0x0000, 0x3c00, 0x4000, 0xbc00, 0x4200, 0xc000, 0x3800, 0xc400};
    return some[bits & 7] | (u32)some[bits >> 3 & 7] << 16;
}

__device__ u32 brain_pair(u32 bits) {
    const unsigned short some[8] = {0x0000, 0x3f80, 0x4000, 0xbf80, 0x4040, 0xc000, 0x3f00, 0xc080};
    return some[bits & 7] | (u32)some[bits >> 3 & 7] << 16;
}

extern "C" __global__ void products(const u32 *in, u32 *out, int n) {
    u32 i = NUMBER, a[4], b[2], h[2] = {half_pair(i), half_pair(i >> 1)}, *to = out + 32 * i;
    float f[4] = {1, 2, 3, (float)(i & 7)}, g[4] = {0, 1, (float)(i & 3), -2}, k[4] = {4, 3, 2, 1};
    for (int j = 0; j < 4; j++)
        a[j] = half_pair(in[(i + 8 * j) & 1023]);
    for (int j = 0; j < 2; j++)
        b[j] = half_pair(in[(3 * i + j) & 1023] >> 7);
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(f[0]), "+f"(f[1]), "+f"(f[2]), "+f"(f[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    asm("mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16 {%0,%1}, {%2,%3}, {%4}, {%0,%1};"
        : "+r"(h[0]), "+r"(h[1])
        : "r"(a[0]), "r"(a[1]), "r"(b[0]));
    for (int j = 0; j < 4; j++)
        a[j] = brain_pair(in[(i + 9 * j) & 1023]);
    for (int j = 0; j < 2; j++)
        b[j] = brain_pair(in[(5 * i + j) & 1023] >> 9);
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(g[0]), "+f"(g[1]), "+f"(g[2]), "+f"(g[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(k[0]), "+f"(k[1]), "+f"(k[2]), "+f"(k[3])
        : "r"(__float_as_uint((float)(a[0] & 7))), "r"(__float_as_uint(-1.5f)), "r"(__float_as_uint(g[0])),
          "r"(__float_as_uint((float)(i & 15))), "r"(__float_as_uint(2.0f)),
          "r"(__float_as_uint((float)(b[0] & 3))));
    for (int j = 0; j < 4; j++)
        to[j] = __float_as_uint(f[j]), to[4 + j] = __float_as_uint(g[j]), to[8 + j] = __float_as_uint(k[j]);
    to[12] = h[0], to[13] = h[1];
    int s[4] = {1, 2, 3, 4}, u[4] = {(int)i, 5, 6, 7};
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+r"(s[0]), "+r"(s[1]), "+r"(s[2]), "+r"(s[3])
        : "r"(in[i]), "r"(in[i + 1]), "r"(in[i + 2]), "r"(in[i + 3]), "r"(in[i + 4]), "r"(in[i + 5]));
    asm("mma.sync.aligned.m16n8k16.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+r"(u[0]), "+r"(u[1]), "+r"(u[2]), "+r"(u[3])
        : "r"(in[i]), "r"(in[i + 1]), "r"(in[i + 7]));
    for (int j = 0; j < 4; j++)
        to[16 + j] = (u32)s[j], to[20 + j] = (u32)u[j];
    double d[2] = {1, (double)i}, x = (double)(in[i] & 15), y = (double)(in[i] >> 5 & 15);
    asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%3}, {%0,%1};"
        : "+d"(d[0]), "+d"(d[1])
        : "d"(x), "d"(y));
    *(double *)(to + 24) = d[0], *(double *)(to + 26) = d[1];
}

// Copies in both directions, with the size in a register or known at compile time.
extern "C" __global__ void bulk(const u32 *in, u32 *out, int n) {
    __shared__ alignas(128) u32 words[256];
    __shared__ u64 arrived;
    u32 to = (u32)__cvta_generic_to_shared(words), barrier = (u32)__cvta_generic_to_shared(&arrived);
    u32 *mine = out + blockIdx.x * 256;
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(barrier) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        u32 size = 16 * n;
        asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(size + 64)
                     : "memory");
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                to),
            "l"(in + 64 * blockIdx.x), "r"(size), "r"(barrier)
            : "memory");
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 64, [%2];" ::"r"(
                to + 512),
            "l"(in + 512), "r"(barrier)
            : "memory");
    }
    u32 done = 0;
    while (!done)
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], 0; selp.b32 %0, 1, 0, p; }"
                     : "=r"(done)
                     : "r"(barrier)
                     : "memory");
    mine[threadIdx.x] = words[threadIdx.x & 15] + words[128 + (threadIdx.x & 15)];
    __syncthreads();
    words[threadIdx.x] = threadIdx.x * n;
    asm volatile("fence.proxy.async;" ::: "memory"); // the copy below comes after the stores to `mine`, too
    __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 128;" ::"l"(mine + 128), "r"(to)
                     : "memory");
        asm volatile("cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;" ::: "memory");
    }
}
