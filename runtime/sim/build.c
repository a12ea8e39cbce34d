// Host code of kernels that an image holds as PTX.

#include "sim.h"

CUresult sim_make_kernel(struct code *code, struct entry *entry) {
    (void)code;
    return entry->state == MADE ? CUDA_SUCCESS : CUDA_ERROR_NO_BINARY_FOR_GPU;
}
