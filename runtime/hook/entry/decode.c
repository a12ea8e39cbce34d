// What is known of the driver's functions. Those in the table have arguments worth recording, or a handler;
// the type of any other one follows from its name. A function that NVIDIA adds tomorrow is recorded all the
// same.

#include <fnmatch.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "control.h"
#include "decode.h"
#include "hook/probe/changes.h"
#include "hook/probe/execs.h"
#include "hook/probe/launch.h"
#include "hook/probe/links.h"
#include "hook/probe/load.h"
#include "hook/probe/lookup.h"
#include "hook/probe/occupancy.h"
#include "hook/probe/properties.h"
#include "hook/probe/replay.h"
#include "hook/probe/settings.h"
#include "hook/probe/sources.h"
#include "hook/probe/variables.h"
#include "hook/watch/call.h"
#include "hook/watch/contexts.h"
#include "hook/watch/gputime.h"
#include "hook/watch/graphs.h"
#include "hook/watch/modules.h"
#include "hook/watch/sites.h"
#include "hook/watch/suffixes.h"
#include "hook/write/clock.h"
#include "hook/write/layout.h"
#include "hook/write/live.h"
#include "hook/write/naming.h"
#include "hook/write/record.h"
#include "intercept.h"
#include "stub.h"
#include "switch.h"

#define IN(n) (ARG_IN | (n))
#define OUT(n) (ARG_OUT | (n))
#define VALUES(...) {__VA_ARGS__}
#define MEMORY .layout = LAYOUT_MEMORY, .values = VALUES // to, from, bytes, stream
#define OBJECT .layout = LAYOUT_OBJECT, .values = VALUES // object, stream
#define V2 .v2 = true
#define LAUNCH(how)                                                                                          \
    .layout = LAYOUT_LAUNCH, .special = how, .probe_before = hook_before_launch,                             \
    .probe_after = hook_after_launch, .first = true
#define AROUND(what) .first = true, .probe_before = hook_before_##what, .probe_after = hook_after_##what
#define INSTANTIATES                                                                                         \
    "graph", "instantiate", OBJECT(OUT(0)), .on_return = hook_on_instantiate, AROUND(instantiate)
#define GONE .before = hook_before_gone, .on_return = hook_on_gone

