// A kernel with probes is in a separate module, and uses the variables of the program's module.
//
// A function of a module is loaded into the module's context. A kernel of a library is loaded as a library,
// and bound to each context in which the program uses it: when the program gets the kernel's function there,
// or else after the first launch, which has no probes. Loading may wait for running kernels, so we do it only
// when the program itself looks up, loads or waits. We make our own calls in relaxed capture mode, so that
// they break no capture of the program's.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver_calls.h"
#include "hook/watch/watch.h"
#include "hook/write/write.h"
#include "probe.h"

static struct probed *new_probed(const struct looked_up *function) {
    struct probed *probed = calloc(1, sizeof(*probed));
    if (probed)
        *probed = (struct probed){.order = function->order,
                                  .handle = function->handle,
                                  .reference = function->reference,
                                  .function = function->function,
                                  .asked = *function,
                                  .module = function->module,
                                  .is_library = function->is_kernel};
    return probed;
}

void hook_refuse(const struct looked_up *function, const struct reason *reason) {
    struct probed *probed =
        function->registers ? NULL : new_probed(function); // otherwise the existing entry stays
    if (!probed)
        return;
    probed->refused = reason;
    if (!hook_add_probed(probed))
        free(probed);
}

// Parameters: since CUDA 12.4, the driver can report them, so we compare both kernels'.

static bool check_params(const struct probed *probed) {
    CUresult (*info)(uint64_t, size_t, size_t *, size_t *) =
        hook_driver_function(probed->is_library ? "cuKernelGetParamInfo" : "cuFuncGetParamInfo");
    const struct woven *woven = probed->woven;
    size_t count = woven->param_count, offset, size;
    bool good = true;
    if (!info)
        return true;
    for (size_t i = 0; good && i < count; i++) // each must have the offset and size that the pipeline says
        good = !info(probed->handle, i, &offset, &size) && offset == woven->params[i].offset &&
               size == woven->params[i].size && !info(probed->probed, i, &offset, &size) &&
               offset == woven->params[i].offset && size == woven->params[i].size;
    for (size_t i = 0; good && i < woven->added_count; i++)
        good = !info(probed->probed, count + i, &offset, &size) && size == sizeof(uint64_t);
    return good && info(probed->handle, count, &offset, &size) != CUDA_SUCCESS &&
           info(probed->probed, count + woven->added_count, &offset, &size) != CUDA_SUCCESS;
}

// Contexts

// Return why the kernel can't run there, or NULL if it can.
static const struct reason *prepare(struct probed *probed, struct bound *bound) {
    int used;
    bool kernel = probed->is_library;
    if ((kernel && hook_do.kernel_function(&bound->function, probed->probed)) ||
        hook_do.get_attribute(&bound->max_threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
                              bound->function) ||
        hook_do.get_attribute(&bound->static_shared, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, bound->function) ||
        hook_do.get_attribute(&used, CU_FUNC_ATTRIBUTE_NUM_REGS, bound->function))
        return WHY(not_found);
    probed->used = (unsigned)used;
    const struct reason *fault = hook_share_variables(probed, bound);
    if (!fault && probed->plain)
        fault = hook_bind_plain(probed, bound);
    if (fault)
        return fault;
    return hook_copy_properties(probed, bound) ? hook_compare_occupancy(probed, bound) : WHY(property);
}

// Prepare the kernel for the current context. Returns NULL if memory runs out, or if the context is being
// destroyed.
static struct bound *bind(struct probed *probed) {
    struct bound *bound = calloc(1, sizeof(*bound));
    uint64_t context = hook_current_context();
    if (!bound || !hook_our_stream()) { // this registers the context
        free(bound);
        return NULL;
    }
    hook_furnish();
    bound->context = context;
    bound->of_context = hook_object_find(context);
    bound->function = probed->probed;
    bound->refused = prepare(probed, bound);
    bound->next = atomic_load(&probed->bounds);
    while (!atomic_compare_exchange_weak(&probed->bounds, &bound->next, bound))
        continue;
    return bound;
}

