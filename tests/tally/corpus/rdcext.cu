extern __device__ int other(int);
extern __device__ float gv;
extern __constant__ int gcst[16];
__global__ void re(int *p) { p[0] = other(p[1]) + (int)gv + gcst[p[2] & 15]; }
