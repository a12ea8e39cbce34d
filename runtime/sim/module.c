// Modules and their functions, libraries and their kernels. Modules and functions belong to a context.
// Libraries and kernels don't: when a kernel is first used in a context, its library is loaded there as a
// module.

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sim.h"

_Static_assert(sizeof(struct library) <= OBJECT_SIZE && sizeof(struct function) <= OBJECT_SIZE, "fit");

static void end_code(struct object *object) { sim_release_code(((struct library *)object)->code); }

AT_END(LIBRARY, end_code)

static void end_module(struct object *object) {
    struct library *module = (struct library *)object;
    for (struct library **at = module->from ? &module->from->modules : NULL; at && *at; at = &(*at)->next)
        if (*at == module) {
            *at = module->next;
            break;
        }
    sim_free_all(object);
    sim_end_variables(&module->variables);
    end_code(object);
}

AT_END(MODULE, end_module)

static void end_function(struct object *object) {
    free(((struct function *)object)->name);
    free(((struct function *)object)->earlier);
}

AT_END(FUNCTION, end_function)
AT_END(KERNEL, end_function)

// Takes over the code.
static CUresult add(void **handle, enum kind kind, void *owner, struct code *code) {
    struct library *made = sim_new(kind, owner);
    if (!made) {
        sim_release_code(code);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    made->code = code;
    *handle = made;
    return CUDA_SUCCESS;
}

// Functions of a module, kernels of a library

static CUresult add_function(void **handle, struct library *owner, struct entry *entry, const char *name) {
    enum kind kind = owner->object.kind == MODULE ? FUNCTION : KERNEL;
    struct function *made = sim_new(kind, owner);
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    made->entry = entry;
    made->name = strdup(name);
    *handle = made;
    return CUDA_SUCCESS;
}

static CUresult find_function(void **handle, struct library *owner, const char *name) {
    if (!handle || !name || !*name)
        return CUDA_ERROR_INVALID_VALUE;
    for (struct object *at = owner->object.owned; at; at = at->older)
        if (!strcmp(((struct function *)at)->name, name)) {
            *handle = at;
            return CUDA_SUCCESS;
        }
    const struct code *code = owner->code;
    for (size_t i = 0; i < code->entry_count; i++)
        if (!strcmp(code->entries[i].name, name))
            return add_function(handle, owner, &code->entries[i], name);
    return code->packed ? add_function(handle, owner, NULL, name) : CUDA_ERROR_NOT_FOUND;
}

static CUresult enumerate(void **handles, unsigned count, struct library *owner) {
    CUresult status = handles || !count ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count && i < owner->code->entry_count && !status; i++)
        status = find_function(&handles[i], owner, owner->code->entries[i].name);
    return status;
}

// Return the module of a library in the context.
static CUresult module_of(void **module, struct context *context, struct library *library) {
    for (struct library *at = library->modules; at; at = at->next)
        if (at->object.owner == &context->object) {
            *module = at;
            return CUDA_SUCCESS;
        }
    library->code->references++;
    CUresult status = add(module, MODULE, context, library->code);
    if (!status) {
        struct library *made = *module;
        made->from = library;
        made->next = library->modules;
        library->modules = made;
    }
    return status;
}

static CUresult find_variable(CUdeviceptr *memory, size_t *size, struct library *module, const char *name) {
    const struct code *code = module->code;
    size_t i = 0;
    while (i < code->variable_count && strcmp(code->variables[i].name, name ? name : ""))
        i++;
    if (i == code->variable_count)
        return name ? CUDA_ERROR_NOT_FOUND : CUDA_ERROR_INVALID_VALUE;
    if (!memory && !size)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult status = sim_place_variables(&module->variables, code, module);
    if (status)
        return status;
    if (memory)
        *memory = module->variables.addresses[i];
    if (size)
        *size = code->variables[i].size;
    return CUDA_SUCCESS;
}

CUresult sim_module_in(struct library **module, struct context *context, const struct function *function) {
    *module = (struct library *)function->object.owner;
    return function->object.kind == FUNCTION ? CUDA_SUCCESS : module_of((void **)module, context, *module);
}

