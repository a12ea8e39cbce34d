__global__ void wp(int *p, float *f) {
    int v = p[threadIdx.x];
    v += __shfl_down_sync(~0u, v, 16);
    v += __shfl_xor_sync(~0u, v, 8);
    v += __shfl_up_sync(~0u, v, 1);
    v += __shfl_sync(~0u, v, 0);
    unsigned b = __ballot_sync(~0u, v > 3);
    if (__any_sync(~0u, v))
        v++;
    if (__all_sync(~0u, v))
        v--;
    v += __popc(b) + __clz(b) + __ffs(b) + __brev(b);
    v += __activemask();
#if __CUDA_ARCH__ >= 800
    v += __reduce_add_sync(~0u, v);
    v += __reduce_min_sync(~0u, v);
#endif
    v += __match_any_sync(~0u, v);
    int pr;
    v += __match_all_sync(~0u, v, &pr);
    v += __byte_perm(v, b, 0x3210) + __dp4a(v, v, (int)b) + __vadd4(v, b) + __funnelshift_l(v, b, 3) +
         __mulhi(v, v) + __sad(v, 1, 2) + __umul24(v, 3);
    p[threadIdx.x] = v + pr;
    __nanosleep(100);
    f[0] = __int_as_float(v);
}
