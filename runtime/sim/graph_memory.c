// Memory allocated by graph nodes. A node gets an address when it's added to the graph, but the memory may
// only be used from a launch of the graph until it's freed: by a node of the same or another graph, or by the
// program. The address stays reserved as long as something refers to it: nodes, operations of launches, or a
// launch whose memory hasn't been freed.

#include <stdlib.h>

#include "graph.h"

struct allocation {
    struct object object;
    struct allocation *next;
    struct context *context;
    CUmemPoolProps props;
    uint64_t start, size;
    unsigned references;
    unsigned launches; // launches whose memory hasn't been freed; more than one if a free is still pending
    uint64_t until;    // while it isn't live: `until` of its range
    bool live;         // work that the program issues now may use it
};
_Static_assert(sizeof(struct allocation) <= OBJECT_SIZE, "fit");

static struct allocation *allocations;
static uint64_t live_bytes, reserved_bytes, high; // reserved: for all graphs, until the program trims it

static struct allocation *find(uint64_t start) {
    struct allocation *at = allocations;
    while (at && at->start != start)
        at = at->next;
    return at;
}

bool sim_is_graph_memory(uint64_t start, uint64_t size) {
    for (const struct allocation *at = allocations; at; at = at->next)
        if (start - at->start <= at->size && size <= at->size - (start - at->start))
            return true;
    return false;
}

static void release(struct allocation *allocation) {
    if (--allocation->references)
        return;
    struct allocation **at = &allocations;
    while (*at != allocation)
        at = &(*at)->next;
    *at = allocation->next;
    sim_drop_range(allocation->start, OF_GRAPH);
    sim_delete(allocation);
}