static const struct known table[] = {
    {"cuMemAlloc", "memory", "alloc", MEMORY(OUT(0), 0, IN(1)), V2},
    {"cuMemAllocAsync", "memory", "alloc", MEMORY(OUT(0), 0, IN(1), IN(2))},
    {"cuMemAllocFromPoolAsync", "memory", "alloc", MEMORY(OUT(0), 0, IN(1), IN(3))},
    {"cuMemAllocHost", "memory", "alloc", MEMORY(OUT(0), 0, IN(1)), V2},
    {"cuMemAllocManaged", "memory", "alloc", MEMORY(OUT(0), 0, IN(1))},
    {"cuMemAllocPitch", "memory", "alloc", MEMORY(OUT(0)), .special = SPECIAL_PITCH, V2},
    {"cuMemHostAlloc", "memory", "alloc", MEMORY(OUT(0), 0, IN(1))},
    {"cuMemCreate", "memory", "alloc", MEMORY(OUT(0), 0, IN(1))},
    {"cuMemFree", "memory", "free", MEMORY(IN(0)), V2},
    {"cuMemFreeAsync", "memory", "free", MEMORY(IN(0), 0, 0, IN(1))},
    {"cuMemFreeHost", "memory", "free", MEMORY(IN(0))},
    {"cuMemRelease", "memory", "free", MEMORY(IN(0))},
    {"cuMemAddressReserve", "memory", "reserve", MEMORY(OUT(0), 0, IN(1))},
    {"cuMemAddressFree", "memory", "unreserve", MEMORY(IN(0), 0, IN(1))},
    {"cuMemMap", "memory", "map", MEMORY(IN(0), IN(3), IN(1))},
    {"cuMemUnmap", "memory", "unmap", MEMORY(IN(0), 0, IN(1))},
    {"cuMemHostRegister", "memory", "register", MEMORY(IN(0), 0, IN(1)), V2},
    {"cuMemHostUnregister", "memory", "unregister", MEMORY(IN(0))},
    {"cuMemPrefetchAsync", "memory", "prefetch", MEMORY(IN(0), 0, IN(1))},

    {"cuMemcpy", "memcpy", "any", MEMORY(IN(0), IN(1), IN(2))},
    {"cuMemcpyAsync", "memcpy", "any", MEMORY(IN(0), IN(1), IN(2), IN(3))},
    {"cuMemcpyHtoD", "memcpy", "HtoD", MEMORY(IN(0), IN(1), IN(2)), V2},
    {"cuMemcpyHtoDAsync", "memcpy", "HtoD", MEMORY(IN(0), IN(1), IN(2), IN(3)), V2},
    {"cuMemcpyDtoH", "memcpy", "DtoH", MEMORY(IN(0), IN(1), IN(2)), V2},
    {"cuMemcpyDtoHAsync", "memcpy", "DtoH", MEMORY(IN(0), IN(1), IN(2), IN(3)), V2},
    {"cuMemcpyDtoD", "memcpy", "DtoD", MEMORY(IN(0), IN(1), IN(2)), V2},
    {"cuMemcpyDtoDAsync", "memcpy", "DtoD", MEMORY(IN(0), IN(1), IN(2), IN(3)), V2},
    {"cuMemcpyPeer", "memcpy", "peer", MEMORY(IN(0), IN(2), IN(4))},
    {"cuMemcpyPeerAsync", "memcpy", "peer", MEMORY(IN(0), IN(2), IN(4), IN(5))},
    {"cuMemcpy2D", "memcpy", "2D", MEMORY(0), .special = SPECIAL_COPY_2D, V2},
    {"cuMemcpy2DUnaligned", "memcpy", "2D", MEMORY(0), .special = SPECIAL_COPY_2D, V2},
    {"cuMemcpy2DAsync", "memcpy", "2D", MEMORY(0, 0, 0, IN(1)), .special = SPECIAL_COPY_2D, V2},
    {"cuMemcpy3D", "memcpy", "3D", MEMORY(0), .special = SPECIAL_COPY_3D, V2},
    {"cuMemcpy3DAsync", "memcpy", "3D", MEMORY(0, 0, 0, IN(1)), .special = SPECIAL_COPY_3D, V2},
    {"cuMemcpy3DPeer", "memcpy", "peer", MEMORY(0), .special = SPECIAL_COPY_3D},
    {"cuMemcpy3DPeerAsync", "memcpy", "peer", MEMORY(0, 0, 0, IN(1)), .special = SPECIAL_COPY_3D},

    {"cuMemsetD8", "memset", "set", MEMORY(IN(0), 0, IN(2)), V2},
    {"cuMemsetD16", "memset", "set", MEMORY(IN(0), 0, IN(2)), .special = SPECIAL_TIMES_2, V2},
    {"cuMemsetD32", "memset", "set", MEMORY(IN(0), 0, IN(2)), .special = SPECIAL_TIMES_4, V2},
    {"cuMemsetD8Async", "memset", "set", MEMORY(IN(0), 0, IN(2), IN(3))},
    {"cuMemsetD16Async", "memset", "set", MEMORY(IN(0), 0, IN(2), IN(3)), .special = SPECIAL_TIMES_2},
    {"cuMemsetD32Async", "memset", "set", MEMORY(IN(0), 0, IN(2), IN(3)), .special = SPECIAL_TIMES_4},
    {"cuMemsetD2D8", "memset", "set", MEMORY(IN(0)), .special = SPECIAL_AREA_1, V2},
    {"cuMemsetD2D16", "memset", "set", MEMORY(IN(0)), .special = SPECIAL_AREA_2, V2},
    {"cuMemsetD2D32", "memset", "set", MEMORY(IN(0)), .special = SPECIAL_AREA_4, V2},
    {"cuMemsetD2D8Async", "memset", "set", MEMORY(IN(0), 0, 0, IN(5)), .special = SPECIAL_AREA_1},
    {"cuMemsetD2D16Async", "memset", "set", MEMORY(IN(0), 0, 0, IN(5)), .special = SPECIAL_AREA_2},
    {"cuMemsetD2D32Async", "memset", "set", MEMORY(IN(0), 0, 0, IN(5)), .special = SPECIAL_AREA_4},

    {"cuLaunchKernel", "kernel", "launch", LAUNCH(SPECIAL_LAUNCH)},
    {"cuLaunchCooperativeKernel", "kernel", "launch", LAUNCH(SPECIAL_LAUNCH_COOPERATIVE)},
    {"cuLaunchKernelEx", "kernel", "launch", LAUNCH(SPECIAL_LAUNCH_EX)},
    {"cuLaunch", "kernel", "launch", LAUNCH(SPECIAL_LAUNCH_OLD)},
    {"cuLaunchGrid", "kernel", "launch", LAUNCH(SPECIAL_LAUNCH_OLD)},
    {"cuLaunchGridAsync", "kernel", "launch", LAUNCH(SPECIAL_LAUNCH_OLD)},
    {"cuLaunchHostFunc", "stream", "host", OBJECT(IN(1), IN(0))},

    {"cuGraphLaunch", "graph", "launch", OBJECT(IN(0), IN(1)), .probe_before = hook_before_replay,
     .probe_after = hook_after_replay},
    {"cuGraphInstantiate", INSTANTIATES},
    {"cuGraphInstantiateWithFlags", INSTANTIATES},
    {"cuGraphInstantiateWithParams", INSTANTIATES},
    {"cuGraphExecDestroy", "graph", "destroy", OBJECT(IN(0)), GONE, AROUND(exec_gone)},
    {"cuGraphExecUpdate", "graph", "update", OBJECT(IN(0)), .on_return = hook_on_exec_update,
     AROUND(exec_update)},
    {"cuGraphExecKernelNodeSetParams", "graph", "execkernelnodesetparams", .on_return = hook_on_exec_kernel,
     AROUND(exec_kernel)},
    {"cuGraphExecChildGraphNodeSetParams", "graph", "execchildgraphnodesetparams",
     .on_return = hook_on_exec_child, AROUND(exec_child)},
    {"cuGraphExecNodeSetParams", "graph", "execnodesetparams", .on_return = hook_on_exec_node,
     AROUND(exec_node)},
    {"cuGraphExecMemcpyNodeSetParams", "graph", "execmemcpynodesetparams",
     .probe_before = hook_before_exec_copy},
    {"cuGraphExecMemsetNodeSetParams", "graph", "execmemsetnodesetparams",
     .probe_before = hook_before_exec_set},
    {"cuGraphNodeSetEnabled", "graph", "nodesetenabled", .on_return = hook_on_node_enabled,
     .probe_after = hook_after_node_enabled},
    {"cuGraphCreate", "graph", "create", OBJECT(OUT(0)), .on_return = hook_on_graph},
    {"cuGraphClone", "graph", "clone", OBJECT(OUT(0)), .on_return = hook_on_graph},
    {"cuGraphDestroy", "graph", "destroy", OBJECT(IN(0)), GONE},
    {"cuGraphAddNode", "graph", "addnode", .on_return = hook_on_node, AROUND(packed)},
    {"cuGraphAddKernelNode", "graph", "addkernelnode", AROUND(packed)},
    {"cuGraphKernelNodeSetParams", "graph", "kernelnodesetparams", AROUND(packed)},
    {"cuGraphNodeSetParams", "graph", "nodesetparams", AROUND(packed)},

    {"cuStreamSynchronize", "sync", "stream", OBJECT(0, IN(0))},
    {"cuEventSynchronize", "sync", "event", OBJECT(IN(0))},
    {"cuCtxSynchronize", "sync", "context", .layout = LAYOUT_PLAIN},
    {"cuStreamCreate", "stream", "create", OBJECT(OUT(0))},
    {"cuStreamCreateWithPriority", "stream", "create", OBJECT(OUT(0))},
    {"cuStreamDestroy", "stream", "destroy", OBJECT(0, IN(0)), .probe_before = hook_before_stream_ends},
    {"cuStreamQuery", "stream", "query", OBJECT(0, IN(0))},
    {"cuStreamWaitEvent", "stream", "wait", OBJECT(IN(1), IN(0)), .probe_before = hook_before_join,
     .probe_after = hook_after_capture},
    {"cuStreamBeginCapture", "stream", "capture", OBJECT(0, IN(0)), .probe_before = hook_before_capture,
     .probe_after = hook_after_capture},
    {"cuStreamBeginCaptureToGraph", "stream", "capture", OBJECT(0, IN(0)),
     .probe_before = hook_before_capture, .probe_after = hook_after_capture},
    {"cuStreamEndCapture", "stream", "captured", OBJECT(OUT(1), IN(0)), .on_return = hook_on_captured},
    {"cuEventCreate", "event", "create", OBJECT(OUT(0))},
    {"cuEventDestroy", "event", "destroy", OBJECT(IN(0))},
    {"cuEventQuery", "event", "query", OBJECT(IN(0))},
    {"cuEventRecord", "event", "record", OBJECT(IN(0), IN(1))},
    {"cuEventRecordWithFlags", "event", "record", OBJECT(IN(0), IN(1))},

    {"cuModuleLoad", "module", "load", OBJECT(OUT(0)), .on_return = hook_on_module_file,
     .probe_after = hook_after_load_file},
    {"cuModuleLoadData", "module", "load", OBJECT(OUT(0)), .on_return = hook_on_module_image,
     .probe_after = hook_after_load_image},
    {"cuModuleLoadDataEx", "module", "load", OBJECT(OUT(0)), .on_return = hook_on_module_image,
     .probe_after = hook_after_load_image},
    {"cuModuleLoadFatBinary", "module", "load", OBJECT(OUT(0)), .on_return = hook_on_module_image,
     .probe_after = hook_after_load_image},
    {"cuLibraryLoadData", "module", "load", OBJECT(OUT(0)), .on_return = hook_on_module_image,
     .probe_after = hook_after_load_image},
    {"cuLibraryLoadFromFile", "module", "load", OBJECT(OUT(0)), .on_return = hook_on_module_file,
     .probe_after = hook_after_load_file},
    {"cuLinkCreate", "module", "create", .probe_after = hook_after_link_begun},
    {"cuLinkAddData", "module", "adddata", .probe_after = hook_after_link_data},
    {"cuLinkAddFile", "module", "addfile", .probe_after = hook_after_link_file},
    {"cuLinkComplete", "module", "complete", .probe_after = hook_after_link},
    {"cuLinkDestroy", "module", "destroy", .probe_after = hook_after_link_end},
    {"cuModuleUnload", "module", "unload", OBJECT(IN(0)), GONE, .probe_before = hook_before_unload,
     .probe_after = hook_after_unload},
    {"cuLibraryUnload", "module", "unload", OBJECT(IN(0)), GONE, .probe_before = hook_before_unload,
     .probe_after = hook_after_unload},
    {"cuLibraryGetModule", "module", "get", OBJECT(OUT(0)), .on_return = hook_on_library_module},
    {"cuModuleGetFunction", "module", "function", OBJECT(OUT(0)), .on_return = hook_on_function,
     .probe_after = hook_after_function},
    {"cuLibraryGetKernel", "module", "function", OBJECT(OUT(0)), .on_return = hook_on_kernel,
     .probe_after = hook_after_function},
    {"cuKernelGetFunction", "module", "function", OBJECT(OUT(0)), .on_return = hook_on_kernel_function,
     .probe_after = hook_after_kernel_function},
    {"cuModuleEnumerateFunctions", "module", "enumerate", OBJECT(IN(2)),
     .on_return = hook_on_enumerate_functions, .probe_after = hook_after_functions},
    {"cuLibraryEnumerateKernels", "module", "enumerate", OBJECT(IN(2)),
     .on_return = hook_on_enumerate_kernels, .probe_after = hook_after_kernels},
    {"cuModuleGetGlobal", "module", "variable", OBJECT(IN(2)), .on_return = hook_on_variable_of_2,
     .probe_after = hook_after_variable},
    {"cuLibraryGetGlobal", "module", "variable", OBJECT(IN(2)), .on_return = hook_on_variable_of_2,
     .probe_after = hook_after_variable},
    {"cuLibraryGetManaged", "module", "variable", OBJECT(IN(2)), .on_return = hook_on_variable_of_2},
    {"cuLibraryGetUnifiedFunction", "module", "variable", OBJECT(IN(1)), .on_return = hook_on_variable_of_1},
    {"cuModuleGetTexRef", "module", "variable", OBJECT(IN(1)), .on_return = hook_on_variable_of_1},
    {"cuModuleGetSurfRef", "module", "variable", OBJECT(IN(1)), .on_return = hook_on_variable_of_1},
    {"cuFuncSetAttribute", "module", "setattribute", .on_return = hook_on_function_attribute,
     .probe_after = hook_after_attribute},
    {"cuKernelSetAttribute", "module", "setattribute", .on_return = hook_on_kernel_attribute,
     .probe_after = hook_after_attribute},
    {"cuFuncSetCacheConfig", "module", "setcacheconfig", .on_return = hook_on_function_cache,
     .probe_after = hook_after_attribute},
    {"cuKernelSetCacheConfig", "module", "setcacheconfig", .on_return = hook_on_kernel_cache,
     .probe_after = hook_after_attribute},
    {"cuFuncSetSharedMemConfig", "module", "setsharedmemconfig", .on_return = hook_on_function_shared,
     .probe_after = hook_after_attribute},

    {"cuDevicePrimaryCtxRetain", "context", "retain", OBJECT(OUT(0)), .on_return = hook_on_context_retained},
    {"cuCtxCreate", "context", "create", OBJECT(OUT(0)), .on_return = hook_on_context_made},
    {"cuCtxSetCurrent", "context", "set", OBJECT(IN(0))},
    {"cuCtxPushCurrent", "context", "push", OBJECT(IN(0))},
    {"cuCtxPopCurrent", "context", "pop", OBJECT(OUT(0))},
    {"cuCtxDestroy", "context", "destroy", OBJECT(IN(0)), .before = hook_before_context_gone,
     .on_return = hook_on_context_destroyed, .probe_before = hook_before_context_ends},
    {"cuDevicePrimaryCtxRelease", "context", "release", .before = hook_before_context_gone,
     .on_return = hook_on_context_released, .probe_before = hook_before_context_ends},
    {"cuDevicePrimaryCtxReset", "context", "reset", .before = hook_before_context_gone,
     .on_return = hook_on_context_reset, .probe_before = hook_before_context_ends},
    {"cuOccupancyMaxActiveBlocksPerMultiprocessor", "other", "occupancy", .probe_after = hook_after_blocks},
    {"cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags", "other", "occupancy",
     .probe_after = hook_after_blocks},
    {"cuOccupancyAvailableDynamicSMemPerBlock", "other", "occupancy", .probe_after = hook_after_shared},
    {"cuOccupancyMaxPotentialClusterSize", "other", "occupancy", .probe_after = hook_after_clusters},
    {"cuOccupancyMaxActiveClusters", "other", "occupancy", .probe_after = hook_after_clusters},
    {"cuOccupancyMaxPotentialBlockSize", "other", "occupancy", .probe_after = hook_after_block_size},
    {"cuOccupancyMaxPotentialBlockSizeWithFlags", "other", "occupancy", .probe_after = hook_after_block_size},
    {"cuGetProcAddress", "other", "lookup", .on_return = hook_on_get_proc_address},
    {"cuInit", "other", "init", .on_return = hook_on_init},
};

