// The table of the driver's functions: their arguments and handlers. libgpthook.so decodes calls with it,
// gpt-hook functions prints it, and bpftrace programs are generated from it.
//
// The includer defines HANDLER(name): a function of the library, or NULL.

#ifndef GPT_TABLE_H
#define GPT_TABLE_H

#include <fnmatch.h>

#include "entry.h"
#include "hook/write/write.h"

#define IN(n) (ARG_IN | (n))
#define OUT(n) (ARG_OUT | (n))
#define VALUES(...) {__VA_ARGS__}
#define MEMORY .layout = LAYOUT_MEMORY, .values = VALUES // to, from, bytes, stream
#define OBJECT .layout = LAYOUT_OBJECT, .values = VALUES // object, stream
#define V2 .v2 = true
#define ALLOCATES .allocates = true
#define LAUNCH(how)                                                                                          \
    .layout = LAYOUT_LAUNCH, .special = how, .probe_before = HANDLER(before_launch),                         \
    .probe_after = HANDLER(after_launch), .first = true, .signals = true, ALLOCATES
#define AROUND(what)                                                                                         \
    .first = true, .probe_before = HANDLER(before_##what), .probe_after = HANDLER(after_##what)
#define INSTANTIATES                                                                                         \
    "graph", "instantiate", OBJECT(OUT(0)), .on_return = HANDLER(on_instantiate), AROUND(instantiate),       \
        ALLOCATES
#define SETS_CONTEXT .probe_after = HANDLER(after_context_set), .signals = true
#define ENDS_CONTEXT .probe_after = HANDLER(after_context_end), .first = true
#define GONE .before = HANDLER(before_gone), .on_return = HANDLER(on_gone)

static const struct driver_function table[] = {
    {"cuMemAlloc", "memory", "alloc", MEMORY(OUT(0), 0, IN(1)), V2, ALLOCATES},
    {"cuMemAllocAsync", "memory", "alloc", MEMORY(OUT(0), 0, IN(1), IN(2)), ALLOCATES},
    {"cuMemAllocFromPoolAsync", "memory", "alloc", MEMORY(OUT(0), 0, IN(1), IN(3)), ALLOCATES},
    {"cuMemAllocHost", "memory", "alloc", MEMORY(OUT(0), 0, IN(1)), V2, ALLOCATES},
    {"cuMemAllocManaged", "memory", "alloc", MEMORY(OUT(0), 0, IN(1)), ALLOCATES},
    {"cuMemAllocPitch", "memory", "alloc", MEMORY(OUT(0)), .special = SPECIAL_PITCH, V2, ALLOCATES},
    {"cuMemHostAlloc", "memory", "alloc", MEMORY(OUT(0), 0, IN(1)), ALLOCATES},
    {"cuMemCreate", "memory", "alloc", MEMORY(OUT(0), 0, IN(1)), ALLOCATES},
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
    {"cuMemcpyWithAttributesAsync", "memcpy", "any", MEMORY(IN(0), IN(1), IN(2), IN(4))},
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

    {"cuGraphLaunch", "graph", "launch", OBJECT(IN(0), IN(1)), .late = true,
     .probe_before = HANDLER(before_replay), .probe_after = HANDLER(after_replay)},
    {"cuGraphInstantiate", INSTANTIATES},
    {"cuGraphInstantiateWithFlags", INSTANTIATES},
    {"cuGraphInstantiateWithParams", INSTANTIATES},
    {"cuGraphExecDestroy", "graph", "destroy", OBJECT(IN(0)), .before = HANDLER(before_exec_destroyed),
     .on_return = HANDLER(on_gone), AROUND(exec_gone)},
    {"cuGraphExecUpdate", "graph", "update", OBJECT(IN(0)), .on_return = HANDLER(on_exec_update),
     AROUND(exec_update)},
    {"cuGraphExecKernelNodeSetParams", "graph", "execkernelnodesetparams",
     .on_return = HANDLER(on_exec_kernel), AROUND(exec_kernel)},
    {"cuGraphExecChildGraphNodeSetParams", "graph", "execchildgraphnodesetparams",
     .on_return = HANDLER(on_exec_child), AROUND(exec_child)},
    {"cuGraphExecNodeSetParams", "graph", "execnodesetparams", .on_return = HANDLER(on_exec_node),
     AROUND(exec_node)},
    {"cuGraphExecMemcpyNodeSetParams", "graph", "execmemcpynodesetparams", .on_return = HANDLER(on_exec_copy),
     .probe_before = HANDLER(before_exec_copy)},
    {"cuGraphExecMemsetNodeSetParams", "graph", "execmemsetnodesetparams", .on_return = HANDLER(on_exec_set),
     .probe_before = HANDLER(before_exec_set)},
    {"cuGraphNodeSetEnabled", "graph", "nodesetenabled", .on_return = HANDLER(on_node_enabled),
     .probe_after = HANDLER(after_node_enabled)},
    {"cuGraphCreate", "graph", "create", OBJECT(OUT(0)), .on_return = HANDLER(on_graph)},
    {"cuGraphClone", "graph", "clone", OBJECT(OUT(0)), .on_return = HANDLER(on_clone)},
    {"cuGraphDestroy", "graph", "destroy", OBJECT(IN(0)), GONE},
    {"cuGraphAddNode", "graph", "addnode", .on_return = HANDLER(on_node), AROUND(packed)},
    {"cuGraphAddKernelNode", "graph", "addkernelnode", .on_return = HANDLER(on_node_made), AROUND(packed)},
    {"cuGraphAddChildGraphNode", "graph", "addchildgraphnode", .on_return = HANDLER(on_child)},
    {"cuGraphKernelNodeSetParams", "graph", "kernelnodesetparams", AROUND(packed)},
    {"cuGraphNodeSetParams", "graph", "nodesetparams", AROUND(packed)},

    {"cuStreamSynchronize", "sync", "stream", OBJECT(0, IN(0))},
    {"cuEventSynchronize", "sync", "event", OBJECT(IN(0))},
    {"cuCtxSynchronize", "sync", "context", .layout = LAYOUT_PLAIN},
    {"cuStreamCreate", "stream", "create", OBJECT(OUT(0)), .on_return = HANDLER(on_stream), ALLOCATES},
    {"cuStreamCreateWithPriority", "stream", "create", OBJECT(OUT(0)), .on_return = HANDLER(on_stream),
     ALLOCATES},
    {"cuGreenCtxStreamCreate", "stream", "create", OBJECT(OUT(0)), .on_return = HANDLER(on_stream),
     ALLOCATES},
    {"cuStreamDestroy", "stream", "destroy", OBJECT(0, IN(0)), .late = true,
     .before = HANDLER(before_stream_gone), .probe_before = HANDLER(before_stream_ends)},
    {"cuStreamQuery", "stream", "query", OBJECT(0, IN(0))},
    {"cuStreamWaitEvent", "stream", "wait", OBJECT(IN(1), IN(0)), .late = true,
     .probe_before = HANDLER(before_join), .probe_after = HANDLER(after_capture)},
    {"cuStreamBeginCapture", "stream", "capture", OBJECT(0, IN(0)), .on_return = HANDLER(on_capture),
     .probe_before = HANDLER(before_capture), .probe_after = HANDLER(after_capture)},
    {"cuStreamBeginCaptureToGraph", "stream", "capture", OBJECT(0, IN(0)), .on_return = HANDLER(on_capture),
     .probe_before = HANDLER(before_capture), .probe_after = HANDLER(after_capture)},
    {"cuStreamBeginRecaptureToGraph", "stream", "capture", OBJECT(0, IN(0)), .on_return = HANDLER(on_capture),
     .probe_before = HANDLER(before_capture), .probe_after = HANDLER(after_capture)},
    {"cuStreamEndCapture", "stream", "captured", OBJECT(OUT(1), IN(0)), .on_return = HANDLER(on_captured)},
    {"cuEventCreate", "event", "create", OBJECT(OUT(0)), ALLOCATES},
    {"cuEventDestroy", "event", "destroy", OBJECT(IN(0))},
    {"cuEventQuery", "event", "query", OBJECT(IN(0))},
    {"cuEventRecord", "event", "record", OBJECT(IN(0), IN(1))},
    {"cuEventRecordWithFlags", "event", "record", OBJECT(IN(0), IN(1))},

    {"cuModuleLoad", "module", "load", OBJECT(OUT(0)), .on_return = HANDLER(on_module_file),
     .probe_after = HANDLER(after_load_file), ALLOCATES},
    {"cuModuleLoadData", "module", "load", OBJECT(OUT(0)), .on_return = HANDLER(on_module_image),
     .probe_after = HANDLER(after_load_image), ALLOCATES},
    {"cuModuleLoadDataEx", "module", "load", OBJECT(OUT(0)), .on_return = HANDLER(on_module_image),
     .probe_after = HANDLER(after_load_image), ALLOCATES},
    {"cuModuleLoadFatBinary", "module", "load", OBJECT(OUT(0)), .on_return = HANDLER(on_module_image),
     .probe_after = HANDLER(after_load_image), ALLOCATES},
    {"cuLibraryLoadData", "module", "load", OBJECT(OUT(0)), .on_return = HANDLER(on_module_image),
     .probe_after = HANDLER(after_load_image), ALLOCATES},
    {"cuLibraryLoadFromFile", "module", "load", OBJECT(OUT(0)), .on_return = HANDLER(on_module_file),
     .probe_after = HANDLER(after_load_file), ALLOCATES},
    {"cuLinkCreate", "module", "create", .probe_after = HANDLER(after_link_begun)},
    {"cuLinkAddData", "module", "adddata", .probe_after = HANDLER(after_link_data)},
    {"cuLinkAddFile", "module", "addfile", .probe_after = HANDLER(after_link_file)},
    {"cuLinkComplete", "module", "complete", .probe_after = HANDLER(after_link)},
    {"cuLinkDestroy", "module", "destroy", .probe_after = HANDLER(after_link_end)},
    {"cuModuleUnload", "module", "unload", OBJECT(IN(0)), GONE, .probe_before = HANDLER(before_unload),
     .probe_after = HANDLER(after_unload)},
    {"cuLibraryUnload", "module", "unload", OBJECT(IN(0)), GONE, .probe_before = HANDLER(before_unload),
     .probe_after = HANDLER(after_unload)},
    {"cuLibraryGetModule", "module", "get", OBJECT(OUT(0)), .on_return = HANDLER(on_library_module),
     ALLOCATES},
    {"cuModuleGetFunction", "module", "function", OBJECT(OUT(0)), .on_return = HANDLER(on_function),
     .probe_after = HANDLER(after_function), ALLOCATES},
    {"cuLibraryGetKernel", "module", "function", OBJECT(OUT(0)), .on_return = HANDLER(on_kernel),
     .probe_after = HANDLER(after_function), ALLOCATES},
    {"cuKernelGetFunction", "module", "function", OBJECT(OUT(0)), .on_return = HANDLER(on_kernel_function),
     .probe_after = HANDLER(after_kernel_function), ALLOCATES},
    {"cuModuleEnumerateFunctions", "module", "enumerate", OBJECT(IN(2)),
     .on_return = HANDLER(on_enumerate_functions), .probe_after = HANDLER(after_functions)},
    {"cuLibraryEnumerateKernels", "module", "enumerate", OBJECT(IN(2)),
     .on_return = HANDLER(on_enumerate_kernels), .probe_after = HANDLER(after_kernels)},
    {"cuModuleGetGlobal", "module", "variable", OBJECT(IN(2)), .on_return = HANDLER(on_variable_of_2),
     .probe_after = HANDLER(after_variable), ALLOCATES},
    {"cuLibraryGetGlobal", "module", "variable", OBJECT(IN(2)), .on_return = HANDLER(on_variable_of_2),
     .probe_after = HANDLER(after_variable), ALLOCATES},
    {"cuLibraryGetManaged", "module", "variable", OBJECT(IN(2)), .on_return = HANDLER(on_variable_of_2),
     ALLOCATES},
    {"cuLibraryGetUnifiedFunction", "module", "variable", OBJECT(IN(1)),
     .on_return = HANDLER(on_variable_of_1)},
    {"cuModuleGetTexRef", "module", "variable", OBJECT(IN(1)), .on_return = HANDLER(on_variable_of_1)},
    {"cuModuleGetSurfRef", "module", "variable", OBJECT(IN(1)), .on_return = HANDLER(on_variable_of_1)},
    {"cuFuncSetAttribute", "module", "setattribute", .on_return = HANDLER(on_function_attribute),
     .probe_after = HANDLER(after_attribute)},
    {"cuKernelSetAttribute", "module", "setattribute", .on_return = HANDLER(on_kernel_attribute),
     .probe_after = HANDLER(after_attribute)},
    {"cuFuncSetCacheConfig", "module", "setcacheconfig", .on_return = HANDLER(on_function_cache),
     .probe_after = HANDLER(after_attribute)},
    {"cuKernelSetCacheConfig", "module", "setcacheconfig", .on_return = HANDLER(on_kernel_cache),
     .probe_after = HANDLER(after_attribute)},
    {"cuFuncSetSharedMemConfig", "module", "setsharedmemconfig", .on_return = HANDLER(on_function_shared),
     .probe_after = HANDLER(after_attribute)},

    {"cuDevicePrimaryCtxRetain", "context", "retain", OBJECT(OUT(0)),
     .on_return = HANDLER(on_context_retained), ALLOCATES},
    {"cuCtxCreate", "context", "create", OBJECT(OUT(0)), .on_return = HANDLER(on_context_made), ALLOCATES,
     SETS_CONTEXT, .first = true},
    {"cuCtxAttach", "context", "attach", SETS_CONTEXT},
    {"cuGLCtxCreate", "context", "create", SETS_CONTEXT},
    {"cuVDPAUCtxCreate", "context", "create", SETS_CONTEXT},
    {"cuCtxSetCurrent", "context", "set", OBJECT(IN(0)), SETS_CONTEXT},
    {"cuCtxPushCurrent", "context", "push", OBJECT(IN(0)), SETS_CONTEXT},
    {"cuCtxPopCurrent", "context", "pop", OBJECT(OUT(0)), SETS_CONTEXT},
    {"cuCtxDetach", "context", "detach", ENDS_CONTEXT},
    {"cuGreenCtxDestroy", "context", "destroy", ENDS_CONTEXT},
    {"cuCtxDestroy", "context", "destroy", OBJECT(IN(0)), .before = HANDLER(before_context_gone),
     .on_return = HANDLER(on_context_destroyed), .probe_before = HANDLER(before_context_ends), ENDS_CONTEXT},
    {"cuDevicePrimaryCtxRelease", "context", "release", .before = HANDLER(before_context_gone),
     .on_return = HANDLER(on_context_released), .probe_before = HANDLER(before_context_ends), ENDS_CONTEXT},
    {"cuDevicePrimaryCtxReset", "context", "reset", .before = HANDLER(before_context_gone),
     .on_return = HANDLER(on_context_reset), .probe_before = HANDLER(before_context_ends), ENDS_CONTEXT},
    {"cuOccupancyMaxActiveBlocksPerMultiprocessor", "other", "occupancy",
     .probe_after = HANDLER(after_blocks)},
    {"cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags", "other", "occupancy",
     .probe_after = HANDLER(after_blocks)},
    {"cuOccupancyAvailableDynamicSMemPerBlock", "other", "occupancy", .probe_after = HANDLER(after_shared)},
    {"cuOccupancyMaxPotentialClusterSize", "other", "occupancy", .probe_after = HANDLER(after_clusters)},
    {"cuOccupancyMaxActiveClusters", "other", "occupancy", .probe_after = HANDLER(after_clusters)},
    {"cuOccupancyMaxPotentialBlockSize", "other", "occupancy", .probe_after = HANDLER(after_block_size)},
    {"cuOccupancyMaxPotentialBlockSizeWithFlags", "other", "occupancy",
     .probe_after = HANDLER(after_block_size)},
    {"cuGetProcAddress", "other", "lookup", .on_return = HANDLER(on_get_proc_address)},
    {"cuInit", "other", "init", .on_return = HANDLER(on_init)},
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

// Functions that return what the driver already knows. PyTorch calls some of them 15 times per launch.
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

static inline const struct driver_function *find_known(const char *name) {
    for (size_t i = 0; i < sizeof(table) / sizeof(*table); i++)
        if (!strcmp(table[i].name, name))
            return &table[i];
    return NULL;
}

static inline unsigned find_type(const char *symbol) {
    unsigned i = 0;
    while (strncmp(symbol, types[i].prefix, strlen(types[i].prefix)))
        i++;
    return i;
}

// Derive the op of a function that isn't in the table from the rest of its name.
static inline void name_op(const char *name, char op[NAME_BYTES]) {
    snprintf(op, NAME_BYTES, "%s", name + strlen(types[find_type(name)].prefix));
    for (char *c = op; *c; c++)
        *c |= *c >= 'A' && *c <= 'Z' ? 0x20 : 0;
}

static inline bool is_query(const char *name) {
    for (size_t i = 0; i < sizeof(queries) / sizeof(*queries); i++)
        if (!strcmp(queries[i], name))
            return true;
    return false;
}

// The last word that matches the function decides; a leading `-` excludes it.
static inline bool is_meant(const char *words, const char *name, const char *type) {
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

#endif
