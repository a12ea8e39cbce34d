#include <cub/cub.cuh>
void f(void *t, size_t &b, float *i, float *o, int *ki, int n) {
    cub::DeviceReduce::Sum(t, b, i, o, n);
    cub::DeviceScan::ExclusiveSum(t, b, i, o, n);
    cub::DeviceRadixSort::SortKeys(t, b, i, o, n);
    cub::DeviceRadixSort::SortPairs(t, b, ki, ki, i, o, n);
    cub::DeviceHistogram::HistogramEven(t, b, ki, ki, 10, 0, 100, n);
    cub::DeviceSelect::If(t, b, i, o, ki, n, [] __device__(float x) { return x > 0; });
    cub::DeviceSegmentedReduce::Sum(t, b, i, o, n, ki, ki + 1);
    cub::DeviceRunLengthEncode::Encode(t, b, ki, ki, ki, ki, n);
    cub::DeviceMergeSort::SortKeys(t, b, ki, n, [] __device__(int a, int b) { return a < b; });
}
