#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cuda/barrier>
#include <cuda/pipeline>
namespace cg = cooperative_groups;
__global__ void pipe(const float *g, float *o, int n) {
    extern __shared__ float s[];
    auto blk = cg::this_thread_block();
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> st;
    auto p = cuda::make_pipeline(blk, &st);
    for (int i = 0; i < n; i++) {
        p.producer_acquire();
        cuda::memcpy_async(blk, s + (i & 1) * 256, g + i * 256, sizeof(float) * 256, p);
        p.producer_commit();
        p.consumer_wait();
        o[threadIdx.x] += s[(i & 1) * 256 + threadIdx.x];
        p.consumer_release();
    }
}
__global__ void bar(const int *g, int *o) {
    __shared__ int s[256];
#pragma nv_diag_suppress static_var_with_dynamic_init
    __shared__ cuda::barrier<cuda::thread_scope_block> b;
    if (threadIdx.x == 0)
        init(&b, blockDim.x);
    __syncthreads();
    cuda::memcpy_async(s + threadIdx.x, g + threadIdx.x, cuda::aligned_size_t<4>(4), b);
    b.arrive_and_wait();
    o[threadIdx.x] = s[255 - threadIdx.x];
}
