struct P {
    int a;
    double b;
    char c[3];
};
__constant__ float tab[256];
__constant__ P pc = {1, 2.5, {'a', 'b', 'c'}};
__device__ int ctr;
__device__ const char msg[] = "hello";
__device__ int arr[3][4] = {{1, 2, 3, 4}, {5}, {6}};
__device__ float *ptr = (float *)0;
__device__ int *self = &ctr;
__managed__ int mg = 3;
__device__ long long big[100];
static __device__ int sctr;
__device__ double nanv = 1e300;
__global__ void kc(float *o, int i) {
    o[i] = tab[i] + pc.b + pc.c[i % 3] + msg[i % 5] + arr[i % 3][i % 4] + mg + *self + (float)nanv;
    atomicAdd(&ctr, 1);
    atomicAdd(&sctr, 2);
    big[i] = clock64();
    ptr = o;
}
