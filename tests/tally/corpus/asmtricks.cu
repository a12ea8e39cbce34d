__global__ void as(unsigned *p, unsigned long long *q) {
    unsigned a, b, c;
    asm("mad.lo.cc.u32 %0,%2,%3,%4; madc.hi.u32 %1,%2,%3,0;"
        : "=r"(a), "=r"(b)
        : "r"(p[0]), "r"(p[1]), "r"(p[2]));
    asm volatile("mov.u32 %0,%%laneid;" : "=r"(c));
    asm volatile("bar.sync 1, 64; barrier.sync 2; bar.arrive 3, 64;");
    unsigned long long t;
    asm volatile("mov.u64 %0,%%globaltimer;" : "=l"(t));
    asm("lop3.b32 %0,%1,%2,%3,0x96;" : "=r"(a) : "r"(a), "r"(b), "r"(c));
    asm("prmt.b32 %0,%1,%2,0x1234;" : "=r"(b) : "r"(a), "r"(c));
    asm("bfe.u32 %0,%1,3,5; bfi.b32 %0,%0,%1,2,4;" : "=r"(c) : "r"(a));
    asm volatile("// comment in asm\n/* block */\nst.global.v2.u32 [%0],{%1,%2};" ::"l"(p), "r"(a), "r"(b));
    asm volatile("{.reg .b64 t; add.u64 t,%1,%1; mov.b64 %0,t;}" : "=l"(q[0]) : "l"(q[1]));
    asm volatile("membar.gl; fence.acq_rel.gpu; fence.sc.sys;");
    asm volatile(
        "red.global.add.u32 [%0],1; ld.acquire.gpu.u32 %1,[%0]; st.release.sys.u32 [%0],%1;" ::"l"(p),
        "r"(c));
    asm volatile("{\n.reg .pred p1;\nsetp.eq.u32 p1,%0,1;\n@!p1 bra DONE%=;\nexit;\nDONE%=:\n}" ::"r"(c));
}
