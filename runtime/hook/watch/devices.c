// The devices, in `device` records. What is asked of the driver here changes nothing that the program could
// see.

#include <stdatomic.h>
#include <stdio.h>

#include "cuda_abi.h"
#include "hook/write/write.h"
#include "watch.h"

#define WARP 32 // threads

typedef CUresult attribute_fn(int *value, int which, CUdevice device);

// What the driver says of a device, in `unit`s of what the record has; 0 is what it does not say.
static struct gpt_u64 ask(attribute_fn *attribute, int which, int device, uint64_t unit) {
    int value;
    bool known = !attribute(&value, which, device) && value > 0;
    return known ? GPT_U64((uint64_t)value * unit) : (struct gpt_u64){false, 0};
}

void hook_see_device(int device) {
    if (device < 0 || device >= MAX_DEVICES || !hook_this_thread() ||
        atomic_fetch_or(&hook_watched->devices, 1ull << device) >> device & 1)
        return;
    attribute_fn *attribute = hook_driver_function("cuDeviceGetAttribute");
    CUresult (*get_name)(char *, int, CUdevice) = hook_driver_function("cuDeviceGetName");
    CUresult (*get_uuid)(CUuuid *, CUdevice) = hook_driver_function("cuDeviceGetUuid_v2");
    int major, minor;
    if (!attribute || attribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device) ||
        attribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device))
        return;
    char name[256] = "", arch[32], text[64] = "";
    if (get_name && get_name(name, sizeof(name) - 1, device))
        name[0] = '\0';
    snprintf(arch, sizeof(arch), "sm_%d%d", major, minor);
    CUuuid uuid;
    if (get_uuid && !get_uuid(&uuid, device)) {
        int at = sprintf(text, "GPU");
        for (int i = 0; i < 16; i++)
            at += sprintf(text + at, "%s%02x", i == 0 || (i >= 4 && i <= 10 && i % 2 == 0) ? "-" : "",
                          (unsigned char)uuid.bytes[i]);
    }
    struct gpt_u64 warps = ask(attribute, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, device, 1);
    warps.value /= WARP;
    HOOK_WRITE(device, .index = (uint64_t)device, .name = hook_str(name), .arch = hook_str(arch),
               .uuid = hook_str(*text ? text : NULL),
               .runs = hook_str(hook_driver_is_simulated() ? "ptx" : "sass"),
               .sms = ask(attribute, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device, 1), .warps = warps,
               .blocks = ask(attribute, CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, device, 1),
               .clock_hz = ask(attribute, CU_DEVICE_ATTRIBUTE_CLOCK_RATE, device, 1000),
               .memory_hz = ask(attribute, CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, device, 1000),
               .bus_bits = ask(attribute, CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, device, 1));
}
