// Kernels for sass_risks.py: each has one marked load (`site`), at which the script puts a branch to a
// trampoline, and two blocks of stores that never run (`room`), whose words the script overwrites with
// trampolines. What a kernel writes shows which lanes were together: masks of active lanes, and shuffles
// among those that should be together.

using u32 = unsigned;

constexpr int NEVER = 0x7fffffff;

__device__ __forceinline__ u32 site(const u32 *in) {
    u32 value;
    asm volatile("ld.volatile.global.u32 %0, [%1+0x12340];" : "=r"(value) : "l"(in) : "memory");
    return value;
}

__device__ __forceinline__ u32 active() {
    u32 mask;
    asm volatile("activemask.b32 %0;" : "=r"(mask) : : "memory");
    return mask;
}

// 64 words to overwrite, in a place that no lane reaches.
#define ST(at) "st.global.u32 [%0+0x54" #at "], 0;\n"
#define ST4(a) ST(a##0) ST(a##4) ST(a##8) ST(a##c)
#define ST16(a) ST4(a##0) ST4(a##4) ST4(a##8) ST4(a##c)
__device__ __forceinline__ void room(u32 *out) {
    asm volatile(ST16(0) ST16(1) ST16(2) ST16(3) : : "l"(out) : "memory");
}

// Where each thread stores its results: up to four words.
struct Seen {
    u32 *out;
    __device__ Seen(u32 *base) : out(base + 4 * (blockIdx.x * blockDim.x + threadIdx.x)) {}
    __device__ void leave(u32 a, u32 b, u32 c, u32 d) { out[0] = a, out[1] = b, out[2] = c, out[3] = d; }
};

#define KERNEL extern "C" __global__ void __launch_bounds__(64)
#define BEGIN                                                                                                \
    if (n == NEVER)                                                                                          \
    room(out)
#define END(a, b, c, d)                                                                                      \
    if (n == NEVER - 1) {                                                                                    \
        room(out);                                                                                           \
        return;                                                                                              \
    }                                                                                                        \
    Seen(out).leave(a, b, c, d)

// All lanes come to the site together.
KERNEL together(const u32 *in, u32 *out, u32 lanes, int n) {
    BEGIN;
    u32 lane = threadIdx.x & 31, v = lane * 7 + n;
    v += site(in + lane);
    u32 mask = active();
    END(mask, __shfl_xor_sync(~0u, v, 1), v, __ballot_sync(~0u, v & 1));
}

// The lanes of `lanes` reach the site; the others wait for them at a BSYNC.
KERNEL some(const u32 *in, u32 *out, u32 lanes, int n) {
    BEGIN;
    u32 lane = threadIdx.x & 31, v = lane * 7 + n, inside = 0;
    if (lanes >> lane & 1) {
        v += site(in + lane);
        inside = active();
        for (int k = 0; k < (v & 3); k++)
            v = v * 5 + in[v & 63];
    }
    u32 mask = active();
    END(mask, __shfl_xor_sync(~0u, v, 1), inside, __ballot_sync(~0u, v & 1));
}

// Lanes leave the loop at different times and wait for the rest.
KERNEL loop(const u32 *in, u32 *out, u32 lanes, int n) {
    BEGIN;
    u32 lane = threadIdx.x & 31, v = lane * 7 + n, inside = 0;
    int turns = lanes >> lane & 1 ? lane % 5 + 2 : 1;
#pragma unroll 1
    for (int k = 0; k < turns; k++) {
        v += site(in + lane + k);
        inside = inside * 3 + active();
    }
    u32 mask = active();
    END(mask, __shfl_xor_sync(~0u, v, 1), inside, __ballot_sync(~0u, v & 1));
}

// A branch in a loop in a branch: three BSSY around the site.
KERNEL nested(const u32 *in, u32 *out, u32 lanes, int n) {
    BEGIN;
    u32 lane = threadIdx.x & 31, v = lane * 7 + n, inside = 0, middle = 0;
    if (lanes >> lane & 1) {
#pragma unroll 1
        for (int k = 0; k < lane % 4 + 2; k++) {
            if (in[lane + k] & 1) {
                v += site(in + lane + k);
                inside = inside * 3 + active();
                for (int j = 0; j < (v & 3); j++)
                    v = v * 5 + in[v & 63];
            }
            middle = middle * 3 + active();
        }
    }
    u32 mask = active();
    END(mask, __shfl_xor_sync(~0u, v, 1), inside + middle, __ballot_sync(~0u, v & 1));
}

// Some lanes exit before the others reach the site.
KERNEL gone(const u32 *in, u32 *out, u32 lanes, int n) {
    BEGIN;
    u32 lane = threadIdx.x & 31, v = lane * 7 + n, inside = 0;
    if (!(lanes >> lane & 1)) {
        Seen(out).leave(1, 2, 3, 4);
        return;
    }
#pragma unroll 1
    for (int k = 0; k < lane % 3 + 1; k++) {
        v += site(in + lane + k);
        inside = inside * 3 + active();
    }
    u32 mask = active();
    END(mask, v, inside, 0);
}

