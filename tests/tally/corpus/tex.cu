#include <cuda_runtime.h>
__global__ void tx(cudaTextureObject_t t, cudaTextureObject_t t3, cudaTextureObject_t tc,
                   cudaSurfaceObject_t s, float *o, float4 *o4, float x, float y) {
    o[0] = tex2D<float>(t, x, y) + tex1Dfetch<float>(t, 3) + tex3D<float>(t3, x, y, 1.f) +
           texCubemap<float>(tc, x, y, 1.f) + tex2DLod<float>(t, x, y, 2.f) +
           tex2DGrad<float>(t, x, y, make_float2(1, 2), make_float2(3, 4)) + tex2DLayered<float>(t, x, y, 2);
    o4[0] = tex2Dgather<float4>(t, x, y, 0);
    float v;
    surf2Dread(&v, s, 4, 5, cudaBoundaryModeClamp);
    surf2Dwrite(v + 1, s, 4, 5);
    surf1Dwrite(make_int2(1, 2), s, 8);
    uint2 u;
    surf3Dread(&u, s, 1, 2, 3);
    o[1] = u.x;
}