// Modules

static CUresult check_context(void) {
    IN_CONTEXT;
    return CUDA_SUCCESS;
}

// Read an image without the lock, because the dynamic linker has its own.
static CUresult load(struct code **code, const void *handle, const void *image, const char *path) {
    sim_close_objects();
    if (sim_load_delay)
        usleep(sim_load_delay);
    CUresult status = !handle ? CUDA_ERROR_INVALID_VALUE
                      : path  ? sim_read_file(code, path)
                              : sim_read_image(code, image, SIZE_MAX);
    if (status || !(status = sim_check_text(*code)))
        return status;
    LOCKED;
    sim_release_code(*code);
    return status;
}

static CUresult load_module(void **module, const void *image, const char *path) {
    struct code *code;
    CUresult status = check_context();
    if (!status)
        status = load(&code, module, image, path);
    if (status)
        return status;
    LOCKED;
    struct context *context;
    if (!(status = sim_enter(&context)))
        return add(module, MODULE, context, code);
    sim_release_code(code);
    return status;
}

// Load an image into a module. Only cuLibraryLoadData accepts a fatbin wrapper.
static CUresult load_data(void **module, const void *image) {
    const struct fatbin_wrapper *wrapper = image;
    return wrapper && wrapper->magic == FATBIN_WRAPPER_MAGIC ? CUDA_ERROR_INVALID_IMAGE
                                                             : load_module(module, image, NULL);
}

API cuModuleLoadData(void **module, const void *image) { return load_data(module, image); }

API cuModuleLoadDataEx(void **module, const void *image, unsigned count, int *options, void **values) {
    struct jit jit;
    CUresult status = sim_read_jit(&jit, count, options, values);
    return status ? status : sim_log_jit(&jit, load_data(module, image));
}

API cuModuleLoadFatBinary(void **module, const void *image) { return load_module(module, image, NULL); }

API cuModuleLoad(void **module, const char *path) {
    return path ? load_module(module, NULL, path) : CUDA_ERROR_INVALID_VALUE;
}

static CUresult unload_module(void *module) {
    IN_CONTEXT_UNCAPTURED;
    if (!is_kind(module, MODULE))
        return CUDA_ERROR_INVALID_HANDLE;
    if (((struct library *)module)->from)
        return CUDA_ERROR_NOT_PERMITTED; // it's unloaded with its library
    struct reference is = sim_refer(module);
    sim_drain(context, false); // its code may be running
    if (is_there(is))
        sim_delete(module);
    return CUDA_SUCCESS;
}

API cuModuleUnload(void *module) {
    CUresult status = unload_module(module);
    sim_close_objects();
    return status;
}

API cuModuleGetFunction(void **function, void *module, const char *name) {
    IN_CONTEXT;
    return is_kind(module, MODULE) ? find_function(function, module, name) : CUDA_ERROR_INVALID_HANDLE;
}

API cuModuleGetFunctionCount(unsigned *count, void *module) {
    LOCKED;
    if (!count || !is_kind(module, MODULE))
        return count ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
    *count = (unsigned)((struct library *)module)->code->entry_count;
    return CUDA_SUCCESS;
}

API cuModuleEnumerateFunctions(void **functions, unsigned count, void *module) {
    LOCKED;
    return is_kind(module, MODULE) ? enumerate(functions, count, module) : CUDA_ERROR_INVALID_HANDLE;
}

API cuModuleGetLoadingMode(int *mode) {
    if (!mode)
        return CUDA_ERROR_INVALID_VALUE;
    *mode = 2; // lazy
    return CUDA_SUCCESS;
}

API cuModuleGetGlobal_v2(CUdeviceptr *memory, size_t *size, void *module, const char *name) {
    IN_CONTEXT;
    return is_kind(module, MODULE) ? find_variable(memory, size, module, name) : CUDA_ERROR_INVALID_HANDLE;
}

// Libraries

static CUresult load_library(void **library, const void *image, const char *path) {
    struct code *code;
    CUresult status = load(&code, library, image, path);
    if (status)
        return status;
    LOCKED;
    return add(library, LIBRARY, NULL, code);
}

