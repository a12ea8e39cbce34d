// Kernels for clocks.py: read the timer that all SMs share, and each SM's clock.

typedef unsigned long long u64;

static __device__ u64 read_timer() {
    u64 time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    return time;
}

static __device__ u64 read_clock() {
    u64 clock;
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(clock));
    return clock;
}

// One thread reads the timer n times: time and clock of each read.
extern "C" __global__ void steps(u64 *out, int n) {
    for (int i = 0; i < n; i++) {
        out[2 * i] = read_timer();
        out[2 * i + 1] = read_clock();
    }
}

// Each block makes n pairs, `apart` ns from one to the next: the clock, the time and the clock again. The
// number of its SM precedes them.
extern "C" __global__ void pairs(u64 *out, int n, int apart) {
    unsigned sm;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    u64 *mine = out + (size_t)blockIdx.x * (3 * n + 1), begin = read_timer();
    *mine++ = sm;
    for (int i = 0; i < n; i++) {
        while (read_timer() < begin + (u64)i * apart)
            continue;
        mine[3 * i] = read_clock();
        mine[3 * i + 1] = read_timer();
        mine[3 * i + 2] = read_clock();
    }
}
