// Kernels whose accesses to global memory can be counted by hand; tests/gpu/weave.py has the formulas. Data
// is volatile, so each access in the source is one access in the compiled code.

typedef volatile int vint;

extern "C" __global__ void saxpy(vint *x, vint *y, int n) { // most of the last block leaves at once
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    y[i] = 3 * x[i] + y[i];
}

extern "C" __global__ void reverse(vint *x, vint *y, int n) {
    __shared__ int tile[1024];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    tile[threadIdx.x] = x[i];
    __syncthreads();
    y[i] = tile[blockDim.x - 1 - threadIdx.x];
}

extern "C" __global__ void diverge(vint *x, vint *y, int n) { // lane l loops l times, odd ones store twice
    int i = blockIdx.x * blockDim.x + threadIdx.x, sum = 0;
    for (int j = 0; j < (threadIdx.x & 31); j++)
        sum += x[i];
    if (i & 1)
        y[i] = sum + 1;
    y[i] = sum;
}

__device__ __noinline__ int twice(vint *x, int i) { return x[i] + x[i]; }

__device__ __noinline__ int four_times(vint *x, int i) { return twice(x, i) + twice(x, i); }

extern "C" __global__ void device_function(vint *x, vint *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, sum = x[i];
    for (int j = 0; j < n; j++)
        sum += four_times(x, i);
    y[i] = sum;
}

__device__ __noinline__ int or_leave(vint *x, vint *y, int i) {
    int value = x[i];
    if (i % 5 == 2) {
        y[i] = -1;
        asm volatile("exit;");
    }
    return value;
}

extern "C" __global__ void exit_in_function(vint *x, vint *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = or_leave(x, y, i) + 1;
}

__device__ __noinline__ int recursion(vint *x, int i, int depth) {
    return depth ? x[i] + recursion(x, i, depth - 1) * 3 : 0;
}

extern "C" __global__ void recursive(vint *x, vint *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = recursion(x, i, 1 + i % n);
}

extern "C" __global__ void three_dimensions(vint *x, vint *y, int n) {
    int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    int i = block * blockDim.x * blockDim.y * blockDim.z + thread;
    y[i] = x[i] * (threadIdx.z + 1);
}

extern "C" __global__ void vectors(const int4 *x, int4 *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int4 value = x[i];
    y[i] = make_int4(value.w, value.z, value.y, value.x);
}

extern "C" __global__ void atomics(vint *x, int *y, int n) {
    __shared__ int count;
    if (!threadIdx.x)
        count = 0;
    __syncthreads();
    atomicAdd(&count, 1);
    int old;
    asm volatile("atom.global.add.u32 %0, [%1], %2;"
                 : "=r"(old)
                 : "l"(y + blockIdx.x), "r"((int)threadIdx.x));
    asm volatile("red.global.max.s32 [%0], %1;" ::"l"(y + gridDim.x), "r"((int)threadIdx.x));
    __syncthreads();
    if (!threadIdx.x)
        y[gridDim.x + 1 + blockIdx.x] = count + 0 * old;
}

extern "C" __global__ void generic(vint *x, vint *y, int n) { // one third of the threads uses shared memory
    __shared__ int tile[1024];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    tile[threadIdx.x] = i;
    __syncthreads();
    int *from = i % 3 ? (int *)x + i : tile + threadIdx.x, value;
    asm volatile("ld.u32 %0, [%1];" : "=r"(value) : "l"(from));
    asm volatile("st.u32 [%0], %1;" ::"l"(i % 3 ? (int *)y + i : tile + threadIdx.x), "r"(value + 1));
}

#if __CUDA_ARCH__ >= 900
extern "C" __global__ void __cluster_dims__(2, 1, 1)
    cluster(vint *x, vint *y, int n) { // reads the other block's
    __shared__ int tile[1024];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    tile[threadIdx.x] = x[i];
    unsigned rank, other;
    asm volatile("barrier.cluster.arrive.aligned;\n barrier.cluster.wait.aligned;" ::: "memory");
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                 : "=r"(other)
                 : "r"((unsigned)__cvta_generic_to_shared(tile + threadIdx.x)), "r"(rank ^ 1));
    int value;
    asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(value) : "r"(other));
    asm volatile("barrier.cluster.arrive.aligned;\n barrier.cluster.wait.aligned;" ::: "memory");
    y[i] = value;
}

extern "C" __global__ void asynchronous(vint *x, vint *y, int n) {
    __shared__ int tile[1024];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned to = (unsigned)__cvta_generic_to_shared(tile + threadIdx.x);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"((int *)x + i));
    asm volatile("cp.async.commit_group;\n cp.async.wait_all;" ::: "memory");
    __syncthreads();
    y[i] = tile[blockDim.x - 1 - threadIdx.x];
}

extern "C" __global__ void filled_up(vint *x, vint *y,
                                     int n) { // copies that read fewer bytes than they write
    __shared__ int tile[1024];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned to = (unsigned)__cvta_generic_to_shared(tile + threadIdx.x);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"((int *)x + i),
                 "r"(i % n ? 4 : 0));
    asm volatile("cp.async.commit_group;\n cp.async.wait_all;" ::: "memory");
    __syncthreads();
    y[i] = tile[blockDim.x - 1 - threadIdx.x];
}