static void bind_all(struct probed *first) {
    uint64_t context = hook_current_context();
    if (!hook_hold_probed(first))
        return;
    int mode = hook_relaxed_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
    for (struct probed *probed = first; probed; probed = atomic_load(&probed->fewer))
        if (probed->probed && !hook_find_bound(probed, context))
            bind(probed);
    hook_relaxed_mode(mode);
    hook_let_probed_go(first);
}

void hook_bind_missed(void) {
    struct probed *probed;
    while ((probed = hook_take_missed(hook_current_context()))) {
        struct reference held = hook_object_hold(probed->reference);
        if (held.current)
            bind_all(probed);
        hook_object_let_go(held);
    }
}

void hook_enter_function(uint64_t function, uint64_t kernel) {
    struct object_view view;
    struct probed *whole = hook_find_probed(kernel), *added;
    if (!hook_object_look(function, &view))
        return;
    struct looked_up looked = {
        .handle = function, .reference = view.reference, .context = hook_current_context()};
    if (!hook_find_probed(function) && (added = new_probed(&looked))) {
        added->kernel = kernel;
        if (!hook_add_probed(added))
            free(added);
    }
    if (whole && !whole->refused)
        bind_all(whole);
}

// Loading

// Insert the addresses of the program's variables into an image that has no table for them.
static const struct reason *add_addresses(const struct probed *probed, char *image) {
    const struct woven *woven = probed->woven;
    for (size_t i = 0; i < woven->variable_count && !woven->table; i++) {
        struct woven_variable *variable = &woven->variables[i];
        uint64_t value;
        size_t size;
        if (variable->constant)
            continue;
        if (woven->image_size < sizeof(value) || variable->offset > woven->image_size - sizeof(value))
            return WHY_DETAIL(pipeline_wrong, "it puts the address of a variable outside the image");
        if (!hook_find_variable(probed->is_library, probed->module, variable->name, &variable->address,
                                &size))
            return hook_make_reason("variable_missing", variable->name);
        memcpy(&value, image + variable->offset, sizeof(value));
        value += variable->address;
        memcpy(image + variable->offset, &value, sizeof(value));
    }
    return NULL;
}

// Load the image. Returns NULL, or the reason if that failed.
static const struct reason *load(struct probed *probed, const char *name) {
    uint64_t module;
    bool kernel = probed->is_library;
    void *image = aligned_alloc(64, (probed->woven->image_size | 63) + 1);
    if (!image)
        return WHY(no_memory);
    memcpy(image, probed->woven->image, probed->woven->image_size);
    const struct reason *missing = add_addresses(probed, image);
    if (missing) {
        free(image);
        return missing;
    }
    CUresult status = kernel ? hook_do.load_library(&module, image, NULL, NULL, 0, NULL, NULL, 0)
                             : hook_do.load_module(&module, image);
    free(image); // the driver has its own copy
    if (status) {
        char detail[32];
        snprintf(detail, sizeof(detail), "error %d", status);
        return hook_make_reason("load_refused", detail);
    }
    probed->loaded = module;
    if (kernel ? hook_do.get_kernel(&probed->probed, module, name)
               : hook_do.get_function(&probed->probed, module, name))
        return WHY(not_found);
    if (!check_params(probed))
        return WHY(other_parameters);
    const struct reason *fault = hook_settings.benchmark ? hook_load_plain(probed, name) : NULL;
    if (fault)
        return fault;
    const struct bound *bound = bind(probed);
    return !bound ? WHY(device_buffers) : bound->refused == WHY(occupancy) ? NULL : bound->refused;
}

static void unload(struct probed *probed) {
    uint64_t *const all[] = {&probed->loaded, &probed->plain_loaded};
    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++) {
        if (*all[i])
            probed->is_library ? hook_do.unload_library(*all[i]) : hook_do.unload_module(*all[i]);
        *all[i] = 0;
    }
}