// The rest, by the beginning of the name.
static const struct {
    const char *prefix, *type;
} types[] = {
    {"cuCtx", "context"},   {"cuGreenCtx", "context"}, {"cuDevicePrimaryCtx", "context"},
    {"cuDevice", "device"}, {"cuMemcpy", "memcpy"},    {"cuMemset", "memset"},
    {"cuMem", "memory"},    {"cuStream", "stream"},    {"cuEvent", "event"},
    {"cuGraph", "graph"},   {"cuModule", "module"},    {"cuLibrary", "module"},
    {"cuKernel", "module"}, {"cuFunc", "module"},      {"cuLink", "module"},
    {"cuLaunch", "kernel"}, {"cu", "other"},           {"", "other"},
};

static const struct {
    const char *symbol;
    int8_t words; // of stack arguments
} names[] = {
#define NAME(name, words) {#name, words},
#include "names.h"
#undef NAME
};
_Static_assert(sizeof(names) / sizeof(*names) == HOOK_NAMES, "HOOK_NAMES counts the lines of names.h");

static const char *calls = "all,-query"; // which are recorded: words with commas between them

// Functions that return what the driver knows already. PyTorch asks some of them 15 times a launch.
static const char *const queries[] = {
    "cuCtxGetCurrent",
    "cuCtxGetDevice",
    "cuCtxGetFlags",
    "cuCtxGetLimit",
    "cuCtxGetApiVersion",
    "cuCtxGetStreamPriorityRange",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetCount",
    "cuDevicePrimaryCtxGetState",
    "cuDriverGetVersion",
    "cuFuncGetAttribute",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuKernelGetAttribute",
    "cuPointerGetAttribute",
    "cuPointerGetAttributes",
    "cuStreamGetCaptureInfo",
    "cuStreamGetCtx",
    "cuStreamGetFlags",
    "cuStreamGetId",
    "cuStreamGetPriority",
    "cuStreamIsCapturing",
    "cuThreadExchangeStreamCaptureMode",
};

