// What graph nodes other than kernels do: copies, memsets, host functions, and allocating and freeing memory.

#include "abi/cuda.h"
#include "hook/write/write.h"
#include "watch.h"

// The type and op of each kind of work in the trace, the same as for calls. A node's parameters always give
// the direction of a copy, unless they leave the memory's type to the driver (CU_MEMORYTYPE_UNIFIED).
enum what { NOTHING, ANY, H_TO_D, D_TO_H, D_TO_D, H_TO_H, SET, HOST, ALLOC, FREE, WHATS };
static const struct {
    struct gpt_str type, op;
} names[WHATS] = {
    [ANY] = {GPT_STR("memcpy"), GPT_STR("any")},     [H_TO_D] = {GPT_STR("memcpy"), GPT_STR("HtoD")},
    [D_TO_H] = {GPT_STR("memcpy"), GPT_STR("DtoH")}, [D_TO_D] = {GPT_STR("memcpy"), GPT_STR("DtoD")},
    [H_TO_H] = {GPT_STR("memcpy"), GPT_STR("HtoH")}, [SET] = {GPT_STR("memset"), GPT_STR("set")},
    [HOST] = {GPT_STR("stream"), GPT_STR("host")},   [ALLOC] = {GPT_STR("memory"), GPT_STR("alloc")},
    [FREE] = {GPT_STR("memory"), GPT_STR("free")},
};

static uint64_t at_least_1(uint64_t number) { return number ? number : 1; }

struct graph_work hook_work_of_copy(const CUDA_MEMCPY3D *node) {
    bool unified =
        node->srcMemoryType == CU_MEMORYTYPE_UNIFIED || node->dstMemoryType == CU_MEMORYTYPE_UNIFIED;
    bool from = node->srcMemoryType != CU_MEMORYTYPE_HOST, to = node->dstMemoryType != CU_MEMORYTYPE_HOST;
    uint8_t what = unified ? ANY : from ? (to ? D_TO_D : D_TO_H) : to ? H_TO_D : H_TO_H;
    return (struct graph_work){
        .what = what, .bytes = node->WidthInBytes * at_least_1(node->Height) * at_least_1(node->Depth)};
}

struct graph_work hook_work_of_set(const CUDA_MEMSET_NODE_PARAMS_v2 *node) {
    return (struct graph_work){.what = SET,
                               .bytes = node->elementSize * node->width * at_least_1(node->height)};
}

// The driver's functions that return a node's parameters: (node, &parameters). Older drivers lack some.
typedef CUresult getter(void *, void *);
static getter *copy, *set, *alloc, *released;

static bool find_all(void) {
    copy = (getter *)(uintptr_t)hook_driver_function("cuGraphMemcpyNodeGetParams");
    set = (getter *)(uintptr_t)hook_driver_function("cuGraphMemsetNodeGetParams");
    alloc = (getter *)(uintptr_t)hook_driver_function("cuGraphMemAllocNodeGetParams");
    released = (getter *)(uintptr_t)hook_driver_function("cuGraphMemFreeNodeGetParams");
    return true;
}

static bool ask(getter *get, void *node, void *parameters) {
    return get && get(node, parameters) == CUDA_SUCCESS;
}

struct graph_work hook_work_of(void *node, int type) {
    union {
        CUDA_MEMCPY3D copy;
        CUDA_MEMSET_NODE_PARAMS_v2
            set; // the driver fills in the first version of the structure, which this one begins with
        CUDA_MEM_ALLOC_NODE_PARAMS alloc;
        CUdeviceptr address;
    } params = {0};
    static _Atomic int found;
    hook_find_once(&found, find_all);
    switch (type) {
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        if (ask(copy, node, &params))
            return hook_work_of_copy(&params.copy);
        return (struct graph_work){.what = ANY};
    case CU_GRAPH_NODE_TYPE_MEMSET:
        if (ask(set, node, &params))
            return hook_work_of_set(&params.set);
        return (struct graph_work){.what = SET};
    case CU_GRAPH_NODE_TYPE_HOST:
        return (struct graph_work){.what = HOST};
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
        if (ask(alloc, node, &params))
            return (struct graph_work){
                .what = ALLOC, .bytes = params.alloc.bytesize, .address = params.alloc.dptr};
        return (struct graph_work){.what = ALLOC};
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
        if (ask(released, node, &params))
            return (struct graph_work){.what = FREE, .address = params.address};
        return (struct graph_work){.what = FREE};
    default:
        return (struct graph_work){0};
    }
}

static bool is_alike(const struct gpt_operation *operation, const struct graph_work *work, uint64_t address) {
    return operation->type.data == names[work->what].type.data &&
           operation->op.data == names[work->what].op.data && operation->address.value == address;
}

// Add up work by type, op and address. When the table is nearly full, addresses are omitted: work without an
// address needs at most one entry for each kind.
void hook_add_work(struct graph_sums *sums, const struct graph_work *work) {
    uint64_t address = sums->count < MAX_OPERATIONS - WHATS ? work->address : 0;
    struct gpt_operation *operation = sums->operations;
    while (operation < sums->operations + sums->count && !is_alike(operation, work, address))
        operation++;
    if (operation == sums->operations + sums->count) {
        sums->count++;
        *operation = (struct gpt_operation){
            .type = names[work->what].type, .op = names[work->what].op, .address = {address != 0, address}};
    }
    operation->nodes++;
    operation->bytes += work->bytes;
}
