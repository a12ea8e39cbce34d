// Loads the driver, and implements functions for devices and errors. Each thread has a current device, whose
// primary context is used.

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

#include "cudart.h"

static __thread struct {
    int device, error;
    unsigned ready; // the number of resets when its context was last made current; 0: never
} thread;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned resets = 1;
void (*cudart_after_reset)(void);

static void *library;
static int loaded;

// A page whose first byte is set once the driver is initialized. The kernel clears the page in a forked
// child, which may not use the driver.
enum { PAGE = 4096 };
static __attribute__((aligned(PAGE))) char ready[PAGE];

static void load(void) {
    library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    int (*init)(unsigned) = library ? (int (*)(unsigned))dlsym(library, "cuInit") : NULL;
    loaded = init ? init(0) : cudaErrorInsufficientDriver;
    madvise(ready, PAGE, MADV_WIPEONFORK);
    *ready = 1;
}

// Return 0, or the error that every call returns without a driver or in a forked child.
static int need_driver(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load);
    return *ready ? loaded : cudaErrorInitializationError;
}

// In a forked child, other threads of the parent may have left any lock held for ever.
bool cudart_is_forked(void) { return library && !*ready; }

void *cudart_driver(const char *name, void **found) {
    void *function = __atomic_load_n(found, __ATOMIC_RELAXED);
    if (!function && library) {
        function = dlsym(library, name);
        __atomic_store_n(found, function, __ATOMIC_RELAXED);
    }
    return function;
}

int cudart_device(void) { return thread.device; }

int cudart_context(void **context) { return DRIVER(cuCtxGetCurrent, (void **), context); }

int cudart_begin(void) {
    int status = need_driver();
    if (status || thread.ready == __atomic_load_n(&resets, __ATOMIC_ACQUIRE))
        return status;
    pthread_mutex_lock(&lock);
    void *context = NULL;
    unsigned now = resets;
    if (thread.ready || cudart_context(&context) || !context) { // use the program's own context
        status = DRIVER(cuDevicePrimaryCtxRetain, (void **, int), &context, thread.device);
        if (!status)
            status = DRIVER(cuCtxSetCurrent, (void *), context);
    } else
        DRIVER(cuCtxGetDevice, (int *), &thread.device);
    if (!status)
        thread.ready = now;
    pthread_mutex_unlock(&lock);
    if (!status && now > 1 && cudart_after_reset)
        cudart_after_reset();
    return status;
}

int cudart_end(int status) {
    if (status && status != cudaErrorNotReady)
        thread.error = status;
    return status;
}

// Return whether later calls return this error too, because it has broken the context.
static bool is_sticky(int error) {
    return error == 214 || error == 700 || error == 702 || error == 710 || (error >= 714 && error <= 719);
}

int cudart_last_error(void) { return thread.error; }

API cudaPeekAtLastError(void) { return thread.error; }

API cudaGetLastError(void) {
    int error = thread.error;
    if (!is_sticky(error))
        thread.error = cudaSuccess;
    return error;
}

static const struct {
    int value;
    const char *name, *text; // NULL: the driver has one
} errors[] = {
#define X(value, name, text) {value, #name, text},
#include "errors.h"
#undef X
};

__attribute__((visibility("default"))) const char *cudaGetErrorName(int error) {
    for (size_t i = 0; i < sizeof(errors) / sizeof(*errors); i++)
        if (errors[i].value == error)
            return errors[i].name;
    return "unrecognized error code";
}

__attribute__((visibility("default"))) const char *cudaGetErrorString(int error) {
    const char *text = NULL;
    for (size_t i = 0; i < sizeof(errors) / sizeof(*errors); i++)
        if (errors[i].value == error)
            text = errors[i].text ? errors[i].text : errors[i].name;
    if (text && error && !need_driver()) {
        const char *driver = NULL;
        if (error >= 100 && !DRIVER(cuGetErrorString, (int, const char **), error, &driver) && driver)
            text = driver;
    }
    return text ? text : "unrecognized error code";
}

// Devices

API cudaGetDeviceCount(int *count) {
    if (!count)
        return cudart_end(cudaErrorInvalidValue);
    int status = need_driver();
    *count = 0;
    return cudart_end(status ? status : DRIVER(cuDeviceGetCount, (int *), count));
}

API cudaGetDevice(int *device) {
    if (!device)
        return cudart_end(cudaErrorInvalidValue);
    *device = thread.device;
    return cudart_end(need_driver());
}

API cudaSetDevice(int device) {
    int count, status = cudaGetDeviceCount(&count);
    if (!status && (device < 0 || device >= count))
        status = cudaErrorInvalidDevice;
    if (!status) {
        thread.ready = device == thread.device ? thread.ready : 0;
        thread.device = device;
        void *context = NULL;
        if (!thread.ready) // whichever context is current
            status = DRIVER(cuCtxSetCurrent, (void *), context);
    }
    return cudart_end(status ? status : cudart_begin());
}

API cudaInitDevice(int device, unsigned flags, unsigned options) {
    (void)flags, (void)options;
    int count, status = cudaGetDeviceCount(&count);
    return cudart_end(status ? status : device < 0 || device >= count ? cudaErrorInvalidDevice : cudaSuccess);
}