static bool is_query(const char *name) {
    for (size_t i = 0; i < sizeof(queries) / sizeof(*queries); i++)
        if (!strcmp(queries[i], name))
            return true;
    return false;
}

void hook_decode_setup(void) {
    const char *wanted = hook_keep_variable("GPT_HOOK_CALLS");
    if (wanted && *wanted)
        calls = wanted;
    hook_gpu_time = getenv("GPT_HOOK_GPU_TIME");
    hook_sites_setup();
    hook_probe_setup();
}

void hook_describe_named(struct slot *slot) {
    if (!__atomic_load_n(&slot->id, __ATOMIC_ACQUIRE))
        hook_describe(slot, names[slot - hook_slots].symbol);
}

// The last word that means the function decides; one with `-` before it leaves it out.
static bool is_meant(const char *words, const char *name, const char *type) {
    bool meant = *words == '-';
    char text[NAME_BYTES];
    for (const char *at = words; *at; at += *at == ',') {
        size_t size = strcspn(at, ",");
        snprintf(text, sizeof(text), "%.*s", (int)size, at);
        const char *word = text + (*text == '-');
        if (!strcmp(word, "all") || !strcmp(word, type) || (!strcmp(word, "query") && is_query(name)) ||
            !fnmatch(word, name, 0))
            meant = word == text;
        at += size;
    }
    return meant;
}

