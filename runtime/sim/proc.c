// Looking up functions: cuGetProcAddress, and cuGetExportTable, which always fails.

#include <string.h>

#include "say.h"
#include "sim.h"

enum { FOUND, SYMBOL_NOT_FOUND, VERSION_NOT_SUFFICIENT };

API cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status) {
    if (!name || !function || flags & ~(uint64_t)3)
        return CUDA_ERROR_INVALID_VALUE;
    const struct sim_function *best = NULL;
    int found = SYMBOL_NOT_FOUND;
    for (const struct sim_function *at = sim_functions; at->name; at++)
        if (!strcmp(at->name, name)) {
            if (at->since > version)
                found = best ? found : VERSION_NOT_SUFFICIENT;
            else if (!best || at->since >= best->since)
                best = at, found = FOUND;
        }
    bool own = best && best->per_thread && flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    *function = !best ? NULL : own ? best->per_thread : best->address;
    if (status)
        *status = found;
    // if there's a `status` argument, it carries the answer
    return best || status ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

API cuGetProcAddress(const char *name, void **function, int version, uint64_t flags) {
    return cuGetProcAddress_v2(name, function, version, flags, NULL);
}

// A program compiled for per-thread default streams calls this variant, and gets the per-thread variants of
// functions unless it asks for the others.
API cuGetProcAddress_v2_ptsz(const char *name, void **function, int version, uint64_t flags, int *status) {
    if (!(flags & CU_GET_PROC_ADDRESS_LEGACY_STREAM))
        flags |= CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    return cuGetProcAddress_v2(name, function, version, flags, status);
}

// NVIDIA's CUDA runtime asks for tables of functions that no header describes. It uses some of them to check
// that the driver is NVIDIA's (cudaErrorSoftwareValidityNotEstablished), so this driver has none.
API cuGetExportTable(const void **table, const CUuuid *id) {
    static const unsigned char runtime[] = {0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a};
    static bool warned;
    if (!table || !id)
        return CUDA_ERROR_INVALID_VALUE;
    *table = NULL;
    if (!memcmp(id->bytes, runtime, sizeof(runtime)) && !__atomic_exchange_n(&warned, true, __ATOMIC_RELAXED))
        gpt_write_line("libcuda.so.1: error: cuGetExportTable: NVIDIA's CUDA runtime needs NVIDIA's "
                       "driver: link the program with 'nvcc -cudart shared', see gpt-sim(7)");
    return CUDA_ERROR_NOT_SUPPORTED;
}
