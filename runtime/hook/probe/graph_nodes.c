// Which kernel nodes of a graph get probes, and how the probes get in and out.
//
// Only the executable graph may contain probes; the program's graph has to stay as the program built it. So
// we put the kernels with probes into the program's graph just before a call that reads it (instantiate,
// update), and put the program's kernels back right after. CUDA says that no other thread may use the graph
// during the call, and graph_lock.c takes care of threads that do. The driver then matches the nodes of both
// graphs as usual, including nodes in child graphs and in the bodies of conditional nodes.
//
// Two other ways don't work. Setting the nodes of the executable graph one by one needs the source graph,
// which the program may have destroyed. Instantiating a clone with probes gives nodes other handles than
// those the program knows, and a clone can't contain conditional or memory nodes.

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "driver_calls.h"
#include "graphs.h"
#include "hook/watch/watch.h"

// Properties of a node

enum { VALUE = 64, DEVICE_UPDATABLE = 13 }; // size of an attribute's value in bytes; a CUlaunchAttributeID

static bool has_attribute(uint64_t node, int attribute) {
    int value[VALUE / sizeof(int)] = {0};
    return !hook_do.get_node_attribute(node, attribute, value) && value[0];
}

static struct choice choose(const struct graph_node *node, const struct launch *launch, uint64_t context) {
    struct choice choice = hook_choose(launch, context);
    if (!choice.reason && node->kernel.ctx && (uint64_t)node->kernel.ctx != context)
        choice.reason = WHY(node_context);
    if (!choice.reason && hook_settings.benchmark)
        choice.reason = WHY_DETAIL(benchmark, "kernels in graphs are not timed");
    if (!choice.reason && has_attribute((uint64_t)node->handle, DEVICE_UPDATABLE))
        choice.reason = WHY(node_updatable);
    return choice;
}

// Make logs as large as earlier launches of the kernel needed. Their size is fixed until the program
// instantiates the graph again or changes the node.
static void size_logs(struct save *save, const struct launch *launch, uint64_t context) {
    const struct demand *earlier;
    save->demand = hook_find_demand(save, launch->block, &earlier);
    const struct claim any = {
        .context = context, .thread = (uint32_t)gettid(), .stream = UINT64_MAX, .dependent = true};
    if (earlier && !hook_settings.memusage)
        hook_size_logs(save, hook_wait_for_count(&any, earlier) / 2); // a graph gets half of the memory
}

static void give_save(struct member *member, const struct launch *launch, uint64_t context) {
    bool silent = !launch->params && !launch->extra; // the driver returns neither if they were packed
    member->save = hook_new_save(member->choice.probed, launch);
    if (member->save)
        member->save->repeats = !member->unconditional;
    if (!member->save)
        member->reason = silent ? WHY(node_parameters) : WHY(parameters);
    else if (!hook_size_buffers(member->save, launch))
        hook_strip_member(member, WHY(buffers_too_large));
    else {
        size_logs(member->save, launch, context);
        member->room = member->save->bytes;
        member->save->shared = hook_find_room(&member->choice, launch);
    }
}

// Return the node's function or kernel handle. The CUDA runtime gets its function handles through private
// driver tables, so we haven't seen them being looked up: find their kernels by name.
static uint64_t function_of(const CUDA_KERNEL_NODE_PARAMS *node) {
    uint64_t function = (uint64_t)node->func, kernel = (uint64_t)node->kern;
    CUresult (*name_of)(const char **, uint64_t) = hook_driver_function("cuFuncGetName");
    const char *name = NULL;
    if (!function || hook_find_probed(function))
        return function ? function : kernel;
    if (!kernel && name_of && !name_of(&name, function) && name)
        kernel = hook_find_kernel(function, name);
    if (kernel && hook_ask_function(function))
        hook_enter_function(function, kernel);
    return function;
}

