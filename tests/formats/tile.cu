// One kernel of threads and two of tiles. nvcc -enable-tile puts the former into one fatbin and the latter
// into another.
#include "cuda_tile.h"

extern "C" __global__ void simt(float *x) { x[threadIdx.x] += 1; }

extern "C" __tile_global__ void tiled(int *a, int *b, int *c) {
    auto index = ::cuda::tiles::bid().x;
    c[index] = ::cuda::tiles::add(a[index], b[index]);
}

extern "C" __tile_global__ void doubled(int *a) {
    auto index = ::cuda::tiles::bid().x;
    a[index] = ::cuda::tiles::add(a[index], a[index]);
}