extern "C" __global__ void bulk(vint *x, vint *y, int n) { // one thread copies for its block
    __shared__ alignas(16) int tile[1024];
    __shared__ alignas(8) unsigned long long barrier;
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned at = (unsigned)__cvta_generic_to_shared(&barrier), bytes = 4 * blockDim.x;
    if (!threadIdx.x) {
        asm volatile("mbarrier.init.shared.b64 [%0], 1;\n fence.mbarrier_init.release.cluster;" ::"r"(at)
                     : "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                (unsigned)__cvta_generic_to_shared(tile)),
            "l"((int *)x + i), "r"(bytes), "r"(at)
            : "memory");
    }
    __syncthreads();
    asm volatile("{\n .reg .pred %%done;\nAGAIN:\n mbarrier.try_wait.parity.shared.b64 %%done, [%0], 0;\n"
                 " @!%%done bra AGAIN;\n}" ::"r"(at)
                 : "memory");
    y[i] = tile[blockDim.x - 1 - threadIdx.x];
}

extern "C" __global__ void many(vint *x, vint *y, int n) { // n copies of 32 KiB by one thread of the block
    __shared__ alignas(128) int tile[8192];
    __shared__ alignas(8) unsigned long long barrier;
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned at = (unsigned)__cvta_generic_to_shared(&barrier);
    if (!threadIdx.x) {
        asm volatile("mbarrier.init.shared.b64 [%0], 1;\n fence.mbarrier_init.release.cluster;" ::"r"(at)
                     : "memory");
        for (int j = 0; j < n; j++) {
            asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(at), "r"(32768)
                         : "memory");
            asm volatile(
                "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
                    "r"((unsigned)__cvta_generic_to_shared(tile)),
                "l"((int *)x), "r"(32768), "r"(at)
                : "memory");
            asm volatile(
                "{\n .reg .pred %%done;\nAGAIN:\n mbarrier.try_wait.parity.shared.b64 %%done, [%0], %1;\n"
                " @!%%done bra AGAIN;\n}" ::"r"(at),
                "r"(j & 1)
                : "memory");
        }
    }
    __syncthreads();
    y[i] = tile[i];
}

// A bulk copy between shared memories: to the other block of a cluster, whose barrier it completes on.
extern "C" __global__ __cluster_dims__(2, 1, 1) void shared_copy(vint *x, vint *y, int n) {
    __shared__ alignas(16) int tile[1024], other[1024];
    __shared__ alignas(8) unsigned long long barrier;
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned at = (unsigned)__cvta_generic_to_shared(&barrier), bytes = 4 * blockDim.x;
    tile[threadIdx.x] = x[i];
    if (!threadIdx.x) {
        asm volatile("mbarrier.init.shared.b64 [%0], 1;\n fence.mbarrier_init.release.cluster;" ::"r"(at)
                     : "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    asm volatile("barrier.cluster.arrive.aligned;\n barrier.cluster.wait.aligned;" ::: "memory");
    if (!threadIdx.x) {
        unsigned there, arrive;
        asm("mapa.shared::cluster.u32 %0, %1, %2;"
            : "=r"(there)
            : "r"((unsigned)__cvta_generic_to_shared(other)), "r"(~blockIdx.x & 1));
        asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(arrive) : "r"(at), "r"(~blockIdx.x & 1));
        asm volatile(
            "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
                "r"(there),
            "r"((unsigned)__cvta_generic_to_shared(tile)), "r"(bytes), "r"(arrive)
            : "memory");
    }
    asm volatile("{\n .reg .pred %%done;\nAGAIN:\n mbarrier.try_wait.parity.shared.b64 %%done, [%0], 0;\n"
                 " @!%%done bra AGAIN;\n}" ::"r"(at)
                 : "memory");
    y[i] = other[blockDim.x - 1 - threadIdx.x];
    asm volatile("barrier.cluster.arrive.aligned;\n barrier.cluster.wait.aligned;" ::
                     : "memory"); // its tile was read
}

#endif

extern "C" __global__ void tiles(vint *x, vint *y, int n) { // each warp copies a tile as a matrix
    int at = (blockIdx.x * blockDim.x + threadIdx.x) / 32 * 256;
    float a, b, c, d, e, f, g, h;
    asm volatile(
        "wmma.load.c.sync.aligned.row.m16n16k16.global.f32 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8], 16;"
        : "=f"(a), "=f"(b), "=f"(c), "=f"(d), "=f"(e), "=f"(f), "=f"(g), "=f"(h)
        : "l"((int *)x + at));
    asm volatile(
        "wmma.store.d.sync.aligned.row.m16n16k16.f32 [%8], {%0, %1, %2, %3, %4, %5, %6, %7}, 16;" ::"f"(a),
        "f"(b), "f"(c), "f"(d), "f"(e), "f"(f), "f"(g), "f"(h), "l"((int *)y + at)
        : "memory");
}

extern "C" __global__ void guarded(vint *x, vint *y, int n) { // guards on accesses and on an exit
    int i = blockIdx.x * blockDim.x + threadIdx.x, value = 7;
    asm volatile(
        "{\n .reg .pred %%held, %%leaves;\n setp.lt.s32 %%held, %1, %2;\n @%%held ld.global.u32 %0, [%3];\n"
        " and.b32 %1, %1, 3;\n setp.eq.s32 %%leaves, %1, 3;\n @!%%held st.global.u32 [%4], 5;\n"
        " @%%leaves exit;\n}"
        : "+r"(value), "+r"(*&i)
        : "r"(n), "l"((int *)x + i), "l"((int *)y + i)
        : "memory");
    y[blockIdx.x * blockDim.x + threadIdx.x] = value;
}

extern "C" __global__ void grid_stride(vint *x, vint *y, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        y[i] = x[i] + 1;
}

extern "C" __global__ void loads(vint *x, vint *y, int n) { // thread t of a block loads t % n times
    int i = blockIdx.x * blockDim.x + threadIdx.x, sum = 0;
    for (int j = 0; j < threadIdx.x % n; j++)
        sum += x[i];
    y[i] = sum;
}