// As in a histogram: lanes leave a loop with a shared atomic at different times, and then reach a barrier.
KERNEL counts(const u32 *in, u32 *out, u32 lanes, int n) {
    BEGIN;
    __shared__ u32 bins[64];
    u32 lane = threadIdx.x & 31;
    bins[threadIdx.x] = 0;
    __syncthreads();
    int turns = lanes >> lane & 1 ? lane % 3 + 1 : 0;
#pragma unroll 1
    for (int k = 0; k < turns; k++)
        atomicAdd(bins + (site(in + lane + k) & 63), 1u);
    __syncthreads();
    END(bins[threadIdx.x], bins[63 - threadIdx.x], 0, 0);
}

// The site is in a function that some lanes call; the caller's convergence registers are saved.
__device__ __noinline__ u32 called(const u32 *in, u32 v, u32 *inside) {
#pragma unroll 1
    for (int k = 0; k < (v & 3) + 1; k++) {
        if (in[k + (v & 31)] & 1) {
            v += site(in + (v & 31) + k);
            *inside = *inside * 3 + active();
            for (int j = 0; j < (v & 3); j++)
                v = v * 5 + in[v & 63];
        }
    }
    return v;
}

KERNEL calls(const u32 *in, u32 *out, u32 lanes, int n) {
    BEGIN;
    u32 lane = threadIdx.x & 31, v = lane * 7 + n, inside = 0;
    if (lanes >> lane & 1) {
#pragma unroll 1
        for (int k = 0; k < lane % 3 + 1; k++)
            v = called(in, v, &inside) + k;
    }
    u32 mask = active();
    END(mask, __shfl_xor_sync(~0u, v, 1), inside, __ballot_sync(~0u, v & 1));
}

// Each thread stores one word. An experiment's sequence replaces the load and provides that word.
KERNEL lab(const u32 *in, u32 *out, u32 lanes, int n) {
    if (n == NEVER) {
        room(out), room(out + 0x100), room(out + 0x200), room(out + 0x300);
    }
    u32 thread = blockIdx.x * blockDim.x + threadIdx.x;
    out[thread] = site(in + thread);
}

// Like the kernel above, for as many threads as the registers allow.
extern "C" __global__ void wide(const u32 *in, u32 *out, u32 lanes, int n) {
    if (n == NEVER) {
        room(out), room(out + 0x100);
    }
    u32 thread = blockIdx.x * blockDim.x + threadIdx.x;
    out[thread] = site(in + thread);
}

// Two halves of a warp, each in its own loop.
KERNEL both(const u32 *in, u32 *out, u32 lanes, int n) {
    if (n == NEVER) {
        room(out), room(out + 0x100), room(out + 0x200), room(out + 0x300);
    }
    u32 lane = threadIdx.x & 31, found = n;
    if (lanes >> lane & 1) {
#pragma unroll 1
        for (int k = 0; k < 40; k++)
            found += site(in + lane);
    } else {
#pragma unroll 1
        for (int k = 0; k < 40; k++)
            found += site(in + lane);
        found = found | in[lane] >> 31 << 30 & n;
    }
    out[blockIdx.x * blockDim.x + threadIdx.x] = found;
}

// A warpgroup multiplies matrices, with A in registers. The site is between the start of the multiplication
// and the wait for it. All elements of A and B are 1, wherever the descriptor points, so each word of D is
// 16.
extern "C" __global__ void __launch_bounds__(128) group(const u32 *in, u32 *out, u32 lanes, int n) {
    if (n == NEVER) {
        room(out);
    }
    __shared__ __align__(1024) u32 b[4096];
    for (int k = threadIdx.x; k < 4096; k += 128)
        b[k] = 0x3c003c00;
    u32 one = 0x3c003c00 + n, base = (u32)__cvta_generic_to_shared(b);
    unsigned long long layout = base >> 4 & 0x3fff | 8ull << 16 | 8ull << 32;
    float d[4] = {};
    asm volatile("fence.proxy.async;" : : : "memory");
    __syncthreads();
    u32 a[4] = {one, one, one, one};
    asm volatile("wgmma.fence.sync.aligned;" : : : "memory");
    asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, {%4, %5, %6, %7}, %8, "
                 "1, 1, 1, 0;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(layout)
                 : "memory");
    asm volatile("wgmma.commit_group.sync.aligned;" : : : "memory");
    site(in);
    asm volatile("wgmma.wait_group.sync.aligned 0;" : : : "memory");
    out[blockIdx.x * blockDim.x + threadIdx.x] =
        __float_as_int(d[0]) + __float_as_int(d[1]) + __float_as_int(d[2]);
}
