// The images, kernels and variables that nvcc's host code registers before main. An image is loaded when one
// of its kernels or variables is first used. We load it as a library (cuLibraryLoadData), because a library
// can be used in all contexts.

#include <pthread.h>
#include <search.h>
#include <stdlib.h>

#include "cudart.h"

struct wrapper { // nvcc's, in fatbinary_section.h
    int magic, version;
    const void *data;
    void *more;
};

struct image {
    struct image *next;
    const struct wrapper *wrapper;
    struct named *first; // functions and variables registered with it
    void *library;
    int status;
    bool loaded;
};

struct named {
    const void *symbol; // the key: an address in the program, or a kernel handle that the program got
    struct image *image;
    struct named *next; // in the same image
    const char *name;
    void **managed; // where the program keeps the address of a managed variable
    size_t size;
    void *kernel;
    bool is_kernel;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct image *images;
static void *symbols; // a tree of struct named (tsearch)

static int compare(const void *a, const void *b) {
    uintptr_t left = (uintptr_t)((const struct named *)a)->symbol,
              right = (uintptr_t)((const struct named *)b)->symbol;
    return (left > right) - (left < right);
}

static struct named *find(const void *symbol) {
    struct named key = {.symbol = symbol}, **found = tfind(&key, &symbols, compare);
    return found ? *found : NULL;
}

static void add(struct named named) {
    struct named *copy = malloc(sizeof(*copy));
    if (!copy)
        abort();
    *copy = named;
    pthread_mutex_lock(&lock);
    struct named *before = find(named.symbol);
    if (before) { // left by a library that was unloaded without unregistering it
        tdelete(before, &symbols, compare);
        before->symbol = NULL;
    }
    tsearch(copy, &symbols, compare);
    if (named.image) {
        copy->next = named.image->first;
        named.image->first = copy;
    }
    pthread_mutex_unlock(&lock);
}

__attribute__((visibility("default"))) void **__cudaRegisterFatBinary(void *wrapper) {
    struct image *image = calloc(1, sizeof(*image));
    if (!image)
        abort();
    image->wrapper = wrapper;
    pthread_mutex_lock(&lock);
    image->next = images;
    images = image;
    pthread_mutex_unlock(&lock);
    return (void **)image;
}

__attribute__((visibility("default"))) void __cudaRegisterFatBinaryEnd(void **image) { (void)image; }

__attribute__((visibility("default"))) void
__cudaRegisterFunction(void **image, const char *function, char *device_function, const char *name, int most,
                       void *thread, void *block, void *block_size, void *grid_size, int *warp_size) {
    (void)device_function, (void)most, (void)thread, (void)block, (void)block_size, (void)grid_size,
        (void)warp_size;
    add((struct named){.symbol = function, .image = (struct image *)image, .name = name, .is_kernel = true});
}

__attribute__((visibility("default"))) void __cudaRegisterVar(void **image, char *variable,
                                                              char *device_address, const char *name,
                                                              int external, size_t size, int constant,
                                                              int global) {
    (void)device_address, (void)external, (void)constant, (void)global;
    add((struct named){.symbol = variable, .image = (struct image *)image, .name = name, .size = size});
}

__attribute__((visibility("default"))) void __cudaRegisterManagedVar(void **image, void **variable,
                                                                     char *device_address, const char *name,
                                                                     int external, size_t size, int constant,
                                                                     int global) {
    (void)device_address, (void)external, (void)constant, (void)global;
    add((struct named){
        .symbol = variable, .image = (struct image *)image, .name = name, .managed = variable, .size = size});
}

static int get_managed(const struct named *named, void **address, size_t *size) {
    return DRIVER(cuLibraryGetManaged, (void **, size_t *, void *, const char *), address, size,
                  named->image->library, named->name);
}

static void find_managed(struct image *image) {
    for (struct named *named = image->first; named && !image->status; named = named->next)
        if (named->managed)
            get_managed(named, named->managed, &(size_t){0});
}

// Under the lock.
static int load(struct image *image) {
    if (image->loaded)
        return image->status;
    image->loaded = true;
    image->status =
        DRIVER(cuLibraryLoadData, (void **, const void *, void *, void *, unsigned, void *, void *, unsigned),
               &image->library, image->wrapper, NULL, NULL, 0, NULL, NULL, 0);
    find_managed(image);
    return image->status;
}

// Look up all managed variables again, because their addresses have changed with a new context.
static void find_all_managed(void) {
    pthread_mutex_lock(&lock);
    for (struct image *image = images; image; image = image->next)
        if (image->loaded)
            find_managed(image);
    pthread_mutex_unlock(&lock);
}

__attribute__((constructor)) static void setup(void) { cudart_after_reset = find_all_managed; }

// nvcc's code calls this before the program first accesses a managed variable, which needs no call into the
// runtime.
__attribute__((visibility("default"))) char __cudaInitModule(void **handle) {
    int status = cudart_begin();
    if (status)
        return !cudart_end(status);
    pthread_mutex_lock(&lock);
    status = load((struct image *)handle);
    pthread_mutex_unlock(&lock);
    return !cudart_end(status);
}

__attribute__((visibility("default"))) void __cudaUnregisterFatBinary(void **handle) {
    struct image *image = (struct image *)handle, **link = &images;
    if (cudart_is_forked()) // and ends
        return;
    pthread_mutex_lock(&lock);
    while (*link && *link != image)
        link = &(*link)->next;
    if (*link) {
        *link = image->next;
        for (struct named *named = image->first, *next; named; named = next) {
            next = named->next;
            if (named->symbol)
                tdelete(named, &symbols, compare);
            free(named);
        }
        if (image->library)
            DRIVER(cuLibraryUnload, (void *), image->library);
        free(image);
    }
    pthread_mutex_unlock(&lock);
}

int cudart_kernel(const void *function, void **kernel) {
    int status = cudaErrorInvalidResourceHandle;
    pthread_mutex_lock(&lock);
    struct named *named = find(function);
    if (named && named->is_kernel) {
        status = named->kernel ? cudaSuccess : load(named->image);
        if (!status && !named->kernel &&
            DRIVER(cuLibraryGetKernel, (void **, void *, const char *), &named->kernel, named->image->library,
                   named->name))
            status = cudaErrorInvalidResourceHandle;
        *kernel = named->kernel;
    }
    pthread_mutex_unlock(&lock);
    return status;
}

const void *cudart_symbol(void *kernel) {
    const void *symbol = NULL;
    pthread_mutex_lock(&lock);
    for (struct image *image = images; !symbol && image; image = image->next)
        for (struct named *named = image->first; !symbol && named; named = named->next)
            symbol = named->kernel == kernel ? named->symbol : NULL;
    pthread_mutex_unlock(&lock);
    return symbol ? symbol : kernel;
}

int cudart_give_kernel(void *kernel) {
    pthread_mutex_lock(&lock);
    struct named *known = find(kernel);
    pthread_mutex_unlock(&lock);
    if (!known)
        add((struct named){.symbol = kernel, .kernel = kernel, .is_kernel = true});
    return cudaSuccess;
}

// nvcc's code names a managed variable by its address.
static struct named *find_variable(const void *symbol) {
    struct named *named = find(symbol);
    for (struct image *image = images; !named && image; image = image->next)
        for (named = image->first; named && !(named->managed && *named->managed == symbol);)
            named = named->next;
    return named;
}

int cudart_variable(const void *symbol, uint64_t *address, size_t *size) {
    int status = cudaErrorInvalidSymbol;
    pthread_mutex_lock(&lock);
    struct named *named = find_variable(symbol);
    if (named && !named->is_kernel && !(status = load(named->image))) {
        uint64_t at = 0;
        size_t bytes = 0;
        status = named->managed ? get_managed(named, (void **)&at, &bytes)
                                : DRIVER(cuLibraryGetGlobal, (uint64_t *, size_t *, void *, const char *),
                                         &at, &bytes, named->image->library, named->name);
        *address = at;
        *size = named->size ? named->size : bytes;
        if (status)
            status = cudaErrorInvalidSymbol;
    }
    pthread_mutex_unlock(&lock);
    return status;
}

static int kernel_of(void **kernel, const void *function) {
    int status = kernel ? cudart_kernel(function, kernel) : cudaErrorInvalidValue;
    return status ? status : cudart_give_kernel(*kernel);
}

DEFINE(__cudaGetKernel, (void **kernel, const void *function), kernel_of(kernel, function))
DEFINE(cudaGetKernel, (void **kernel, const void *function), kernel_of(kernel, function))

static int address_of(uint64_t *address, const void *symbol) {
    size_t size;
    return address ? cudart_variable(symbol, address, &size) : cudaErrorInvalidValue;
}

static int size_of(size_t *size, const void *symbol) {
    uint64_t address;
    return size ? cudart_variable(symbol, &address, size) : cudaErrorInvalidValue;
}

DEFINE(cudaGetSymbolAddress, (uint64_t *address, const void *symbol), address_of(address, symbol))
DEFINE(cudaGetSymbolSize, (size_t *size, const void *symbol), size_of(size, symbol))

// Libraries that the program loads itself

DEFINE(cudaLibraryLoadData,
       (void **library, const void *code, void *jit_options, void **jit_values, unsigned jit_count,
        void *options, void **values, unsigned count),
       DRIVER(cuLibraryLoadData,
              (void **, const void *, void *, void **, unsigned, void *, void **, unsigned), library, code,
              jit_options, jit_values, jit_count, options, values, count))
DEFINE(cudaLibraryLoadFromFile,
       (void **library, const char *path, void *jit_options, void **jit_values, unsigned jit_count,
        void *options, void **values, unsigned count),
       DRIVER(cuLibraryLoadFromFile,
              (void **, const char *, void *, void **, unsigned, void *, void **, unsigned), library, path,
              jit_options, jit_values, jit_count, options, values, count))
DEFINE(cudaLibraryUnload, (void *library), DRIVER(cuLibraryUnload, (void *), library))
DEFINE(cudaLibraryGetGlobal, (uint64_t *address, size_t *size, void *library, const char *name),
       DRIVER(cuLibraryGetGlobal, (uint64_t *, size_t *, void *, const char *), address, size, library, name))
DEFINE(cudaLibraryGetManaged, (uint64_t *address, size_t *size, void *library, const char *name),
       DRIVER(cuLibraryGetManaged, (uint64_t *, size_t *, void *, const char *), address, size, library,
              name))
DEFINE(cudaLibraryGetKernelCount, (unsigned *count, void *library),
       DRIVER(cuLibraryGetKernelCount, (unsigned *, void *), count, library))

static int get_kernel(void **kernel, void *library, const char *name) {
    int status = DRIVER(cuLibraryGetKernel, (void **, void *, const char *), kernel, library, name);
    return status ? status : cudart_give_kernel(*kernel);
}

static int enumerate(void **kernels, unsigned count, void *library) {
    unsigned there = 0;
    int status = DRIVER(cuLibraryGetKernelCount, (unsigned *, void *), &there, library);
    if (!status)
        status = DRIVER(cuLibraryEnumerateKernels, (void **, unsigned, void *), kernels, count, library);
    for (unsigned i = 0; !status && i < count && i < there; i++)
        cudart_give_kernel(kernels[i]);
    return status;
}

DEFINE(cudaLibraryGetKernel, (void **kernel, void *library, const char *name),
       get_kernel(kernel, library, name))
DEFINE(cudaLibraryEnumerateKernels, (void **kernels, unsigned count, void *library),
       enumerate(kernels, count, library))
