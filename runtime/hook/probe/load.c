// A kernel with probes is a module of its own, that works on the variables of the program's.
//
// A function of a module is loaded into the module's context, a kernel of a library as a library, which has
// no context. Loading may wait for kernels that run, so it is done where the program itself looks up, loads
// or waits. Our own calls are made in relaxed capture mode: they break no capture of the program's.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver_calls.h"
#include "hook/watch/contexts.h"
#include "hook/watch/driver.h"
#include "load.h"
#include "pool.h"
#include "settings.h"

void hook_refuse(const struct looked_up *function, const char *reason) {
    struct probed *probed = calloc(1, sizeof(*probed));
    if (!probed)
        return;
    *probed = (struct probed){.handle = function->handle,
                              .reference = function->reference,
                              .function = function->function,
                              .module = function->module,
                              .refused = reason};
    if (!hook_add_probed(probed))
        free(probed);
}

enum { MOST_PROPERTIES = 64 };

struct properties {
    struct property items[MOST_PROPERTIES];
    size_t count;
};

static void keep_property(const struct property *property, void *with) {
    struct properties *list = with;
    if (list->count < MOST_PROPERTIES)
        list->items[list->count++] = *property;
}

void hook_set_property(const struct probed *probed, bool is_kernel, const struct property *property) {
    CUdevice device = property->device;
    if (property->what == PROPERTY_ATTRIBUTE)
        is_kernel ? hook_do.set_kernel_attribute((int)property->number, (int)property->value, probed->probed,
                                                 device)
                  : hook_do.set_attribute(probed->probed, (int)property->number, (int)property->value);
    else if (property->what == PROPERTY_CACHE_CONFIG)
        is_kernel ? hook_do.set_kernel_cache(probed->probed, (int)property->value, device)
                  : hook_do.set_cache(probed->probed, (int)property->value);
}

// What the program set of its function is set of this one.
static void copy_properties(const struct looked_up *function, const struct probed *probed) {
    struct properties list = {.count = 0};
    hook_object_each(function->handle, keep_property, &list); // where the driver must not be called
    for (size_t i = 0; i < list.count; i++)
        hook_set_property(probed, function->is_kernel, &list.items[i]);
}

// Variables

static bool find_variable(bool is_kernel, uint64_t module, const char *name, CUdeviceptr *address,
                          size_t *size) {
    return (is_kernel ? hook_do.get_library_variable(address, size, module, name)
                      : hook_do.get_variable(address, size, module, name)) == CUDA_SUCCESS;
}

struct flag {
    struct flag *next;
    uint64_t module;
    struct reference reference;
    _Atomic bool taken;
    char name[];
};

static _Atomic(struct flag *) flags;

struct wanted {
    const char *name;
    bool found;
};

static void see_variable(const struct property *property, void *with) {
    struct wanted *wanted = with;
    wanted->found |=
        property->what == PROPERTY_VARIABLE && property->name && !strcmp(property->name, wanted->name);
}

static struct flag *find_flag(uint64_t module, const char *name) {
    struct flag *flag = atomic_load(&flags);
    while (flag && (flag->module != module || strcmp(flag->name, name) || !hook_is_alive(flag->reference)))
        flag = flag->next;
    return flag;
}

_Atomic bool *hook_taken_flag(uint64_t module, const char *name) {
    struct flag *flag = find_flag(module, name);
    struct wanted wanted = {name, false};
    if (flag)
        return &flag->taken;
    if (!(flag = calloc(1, sizeof(*flag) + strlen(name) + 1)))
        return NULL;
    flag->module = module;
    flag->reference = hook_object_find(module);
    strcpy(flag->name, name);
    flag->next = atomic_load(&flags);
    while (!atomic_compare_exchange_weak(&flags, &flag->next, flag))
        continue;
    hook_object_each(module, see_variable, &wanted); // after it can be found: nothing is missed
    if (wanted.found)
        flag->taken = true;
    return &flag->taken;
}

// cuModuleGetGlobal, cuLibraryGetGlobal
void hook_after_variable(struct frame *frame) {
    const char *name = (const char *)frame->args[3];
    struct flag *flag = name && (CUresult)frame->rax == CUDA_SUCCESS ? find_flag(frame->args[2], name) : NULL;
    if (flag)
        flag->taken = true;
}

// Fills the table of addresses and copies constants. False with `missing` set if one is not there.
static bool share_variables(const struct looked_up *function, struct probed *probed, uint64_t module,
                            const char **missing) {
    const struct woven *woven = probed->woven;
    uint64_t stream = hook_our_stream();
    CUdeviceptr table = 0;
    size_t table_size = 0, size;
    bool good = stream != 0;
    if (woven->table && !find_variable(function->is_kernel, module, woven->table, &table, &table_size))
        return *missing = woven->table, false;
    uint64_t *addresses = calloc(1, table_size + 1);
    probed->variables = calloc(woven->variable_count + 1, sizeof(*probed->variables));
    good &= addresses && probed->variables;
    for (size_t i = 0; good && i < woven->variable_count; i++) {
        const struct woven_variable *variable = &woven->variables[i];
        CUdeviceptr from, to;
        *missing = variable->name;
        good = find_variable(function->is_kernel, function->module, variable->name, &from, &size);
        if (good && !variable->constant) {
            good = variable->offset % 8 == 0 && variable->offset + 8 <= table_size;
            if (good)
                addresses[variable->offset / 8] = from;
            continue;
        }
        size_t room = 0;
        good = good && find_variable(function->is_kernel, module, variable->name, &to, &room) && room <= size;
        if (!good)
            break;
        _Atomic bool *taken = hook_taken_flag(function->module, variable->name);
        good =
            taken && (!(variable->always || *taken) || hook_do.copy(to, from, room, stream) == CUDA_SUCCESS);
        probed->variables[probed->variable_count++] = (struct shared_variable){from, to, room, taken};
    }
    if (good && table)
        good = hook_do.copy_to(table, addresses, table_size, stream) == CUDA_SUCCESS;
    if (good)
        good = hook_do.wait_stream(stream) == CUDA_SUCCESS;
    free(addresses);
    return good;
}

