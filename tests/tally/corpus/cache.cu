__global__ void ch(int *p, const int4 *__restrict__ q, double2 *d) {
    p[0] = __ldcg(p + 1) + __ldca(p + 2) + __ldcs(p + 3) + __ldlu(p + 4) + __ldcv(p + 5);
    __stcg(p + 6, 1);
    __stcs(p + 7, 2);
    __stwt(p + 8, 3);
    int4 v = __ldg(q);
    p[9] = v.x + v.w;
    d[0] = d[1];
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
    __builtin_assume(p != 0);
    int w = *(volatile int *)p;
    p[10] = w;
    p[11] = __isGlobal(p) + __isShared(p) + __isConstant(p) + __isLocal(p);
#if __CUDA_ARCH__ >= 800
    asm volatile("ld.global.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(p[12]), "=r"(p[13]), "=r"(p[14]), "=r"(p[15])
                 : "l"(q));
    unsigned long long pol;
    asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(pol));
    asm volatile("ld.global.L2::cache_hint.u32 %0, [%1], %2;" : "=r"(p[16]) : "l"(p), "l"(pol));
#endif
}
