// Modules, libraries (the same thing here), kernels, launches. An image is kept as it is: a name is in it
// where its bytes are, and taken on trust where elements are compressed.

#include <elf.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sim.h"

struct function {
    struct handle handle;
    struct module *module;
    struct function *next;
    char name[];
};

struct module {
    struct handle handle;
    const char *image;
    uint64_t size;
    bool text; // is PTX
    void *owned;
    struct function *functions;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

// How well an element suits the device, as a driver chooses: a cubin of the same major version and the
// highest minor one, else PTX with the highest target; 0: not at all.
static unsigned suits(const struct fatbin_element *element) {
    int major, minor;
    sim_arch(&major, &minor);
    unsigned device = (unsigned)(10 * major + minor), arch = element->arch;
    bool same_major = arch / 10 == device / 10;
    if (arch > device || (element->flags & FATBIN_SUFFIX_A && arch != device) ||
        (element->flags & FATBIN_SUFFIX_F && !same_major))
        return 0;
    if (element->kind == FATBIN_CUBIN && same_major)
        return 1000 + arch;
    return element->kind == FATBIN_PTX ? arch : 0;
}

// The elements of a region, one after the other; NULL at the end, and where the region is malformed.
static const struct fatbin_element *next_element(const struct fatbin_region *region,
                                                 const struct fatbin_element *element) {
    const char *end = (const char *)region + region->header_size + region->size;
    const char *at = element ? (const char *)element + element->header_size + element->payload_size
                             : (const char *)region + region->header_size;
    const struct fatbin_element *next = (const void *)at;
    if (at >= end || (size_t)(end - at) < sizeof(*next))
        return NULL;
    bool fits = next->header_size >= sizeof(*next) && next->header_size <= (size_t)(end - at) &&
                next->payload_size <= (size_t)(end - at) - next->header_size;
    return fits && !(next->header_size % 8) && !(next->payload_size % 8) ? next : NULL;
}

static unsigned best_of(const struct fatbin_region *region) {
    unsigned best = 0;
    for (const struct fatbin_element *at = NULL; (at = next_element(region, at));)
        best = suits(at) > best ? suits(at) : best;
    return best;
}

// Whether the code that the device would take holds a name; that of compressed elements is taken on trust.
static bool holds(const struct module *module, const char *name) {
    const struct fatbin_region *region = (const void *)module->image;
    if (region->magic != FATBIN_MAGIC)
        return memmem(module->image, module->size, name, strlen(name));
    unsigned best = best_of(region);
    for (const struct fatbin_element *at = NULL; (at = next_element(region, at));)
        if (suits(at) == best && (at->flags & FATBIN_PACKED || memmem((const char *)at + at->header_size,
                                                                      at->payload_size, name, strlen(name))))
            return true;
    return false;
}

// Whether a cubin is for the device.
static bool is_for_device(const Elf64_Ehdr *head) {
    bool newer = head->e_ident[EI_OSABI] == 0x41;
    struct fatbin_element element = {.kind = FATBIN_CUBIN,
                                     .arch = (newer ? head->e_flags >> 8 : head->e_flags) & 0xff};
    return suits(&element);
}

// `room` is how many bytes there are, SIZE_MAX where the program hands over an address, as to the driver.
static CUresult take_image(struct module *module, const void *start, size_t room) {
    const struct fatbin_wrapper *wrapper = start;
    if (wrapper->magic == FATBIN_WRAPPER_MAGIC && room == SIZE_MAX) // what is in a file has no addresses
        start = wrapper->data;
    const struct fatbin_region *region = start;
    module->image = start;
    if (region->magic == FATBIN_MAGIC) {
        if (room < sizeof(*region) || region->header_size != sizeof(*region) ||
            region->size > room - sizeof(*region))
            return CUDA_ERROR_INVALID_IMAGE;
        module->size = region->header_size + region->size;
        if (!best_of(region))
            return CUDA_ERROR_NO_BINARY_FOR_GPU;
    } else if (!memcmp(start, ELFMAG, SELFMAG)) {
        const Elf64_Ehdr *head = start;
        if (head->e_machine != 190) // EM_CUDA
            return CUDA_ERROR_INVALID_IMAGE;
        if (!is_for_device(head))
            return CUDA_ERROR_NO_BINARY_FOR_GPU;
        uint64_t sections = head->e_shoff + (uint64_t)head->e_shnum * head->e_shentsize;
        uint64_t segments = head->e_phoff + (uint64_t)head->e_phnum * head->e_phentsize;
        module->size = sections > segments ? sections : segments;
        if (module->size > room)
            return CUDA_ERROR_INVALID_IMAGE;
    } else {
        module->text = true;
        module->size = strlen(start);
        if (!memmem(start, module->size, ".version", 8))
            return CUDA_ERROR_INVALID_IMAGE;
    }
    return CUDA_SUCCESS;
}

static CUresult load(void **handle, const void *image, size_t room, void *owned) {
    if (!handle || !image)
        return CUDA_ERROR_INVALID_VALUE;
    struct module *module = calloc(1, sizeof(*module));
    if (!module)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult status = take_image(module, image, room);
    if (status) {
        free(module);
        return status;
    }
    module->handle.kind = MODULE;
    module->owned = owned;
    *handle = module;
    return CUDA_SUCCESS;
}

static CUresult load_file(void **handle, const char *path) {
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat status;
    if (file < 0 || fstat(file, &status) || !S_ISREG(status.st_mode)) {
        if (file >= 0)
            close(file);
        return CUDA_ERROR_FILE_NOT_FOUND;
    }
    char *image = calloc(1, (size_t)status.st_size + 64);
    bool whole = image && read(file, image, (size_t)status.st_size) == status.st_size;
    close(file);
    CUresult result = whole ? load(handle, image, (size_t)status.st_size, image) : CUDA_ERROR_OUT_OF_MEMORY;
    if (result)
        free(image);
    return result;
}

static CUresult find(void **handle, struct module *module, const char *name) {
    if (!is_kind(module, MODULE))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!handle || !name || !*name)
        return CUDA_ERROR_INVALID_VALUE;
    if (!holds(module, name))
        return CUDA_ERROR_NOT_FOUND;
    pthread_mutex_lock(&lock);
    struct function *function = module->functions;
    while (function && strcmp(function->name, name))
        function = function->next;
    if (!function && (function = calloc(1, sizeof(*function) + strlen(name) + 1))) {
        function->handle.kind = FUNCTION;
        function->module = module;
        function->next = module->functions;
        strcpy(function->name, name);
        module->functions = function;
    }
    pthread_mutex_unlock(&lock);
    *handle = function;
    return function ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult unload(struct module *module) {
    if (!is_kind(module, MODULE))
        return CUDA_ERROR_INVALID_HANDLE;
    module->handle.kind = 0;
    for (struct function *function = module->functions, *next; function; function = next) {
        next = function->next;
        function->handle.kind = 0;
        free(function);
    }
    free(module->owned);
    free(module);
    return CUDA_SUCCESS;
}

API cuModuleLoadData(void **module, const void *image) { return load(module, image, SIZE_MAX, NULL); }

API cuModuleLoadDataEx(void **module, const void *image, unsigned count, int *options, void **values) {
    (void)count, (void)options, (void)values;
    return load(module, image, SIZE_MAX, NULL);
}

API cuModuleLoadFatBinary(void **module, const void *image) { return load(module, image, SIZE_MAX, NULL); }

API cuModuleLoad(void **module, const char *path) { return load_file(module, path); }

API cuModuleUnload(void *module) { return unload(module); }

API cuModuleGetFunction(void **function, void *module, const char *name) {
    return find(function, module, name);
}

API cuModuleGetLoadingMode(int *mode) {
    *mode = 2; // lazy
    return CUDA_SUCCESS;
}

API cuModuleGetGlobal_v2(CUdeviceptr *memory, size_t *size, void *module, const char *name) {
    (void)memory, (void)size, (void)name;
    return is_kind(module, MODULE) ? CUDA_ERROR_NOT_FOUND : CUDA_ERROR_INVALID_HANDLE;
}

API cuLibraryLoadData(void **library, const void *image, int *jit_options, void **jit_values,
                      unsigned jit_count, int *options, void **values, unsigned count) {
    (void)jit_options, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
    return load(library, image, SIZE_MAX, NULL);
}

API cuLibraryLoadFromFile(void **library, const char *path, int *jit_options, void **jit_values,
                          unsigned jit_count, int *options, void **values, unsigned count) {
    (void)jit_options, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
    return load_file(library, path);
}

API cuLibraryUnload(void *library) { return unload(library); }

API cuLibraryGetKernel(void **kernel, void *library, const char *name) { return find(kernel, library, name); }

API cuLibraryGetModule(void **module, void *library) {
    if (!is_kind(library, MODULE))
        return CUDA_ERROR_INVALID_HANDLE;
    *module = library;
    return CUDA_SUCCESS;
}

API cuLibraryGetGlobal(CUdeviceptr *memory, size_t *size, void *library, const char *name) {
    return cuModuleGetGlobal_v2(memory, size, library, name);
}

API cuLibraryGetManaged(CUdeviceptr *memory, size_t *size, void *library, const char *name) {
    return cuModuleGetGlobal_v2(memory, size, library, name);
}

// Those of PTX; other images have none.
API cuModuleGetFunctionCount(unsigned *count, void *handle) {
    struct module *module = handle;
    if (!is_kind(module, MODULE))
        return CUDA_ERROR_INVALID_HANDLE;
    *count = 0;
    for (const char *at = module->image; module->text && (at = strstr(at, ".entry ")); at++)
        ++*count;
    return CUDA_SUCCESS;
}

API cuModuleEnumerateFunctions(void **functions, unsigned count, void *handle) {
    struct module *module = handle;
    if (!is_kind(module, MODULE))
        return CUDA_ERROR_INVALID_HANDLE;
    const char *at = module->image;
    for (unsigned i = 0; module->text && i < count && (at = strstr(at, ".entry ")); i++) {
        char name[256] = "";
        at += strlen(".entry ");
        strncat(name, at, strcspn(at, "( \n") % sizeof(name));
        CUresult status = find(&functions[i], module, name);
        if (status)
            return status;
    }
    return CUDA_SUCCESS;
}

API cuKernelGetFunction(void **function, void *kernel) {
    if (!is_kind(kernel, FUNCTION))
        return CUDA_ERROR_INVALID_HANDLE;
    *function = kernel;
    return CUDA_SUCCESS;
}

API cuKernelGetLibrary(void **library, void *kernel) {
    if (!is_kind(kernel, FUNCTION))
        return CUDA_ERROR_INVALID_HANDLE;
    *library = ((struct function *)kernel)->module;
    return CUDA_SUCCESS;
}

API cuFuncGetModule(void **module, void *function) { return cuKernelGetLibrary(module, function); }

API cuFuncGetName(const char **name, void *function) {
    if (!is_kind(function, FUNCTION))
        return CUDA_ERROR_INVALID_HANDLE;
    *name = ((struct function *)function)->name;
    return CUDA_SUCCESS;
}

API cuKernelGetName(const char **name, void *kernel) { return cuFuncGetName(name, kernel); }

API cuFuncGetAttribute(int *value, int attribute, void *function) {
    if (!is_kind(function, FUNCTION))
        return CUDA_ERROR_INVALID_HANDLE;
    *value = attribute == 0 ? 1024 : 0; // threads a block at most
    return CUDA_SUCCESS;
}

API cuFuncSetAttribute(void *function, int attribute, int value) {
    (void)attribute, (void)value;
    return is_kind(function, FUNCTION) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

static CUresult launch(void *function, const unsigned grid[3], const unsigned block[3]) {
    if (!sim_context())
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!is_kind(function, FUNCTION))
        return CUDA_ERROR_INVALID_HANDLE;
    uint64_t threads = 1;
    for (int i = 0; i < 3; i++) {
        if (!grid[i] || !block[i] || block[i] > 1024)
            return CUDA_ERROR_INVALID_VALUE;
        threads *= block[i];
    }
    return threads > 1024 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

API cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                   unsigned bz, unsigned shared, void *stream, void **params, void **extra) {
    (void)shared, (void)stream, (void)params, (void)extra;
    return launch(function, (unsigned[]){gx, gy, gz}, (unsigned[]){bx, by, bz});
}

API cuLaunchCooperativeKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                              unsigned bz, unsigned shared, void *stream, void **params) {
    (void)shared, (void)stream, (void)params;
    return launch(function, (unsigned[]){gx, gy, gz}, (unsigned[]){bx, by, bz});
}

API cuLaunchKernelEx(const CUlaunchConfig *config, void *function, void **params, void **extra) {
    (void)params, (void)extra;
    if (!config)
        return CUDA_ERROR_INVALID_VALUE;
    return launch(function, (unsigned[]){config->gridDimX, config->gridDimY, config->gridDimZ},
                  (unsigned[]){config->blockDimX, config->blockDimY, config->blockDimZ});
}
