// Whole numbers: every thread works on a few words of `in` and writes eight words of `out`.

typedef unsigned u32;
typedef unsigned long long u64;
typedef long long s64;

#define NUMBER (blockIdx.x * blockDim.x + threadIdx.x)
#define BEGIN                                                                                                \
    u32 i = NUMBER, a = in[i], b = in[(i * 7 + 3) & 1023], c = in[(i * 13 + 5) & 1023];                      \
    u32 *to = out + 8 * i;

extern "C" __global__ void arithmetic(const u32 *in, u32 *out, int n) {
    BEGIN;
    to[0] = a + b * c;
    to[1] = a - b + n;
    to[2] = (u32)(((u64)a * b) >> 32);
    to[3] = (u32)__mulhi((int)a, (int)b);
    to[4] = a * 24 + (b << 3) - (c >> 5);
    to[5] = (u32)((int)a >> (b & 31)) + (a << (c & 31));
    to[6] = min((int)a, (int)b) + max(a, c) + abs((int)b);
    to[7] = __usad(a, b, c) + __mul24((int)a, (int)c) + __umul24(a, c);
}

extern "C" __global__ void wide(const u32 *in, u32 *out, int n) {
    BEGIN;
    u64 x = (u64)a << 32 | b, y = (u64)c << 32 | (a ^ b);
    s64 sx = (s64)x, sy = (s64)y;
    u64 *into = (u64 *)to;
    into[0] = x + y * 3;
    into[1] = x * y - (u64)n;
    into[2] = (x >> (c & 63)) + (y << (a & 63)) + (u64)(sx >> (b & 63));
    into[3] = (sx < sy ? x : y) + (x < y ? 1 : 2) + __umul64hi(x, y) + (u64)__mul64hi(sx, sy);
}

extern "C" __global__ void division(const u32 *in, u32 *out, int n) {
    BEGIN;
    u32 d = c >> (b & 31) | 1;
    to[0] = a / d;
    to[1] = a % d;
    to[2] = (u32)((int)a / (int)d);
    to[3] = (u32)((int)a % (int)d);
    u64 x = (u64)a << 32 | b, y = (u64)(d & 0xffff) << 20 | c;
    to[4] = (u32)(x / y);
    to[5] = (u32)(x % y);
    to[6] = (u32)((s64)x / (s64)(y | 1));
    to[7] = a / 10 + b % 1000 + (u32)((int)c / 7) + a / (u32)n;
}

extern "C" __global__ void bits(const u32 *in, u32 *out, int n) {
    BEGIN;
    to[0] = __popc(a) + __clz(b) * 64 + __ffs(c) * 4096 + __popcll((u64)a << 20 | b) * 65536;
    to[1] = __brev(a) ^ (u32)__clzll((u64)b << 7);
    to[2] = __byte_perm(a, b, c & 0xffff) + __byte_perm(a, c, 0x1302);
    to[3] = __funnelshift_l(a, b, c) ^ __funnelshift_r(a, b, c) ^ __funnelshift_lc(a, b, c & 63);
    asm("bfe.u32 %0, %1, %2, %3;" : "=r"(to[4]) : "r"(a), "r"(b & 31), "r"(c & 15));
    u32 s, t;
    asm("bfe.s32 %0, %1, %2, %3;" : "=r"(s) : "r"(a), "r"(b & 31), "r"(c & 31));
    asm("bfi.b32 %0, %1, %2, %3, %4;" : "=r"(t) : "r"(a), "r"(b), "r"(c & 31), "r"(a & 15));
    to[5] = s ^ t;
    asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(s) : "r"(a), "r"(b), "r"(c));
    to[6] = s ^ (a & ~b) ^ (b | ~c);
    asm("szext.clamp.s32 %0, %1, %2;" : "=r"(s) : "r"(a), "r"(b & 63));
    asm("bmsk.clamp.b32 %0, %1, %2;" : "=r"(t) : "r"(a & 31), "r"(b & 31));
    to[7] = s + t;
}

extern "C" __global__ void packed(const u32 *in, u32 *out, int n) {
    BEGIN;
    to[0] = (u32)__dp4a((int)a, (int)b, (int)c);
    to[1] = __dp4a(a, b, c);
    to[2] = (u32)__dp2a_lo((int)a, (int)b, (int)c) + (u32)__dp2a_hi((int)a, (int)b, (int)c);
    to[3] = __vadd4(a, b) ^ __vsub2(a, c);
    to[4] = __vmaxs2(a, b) ^ __vminu2(a, c);
    to[5] = __viaddmax_s32((int)a, (int)b, (int)c) + __vimin3_u32(a, b, c);
    to[6] = __vabsdiffu4(a, b) + __vcmpgtu4(a, c);
    to[7] = __viaddmax_s16x2(a, b, c) ^ __vimax_s16x2_relu(a, b);
}

extern "C" __global__ void carries(const u32 *in, u32 *out, int n) {
    BEGIN;
    u32 r0, r1, r2, r3;
    asm("add.cc.u32 %0, %4, %5; addc.cc.u32 %1, %5, %6; addc.cc.u32 %2, %6, %4; addc.u32 %3, 0, 0;"
        : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3)
        : "r"(a), "r"(b), "r"(c));
    to[0] = r0, to[1] = r1, to[2] = r2, to[3] = r3;
    asm("sub.cc.u32 %0, %3, %4; subc.cc.u32 %1, %4, %5; subc.u32 %2, %5, %3;"
        : "=r"(r0), "=r"(r1), "=r"(r2)
        : "r"(a), "r"(b), "r"(c));
    to[4] = r0, to[5] = r1, to[6] = r2;
    asm("mad.lo.cc.u32 %0, %2, %3, %4; madc.hi.u32 %1, %2, %3, 7;"
        : "=r"(r0), "=r"(r1)
        : "r"(a), "r"(b), "r"(c));
    to[7] = r0 ^ r1;
}

extern "C" __global__ void uniform(const u32 *in, u32 *out, int n) {
    u32 i = NUMBER, u = n * 17 + blockIdx.x, v = u ^ gridDim.x, w = (u << 3) + (v >> 2);
    u64 x = (u64)u * v + ((u64)w << 20);
    u32 most = u > v ? u + 5 : v - w;
    if (w & 4)
        most = __popc(most) + __clz(u) + __brev(v);
    out[8 * i] = in[i] + most;
    out[8 * i + 1] = (u32)(x >> 7) + (u32)(x >> 35);
    out[8 * i + 2] = (u & v) | (~w & 0xff00);
    for (int k = 0; k < (n & 7); k++)
        u += v * k, v ^= u << k;
    out[8 * i + 3] = u - v;
}
