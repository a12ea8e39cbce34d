// Initialization, the device, errors.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "say.h"
#include "sim.h"

bool sim_initialized;
int sim_major, sim_minor;
uint64_t sim_delay;

// Tells gpt-hook whom it watches.
__attribute__((visibility("default"))) int gpt_sim_version(void) { return 1; }

// "9.0" or "sm_90".
static bool read_arch(const char *text) {
    int end = 0, both;
    if (sscanf(text, "%2d.%1d%n", &sim_major, &sim_minor, &end) == 2 && !text[end])
        return *text > '0' && *text <= '9';
    if (sscanf(text, "sm_%3d%n", &both, &end) != 1 || text[end] || text[3] <= '0' || text[3] > '9' ||
        both < 10)
        return false;
    sim_major = both / 10, sim_minor = both % 10;
    return true;
}

API cuInit(unsigned flags) {
    LOCKED;
    if (flags)
        return CUDA_ERROR_INVALID_VALUE;
    const char *arch = getenv("GPT_SIM_ARCH");
    if (!sim_initialized && !read_arch(arch && *arch ? arch : "9.0")) {
        static bool said;
        char line[256];
        snprintf(line, sizeof(line),
                 "libcuda.so.1: error: GPT_SIM_ARCH: not a compute capability: '%s' (examples: 9.0, sm_90)",
                 arch);
        if (!said)
            gpt_write_line(line);
        said = true;
        return CUDA_ERROR_NO_DEVICE;
    }
    const char *delay = getenv("GPT_SIM_DELAY");
    sim_delay = delay ? 1000 * strtoul(delay, NULL, 10) : 0;
    sim_initialized = true;
    return CUDA_SUCCESS;
}

API cuDriverGetVersion(int *version) {
    *version = 13000;
    return CUDA_SUCCESS;
}

API cuDeviceGetCount(int *count) {
    LOCKED;
    if (!sim_initialized)
        return CUDA_ERROR_NOT_INITIALIZED;
    *count = 1;
    return CUDA_SUCCESS;
}

API cuDeviceGet(CUdevice *device, int ordinal) {
    LOCKED;
    if (!sim_initialized)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (ordinal)
        return CUDA_ERROR_INVALID_DEVICE;
    *device = 0;
    return CUDA_SUCCESS;
}

API cuDeviceGetName(char *name, int size, CUdevice device) {
    if (device || size < 1)
        return device ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE;
    snprintf(name, (size_t)size, "GPT simulated device");
    return CUDA_SUCCESS;
}

API cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
    if (device)
        return CUDA_ERROR_INVALID_DEVICE;
    memcpy(uuid->bytes, "GPT simulated 0", 16);
    return CUDA_SUCCESS;
}

API cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    if (device)
        return CUDA_ERROR_INVALID_DEVICE;
    *bytes = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    return CUDA_SUCCESS;
}

// By CUdevice_attribute; those that are not here are 0: what they ask for is not there.
static const int attributes[200] = {
    [1] = 1024,       [2] = 1024,  [3] = 1024,    [4] = 64,          // threads a block; a block's dimensions
    [5] = 2147483647, [6] = 65535, [7] = 65535,                      // a grid's
    [8] = 49152,      [9] = 65536, [10] = 32,     [11] = 2147483647, // shared, constant, warp, pitch
    [12] = 65536,     [13] = 1000, [14] = 512,    [16] = 1,          // registers, kHz, alignment, processors
    [31] = 1,         [41] = 1,    [39] = 2048,   [81] = 233472,     // kernels at once, one address space
    [82] = 65536,     [83] = 1,    [97] = 232448,
};

