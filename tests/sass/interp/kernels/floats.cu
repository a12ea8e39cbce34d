// Floating point of 16, 32 and 64 bits, and conversions. What comes from MUFU alone is in `functions`.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

typedef unsigned u32;
typedef unsigned long long u64;

#define NUMBER (blockIdx.x * blockDim.x + threadIdx.x)
#define BEGIN u32 i = NUMBER, a = in[i], b = in[(i * 7 + 3) & 1023], c = in[(i * 13 + 5) & 1023];

// Any bits at all, with exponents near each other so that sums aren't trivial.
__device__ float real(u32 bits) { return __uint_as_float((bits & 0x83ffffff) | 0x3c000000); }

__device__ double real(u32 high, u32 low) {
    return __hiloint2double((int)((high & 0x803fffff) | 0x3fc00000), (int)low);
}

extern "C" __global__ void single(const u32 *in, float *out, int n) {
    BEGIN;
    float x = real(a), y = real(b), z = real(c), any = __uint_as_float(a), other = __uint_as_float(b);
    float *to = out + 8 * i;
    to[0] = x * y + z;
    to[1] = __fsub_rn(__fadd_rz(x, y), __fmul_rn(__fadd_ru(y, z), __fmul_rd(x, z)));
    to[2] = any + other;
    to[3] = any * other;
    to[4] = fminf(any, other) + fmaxf(x, any) - fabsf(z);
    to[5] = (x < y ? x : z) + (any >= other ? 1.0f : 2.0f) + (any != any ? 3.0f : 0.5f);
    to[6] = floorf(x * 100) + ceilf(y * 10) + truncf(z * 1000) + rintf(x * 7) + roundf(y * 3);
    to[7] = fmaf(any, other, x);
}

extern "C" __global__ void flush(const u32 *in, float *out, int n) {
    BEGIN;
    float x = __uint_as_float(a & 0x81ffffff), y = __uint_as_float(b & 0xbfffffff), *to = out + 8 * i, r;
    asm("add.ftz.f32 %0, %1, %2;" : "=f"(r) : "f"(x), "f"(y));
    to[0] = r;
    asm("mul.ftz.f32 %0, %1, %2;" : "=f"(r) : "f"(x), "f"(y));
    to[1] = r;
    asm("fma.rn.ftz.f32 %0, %1, %2, %1;" : "=f"(r) : "f"(x), "f"(y));
    to[2] = r;
    asm("add.sat.f32 %0, %1, %2;" : "=f"(r) : "f"(x), "f"(y));
    to[3] = r;
    asm("fma.rp.f32 %0, %1, %2, %2;" : "=f"(r) : "f"(x), "f"(y));
    to[4] = r;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(x), "f"(y));
    to[5] = r;
}

extern "C" __global__ void quotients(const u32 *in, float *out, int n) {
    BEGIN;
    float x = real(a), y = real(b), any = __uint_as_float(a), other = __uint_as_float(b), *to = out + 8 * i;
    to[0] = x / y;
    to[1] = sqrtf(fabsf(x));
    to[2] = 1.0f / y;
    to[3] = any / other;
    to[4] = sqrtf(any);
    to[5] = fmodf(x * 50, y);
}

extern "C" __global__ void functions(const u32 *in, float *out, int n) {
    BEGIN;
    float x = real(a) * 2, y = fabsf(real(b)), *to = out + 8 * i;
    to[0] = sinf(x) + cosf(y);
    to[1] = expf(x) + logf(y);
    to[2] = __sinf(x) * __cosf(y);
    to[3] = exp2f(x) + log2f(y) + rsqrtf(y);
    to[4] = __fdividef(x, y);
    to[5] = tanhf(x) + powf(y, x);
    asm("tanh.approx.f32 %0, %1;" : "=f"(to[6]) : "f"(x));
    to[7] = erff(x) + atan2f(x, y);
}

