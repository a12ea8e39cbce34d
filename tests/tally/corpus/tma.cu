#include <cuda.h>
#include <cuda/barrier>
#include <cuda/ptx>
using bar_t = cuda::barrier<cuda::thread_scope_block>;
namespace cde = cuda::device::experimental;
__global__ void tk(const __grid_constant__ CUtensorMap m, int x, int y, float *o) {
    __shared__ alignas(128) float s[32][32];
#pragma nv_diag_suppress static_var_with_dynamic_init
    __shared__ bar_t b;
    if (threadIdx.x == 0) {
        init(&b, blockDim.x);
        cde::fence_proxy_async_shared_cta();
    }
    __syncthreads();
    bar_t::arrival_token t;
    if (threadIdx.x == 0) {
        cde::cp_async_bulk_tensor_2d_global_to_shared(&s, &m, x, y, b);
        t = cuda::device::barrier_arrive_tx(b, 1, sizeof(s));
    } else
        t = b.arrive();
    b.wait(std::move(t));
    s[threadIdx.x][0] += 1;
    cde::fence_proxy_async_shared_cta();
    __syncthreads();
    if (threadIdx.x == 0) {
        cde::cp_async_bulk_tensor_2d_shared_to_global(&m, x, y, &s);
        cde::cp_async_bulk_commit_group();
        cde::cp_async_bulk_wait_group_read<0>();
    }
    o[0] = s[0][0];
}
