#include <thrust/device_ptr.h>
#include <thrust/execution_policy.h>
#include <thrust/reduce.h>
#include <thrust/scan.h>
#include <thrust/sort.h>
#include <thrust/unique.h>
void f(int *k, float *v, int n) {
    thrust::sort_by_key(thrust::device, k, k + n, v);
    thrust::stable_sort(thrust::device, v, v + n);
    k[0] = thrust::reduce(thrust::device, k, k + n);
    thrust::inclusive_scan(thrust::device, v, v + n, v);
    thrust::unique(thrust::device, k, k + n);
    thrust::sort(thrust::device, k, k + n, [] __device__(int a, int b) { return (a & 7) < (b & 7); });
}
