// Attributes of functions and kernels, and their caches. A kernel with probes that cannot have what the
// program's has is not launched: one whose shared memory is larger may have less dynamic memory, for example.

#include <string.h>

#include "driver_calls.h"
#include "hook/watch/watch.h"
#include "probe.h"

static bool set(uint64_t handle, bool is_kernel, const struct property *property) {
    CUdevice device = property->device;
    int value = (int)property->value;
    CUresult (*set_shared)(uint64_t, int);
    switch ((int)property->what) {
    case PROPERTY_ATTRIBUTE:
        return (is_kernel ? hook_do.set_kernel_attribute((int)property->number, value, handle, device)
                          : hook_do.set_attribute(handle, (int)property->number, value)) == CUDA_SUCCESS;
    case PROPERTY_CACHE_CONFIG: // what is preferred need not be
        is_kernel ? hook_do.set_kernel_cache(handle, value, device) : hook_do.set_cache(handle, value);
        break;
    case PROPERTY_SHARED_CONFIG:
        if ((set_shared = hook_driver_function("cuFuncSetSharedMemConfig")))
            set_shared(handle, value);
        break;
    }
    return true;
}

enum { MOST = 64 };

struct properties {
    struct property items[MOST];
    size_t count;
};

static void keep(const struct property *property, void *with) {
    struct properties *list = with;
    if (list->count < MOST && property->what <= PROPERTY_SHARED_CONFIG)
        list->items[list->count++] = *property;
}

// The last one was set first.
static bool copy(uint64_t from, uint64_t to, bool is_kernel) {
    struct properties list = {.count = 0};
    bool good = true;
    hook_object_each(from, keep, &list); // where the driver must not be called
    while (list.count--)
        good &= set(to, is_kernel, &list.items[list.count]);
    return good;
}

bool hook_copy_properties(const struct probed *probed, const struct bound *bound) {
    bool kernel = probed->is_library, good = copy(probed->handle, probed->probed, kernel);
    uint64_t function = kernel ? hook_kernel_function(probed->handle, bound->context) : 0;
    if (probed->plain)
        good &=
            copy(probed->handle, probed->plain, kernel) && (!function || copy(function, bound->plain, false));
    return good && (!function || copy(function, bound->function, false));
}

static void set_all(const struct probed *entry, const struct property *property) {
    bool kernel = entry->is_library;
    struct probed *first = hook_find_whole(entry->handle);
    if (!first || !hook_hold_probed(first))
        return;
    for (struct probed *at = first; at; at = atomic_load(&at->fewer)) {
        const struct bound *bound = entry->kernel ? hook_find_bound(at, entry->asked.context) : NULL;
        uint64_t handle = !entry->kernel ? at->probed : bound ? bound->function : 0;
        uint64_t plain = !entry->kernel ? at->plain : bound ? bound->plain : 0;
        if ((handle && !set(handle, kernel, property)) || (plain && !set(plain, kernel, property)))
            atomic_store(&at->unfit, UNFIT_PROPERTY);
    }
    hook_let_probed_go(first);
}

// cuFuncSetAttribute(function, attribute, value), cuKernelSetAttribute(attribute, value, kernel, device);
// cuFuncSetCacheConfig and cuFuncSetSharedMemConfig(function, config),
// cuKernelSetCacheConfig(kernel, config, device)
void hook_after_attribute(struct frame *frame) {
    const char *name = frame->slot->symbol;
    bool kernel = !strncmp(name, "cuKernel", strlen("cuKernel")), attribute = strstr(name, "SetAttribute");
    unsigned first = kernel && attribute ? 2 : 0; // the handle
    const uint64_t *a = frame->args;
    const struct probed *entry =
        hook_probing && (CUresult)frame->rax == CUDA_SUCCESS ? hook_find_probed(a[first]) : NULL;
    if (!entry)
        return;
    struct property property = {.what = attribute                   ? PROPERTY_ATTRIBUTE
                                        : strstr(name, "SharedMem") ? PROPERTY_SHARED_CONFIG
                                                                    : PROPERTY_CACHE_CONFIG,
                                .number = attribute ? (uint32_t)a[kernel ? 0 : 1] : 0,
                                .value = (uint32_t)a[attribute && !kernel ? 2 : 1],
                                .device = kernel ? (int)a[attribute ? 3 : 2] : -1};
    set_all(entry, &property);
}
