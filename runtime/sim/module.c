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
    bool opaque; // has compressed parts
    bool text;   // is PTX
    void *owned;
    struct function *functions;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

#define ELEMENT_COMPRESSED (1u << 13 | 1u << 15) // LZ4, zstd

// The header of a fatbin's element, as far as it is used here.
struct element {
    uint16_t kind, version;
    uint32_t header_size;
    uint64_t payload_size;
    char unused[24];
    uint64_t flags;
};

static CUresult take_image(struct module *module, const void *start) {
    const struct fatbin_wrapper *wrapper = start;
    if (wrapper->magic == FATBIN_WRAPPER_MAGIC)
        start = wrapper->data;
    const struct fatbin_region *region = start;
    module->image = start;
    if (region->magic == FATBIN_MAGIC) {
        module->size = region->header_size + region->size;
        for (uint64_t at = region->header_size; at + sizeof(struct element) <= module->size;) {
            const struct element *element = (const void *)(module->image + at);
            if (element->header_size < sizeof(*element))
                return CUDA_ERROR_INVALID_IMAGE;
            module->opaque |= (element->flags & ELEMENT_COMPRESSED) != 0;
            at += element->header_size + element->payload_size;
        }
    } else if (!memcmp(start, ELFMAG, SELFMAG)) {
        const Elf64_Ehdr *head = start;
        if (head->e_machine != 190) // EM_CUDA
            return CUDA_ERROR_INVALID_IMAGE;
        uint64_t sections = head->e_shoff + (uint64_t)head->e_shnum * head->e_shentsize;
        uint64_t segments = head->e_phoff + (uint64_t)head->e_phnum * head->e_phentsize;
        module->size = sections > segments ? sections : segments;
    } else {
        module->text = true;
        module->size = strlen(start);
        if (!memmem(start, module->size, ".version", 8))
            return CUDA_ERROR_INVALID_IMAGE;
    }
    return CUDA_SUCCESS;
}

static CUresult load(void **handle, const void *image, void *owned) {
    if (!handle || !image)
        return CUDA_ERROR_INVALID_VALUE;
    struct module *module = calloc(1, sizeof(*module));
    if (!module)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult status = take_image(module, image);
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
    int file = open(path, O_RDONLY | O_CLOEXEC);
    struct stat status;
    if (file < 0 || fstat(file, &status)) {
        if (file >= 0)
            close(file);
        return CUDA_ERROR_FILE_NOT_FOUND;
    }
    char *image = calloc(1, (size_t)status.st_size + 64);
    bool whole = image && read(file, image, (size_t)status.st_size) == status.st_size;
    close(file);
    CUresult result = whole ? load(handle, image, image) : CUDA_ERROR_OUT_OF_MEMORY;
    if (result)
        free(image);
    return result;
}

static CUresult find(void **handle, struct module *module, const char *name) {
    if (!is_kind(module, MODULE))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!handle || !name || !*name)
        return CUDA_ERROR_INVALID_VALUE;
    if (!module->opaque && !memmem(module->image, module->size, name, strlen(name)))
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

API cuModuleLoadData(void **module, const void *image) { return load(module, image, NULL); }

API cuModuleLoadDataEx(void **module, const void *image, unsigned count, int *options, void **values) {
    (void)count, (void)options, (void)values;
    return load(module, image, NULL);
}

API cuModuleLoadFatBinary(void **module, const void *image) { return load(module, image, NULL); }

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
    return load(library, image, NULL);
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