struct slot *hook_named_slot(const char *symbol) {
    for (unsigned low = 0, high = HOOK_NAMES; low < high;) {
        unsigned middle = (low + high) / 2;
        int order = strcmp(symbol, names[middle].symbol);
        if (!order)
            return &hook_slots[middle];
        *(order < 0 ? &high : &low) = order < 0 ? middle : middle + 1;
    }
    return NULL;
}

static const struct known *find_known(const char *name) {
    for (size_t i = 0; i < sizeof(table) / sizeof(*table); i++)
        if (!strcmp(table[i].name, name))
            return &table[i];
    return NULL;
}

bool hook_is_old(const char *name) {
    const struct known *known = find_known(name);
    return known && known->v2;
}

// What is put into a stream and runs there; and what waits for that.
static uint32_t gpu_flags(const struct slot *slot, const char *name) {
    const char *type = hook_type(slot);
    bool copy = (!strcmp(type, "memcpy") || !strcmp(type, "memset")) && slot->layout == LAYOUT_MEMORY;
    bool waits = !strcmp(type, "sync") || (copy && !strstr(name, "Async"));
    bool runs = copy || slot->layout == LAYOUT_LAUNCH || !strcmp(name, "cuGraphLaunch");
    return (waits ? SLOT_SYNC : 0) | (runs ? SLOT_TIMED : 0);
}

