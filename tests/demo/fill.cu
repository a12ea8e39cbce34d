// Sets every item to one value, however many threads there are.
__global__ void setScalarItems(float *items, float value, int count) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
        items[i] = value;
}
