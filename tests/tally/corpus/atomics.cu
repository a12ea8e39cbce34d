#include <cuda/atomic>
#include <cuda_fp16.h>
__global__ void at(int *a, unsigned long long *b, float *f, double *d, __half2 *h, unsigned short *u16) {
    atomicAdd(a, 1);
    atomicMin(a + 1, 2);
    atomicMax(a + 2, 3);
    atomicExch(a + 3, 4);
    atomicCAS(a + 4, 5, 6);
    atomicAnd(a + 5, 7);
    atomicOr(a + 6, 8);
    atomicXor(a + 7, 9);
    atomicInc((unsigned *)a + 8, 10);
    atomicDec((unsigned *)a + 9, 3);
    atomicAdd(b, 1ull);
    atomicMax(b + 1, 2ull);
    f[1] = atomicAdd(f, 1.f);
    atomicAdd(d, 1.0);
    atomicAdd(h, __half2(1, 2));
    atomicCAS(u16, (unsigned short)1, (unsigned short)2);
    atomicAdd_system(a, 1);
    atomicAdd_block(a, 1);
    __threadfence();
    __threadfence_block();
    __threadfence_system();
}
__global__ void ca(cuda::atomic<int, cuda::thread_scope_device> *p,
                   cuda::atomic<unsigned long long, cuda::thread_scope_system> *q) {
    p->fetch_add(1, cuda::memory_order_release);
    while (p->load(cuda::memory_order_acquire) < 5)
        ;
    q->store(3);
    p->compare_exchange_strong(*(int *)q, 3);
}
