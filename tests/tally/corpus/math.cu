#include <math.h>
__global__ void mt(float *f, double *d) {
    int i = threadIdx.x;
    f[i] = sinf(f[i]) + cosf(f[i]) * tanf(f[i]) + expf(f[i]) + logf(f[i]) + powf(f[i], 2.3f) + sqrtf(f[i]) +
           rsqrtf(f[i]) + fmaf(f[i], 2, 3) + erff(f[i]) + tgammaf(f[i]) + fmodf(f[i], 3.f) + __sinf(f[i]) +
           __expf(f[i]) + __fdividef(f[i], 3) + floorf(f[i]) + roundf(f[i]) + truncf(f[i]) + fminf(f[i], 1) +
           copysignf(f[i], -1) + ldexpf(f[i], 3) + j0f(f[i]) + tanhf(f[i]);
    d[i] = sin(d[i]) + exp(d[i]) + log(d[i]) + pow(d[i], 1.5) + sqrt(d[i]) / d[i] + erf(d[i]) +
           atan2(d[i], 2.0) + lgamma(d[i]) + __dadd_ru(d[i], 1) + __drcp_rn(d[i]) + fma(d[i], d[i], 1.0);
}
