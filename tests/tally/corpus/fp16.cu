#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
__global__ void hf(__half *h, __half2 *h2, __nv_bfloat16 *b, __nv_bfloat162 *b2, __nv_fp8_e4m3 *e, float *f) {
    int i = threadIdx.x;
    h[i] = __hfma(h[i], h[i], h[0]) + hexp(h[i]);
    h2[i] = __hmul2(h2[i], h2[0]) + h2sqrt(h2[i]);
    b[i] = b[i] * b[0] + __float2bfloat16(f[i]);
    b2[i] = b2[i] * b2[0] + b2[1];
    e[i] = __nv_fp8_e4m3(f[i]);
    f[i] = float(e[0]) + __half2float(h[i]) + __bfloat162float(b[i]);
    h2[i] = __hmax2(h2[i], h2[1]);
    h[i] = __hlt(h[i], h[1]) ? h[2] : h[3];
}