// Parameters: the driver knows those of both kernels since CUDA 12.4.

static bool check_params(const struct looked_up *function, const struct probed *probed) {
    CUresult (*info)(uint64_t, size_t, size_t *, size_t *) =
        hook_driver_function(function->is_kernel ? "cuKernelGetParamInfo" : "cuFuncGetParamInfo");
    const struct woven *woven = probed->woven;
    size_t count = woven->param_count, offset, size;
    bool good = true;
    if (!info)
        return true;
    for (size_t i = 0; good && i < count; i++) // each is there, where and as large as the pipeline tells
        good = !info(function->handle, i, &offset, &size) && offset == woven->params[i].offset &&
               size == woven->params[i].size && !info(probed->probed, i, &offset, &size) &&
               offset == woven->params[i].offset && size == woven->params[i].size;
    for (size_t i = 0; good && i < woven->added_count; i++)
        good = !info(probed->probed, count + i, &offset, &size) && size == sizeof(uint64_t);
    return good && info(function->handle, count, &offset, &size) != CUDA_SUCCESS &&
           info(probed->probed, count + woven->added_count, &offset, &size) != CUDA_SUCCESS;
}

// Loading

static bool load(const struct looked_up *function, const char *name, struct probed *probed) {
    uint64_t module, made = 0;
    void *image = aligned_alloc(64, (probed->woven->image_size | 63) + 1);
    const char *missing = NULL;
    if (!image)
        return probed->refused = "memory ran out", false;
    memcpy(image, probed->woven->image, probed->woven->image_size);
    CUresult status = function->is_kernel ? hook_do.load_library(&module, image, NULL, NULL, 0, NULL, NULL, 0)
                                          : hook_do.load_module(&module, image);
    free(image); // the driver has its own copy
    if (status) {
        char *fault;
        bool told = asprintf(&fault, "the driver does not load it with probes: error %d", status) > 0;
        probed->refused = told ? fault : "the driver does not load it with probes";
        return false;
    }
    if (function->is_kernel) // and into this context
        status = hook_do.get_kernel(&probed->probed, module, name) ||
                 hook_do.kernel_function(&made, probed->probed);
    else if (!(status = hook_do.get_function(&probed->probed, module, name)))
        made = probed->probed;
    if (status || hook_do.get_attribute(&probed->max_threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, made))
        probed->refused = "the driver does not find it with probes";
    else if (!check_params(function, probed))
        probed->refused = "the pipeline tells other parameters than the kernel has";
    else if ((probed->woven->table || probed->woven->variable_count) &&
             !share_variables(function, probed, module, &missing)) {
        char *fault;
        bool told = asprintf(&fault, "its variable '%.200s' is not found", missing ? missing : "") > 0;
        probed->refused = told ? fault : "a variable of it is not found";
    } else
        copy_properties(function, probed);
    probed->loaded = module;
    probed->is_library = function->is_kernel;
    if (probed->refused)
        function->is_kernel ? hook_do.unload_library(module) : hook_do.unload_module(module);
    return !probed->refused;
}

void hook_load_probed(const struct looked_up *function, const char *name, struct gpt_bytes *answer) {
    struct woven *woven = hook_read_woven(answer, name);
    struct probed *probed = calloc(1, sizeof(*probed));
    if (!woven || !probed || !hook_is_alive(function->reference) || !hook_find_probe_calls()) {
        hook_free_woven(woven), free(probed);
        if (hook_is_alive(function->reference))
            hook_refuse(function, "memory ran out, or the driver is too old (12.0 is needed)");
        return;
    }
    *probed = (struct probed){.handle = function->handle,
                              .reference = function->reference,
                              .function = function->function,
                              .module = function->module,
                              .woven = woven};
    if (woven->fault)
        probed->refused = strdup(woven->fault);
    else {
        int mode = hook_relaxed_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
        probed->context = function->is_kernel && !woven->variable_count ? 0 : hook_current_context();
        load(function, name, probed);
        if (probed->context && hook_our_stream()) // the context is known then
            probed->of_context = hook_object_find(probed->context);
        hook_relaxed_mode(mode);
    }
    if (!probed->refused || woven->fault)
        hook_write_woven(woven, probed->function);
    if (!probed->refused)
        gpt_empty(&woven->answer);
    if (!hook_add_probed(probed)) {
        hook_free_woven(woven);
        free(probed);
    }
}

// cuModuleUnload, cuLibraryUnload: with the program's goes ours. One that went with its context is not
// touched.

void hook_before_unload(struct frame *frame) {
    if (hook_probing)
        hook_mark_going(frame->args[0], true);
}

void hook_after_unload(struct frame *frame) {
    struct probed *probed;
    if (hook_probing && (CUresult)frame->rax != CUDA_SUCCESS)
        hook_mark_going(frame->args[0], false);
    while (hook_probing && (CUresult)frame->rax == CUDA_SUCCESS &&
           (probed = hook_take_gone(frame->args[0]))) {
        int mode = hook_relaxed_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
        probed->is_library ? hook_do.unload_library(probed->loaded) : hook_do.unload_module(probed->loaded);
        hook_relaxed_mode(mode);
    }
}
