__global__ void __launch_bounds__(128) tc(unsigned *o) {
    __shared__ unsigned ad;
#if defined(__CUDA_ARCH_FEAT_SM100_ALL)
    unsigned s = (unsigned)__cvta_generic_to_shared(&ad);
    asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], 128;" ::"r"(s));
    __syncthreads();
    unsigned r[4];
    asm volatile("tcgen05.ld.sync.aligned.32x32b.x4.b32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(ad));
    asm volatile("tcgen05.wait::ld.sync.aligned;");
    o[threadIdx.x] = r[0] + r[3];
    asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;");
    asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, 128;" ::"r"(ad));
#else
    o[0] = ad;
#endif
}
