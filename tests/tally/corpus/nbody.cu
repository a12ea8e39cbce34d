__global__ void nb(float4 *p, float4 *v, int n, float dt) {
    __shared__ float4 s[256];
    int i = blockIdx.x * 256 + threadIdx.x;
    float4 me = p[i];
    float3 a = {0, 0, 0};
    for (int t = 0; t < n; t += 256) {
        s[threadIdx.x] = p[t + threadIdx.x];
        __syncthreads();
#pragma unroll 32
        for (int j = 0; j < 256; j++) {
            float dx = s[j].x - me.x, dy = s[j].y - me.y, dz = s[j].z - me.z;
            float r = rsqrtf(dx * dx + dy * dy + dz * dz + 1e-9f);
            float w = s[j].w * r * r * r;
            a.x += dx * w;
            a.y += dy * w;
            a.z += dz * w;
        }
        __syncthreads();
    }
    v[i].x += a.x * dt;
    v[i].y += a.y * dt;
    v[i].z += a.z * dt;
}