extern "C" __global__ void doubles(const u32 *in, double *out, int n) {
    BEGIN;
    double x = real(a, b), y = real(b, c), z = real(c, a), *to = out + 4 * i;
    to[0] = x * y + z;
    to[1] = (x < y ? x + z : y - z) * fmin(x, y) + fmax(y, z);
    to[2] = x / y + sqrt(fabs(z));
    to[3] = __dadd_ru(x, y) + __dmul_rz(y, z) + __fma_rd(x, y, z) + floor(x * 9) + (double)(int)(y * 1000);
}

extern "C" __global__ void conversions(const u32 *in, u32 *out, int n) {
    BEGIN;
    u32 *to = out + 16 * i;
    float x = __uint_as_float(a), y = real(b) * 5e4f;
    double d = real(a, b) * 1e9;
    to[0] = (u32)(int)x;
    to[1] = (u32)x;
    to[2] = __float_as_uint((float)(int)a) ^ __float_as_uint((float)b);
    to[3] = __float_as_uint(__uint2float_rz(c)) ^ __float_as_uint(__int2float_ru((int)a));
    *(u64 *)(to + 4) = (u64)(long long)y ^ (u64)d;
    *(double *)(to + 6) = (double)a + (double)(int)b + (double)((u64)c << 32 | a) + (double)x;
    to[8] = __float_as_uint((float)d) ^ (u32)__double2int_rn(d * 1e-3);
    to[9] =
        __float_as_uint((float)((u64)a << 32 | b)) ^ __float_as_uint((float)(long long)((u64)b << 32 | c));
    to[10] = (u32)(signed char)a + (u32)(short)b + (unsigned char)c + (unsigned short)a;
    to[11] = (u32)__float2int_ru(y) + (u32)__float2int_rd(y) + __float2uint_rn(fabsf(y));
    to[12] = __half_as_ushort(__float2half(y)) | (u32)__half_as_ushort(__float2half_rz(x)) << 16;
    to[13] = __float_as_uint(__half2float(__ushort_as_half((unsigned short)a)));
    to[14] = __bfloat16_as_ushort(__float2bfloat16(x)) | (u32)__half_as_ushort(__int2half_rn((short)b)) << 16;
    to[15] = (u32)(unsigned char)y + (u32)__half2int_rz(__ushort_as_half((unsigned short)c));
}

__device__ __half2 halves(u32 bits) {
    u32 made = (bits & 0x83ff83ff) | 0x38003800;
    return *(__half2 *)&made;
}

__device__ __nv_bfloat162 brains(u32 bits) {
    u32 made = (bits & 0x80ff80ff) | 0x3f003f00;
    return *(__nv_bfloat162 *)&made;
}

extern "C" __global__ void halfs(const u32 *in, u32 *out, int n) {
    BEGIN;
    __half2 x = halves(a), y = halves(b), z = halves(c), any = *(__half2 *)&a, *to = (__half2 *)(out + 8 * i);
    to[0] = __hfma2(x, y, z);
    to[1] = __hadd2_rn(x, __hmul2_rn(y, z));
    to[2] = __hadd2(any, y);
    to[3] = __hmul2(any, *(__half2 *)&b);
    to[4] = __hmax2(any, y);
    to[5] = __hlt2(x, y);
    to[6] = __halves2half2(__hfma(__low2half(x), __high2half(y), __low2half(z)), __hneg(__high2half(any)));
    to[7] = __hmin2(__habs2(x), __hfma2_sat(x, y, z));
}

extern "C" __global__ void brains16(const u32 *in, u32 *out, int n) {
    BEGIN;
    __nv_bfloat162 x = brains(a), y = brains(b), z = brains(c), any = *(__nv_bfloat162 *)&a;
    __nv_bfloat162 *to = (__nv_bfloat162 *)(out + 8 * i);
    to[0] = __hfma2(x, y, z);
    to[1] = __hadd2(x, y);
    to[2] = __hmul2(any, y);
    to[3] = __hmax2(any, y);
    to[4] = __hgt2(x, z);
    to[5] = __floats2bfloat162_rn(__low2float(x) * 3, __high2float(y) / 7);
}