API cudaSetValidDevices(int *devices, int count) {
    return cudart_end(count < 0 || (count && !devices) ? cudaErrorInvalidValue : cudaSuccess);
}

API cudaChooseDevice(int *device, const void *properties) {
    if (!device || !properties)
        return cudart_end(cudaErrorInvalidValue);
    return cudaGetDevice(device);
}

API cudaDeviceReset(void) {
    int status = need_driver();
    if (status)
        return cudart_end(status);
    pthread_mutex_lock(&lock);
    if (!(status = DRIVER(cuDevicePrimaryCtxReset_v2, (int), thread.device))) {
        __atomic_add_fetch(&resets, 1, __ATOMIC_RELEASE);
        thread.error = cudaSuccess;
    }
    pthread_mutex_unlock(&lock);
    return cudart_end(status);
}

API cudaDriverGetVersion(int *version) {
    if (!version)
        return cudart_end(cudaErrorInvalidValue);
    *version = 0;
    need_driver();
    return library ? cudart_end(DRIVER(cuDriverGetVersion, (int *), version)) : cudaSuccess;
}

API cudaRuntimeGetVersion(int *version) {
    if (!version)
        return cudart_end(cudaErrorInvalidValue);
    *version = 13000;
    return cudaSuccess;
}

API cudaSetDeviceFlags(unsigned flags) {
    int status = need_driver();
    return cudart_end(status ? status
                             : DRIVER(cuDevicePrimaryCtxSetFlags_v2, (int, unsigned), thread.device, flags));
}

// Functions that name a device need no context.

#define OF_DEVICE(name, driver, parameters, ...)                                                             \
    API name parameters {                                                                                    \
        int status = need_driver();                                                                          \
        return cudart_end(status ? status : DRIVER(driver, parameters, __VA_ARGS__));                        \
    }

OF_DEVICE(cudaDeviceGetAttribute, cuDeviceGetAttribute, (int *value, int attribute, int device), value,
          attribute, device)
OF_DEVICE(cudaDeviceCanAccessPeer, cuDeviceCanAccessPeer, (int *can, int device, int peer), can, device, peer)
OF_DEVICE(cudaDeviceGetByPCIBusId, cuDeviceGetByPCIBusId, (int *device, const char *id), device, id)
OF_DEVICE(cudaDeviceGetPCIBusId, cuDeviceGetPCIBusId, (char *id, int size, int device), id, size, device)
OF_DEVICE(cudaDeviceGetDefaultMemPool, cuDeviceGetDefaultMemPool, (void **pool, int device), pool, device)
OF_DEVICE(cudaDeviceGetMemPool, cuDeviceGetMemPool, (void **pool, int device), pool, device)
OF_DEVICE(cudaDeviceSetMemPool, cuDeviceSetMemPool, (int device, void *pool), device, pool)
OF_DEVICE(cudaDeviceGetP2PAttribute, cuDeviceGetP2PAttribute,
          (int *value, int attribute, int device, int peer), value, attribute, device, peer)
OF_DEVICE(cudaDeviceGraphMemTrim, cuDeviceGraphMemTrim, (int device), device)
OF_DEVICE(cudaDeviceGetGraphMemAttribute, cuDeviceGetGraphMemAttribute,
          (int device, int attribute, void *value), device, attribute, value)
OF_DEVICE(cudaDeviceSetGraphMemAttribute, cuDeviceSetGraphMemAttribute,
          (int device, int attribute, void *value), device, attribute, value)

// struct cudaDeviceProp, filled from the driver's attributes.

struct properties {
#define X(type, name, count, attribute) type name[count];
#include "properties.h"
#undef X
};

static const struct {
    unsigned short offset, size, count, attribute;
} members[] = {
#define X(type, name, count, attribute) {offsetof(struct properties, name), sizeof(type), count, attribute},
#include "properties.h"
#undef X
};

API cudaGetDeviceProperties(struct properties *found, int device) {
    int status = need_driver();
    if (status || !found)
        return cudart_end(status ? status : cudaErrorInvalidValue);
    memset(found, 0, sizeof(*found));
    status = DRIVER(cuDeviceGetName, (char *, int, int), found->name, sizeof(found->name), device);
    if (!status)
        status = DRIVER(cuDeviceTotalMem_v2, (size_t *, int), found->totalGlobalMem, device);
    if (!status)
        status = DRIVER(cuDeviceGetUuid_v2, (char *, int), found->uuid, device);
    for (size_t i = 0; !status && i < sizeof(members) / sizeof(*members); i++)
        for (int k = 0; members[i].attribute && k < members[i].count; k++) {
            int value = 0;
            DRIVER(cuDeviceGetAttribute, (int *, int, int), &value, members[i].attribute + k, device);
            char *member = (char *)found + members[i].offset + (size_t)k * members[i].size;
            if (members[i].size == sizeof(int))
                memcpy(member, &value, sizeof(int));
            else
                memcpy(member, &(size_t){(size_t)value}, sizeof(size_t));
        }
    return cudart_end(status);
}
