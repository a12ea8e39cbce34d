// A kernel that streams through memory, timed by the program's events. The program prints the results.

#include <cstdio>
#include <cstdlib>

#define OK(call)                                                                                             \
    do {                                                                                                     \
        cudaError_t status_ = (call);                                                                        \
        if (status_) {                                                                                       \
            fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(status_));                                 \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

__device__ unsigned launches;
__constant__ unsigned factor = 3;

// Each thread reads 4 bytes and writes 4; the first one counts the launch.
__global__ void copy(const unsigned *from, unsigned *to, unsigned n) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        to[i] = from[i] * factor + 1;
    if (!i)
        launches++;
}

__global__ void fill(unsigned *items, unsigned n) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        items[i] = i * 2654435761u;
}

int main(int argc, char **argv) {
    const unsigned n = strtoul(argv[1], NULL, 10), times = strtoul(argv[2], NULL, 10),
                   blocks = (n + 255) / 256;
    unsigned *from, *to, *host = (unsigned *)malloc(4ul * n), seven = 7, counted, sum = 0;
    cudaEvent_t begin, end;
    float ms, total = 0;
    OK(cudaMalloc(&from, 4ul * n));
    OK(cudaMalloc(&to, 4ul * n));
    OK(cudaEventCreate(&begin));
    OK(cudaEventCreate(&end));
    OK(cudaMemcpyToSymbol(factor, &seven, sizeof(seven)));
    fill<<<blocks, 256>>>(from, n);
    copy<<<blocks, 256>>>(from, to, n);
    for (unsigned i = 0; i < times; i++) {
        OK(cudaMemset(to, 0, 4ul * n));
        OK(cudaEventRecord(begin));
        copy<<<blocks, 256>>>(from, to, n);
        OK(cudaEventRecord(end));
        OK(cudaEventSynchronize(end));
        OK(cudaEventElapsedTime(&ms, begin, end));
        total += ms;
    }
    OK(cudaMemcpy(host, to, 4ul * n, cudaMemcpyDeviceToHost));
    OK(cudaMemcpyFromSymbol(&counted, launches, sizeof(counted)));
    for (unsigned i = 0; i < n; i++)
        sum = sum * 31 + host[i];
    fprintf(stderr, "ms %f\n", total / times);
    printf("%08x after %u launches\n", sum, counted);
    return 0;
}
