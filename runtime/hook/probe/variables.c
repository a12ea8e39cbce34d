// The variables of a kernel with probes are those of the program's module: of one in global memory its table
// has the address, one in constant memory is copied, before each launch once the program may write to it.

#include <stdlib.h>
#include <string.h>

#include "driver_calls.h"
#include "hook/watch/watch.h"
#include "probe.h"

bool hook_find_variable(bool is_kernel, uint64_t module, const char *name, CUdeviceptr *address,
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

// Whether the program has the address of a variable in constant memory, and so may write to it. NULL without
// memory.
static _Atomic bool *taken_flag(uint64_t module, const char *name) {
    module = hook_whole_module(module);
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
    struct flag *flag = name && (CUresult)frame->rax == CUDA_SUCCESS
                            ? find_flag(hook_whole_module(frame->args[2]), name)
                            : NULL;
    if (flag)
        flag->taken = true;
}

bool hook_share_variables(const struct probed *probed, struct bound *bound, const char **missing) {
    const struct woven *woven = probed->woven;
    bool is_kernel = probed->is_library;
    uint64_t module = probed->loaded;
    uint64_t stream = hook_our_stream();
    CUdeviceptr table = 0;
    size_t table_size = 0, size;
    bool good = stream != 0;
    if (woven->table && !hook_find_variable(is_kernel, module, woven->table, &table, &table_size))
        return *missing = woven->table, false;
    uint64_t *addresses = calloc(1, table_size + 1);
    bound->variables = calloc(woven->variable_count + 1, sizeof(*bound->variables));
    good &= addresses && bound->variables;
    for (size_t i = 0; good && i < woven->variable_count; i++) {
        const struct woven_variable *variable = &woven->variables[i];
        CUdeviceptr from, to;
        *missing = variable->name;
        good = hook_find_variable(is_kernel, probed->module, variable->name, &from, &size);
        if (good && !variable->constant) {
            good = variable->offset % 8 == 0 && variable->offset + 8 <= table_size;
            if (good)
                addresses[variable->offset / 8] = from;
            continue;
        }
        size_t room = 0;
        good = good && hook_find_variable(is_kernel, module, variable->name, &to, &room) && room <= size;
        if (!good)
            break;
        _Atomic bool *taken = taken_flag(probed->module, variable->name);
        good =
            taken && (!(variable->always || *taken) || hook_do.copy(to, from, room, stream) == CUDA_SUCCESS);
        bound->variables[bound->variable_count++] = (struct shared_variable){from, to, room, taken};
    }
    if (good && table)
        good = hook_do.copy_to(table, addresses, table_size, stream) == CUDA_SUCCESS;
    if (good)
        good = hook_do.wait_stream(stream) == CUDA_SUCCESS;
    free(addresses);
    return good;
}

bool hook_must_copy(const struct bound *bound) {
    bool found = false;
    for (size_t i = 0; i < bound->variable_count; i++)
        found |= *bound->variables[i].taken;
    return found;
}

bool hook_copy_variables(const struct bound *bound, uint64_t stream) {
    bool good = true;
    for (size_t i = 0; i < bound->variable_count; i++) {
        const struct shared_variable *variable = &bound->variables[i];
        if (*variable->taken)
            good &= !hook_do.copy(variable->to, variable->from, variable->size, stream);
    }
    return good;
}