API cuLibraryLoadData(void **library, const void *image, int *jit_options, void **jit_values,
                      unsigned jit_count, int *options, void **values, unsigned count) {
    (void)options, (void)values, (void)count;
    struct jit jit;
    CUresult status = sim_read_jit(&jit, jit_count, jit_options, jit_values);
    return status ? status : sim_log_jit(&jit, load_library(library, image, NULL));
}

API cuLibraryLoadFromFile(void **library, const char *path, int *jit_options, void **jit_values,
                          unsigned jit_count, int *options, void **values, unsigned count) {
    (void)options, (void)values, (void)count;
    struct jit jit;
    CUresult status = sim_read_jit(&jit, jit_count, jit_options, jit_values);
    return status ? status
                  : sim_log_jit(&jit, path ? load_library(library, NULL, path) : CUDA_ERROR_INVALID_VALUE);
}

static CUresult unload_library(void *handle) {
    LOCKED;
    struct reference is = sim_refer(handle);
    if (is_kind(handle, LIBRARY))
        sim_drain(NULL, false); // a launch may load a module in its context only when it runs
    if (!is_there(is) || !is_kind(handle, LIBRARY))
        return CUDA_ERROR_INVALID_HANDLE;
    struct library *library = handle;
    while (library->modules)
        sim_delete(library->modules);
    sim_delete(library);
    return CUDA_SUCCESS;
}

API cuLibraryUnload(void *library) {
    CUresult status = unload_library(library);
    sim_close_objects();
    return status;
}

API cuLibraryGetKernel(void **kernel, void *library, const char *name) {
    LOCKED;
    return is_kind(library, LIBRARY) ? find_function(kernel, library, name) : CUDA_ERROR_INVALID_HANDLE;
}

API cuLibraryGetKernelCount(unsigned *count, void *library) {
    LOCKED;
    if (!count || !is_kind(library, LIBRARY))
        return count ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
    *count = (unsigned)((struct library *)library)->code->entry_count;
    return CUDA_SUCCESS;
}

API cuLibraryEnumerateKernels(void **kernels, unsigned count, void *library) {
    LOCKED;
    return is_kind(library, LIBRARY) ? enumerate(kernels, count, library) : CUDA_ERROR_INVALID_HANDLE;
}

API cuLibraryGetModule(void **module, void *library) {
    IN_CONTEXT;
    if (!module)
        return CUDA_ERROR_INVALID_VALUE;
    return is_kind(library, LIBRARY) ? module_of(module, context, library) : CUDA_ERROR_INVALID_HANDLE;
}

API cuLibraryGetGlobal(CUdeviceptr *memory, size_t *size, void *library, const char *name) {
    IN_CONTEXT;
    void *module;
    CUresult status =
        is_kind(library, LIBRARY) ? module_of(&module, context, library) : CUDA_ERROR_INVALID_HANDLE;
    return status ? status : find_variable(memory, size, module, name);
}

API cuLibraryGetManaged(CUdeviceptr *memory, size_t *size, void *library, const char *name) {
    return cuLibraryGetGlobal(memory, size, library, name);
}

// Kernels and functions

API cuKernelGetFunction(void **function, void *handle) {
    IN_CONTEXT;
    if (!is_kind(handle, KERNEL))
        return CUDA_ERROR_INVALID_HANDLE;
    struct function *kernel = handle;
    void *module;
    CUresult status = module_of(&module, context, (struct library *)kernel->object.owner);
    if (!status)
        status = find_function(function, module, kernel->name);
    if (!status)
        ((struct function *)*function)->kernel = sim_refer(kernel);
    return status;
}

API cuKernelGetLibrary(void **library, void *kernel) {
    LOCKED;
    if (!library || !is_kind(kernel, KERNEL))
        return library ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
    *library = ((struct object *)kernel)->owner;
    return CUDA_SUCCESS;
}

API cuFuncGetModule(void **module, void *function) {
    LOCKED;
    if (!module || !is_kind(function, FUNCTION))
        return module ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
    *module = ((struct object *)function)->owner;
    return CUDA_SUCCESS;
}
