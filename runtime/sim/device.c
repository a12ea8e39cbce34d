// Initialization, and the list of devices.

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "sim.h"

// Tell gpt-hook that it watches the simulated device, and which kind of code that runs. Valid after cuInit().
__attribute__((visibility("default"))) const char *gpt_sim_runs(void) { return sim_twins ? "sass" : "ptx"; }

API cuInit(unsigned flags) {
    static bool done;
    if (__atomic_load_n(&done, __ATOMIC_ACQUIRE) &&
        !*sim_ready) // a forked child, where others may hold the lock
        return CUDA_ERROR_NOT_INITIALIZED;
    LOCKED;
    if (flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sim_read_environment())
        return CUDA_ERROR_NO_DEVICE;
    if (!*sim_ready)
        madvise(sim_ready, SIM_PAGE, MADV_WIPEONFORK);
    *sim_ready = 1;
    __atomic_store_n(&done, true, __ATOMIC_RELEASE);
    return CUDA_SUCCESS;
}

API cuDriverGetVersion(int *version) {
    if (!version)
        return CUDA_ERROR_INVALID_VALUE;
    *version = 13000;
    return CUDA_SUCCESS;
}

API cuDeviceGetCount(int *count) {
    if (!count)
        return CUDA_ERROR_INVALID_VALUE;
    *count = 1;
    return CUDA_SUCCESS;
}

API cuDeviceGet(CUdevice *device, int ordinal) {
    if (!device || ordinal)
        return device ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE;
    *device = 0;
    return CUDA_SUCCESS;
}

API cuDeviceGetName(char *name, int size, CUdevice device) {
    if (device || !name || size < 1)
        return device ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE;
    snprintf(name, (size_t)size, "GPT simulated device");
    return CUDA_SUCCESS;
}

API cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
    if (device || !uuid)
        return device ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE;
    memcpy(uuid->bytes, "GPT simulated 0", 16);
    return CUDA_SUCCESS;
}

API cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    if (device || !bytes)
        return device ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE;
    *bytes = sim_total_memory();
    return CUDA_SUCCESS;
}