// While calls are recorded (`on`), or not: then handlers run, and nothing else is done. A launch is looked at
// all the same, as it may be the first of a forked process.
static uint32_t find_flags(const struct slot *slot, const char *name, bool on) {
    const struct known *known = slot->known;
    bool launches = slot->layout == LAYOUT_LAUNCH, ordered = hook_probing && hook_order()->identity;
    bool probes = known && (launches ? on && ordered : hook_probing);
    uint32_t flags = on && is_meant(calls, name, hook_type(slot)) ? SLOT_WATCHED | SLOT_RECORDED : 0;
    if (flags && hook_stacks && is_meant(hook_stacks, name, hook_type(slot)))
        flags |= SLOT_STACK;
    flags |= known && (known->before || (probes && known->probe_before)) ? SLOT_BEFORE | SLOT_WATCHED : 0;
    flags |= probes && known->probe_after ? SLOT_AFTER | SLOT_WATCHED : 0;
    if (slot->on_return)
        flags |= SLOT_WATCHED;
    else if (on && is_query(name) && !flags && strcmp(calls, "none"))
        flags |= SLOT_COUNTED | SLOT_QUERY;
    if (launches)
        flags |= SLOT_COUNTED | (slot->special == SPECIAL_LAUNCH_EX ? SLOT_SECOND : 0);
    flags |= !on && (launches || !strcmp(name, "cuGraphLaunch")) ? SLOT_UNCOUNTED : 0;
    flags |= slot->words < STACK_WORDS ? SLOT_SCALAR : 0;
    uint32_t gpu = gpu_flags(slot, name);
    flags |= on && hook_gpu_time && gpu ? SLOT_WATCHED | gpu : gpu & SLOT_SYNC;
    flags |= ordered && (gpu & SLOT_SYNC) ? SLOT_WATCHED : 0;
    // After a function that waits for the GPU it is known what happened there: hook_leave looks at it.
    if (hook_has_tsc && !slot->words && slot->layout == LAYOUT_PLAIN && strcmp(hook_type(slot), "sync") &&
        (flags & ~(uint32_t)SLOT_SCALAR) == (SLOT_WATCHED | SLOT_RECORDED) && !slot->on_return)
        flags |= SLOT_LEAN;
    return flags;
}