void hook_make_member(struct member *member, const struct graph_node *node, uint64_t context) {
    const CUDA_KERNEL_NODE_PARAMS *kernel = &node->kernel;
    struct launch launch = {.function = function_of(kernel),
                            .grid = {kernel->gridDimX, kernel->gridDimY, kernel->gridDimZ},
                            .block = {kernel->blockDimX, kernel->blockDimY, kernel->blockDimZ},
                            .shared = kernel->sharedMemBytes,
                            .params = kernel->kernelParams,
                            .extra = kernel->extra};
    *member = (struct member){.node = (uint64_t)node->handle,
                              .named = (uint64_t)node->handle,
                              .depth = node->depth,
                              .unconditional = node->unconditional,
                              .is_graph = node->type == CU_GRAPH_NODE_TYPE_GRAPH,
                              .shared = launch.shared,
                              .reason = UNCOUNTED,
                              .own = *kernel};
    memcpy(member->block, launch.block, sizeof(launch.block));
    if (!launch.function && node->type == CU_GRAPH_NODE_TYPE_KERNEL)
        member->reason = WHY(node_unknown);
    if (!launch.function)
        return;
    launch.cooperative = has_attribute(member->node, CU_LAUNCH_ATTRIBUTE_COOPERATIVE);
    launch.cluster[0] = has_attribute(member->node, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
    member->choice = choose(node, &launch, context);
    const struct probed *first = member->choice.first;
    member->function = first ? first->function : hook_ask_function(launch.function);
    member->reason = member->choice.reason;
    if (!member->reason)
        give_save(member, &launch, context);
    hook_let_choice_go(&member->choice);
}

// Memory that nodes write to

struct written hook_written_by_set(uint64_t node, const CUDA_MEMSET_NODE_PARAMS_v2 *set) {
    uint64_t bytes = set->height > 1 ? set->pitch * set->height : set->elementSize * set->width;
    return (struct written){node, set->dst, set->dst + bytes};
}

struct written hook_written_by_copy(uint64_t node, const CUDA_MEMCPY3D *copy) {
    uint64_t plane = copy->dstPitch * copy->dstHeight;
    uint64_t start = copy->dstDevice + copy->dstXInBytes + copy->dstY * copy->dstPitch + copy->dstZ * plane;
    uint64_t bytes = (copy->Height ? copy->Height - 1 : 0) * copy->dstPitch +
                     (copy->Depth ? copy->Depth - 1 : 0) * plane + copy->WidthInBytes;
    return (struct written){node, start, start + bytes};
}

// Return whether a node of this type can't write to constants. For kernels, CUDA leaves the effect undefined.
static bool writes_nothing(int type) {
    static const int types[] = {
        CU_GRAPH_NODE_TYPE_KERNEL,
        CU_GRAPH_NODE_TYPE_HOST,
        CU_GRAPH_NODE_TYPE_GRAPH,
        CU_GRAPH_NODE_TYPE_EMPTY,
        CU_GRAPH_NODE_TYPE_WAIT_EVENT,
        CU_GRAPH_NODE_TYPE_EVENT_RECORD,
        CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL,
        CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT,
        CU_GRAPH_NODE_TYPE_MEM_ALLOC,
        CU_GRAPH_NODE_TYPE_MEM_FREE,
        CU_GRAPH_NODE_TYPE_CONDITIONAL,
    };
    bool found = false;
    for (size_t i = 0; i < sizeof(types) / sizeof(*types); i++)
        found |= types[i] == type;
    return found;
}

// Return the memory that a node writes to. A node of unknown type may write anywhere.
static struct written written_by(const struct graph_node *node) {
    CUDA_MEMCPY3D copy = {0};
    CUDA_MEMSET_NODE_PARAMS_v2 set = {0};
    uint64_t handle = (uint64_t)node->handle;
    if (node->type == CU_GRAPH_NODE_TYPE_MEMSET && !hook_do.get_set(node->handle, &set))
        return hook_written_by_set(handle, &set);
    if (node->type == CU_GRAPH_NODE_TYPE_MEMCPY && !hook_do.get_copy(node->handle, &copy))
        return hook_written_by_copy(handle, &copy);
    return (struct written){handle, 0, UINT64_MAX};
}

bool hook_is_copied(const struct member *member, const struct written *written) {
    const struct bound *bound = member->save ? member->choice.bound : NULL;
    bool found = false;
    for (size_t i = 0; bound && i < bound->variable_count; i++)
        found |= written->start < bound->variables[i].from + bound->variables[i].size &&
                 written->end > bound->variables[i].from;
    return found;
}

// Remove a kernel's probes if a node writes to memory that the kernel has copies of. The program may later
// make a node write elsewhere. Then we put the program's kernel back, which is only possible for nodes with
// handles: other kernels with such copies get no probes if any node of the graph writes to memory.
void hook_check_constants(const struct members *members, struct member *member) {
    bool named = !members->unnamed && !member->depth && member->unconditional;
    for (size_t i = 0; i < members->written_count; i++)
        if (hook_is_copied(member, &members->written[i]))
            hook_strip_member(member, WHY(writes_constant));
    if (member->save && member->choice.bound->variable_count && members->written_count && !named)
        hook_strip_member(member, WHY(may_write_constant));
}

// Reading a graph

static void *grow(void *all, size_t count, size_t *room, size_t size) {
    if (count < *room)
        return all;
    size_t more = *room ? 2 * *room : 64;
    void *larger = reallocarray(all, more, size);
    if (larger)
        *room = more;
    return larger;
}

bool hook_add_written(struct members *members, const struct written *written) {
    struct written *all = members->written;
    for (size_t i = 0; i < members->written_count; i++)
        if (all[i].node == written->node) {
            all[i] = *written;
            return true;
        }
    if (!(all = grow(all, members->written_count, &members->written_room, sizeof(*all))))
        return false;
    members->written = all;
    all[members->written_count++] = *written;
    return true;
}

struct reading {
    struct members *members;
    uint64_t context;
    bool failed;
    size_t kernels;
};

static bool read_node(const struct graph_node *node, void *with) {
    struct reading *reading = with;
    struct members *members = reading->members;
    if (!writes_nothing(node->type)) {
        struct written written = written_by(node);
        reading->failed |= !hook_add_written(members, &written);
    } else if (node->type == CU_GRAPH_NODE_TYPE_KERNEL || node->type == CU_GRAPH_NODE_TYPE_GRAPH) {
        struct member *more = grow(members->all, members->count, &members->room, sizeof(*more));
        if (more) {
            members->all = more;
            hook_make_member(&members->all[members->count++], node, reading->context);
        }
        reading->failed |= !more;
        reading->kernels += node->type == CU_GRAPH_NODE_TYPE_KERNEL;
    }
    return !reading->failed;
}

struct members *hook_read_graph(void *graph, uint64_t context, const struct members *around, bool unnamed) {
    struct reading reading = {.members = calloc(1, sizeof(struct members)), .context = context};
    if (!reading.members) {
        hook_miss_graph();
        return NULL;
    }
    reading.members->users = 1;
    reading.members->unnamed = unnamed;
    for (size_t i = 0; around && i < around->written_count; i++)
        reading.failed |= !hook_add_written(reading.members, &around->written[i]);
    hook_walk_graph(graph, read_node, &reading);
    if (reading.failed)
        hook_miss_graph();
    if (reading.failed || (!reading.kernels && !around)) {
        hook_drop_members(reading.members);
        return NULL;
    }
    for (size_t i = 0; i < reading.members->count; i++)
        hook_check_constants(reading.members, &reading.members->all[i]);
    return reading.members;
}

static void *copy_of(const void *from, size_t bytes) {
    void *made = malloc(bytes + 1);
    if (made && bytes)
        memcpy(made, from, bytes);
    return made;
}

struct members *hook_copy_members(const struct members *members) {
    struct members *made = copy_of(members, sizeof(*members));
    if (!made)
        return NULL;
    made->users = 1;
    made->is_tallied = false;
    made->tallies = NULL, made->tally_count = 0;
    made->room = made->count, made->written_room = made->written_count;
    made->all = copy_of(members->all, members->count * sizeof(*members->all));
    made->written = copy_of(members->written, members->written_count * sizeof(*members->written));
    if (!made->all || !made->written) {
        free(made->all), free(made->written), free(made);
        return NULL;
    }
    for (size_t i = 0; i < made->count; i++)
        if (made->all[i].save)
            atomic_fetch_add(&made->all[i].save->others, 1);
    return made;
}

void hook_strip_member(struct member *member, const struct reason *reason) {
    hook_free_save(member->save);
    member->save = NULL;
    member->reason = reason;
}

uint64_t hook_place_members(struct members *members, unsigned set) {
    uint64_t bytes = 0;
    for (struct member *member = members->all; member < members->all + members->count; member++)
        if (member->save && bytes >> 62 == 0) {
            member->set = set;
            member->save->offset = bytes;
            bytes += member->room;
        }
    return bytes;
}

bool hook_shrink_members(struct members *members) {
    bool any = false;
    for (struct member *member = members->all; member < members->all + members->count; member++)
        if (member->save && member->save->demand && hook_size_logs(member->save, 0)) {
            member->room = member->save->bytes;
            any = true;
        }
    return any;
}

void hook_point_members(struct members *members, uint64_t address) {
    for (struct member *member = members->all; member < members->all + members->count; member++)
        if (member->save)
            hook_point_at_buffers(member->save, address + member->save->offset);
}

// Parameters

CUDA_KERNEL_NODE_PARAMS hook_probed_params(const struct member *member) {
    CUDA_KERNEL_NODE_PARAMS params = member->own;
    *(params.func ? &params.func : &params.kern) = (void *)member->choice.handle;
    params.kernelParams = member->save->arguments;
    params.extra = NULL;
    if (member->save->shared)
        params.sharedMemBytes = member->save->shared;
    return params;
}

CUDA_KERNEL_NODE_PARAMS hook_own_params(const struct member *member, struct packed *packed) {
    CUDA_KERNEL_NODE_PARAMS params = member->own;
    packed->size = member->choice.probed->woven->param_bytes;
    void *extra[] = {(void *)CU_LAUNCH_PARAM_BUFFER_POINTER_HANDLE, member->save->block,
                     (void *)CU_LAUNCH_PARAM_BUFFER_SIZE_HANDLE, &packed->size, NULL};
    memcpy(packed->extra, extra, sizeof(extra));
    if (params.kernelParams)
        params.kernelParams = member->save->arguments;
    else if (params.extra)
        params.extra = packed->extra;
    return params;
}

// Set the parameters of a node, then restore any attribute that has changed with them: CUDA's manual doesn't
// say that attributes stay.
static CUresult set_node(uint64_t node, const CUDA_KERNEL_NODE_PARAMS *params) {
    static const int attributes[] = {1, 2, 3, 4, 5, 8, 9, 10, 11, 14}; // all attributes that a node may have
    enum { COUNT = sizeof(attributes) / sizeof(*attributes) };
    char before[COUNT][VALUE] = {{0}}, after[VALUE];
    bool known[COUNT];
    for (int i = 0; i < COUNT; i++)
        known[i] = !hook_do.get_node_attribute(node, attributes[i], before[i]);
    CUresult status = hook_do.set_node(node, params);
    for (int i = 0; i < COUNT && !status; i++) {
        memset(after, 0, VALUE);
        if (known[i] && !hook_do.get_node_attribute(node, attributes[i], after) &&
            memcmp(before[i], after, VALUE) != 0)
            status = hook_do.set_node_attribute(node, attributes[i], before[i]);
    }
    return status;
}

void hook_insert_probes(struct members *members) {
    struct packed packed;
    for (struct member *member = members->all; member < members->all + members->count; member++) {
        if (!member->save)
            continue;
        CUDA_KERNEL_NODE_PARAMS params = hook_probed_params(member), own = hook_own_params(member, &packed);
        if (!set_node(member->node, &params))
            continue;
        set_node(member->node, &own);
        hook_strip_member(member, WHY(node_refused));
    }
}

void hook_restore_kernels(struct members *members) {
    struct packed packed;
    for (struct member *member = members->all; member < members->all + members->count; member++)
        if (member->save) {
            CUDA_KERNEL_NODE_PARAMS own = hook_own_params(member, &packed);
            set_node(member->node, &own);
        }
}