int sim_attribute(int attribute) {
    if (attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)
        return sim_major;
    if (attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
        return sim_minor;
    return attribute > 0 && attribute < 200 ? attributes[attribute] : 0;
}

API cuDeviceGetAttribute(int *value, int attribute, CUdevice device) {
    LOCKED;
    if (!sim_initialized)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (device)
        return CUDA_ERROR_INVALID_DEVICE;
    *value = sim_attribute(attribute);
    return CUDA_SUCCESS;
}

#define ERROR(name, text) {CUDA_##name, "CUDA_" #name, text}

static const struct {
    CUresult status;
    const char *name, *text;
} errors[] = {
    ERROR(SUCCESS, "no error"),
    ERROR(ERROR_INVALID_VALUE, "invalid argument"),
    ERROR(ERROR_OUT_OF_MEMORY, "out of memory"),
    ERROR(ERROR_NOT_INITIALIZED, "initialization error"),
    ERROR(ERROR_NO_DEVICE, "no CUDA-capable device is detected"),
    ERROR(ERROR_INVALID_DEVICE, "invalid device ordinal"),
    ERROR(ERROR_INVALID_IMAGE, "device kernel image is invalid"),
    ERROR(ERROR_INVALID_CONTEXT, "invalid device context"),
    ERROR(ERROR_NO_BINARY_FOR_GPU, "no kernel image is available for execution on the device"),
    ERROR(ERROR_FILE_NOT_FOUND, "file not found"),
    ERROR(ERROR_INVALID_HANDLE, "invalid resource handle"),
    ERROR(ERROR_ILLEGAL_STATE, "the operation cannot be performed in the present state"),
    ERROR(ERROR_NOT_FOUND, "named symbol not found"),
    ERROR(ERROR_NOT_READY, "device not ready"),
    ERROR(ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"),
    ERROR(ERROR_CONTEXT_IS_DESTROYED, "context is destroyed"),
    ERROR(ERROR_HOST_MEMORY_ALREADY_REGISTERED,
          "part or all of the requested memory range is already mapped"),
    ERROR(ERROR_HOST_MEMORY_NOT_REGISTERED, "pointer does not correspond to a registered memory region"),
    ERROR(ERROR_NOT_PERMITTED, "operation not permitted"),
    ERROR(ERROR_NOT_SUPPORTED, "operation not supported"),
    ERROR(ERROR_STREAM_CAPTURE_UNSUPPORTED, "operation not permitted when stream is capturing"),
    ERROR(ERROR_STREAM_CAPTURE_INVALIDATED, "operation failed due to a previous error during capture"),
    ERROR(ERROR_STREAM_CAPTURE_MERGE, "operation would result in a merge of separate capture sequences"),
    ERROR(ERROR_STREAM_CAPTURE_UNMATCHED, "capture was not ended in the same stream as it began"),
    ERROR(ERROR_STREAM_CAPTURE_UNJOINED, "capturing stream has unjoined work"),
    ERROR(ERROR_STREAM_CAPTURE_ISOLATION, "dependency created on uncaptured work in another stream"),
    ERROR(ERROR_STREAM_CAPTURE_IMPLICIT,
          "operation would make the legacy stream depend on a capturing blocking stream"),
    ERROR(ERROR_CAPTURED_EVENT, "operation not permitted on an event last recorded in a capturing stream"),
    ERROR(ERROR_STREAM_CAPTURE_WRONG_THREAD,
          "attempt to terminate a thread-local capture sequence from another thread"),
    ERROR(ERROR_GRAPH_EXEC_UPDATE_FAILURE,
          "the graph update was not performed because it included changes which violated constraints "
          "specific to instantiated graph update"),
};

static int find_error(CUresult status) {
    for (size_t i = 0; i < sizeof(errors) / sizeof(*errors); i++)
        if (errors[i].status == status)
            return (int)i;
    return -1;
}

API cuGetErrorName(CUresult status, const char **name) {
    int i = find_error(status);
    *name = i < 0 ? NULL : errors[i].name;
    return i < 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

API cuGetErrorString(CUresult status, const char **text) {
    int i = find_error(status);
    *text = i < 0 ? NULL : errors[i].text;
    return i < 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
