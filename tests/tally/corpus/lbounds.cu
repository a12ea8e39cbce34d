__global__ void __launch_bounds__(128) l1(int *p) { *p = 1; }
__global__ void __launch_bounds__(256, 4) l2(int *p) { *p = 2; }
__global__ void __maxnreg__(64) l3(int *p) { *p = 3; }
template <int N> __global__ void __launch_bounds__(N) l4(int *p) { *p = N; }
template __global__ void l4<32>(int *);
template __global__ void l4<1024>(int *);
namespace ns {
struct S {
    int a;
};
template <class T, class... A> __global__ void l5(T t, A... a) { *t = (0 + ... + (int)a); }
template __global__ void l5<int *, int, float, char>(int *, int, float, char);
} // namespace ns
static __global__ void l6(int *p) { *p = 5; }
void go(int *p) { l6<<<1, 1>>>(p); }
namespace {
__global__ void l7(int *p) { *p = 9; }
} // namespace
void go2(int *p) { l7<<<1, 1>>>(p); }
