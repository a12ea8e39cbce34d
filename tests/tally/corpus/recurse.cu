__device__ __noinline__ int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
typedef int (*op)(int, int);
__device__ __noinline__ int add(int a, int b) { return a + b; }
__device__ __noinline__ int mul(int a, int b) { return a * b; }
__device__ op tabl[2] = {add, mul};
__constant__ op ctab = add;
struct B {
    __device__ virtual int f(int x) = 0;
    __device__ virtual ~B() {}
};
struct D1 : B {
    int k;
    __device__ int f(int x) override { return x + k; }
};
struct D2 : B {
    __device__ int f(int x) override { return x * 2; }
};
__device__ __noinline__ int var(B *b, int x) { return b->f(x); }
struct Big {
    int a[10];
};
__device__ __noinline__ Big mk(Big b, int i) {
    b.a[i] = i;
    return b;
}
__global__ void rk(int *p, int i) {
    D1 d1;
    d1.k = i;
    D2 d2;
    B *b = i & 1 ? (B *)&d1 : (B *)&d2;
    Big g;
    for (int j = 0; j < 10; j++)
        g.a[j] = p[j];
    g = mk(g, i % 10);
    p[0] = fib(p[0]) + tabl[i & 1](1, 2) + var(b, 3) + ctab(4, 5) + g.a[i % 10];
}
