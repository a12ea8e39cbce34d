#include <cassert>
#include <cstdio>
__global__ void pk(int *p, float f) {
    printf("tid %d val %f %s\n", threadIdx.x, f, "str");
    assert(p != nullptr);
    if (p[0] == 7)
        __trap();
    __brkpt();
    int *q = (int *)malloc(16);
    q[0] = 1;
    free(q);
    __prof_trigger(1);
}
