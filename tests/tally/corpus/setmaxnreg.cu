__global__ void __launch_bounds__(384, 1) sm(float *p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(__CUDA_ARCH_FEAT_SM100_ALL) ||                             \
    defined(__CUDA_ARCH_SPECIFIC__)
    if (threadIdx.x / 128 == 0)
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    else
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
#endif
    asm volatile("griddepcontrol.wait;" ::: "memory");
    p[threadIdx.x] += 1;
    asm volatile("griddepcontrol.launch_dependents;");
    unsigned pr;
    asm volatile("{ .reg .pred P; elect.sync _|P, 0xffffffff; selp.u32 %0,1,0,P; }" : "=r"(pr));
    p[0] += pr;
}
