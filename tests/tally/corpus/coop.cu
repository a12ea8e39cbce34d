#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
namespace cg = cooperative_groups;
__global__ void cgk(int *p) {
    auto g = cg::this_grid();
    auto b = cg::this_thread_block();
    auto t = cg::tiled_partition<32>(b);
    auto t4 = cg::tiled_partition<4>(t);
    int v = p[g.thread_rank()];
    v = cg::reduce(t, v, cg::plus<int>());
    v += cg::inclusive_scan(t4, v);
    auto c = cg::coalesced_threads();
    v += c.shfl(v, 0);
    if (t.thread_rank() == 0)
        atomicAdd(p, v);
    g.sync();
    p[g.thread_rank()] = v;
    auto lp = cg::labeled_partition(c, v & 1);
    p[0] += lp.size();
}