void hook_find_flags(struct slot *slot) {
    char name[NAME_BYTES];
    slot_name(slot, name);
    slot->on = (uint16_t)find_flags(slot, name, true);
    slot->off = (uint16_t)find_flags(slot, name, false);
    hook_use_flags(slot);
}

void hook_describe(struct slot *slot, const char *symbol) {
    char name[NAME_BYTES];
    const struct slot *named = hook_named_slot(symbol);
    slot->symbol = symbol;
    slot->words = named ? names[named - hook_slots].words : STACK_WORDS;
    snprintf(name, sizeof(name), "%s", symbol);
    bool versioned = gpt_cut_suffixes(name);
    const struct known *known = find_known(name);
    slot->known = known;
    if (known && (versioned || !known->v2)) {
        slot->layout = known->layout;
        slot->special = known->special;
        memcpy(slot->values, known->values, sizeof(slot->values));
    }
    slot->on_return = known ? known->on_return : NULL;
    hook_find_flags(slot);
    __atomic_store_n(&slot->id, (uint32_t)(slot - hook_slots) + 1, __ATOMIC_SEQ_CST); // the rest is there
    hook_use_flags(slot); // recording may have been turned on or off meanwhile
}

static unsigned find_type(const char *symbol) {
    unsigned i = 0;
    while (strncmp(symbol, types[i].prefix, strlen(types[i].prefix)))
        i++;
    return i;
}

const char *hook_type(const struct slot *slot) {
    return slot->known ? slot->known->type : types[find_type(slot->symbol)].type;
}

void hook_announce(struct slot *slot) {
    char name[NAME_BYTES], op[NAME_BYTES];
    slot_name(slot, name);
    snprintf(op, sizeof(op), "%s", name + strlen(types[find_type(name)].prefix));
    for (char *c = op; *c; c++)
        *c |= *c >= 'A' && *c <= 'Z' ? 0x20 : 0;
    if (HOOK_WRITE(api, .id = slot->id, .symbol = hook_str(slot->symbol), .name = hook_str(name),
                   .type = hook_str(hook_type(slot)), .op = hook_str(slot->known ? slot->known->op : op)))
        atomic_store_explicit(&slot->announced, atomic_load(&hook_live->pid), memory_order_relaxed);
}