// Return how many registers the program's own kernel uses, or 0 if the driver doesn't say.
static unsigned count_registers(const struct probed *probed) {
    int count = 0;
    CUdevice device;
    CUresult status = CUDA_SUCCESS;
    if (!probed->is_library)
        status = hook_do.get_attribute(&count, CU_FUNC_ATTRIBUTE_NUM_REGS, probed->handle);
    else if (!(status = hook_do.get_device(&device)))
        status = hook_do.get_kernel_attribute(&count, CU_FUNC_ATTRIBUTE_NUM_REGS, probed->handle, device);
    return status || count < 0 ? 0 : (unsigned)count;
}

static void free_contents(struct probed *probed) {
    for (struct bound *bound = atomic_exchange(&probed->bounds, NULL), *next; bound; bound = next) {
        next = bound->next;
        free(bound->variables), free(bound->plain_variables);
        free(bound);
    }
    hook_free_woven((struct woven *)probed->woven);
    probed->woven = NULL;
}

static void drop(struct probed *probed) {
    free_contents(probed);
    free(probed->name);
    free(probed);
}

void hook_unload_replaced(void) {
    for (struct probed *probed; (probed = hook_take_replaced(hook_current_context()));) {
        int mode = hook_relaxed_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
        bool alive = hook_is_alive(probed->reference); // otherwise it was unloaded with its module or context
        for (struct probed *at = atomic_exchange(&probed->fewer, NULL), *next; at; at = next) {
            next = atomic_load(&at->fewer);
            if (alive)
                unload(at);
            drop(at);
        }
        if (alive)
            unload(probed);
        free_contents(probed);
        probed->loaded = 0;
        hook_let_probed_go(probed);
        hook_relaxed_mode(mode);
    }
}

static void enter(struct probed *probed) {
    struct probed *first = probed->asked.registers ? hook_find_probed(probed->handle) : NULL;
    if (!probed->asked.registers && hook_add_probed(probed))
        return;
    if (first && hook_hold_probed(first)) {
        bool adds = !first->refused && !probed->refused && first->order == probed->order;
        if (adds)
            hook_add_fewer(first, probed);
        hook_let_probed_go(first);
        if (adds)
            return;
    }
    unload(probed);
    drop(probed);
}

void hook_load_probed(const struct looked_up *function, const char *name, struct gpt_bytes *answer) {
    struct woven *woven = hook_read_woven(answer, name);
    struct probed *probed = new_probed(function);
    bool there = woven && probed && (probed->name = strdup(name));
    if (!there || !hook_is_alive(function->reference) || !hook_find_probe_calls()) {
        hook_free_woven(woven), free(probed);
        if (hook_is_alive(function->reference))
            hook_refuse(function, there ? WHY(driver_too_old) : WHY(no_memory));
        return;
    }
    probed->woven = woven;
    if (woven->fault)
        probed->refused = woven->fault;
    else {
        int mode = hook_relaxed_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
        probed->refused = load(probed, name);
        if (probed->refused)
            unload(probed);
        hook_relaxed_mode(mode);
    }
    if (!probed->refused || woven->fault)
        hook_write_woven(woven, probed->function, probed->refused ? 0 : count_registers(probed));
    gpt_empty(&woven->answer);
    enter(probed);
}

// cuModuleUnload, cuLibraryUnload: unload our module with the program's, unless its context no longer exists.

void hook_before_unload(struct frame *frame) {
    if (!hook_probing)
        return;
    while (!hook_object_close(
        frame_arg(frame, 0))) // another thread of the program is loading one of its kernels with probes
        hook_wait_with_signals(NULL, 1);
    hook_mark_unloading(frame_arg(frame, 0), true);
}

void hook_after_unload(struct frame *frame) {
    struct probed *probed;
    if (hook_probing && (CUresult)frame->result != CUDA_SUCCESS) {
        hook_object_open(frame_arg(frame, 0));
        hook_mark_unloading(frame_arg(frame, 0), false);
    }
    while (hook_probing && (CUresult)frame->result == CUDA_SUCCESS && (probed = hook_next_unloaded())) {
        int mode = hook_relaxed_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
        unload(probed);
        hook_relaxed_mode(mode);
    }
}

