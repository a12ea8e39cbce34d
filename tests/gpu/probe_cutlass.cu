// Multiplies matrices of small integers, whose products are exact, with three CUTLASS kernels: one uses plain
// cores, one sm_80's tensor cores, and one, for sm_90a, wgmma and TMA. It compares the results with its own,
// and prints them.

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "cutlass/gemm/device/gemm.h"
#ifdef WITH_WGMMA
#include "cutlass/epilogue/collective/collective_builder.hpp"
#include "cutlass/gemm/collective/collective_builder.hpp"
#include "cutlass/gemm/device/gemm_universal_adapter.h"
#include "cutlass/gemm/kernel/gemm_universal.hpp"
#include "cutlass/util/packed_stride.hpp"
#endif

#define OK(call)                                                                                             \
    do {                                                                                                     \
        cudaError_t status_ = (call);                                                                        \
        if (status_) {                                                                                       \
            fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(status_));                                 \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)
#define GOOD(call)                                                                                           \
    do {                                                                                                     \
        cutlass::Status status_ = (call);                                                                    \
        if (status_ != cutlass::Status::kSuccess) {                                                          \
            fprintf(stderr, "%s: %s\n", #call, cutlassGetStatusString(status_));                             \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

static const int M = 256, N = 384, K = 192; // multiples of all tiles

// a is row-major, b column-major: both have k next to each other.
template <class T> __global__ void reference(const T *a, const T *b, float *c) {
    int row = blockIdx.x, column = threadIdx.x;
    float sum = 0;
    for (int k = 0; k < K; k++)
        sum += float(a[row * K + k]) * float(b[column * K + k]);
    c[row * N + column] = sum;
}

template <class T> struct Operands {
    T *a, *b;
    float *c, *wanted;

    Operands() {
        std::vector<T> from(M * K), to(N * K);
        for (int i = 0; i < M * K; i++)
            from[i] = T(float(i * 7 % 17 - 8));
        for (int i = 0; i < N * K; i++)
            to[i] = T(float(i * 5 % 13 - 6));
        OK(cudaMalloc(&a, sizeof(T) * M * K));
        OK(cudaMalloc(&b, sizeof(T) * N * K));
        OK(cudaMalloc(&c, 4 * M * N));
        OK(cudaMalloc(&wanted, 4 * M * N));
        OK(cudaMemcpy(a, from.data(), sizeof(T) * M * K, cudaMemcpyHostToDevice));
        OK(cudaMemcpy(b, to.data(), sizeof(T) * N * K, cudaMemcpyHostToDevice));
        OK(cudaMemset(c, 0xff, 4 * M * N));
        reference<T><<<M, N>>>(a, b, wanted);
        OK(cudaGetLastError());
        OK(cudaDeviceSynchronize());
    }

    void check(const char *name) {
        std::vector<float> found(M * N), right(M * N);
        OK(cudaDeviceSynchronize());
        OK(cudaMemcpy(found.data(), c, 4 * M * N, cudaMemcpyDeviceToHost));
        OK(cudaMemcpy(right.data(), wanted, 4 * M * N, cudaMemcpyDeviceToHost));
        int wrong = 0;
        for (int i = 0; i < M * N; i++)
            wrong += found[i] != right[i];
        printf("%s %d wrong, %g %g\n", name, wrong, found[0], found[M * N - 1]);
        if (wrong)
            exit(1);
    }
};

template <class T, class Gemm> void multiply(const char *name) {
    Operands<T> operands;
    Gemm gemm;
    typename Gemm::Arguments arguments({M, N, K}, {operands.a, K}, {operands.b, K}, {operands.c, N},
                                       {operands.c, N}, {1.0f, 0.0f});
    GOOD(gemm.initialize(arguments));
    for (int i = 0; i < 3; i++)
        GOOD(gemm());
    operands.check(name);
}

using RowMajor = cutlass::layout::RowMajor;
using ColumnMajor = cutlass::layout::ColumnMajor;
using Simt = cutlass::gemm::device::Gemm<
    float, RowMajor, float, ColumnMajor, float, RowMajor, float, cutlass::arch::OpClassSimt,
    cutlass::arch::Sm50, cutlass::gemm::GemmShape<64, 64, 8>, cutlass::gemm::GemmShape<32, 32, 8>,
    cutlass::gemm::GemmShape<1, 1, 1>, cutlass::epilogue::thread::LinearCombination<float, 1, float, float>,
    cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<>, 2>;
using Tensor =
    cutlass::gemm::device::Gemm<cutlass::half_t, RowMajor, cutlass::half_t, ColumnMajor, float, RowMajor,
                                float, cutlass::arch::OpClassTensorOp, cutlass::arch::Sm80,
                                cutlass::gemm::GemmShape<128, 128, 32>, cutlass::gemm::GemmShape<64, 64, 32>,
                                cutlass::gemm::GemmShape<16, 8, 16>,
                                cutlass::epilogue::thread::LinearCombination<float, 4, float, float>,
                                cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<>, 3>;

#ifdef WITH_WGMMA
template <class T> void multiply_hopper(const char *name) {
    using namespace cute;
    using Tile = Shape<_128, _128, _64>;
    using Cluster = Shape<_1, _1, _1>;
    using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
        cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Tile, Cluster,
        cutlass::epilogue::collective::EpilogueTileAuto, float, float, float, RowMajor, 4, float, RowMajor, 4,
        cutlass::epilogue::collective::EpilogueScheduleAuto>::CollectiveOp;
    using Main = typename cutlass::gemm::collective::CollectiveBuilder<
        cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, T, RowMajor, 8, T, ColumnMajor, 8, float, Tile,
        Cluster,
        cutlass::gemm::collective::StageCountAutoCarveout<int(sizeof(typename Epilogue::SharedStorage))>,
        cutlass::gemm::KernelTmaWarpSpecialized>::CollectiveOp;
    using Kernel = cutlass::gemm::kernel::GemmUniversal<Shape<int, int, int, int>, Main, Epilogue>;
    using Gemm = cutlass::gemm::device::GemmUniversalAdapter<Kernel>;
    Operands<T> operands;
    auto stride_a = cutlass::make_cute_packed_stride(typename Kernel::StrideA{}, {M, K, 1});
    auto stride_b = cutlass::make_cute_packed_stride(typename Kernel::StrideB{}, {N, K, 1});
    auto stride_c = cutlass::make_cute_packed_stride(typename Kernel::StrideC{}, {M, N, 1});
    typename Gemm::Arguments arguments{cutlass::gemm::GemmUniversalMode::kGemm,
                                       {M, N, K, 1},
                                       {operands.a, stride_a, operands.b, stride_b},
                                       {{1.0f, 0.0f}, operands.c, stride_c, operands.c, stride_c}};
    Gemm gemm;
    void *workspace;
    OK(cudaMalloc(&workspace, Gemm::get_workspace_size(arguments) + 1));
    GOOD(gemm.initialize(arguments, workspace));
    for (int i = 0; i < 3; i++)
        GOOD(gemm.run());
    operands.check(name);
}
#endif

int main() {
#ifdef WITH_WGMMA
    multiply_hopper<cutlass::half_t>("wgmma");
#else
    multiply<float, Simt>("simt");
    multiply<cutlass::half_t, Tensor>("tensor");
#endif
    return 0;
}
