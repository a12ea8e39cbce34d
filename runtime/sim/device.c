// Initialization, and the devices that there are.

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "say.h"
#include "sim.h"

int sim_major, sim_minor;
uint64_t sim_delay, sim_memory;
unsigned sim_load_delay;
bool sim_strict;
bool sim_runs = true;
const char *sim_twins;
unsigned sim_timeout;

static void say(const char *begin, const char *format, va_list arguments) {
    char line[2048];
    size_t size = strlen(strcpy(line, begin));
    vsnprintf(line + size, sizeof(line) - size, format, arguments);
    gpt_write_line(line);
}

void sim_say(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    say("libcuda.so.1: error: ", format, arguments);
    va_end(arguments);
    va_start(arguments, format);
    vsnprintf(sim_said, sizeof(sim_said), format, arguments);
    va_end(arguments);
}

void sim_say_once(const char *format, ...) {
    static __thread char before[sizeof(sim_said)];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(sim_said, sizeof(sim_said), format, arguments);
    va_end(arguments);
    if (sim_runs && strcmp(before, sim_said))
        sim_say("%s", strcpy(before, sim_said));
}

void sim_warn(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    say("libcuda.so.1: warning: ", format, arguments);
    va_end(arguments);
}

// Tell gpt-hook what it's watching, and which code that needs; after cuInit().
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