// -- Variables -------------------------------------------------------------
//
// A kernel with probes uses the variables of the program's module. Addresses of global variables go into its
// table. Constants are copied, before each launch if the program may have written to them.

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

// Return a flag that says whether the program has the address of a variable in constant memory, so that it
// may write to it. Returns NULL if memory runs out.
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
    const char *name = (const char *)frame_arg(frame, 3);
    struct flag *flag = name && (CUresult)frame->result == CUDA_SUCCESS
                            ? find_flag(hook_whole_module(frame_arg(frame, 2)), name)
                            : NULL;
    if (flag)
        flag->taken = true;
}

// Share a variable. `table` has the addresses for the kernel's table; `size` is in bytes.
static const struct reason *share(const struct probed *probed, struct bound *bound,
                                  const struct woven_variable *variable, uint64_t *table, size_t size) {
    CUdeviceptr from, to;
    size_t from_size, room = 0;
    const struct reason *missing = NULL;
    if (!hook_find_variable(probed->is_library, probed->module, variable->name, &from, &from_size))
        missing = hook_make_reason("variable_missing", variable->name);
    else if (!variable->constant && !table)
        missing = from == variable->address ? NULL : WHY(variable_elsewhere);
    else if (!variable->constant) {
        if (variable->offset % 8 || size < 8 || variable->offset > size - 8)
            missing = hook_make_reason("variable_missing", variable->name);
        else
            table[variable->offset / 8] = from;
    } else {
        bool found = hook_find_variable(probed->is_library, probed->loaded, variable->name, &to, &room);
        _Atomic bool *taken = found && room <= from_size ? taken_flag(probed->module, variable->name) : NULL;
        bool copies = taken && (variable->always || *taken);
        if (!taken || (copies && hook_do.copy(to, from, room, hook_our_stream())))
            return hook_make_reason("variable_missing", variable->name);
        bound->variables[bound->variable_count++] = (struct shared_variable){from, to, room, taken};
    }
    return missing;
}

const struct reason *hook_share_variables(const struct probed *probed, struct bound *bound) {
    const struct woven *woven = probed->woven;
    CUdeviceptr table = 0;
    size_t size = 0;
    if (!woven->table && !woven->variable_count)
        return NULL;
    if (woven->table && !hook_find_variable(probed->is_library, probed->loaded, woven->table, &table, &size))
        return hook_make_reason("variable_missing", woven->table);
    uint64_t *addresses = calloc(1, size + 1);
    bound->variables = calloc(woven->variable_count + 1, sizeof(*bound->variables));
    const struct reason *fault = addresses && bound->variables ? NULL : WHY(no_memory);
    for (size_t i = 0; i < woven->variable_count && !fault; i++)
        fault = share(probed, bound, &woven->variables[i], table ? addresses : NULL, size);
    uint64_t stream = hook_our_stream();
    if (!fault && ((table && hook_do.copy_to(table, addresses, size, stream)) || hook_do.wait_stream(stream)))
        fault = WHY_DETAIL(variable_missing, "its address cannot be written");
    free(addresses);
    return fault;
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

// -- Per-context state -----------------------------------------------------
//
// Return a context's pool, with our other state there. Asking for our stream creates it.

uint64_t hook_our_stream(void) {
    struct pool *pool = hook_pool_here();
    if (!pool && hook_begin_writing() && hook_begin_marking())
        pool = hook_make_pool(hook_current_context());
    return pool ? pool->stream : 0;
}

void hook_furnish(void) {
    struct pool *pool = hook_pool_here();
    if (!pool || atomic_exchange(&pool->furnished, true))
        return;
    __atomic_store_n(&pool->zeros, hook_make_zeros(), __ATOMIC_RELEASE);
    __atomic_store_n(&pool->mover, hook_load_mover(), __ATOMIC_RELEASE);
    hook_load_reducer(pool);
}

uint64_t hook_mover(void) {
    const struct pool *pool = hook_pool_here();
    return pool ? __atomic_load_n(&pool->mover, __ATOMIC_ACQUIRE) : 0;
}
