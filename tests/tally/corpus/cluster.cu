#include <cooperative_groups.h>
namespace cg = cooperative_groups;
__global__ void __cluster_dims__(2, 1, 1) cl(int *p) {
    __shared__ int s[32];
    auto c = cg::this_cluster();
    s[threadIdx.x] = c.block_rank();
    c.sync();
    int *r = c.map_shared_rank(s, c.block_rank() ^ 1);
    p[threadIdx.x] = r[threadIdx.x] + c.num_blocks();
    c.sync();
}
__global__ void __launch_bounds__(256, 2, 4) cl2(int *p) { p[0] = cg::this_cluster().dim_blocks().x; }
__global__ void __block_size__((128, 1, 1), (2, 1, 1)) cl3(int *p) { p[0] = 1; }