CUresult sim_make_graph_memory(struct operation *operation, size_t size, const CUmemPoolProps *props,
                               struct context *context) {
    if (!size || props->allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
        props->location.type != CU_MEM_LOCATION_TYPE_DEVICE || props->location.id)
        return CUDA_ERROR_INVALID_VALUE;
    if (size > sim_total_memory())
        return CUDA_ERROR_OUT_OF_MEMORY;
    void *start = aligned_alloc(512, (size + 511) & ~(size_t)511);
    struct allocation *made = start ? sim_new(ALLOCATION, NULL) : NULL;
    if (!made || !sim_add_range((uint64_t)start, size, NULL, OF_GRAPH)) {
        if (made)
            sim_delete(made);
        free(start);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    sim_set_until((uint64_t)start, 1, false); // no work may use it yet
    made->next = allocations;
    made->context = context;
    made->props = *props;
    made->start = (uint64_t)start, made->size = size;
    made->references = 1;
    allocations = made;
    *operation = (struct operation){.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC, .memory = made->start};
    return CUDA_SUCCESS;
}

void sim_hold_graph_memory(const struct operation *operation) {
    if (operation->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
        find(operation->memory)->references++;
}

void sim_release_graph_memory(const struct operation *operation) {
    if (operation->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
        release(find(operation->memory));
}

void sim_describe_graph_memory(uint64_t start, CUDA_MEM_ALLOC_NODE_PARAMS *params) {
    const struct allocation *allocation = find(start);
    *params = (CUDA_MEM_ALLOC_NODE_PARAMS){
        .poolProps = allocation->props, .bytesize = allocation->size, .dptr = allocation->start};
}

// Check whether a node that frees this memory may be added: a graph may free each allocation only once.
CUresult sim_check_free_node(const struct graph *graph, CUdeviceptr memory) {
    if (!find(memory))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < graph->count; i++) {
        const struct operation *operation = graph->nodes[i]->operation;
        if (operation->type == CU_GRAPH_NODE_TYPE_MEM_FREE && operation->memory == memory)
            return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

static bool frees(const struct graph *graph, uint64_t address) {
    for (size_t i = 0; i < graph->count; i++) {
        const struct operation *operation = graph->nodes[i]->operation;
        const struct allocation *allocation =
            operation->type == CU_GRAPH_NODE_TYPE_MEM_FREE ? find(operation->memory) : NULL;
        if (allocation && address - allocation->start < allocation->size)
            return true;
    }
    return false;
}

bool sim_uses_freed(const struct graph *graph, const struct operation *operation) {
    const CUDA_MEMCPY3D *copy = &operation->copy;
    if (operation->type == CU_GRAPH_NODE_TYPE_MEMSET)
        return frees(graph, operation->set.dst);
    return operation->type == CU_GRAPH_NODE_TYPE_MEMCPY &&
           ((copy->dstMemoryType != CU_MEMORYTYPE_HOST && frees(graph, copy->dstDevice)) ||
            (copy->srcMemoryType != CU_MEMORYTYPE_HOST && frees(graph, copy->srcDevice)));
}

bool sim_has_memory(const struct graph *graph) {
    for (size_t i = 0; i < graph->count; i++) {
        int type = graph->nodes[i]->operation->type;
        if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || type == CU_GRAPH_NODE_TYPE_MEM_FREE)
            return true;
        for (size_t j = 0; j < graph->nodes[i]->inners; j++)
            if (sim_has_memory(graph->nodes[i]->inner[j]))
                return true;
    }
    return false;
}

// Launches

static void trim(void) {
    sim_give_memory(reserved_bytes - live_bytes);
    reserved_bytes = live_bytes;
}

static void set_live(struct allocation *allocation) {
    live_bytes += allocation->size;
    allocation->live = true;
    sim_range_from(allocation->start)->owner = allocation->context;
    sim_set_until(allocation->start, 0, false);
}

static void set_freed(struct allocation *allocation, uint64_t until, bool frees_itself) {
    live_bytes -= allocation->size;
    allocation->live = false;
    allocation->until = until;
    sim_set_until(allocation->start, until, frees_itself);
}

// Reserve memory for a launch. Its operations allocate and free in order, so it needs the largest amount
// that's allocated at any one time.
CUresult sim_reserve_graph_memory(const struct operation *all, size_t count) {
    uint64_t now = live_bytes, most = 0;
    for (size_t i = 0; i < count; i++) {
        const struct allocation *allocation = find(all[i].memory);
        if (all[i].type == CU_GRAPH_NODE_TYPE_MEM_FREE && allocation)
            now -= allocation->size;
        else if (all[i].type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && !allocation->live)
            now += allocation->size;
        most = now > most ? now : most;
    }
    if (most > reserved_bytes && !sim_take_memory(most - reserved_bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    reserved_bytes = most > reserved_bytes ? most : reserved_bytes;
    high = reserved_bytes > high ? reserved_bytes : high;
    return CUDA_SUCCESS;
}

static bool allocates(const struct operation *all, size_t count, uint64_t memory) {
    for (size_t i = 0; i < count; i++)
        if (all[i].type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && all[i].memory == memory)
            return true;
    return false;
}

CUresult sim_check_launch(const struct operation *all, size_t count, bool frees_first) {
    for (size_t i = 0; i < count; i++) {
        const struct allocation *allocation = find(all[i].memory);
        if (all[i].type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && allocation->live && !frees_first)
            return CUDA_ERROR_INVALID_VALUE;
        if (all[i].type == CU_GRAPH_NODE_TYPE_MEM_FREE && !(allocation && allocation->live) &&
            !allocates(all, i, all[i].memory))
            return CUDA_ERROR_INVALID_VALUE;
    }
    return sim_reserve_graph_memory(all, count);
}

// Record that a launch was issued. The memory that it allocates counts as allocated from now on, since the
// program may issue work that uses it. Go through the operations in order and mark copies and memsets whose
// memory isn't allocated at that point; they fail when they run.
void sim_note_launch(struct operation *all, size_t count, bool (*lacks_memory)(const struct operation *)) {
    for (size_t i = 0; i < count; i++) {
        struct allocation *allocation = find(all[i].memory);
        if (all[i].type == CU_GRAPH_NODE_TYPE_MEM_FREE)
            set_freed(allocation, sim_next_work() - 1, true);
        else if (all[i].type == CU_GRAPH_NODE_TYPE_MEM_ALLOC &&
                 !allocation->live) { // otherwise it was freed first
            set_live(allocation);
            allocation->references++;
            allocation->launches++;
        } else
            all[i].wrong = lacks_memory(&all[i]);
    }
}

bool sim_begin_free(CUdeviceptr memory, CUresult *status) {
    struct allocation *allocation = find(memory);
    if (!allocation)
        return false;
    *status = allocation->live ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    if (allocation->live)
        set_freed(allocation, sim_next_work(), false);
    return true;
}

bool sim_free_graph_memory(CUdeviceptr memory) {
    struct allocation *allocation = find(memory);
    if (!allocation)
        return false;
    if (allocation->launches) {
        if (!--allocation->launches)
            sim_set_until(allocation->start, allocation->until, false);
        release(allocation);
    }
    return true;
}

void sim_end_graph_memory(const struct context *context) {
    for (struct allocation *at = allocations, *next; at; at = next) {
        next = at->next;
        unsigned launches = at->context == context ? at->launches : 0;
        if (launches && at->live)
            set_freed(at, sim_next_work(), false);
        at->launches -= launches;
        for (; launches; launches--)
            release(at);
    }
}

// Its attributes

static CUresult check_attribute(int attribute, const void *value, CUdevice device) {
    return device ? CUDA_ERROR_INVALID_DEVICE
           : !value || attribute < 0 || attribute > CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH
               ? CUDA_ERROR_INVALID_VALUE
               : CUDA_SUCCESS;
}

// An H200 counts in these units, and reports the same numbers for used and reserved memory.
static uint64_t in_units(uint64_t bytes) {
    enum { UNIT = 32 << 20 };
    return (bytes + UNIT - 1) / UNIT * UNIT;
}

API cuDeviceGetGraphMemAttribute(CUdevice device, int attribute, void *value) {
    LOCKED;
    CUresult status = check_attribute(attribute, value, device);
    bool now = attribute == CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT ||
               attribute == CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT;
    if (!status)
        *(uint64_t *)value = in_units(now ? reserved_bytes : high);
    return status;
}

API cuDeviceSetGraphMemAttribute(CUdevice device, int attribute, void *value) {
    LOCKED;
    CUresult status = check_attribute(attribute, value, device);
    bool is_high =
        attribute == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH || attribute == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH;
    if (status || !is_high || *(const uint64_t *)value)
        return status ? status : CUDA_ERROR_INVALID_VALUE;
    high = reserved_bytes;
    return CUDA_SUCCESS;
}

API cuDeviceGraphMemTrim(CUdevice device) {
    LOCKED;
    if (device)
        return CUDA_ERROR_INVALID_DEVICE;
    trim();
    return CUDA_SUCCESS;
}
