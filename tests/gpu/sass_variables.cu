// Launches the kernels of variables.cu in turn and prints all that they leave; tests/gpu/sass_variables.py
// compares it with and without probes.

#include <cstdio>
#include <cstdlib>

#include "variables.cu"

static const int GRID = 7, BLOCK = 100, N = GRID * BLOCK;

static void check(cudaError_t status) {
    if (status != cudaSuccess) {
        fprintf(stderr, "%s\n", cudaGetErrorString(status));
        exit(1);
    }
}

static unsigned long long digest(unsigned long long hash, const void *bytes, size_t size) {
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ ((const unsigned char *)bytes)[i]) * 1099511628211ull;
    return hash;
}

int main() {
    int *y, host[N], values[64];
    check(cudaMalloc(&y, sizeof host));
    unsigned long long hash = 14695981039346656037ull;
    for (int n = 0; n < 24; n++) {
        for (int i = 0; i < 64; i++)
            values[i] = 31 * i + n;
        check(cudaMemcpyToSymbol(factors, values, sizeof values));
        void (*const kernels[])(int *, int) = {produce, consume, through, follow};
        for (void (*kernel)(int *, int) : kernels) {
            kernel<<<GRID, BLOCK>>>(y, n);
            check(cudaMemcpy(host, y, sizeof host, cudaMemcpyDeviceToHost));
            hash = digest(hash, host, sizeof host);
        }
    }
    int left[256], count, once;
    float step;
    check(cudaMemcpyFromSymbol(left, table, sizeof left));
    check(cudaMemcpyFromSymbol(&count, counter, sizeof count));
    check(cudaMemcpyFromSymbol(&step, scale, sizeof step));
    check(cudaDeviceSynchronize());
    once = managed;
    int expected = 0; // what `through` adds
    for (int n = 0; n < 24; n++)
        for (int i = 0; i < N; i++)
            expected += i % 5 + n;
    printf("results %016llx table %016llx counter %d expected %d scale %.6g managed %d\n", hash,
           digest(14695981039346656037ull, left, sizeof left), count, expected, step, once);
    return count != expected;
}
