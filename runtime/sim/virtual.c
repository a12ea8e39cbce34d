// Virtual memory management (cuMemAddressReserve, cuMemCreate, cuMemMap): a program reserves addresses,
// creates memory that has no address yet, and maps the one to the other. The memory is an unnamed file, so it
// can be mapped at several addresses.

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/broker.h"
#include "sim.h"

struct physical {
    struct object object;
    int file;
    size_t size;
    CUmemAllocationProp props;
    unsigned held;       // the program's handles, each of which it may release once
    unsigned references; // from the program and from mappings
};

_Static_assert(sizeof(struct physical) <= OBJECT_SIZE, "fit");

struct piece { // a range of addresses: reserved, or mapped
    uint64_t start, size;
    struct physical *memory;
    int access; // CU_MEM_ACCESS_FLAGS_PROT_*
};

struct pieces {
    struct piece *all;
    size_t count, room;
};
static struct pieces reserved, mapped;

enum { GRANULARITY = 2 << 20 }; // bytes

static bool add(struct pieces *pieces, struct piece piece) {
    struct piece *larger = sim_grow(pieces->all, pieces->count, &pieces->room, sizeof(*larger));
    if (!larger)
        return false;
    pieces->all = larger;
    larger[pieces->count++] = piece;
    return true;
}

static bool is_inside(const struct piece *piece, uint64_t start, uint64_t size) {
    return start >= piece->start && size <= piece->size && start - piece->start <= piece->size - size;
}

// Find the piece that contains these bytes.
static struct piece *find(const struct pieces *pieces, uint64_t start, uint64_t size) {
    for (size_t i = 0; i < pieces->count; i++)
        if (is_inside(&pieces->all[i], start, size))
            return &pieces->all[i];
    return NULL;
}

static bool overlaps(uint64_t start, uint64_t size) {
    for (size_t i = 0; i < mapped.count; i++)
        if (start < mapped.all[i].start + mapped.all[i].size && mapped.all[i].start < start + size)
            return true;
    return false;
}

// Return how many of these bytes belong to mappings that lie completely within them.
static uint64_t covered(uint64_t start, uint64_t size) {
    uint64_t sum = 0;
    for (size_t i = 0; i < mapped.count; i++)
        if (is_inside(&(struct piece){.start = start, .size = size}, mapped.all[i].start, mapped.all[i].size))
            sum += mapped.all[i].size;
    return sum;
}

static void release(struct physical *memory) {
    if (--memory->references)
        return;
    close(memory->file);
    if (memory->props.location.type == CU_MEM_LOCATION_TYPE_DEVICE)
        sim_give_memory(memory->size);
    sim_delete(memory);
}

static bool is_size(size_t size) { return size && size % GRANULARITY == 0; }

API cuMemGetAllocationGranularity(size_t *size, const CUmemAllocationProp *props, int option) {
    enum { RECOMMENDED = 1 };
    if (!size || !props || option < 0 || option > RECOMMENDED)
        return CUDA_ERROR_INVALID_VALUE;
    *size = GRANULARITY;
    return CUDA_SUCCESS;
}

API cuMemAddressReserve(CUdeviceptr *start, size_t size, size_t align, CUdeviceptr wanted, uint64_t flags) {
    LOCKED;
    (void)wanted;
    if (!start || !is_size(size) || flags || align & (align - 1))
        return CUDA_ERROR_INVALID_VALUE;
    align = align > GRANULARITY ? align : GRANULARITY;
    if (size > SIZE_MAX - align)
        return CUDA_ERROR_INVALID_VALUE;
    char *made = mmap(NULL, size + align, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (made == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    size_t before = -(uintptr_t)made & (align - 1);
    if (before)
        munmap(made, before);
    munmap(made + before + size, align - before);
    if (!add(&reserved, (struct piece){.start = (uint64_t)made + before, .size = size})) {
        munmap(made + before, size);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *start = (uint64_t)made + before;
    return CUDA_SUCCESS;
}

API cuMemAddressFree(CUdeviceptr start, size_t size) {
    LOCKED;
    struct piece *piece = find(&reserved, start, size);
    if (!piece || piece->start != start || piece->size != size || overlaps(start, size))
        return CUDA_ERROR_INVALID_VALUE;
    munmap((void *)start, size);
    *piece = reserved.all[--reserved.count];
    return CUDA_SUCCESS;
}

API cuMemCreate(uint64_t *handle, size_t size, const CUmemAllocationProp *props, uint64_t flags) {
    LOCKED;
    if (!handle || !props || flags || !is_size(size) || props->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
        props->location.type <= CU_MEM_LOCATION_TYPE_INVALID)
        return CUDA_ERROR_INVALID_VALUE;
    if (props->location.type == CU_MEM_LOCATION_TYPE_DEVICE && props->location.id)
        return CUDA_ERROR_INVALID_DEVICE;
    if (props->requestedHandleTypes)
        return CUDA_ERROR_NOT_SUPPORTED; // handles for other processes
    bool of_device = props->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    if (of_device && !sim_take_memory(size))
        return CUDA_ERROR_OUT_OF_MEMORY;
    int file = memfd_create("gpt-sim", MFD_CLOEXEC);
    struct physical *made = file >= 0 && gpt_resize_quietly(file, size) ? sim_new(PHYSICAL, NULL) : NULL;
    if (!made) {
        if (file >= 0)
            close(file);
        if (of_device)
            sim_give_memory(size);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    made->file = file;
    made->size = size;
    made->props = *props;
    made->held = made->references = 1;
    *handle = (uint64_t)made;
    return CUDA_SUCCESS;
}

static struct physical *find_memory(uint64_t handle) {
    return is_kind((void *)handle, PHYSICAL) ? (struct physical *)handle : NULL;
}

API cuMemRelease(uint64_t handle) {
    LOCKED;
    struct physical *memory = find_memory(handle);
    if (!memory || !memory->held)
        return CUDA_ERROR_INVALID_VALUE;
    memory->held--;
    release(memory);
    return CUDA_SUCCESS;
}

API cuMemRetainAllocationHandle(uint64_t *handle, void *address) {
    LOCKED;
    struct piece *piece = find(&mapped, (uint64_t)address, 1);
    if (!handle || !piece)
        return CUDA_ERROR_INVALID_VALUE;
    piece->memory->references++;
    piece->memory->held++;
    *handle = (uint64_t)piece->memory;
    return CUDA_SUCCESS;
}

API cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *props, uint64_t handle) {
    LOCKED;
    if (!props || !find_memory(handle))
        return CUDA_ERROR_INVALID_VALUE;
    *props = find_memory(handle)->props;
    return CUDA_SUCCESS;
}

API cuMemMap(CUdeviceptr start, size_t size, size_t offset, uint64_t handle, uint64_t flags) {
    LOCKED;
    struct physical *memory = find_memory(handle);
    if (!memory || !memory->held || flags || !is_size(size) || start % GRANULARITY)
        return CUDA_ERROR_INVALID_VALUE;
    if (offset || size != memory->size)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (!find(&reserved, start, size) || overlaps(start, size))
        return CUDA_ERROR_INVALID_VALUE;
    void *made = mmap((void *)start, size, PROT_NONE, MAP_SHARED | MAP_FIXED, memory->file, (off_t)offset);
    if (made == MAP_FAILED || !add(&mapped, (struct piece){start, size, memory, 0}))
        return CUDA_ERROR_OUT_OF_MEMORY;
    memory->references++;
    return CUDA_SUCCESS;
}

// Work that begins after this call doesn't find the memory any more. Work that already uses it finishes
// first.
API cuMemUnmap(CUdeviceptr start, size_t size) {
    LOCKED;
    const struct piece whole = {.start = start, .size = size};
    if (!is_size(size) || !find(&reserved, start, size))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < mapped.count; i++)
        if (start < mapped.all[i].start + mapped.all[i].size && mapped.all[i].start < start + size &&
            !is_inside(&whole, mapped.all[i].start, mapped.all[i].size))
            return CUDA_ERROR_INVALID_VALUE; // only a part of a mapping
    for (size_t i = 0; i < mapped.count; i++)
        if (is_inside(&whole, mapped.all[i].start, mapped.all[i].size)) {
            sim_drop_range(mapped.all[i].start, MAPPED);
            mapped.all[i].access = 0;
        }
    sim_drain(NULL, false);
    for (size_t i = mapped.count; i--;) {
        struct piece piece = mapped.all[i];
        if (!is_inside(&whole, piece.start, piece.size))
            continue;
        mmap((void *)piece.start, piece.size, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
        mapped.all[i] = mapped.all[--mapped.count];
        release(piece.memory);
    }
    return CUDA_SUCCESS;
}

API cuMemSetAccess(CUdeviceptr start, size_t size, const CUmemAccessDesc *access, size_t count) {
    LOCKED;
    if (!access || !count || !is_size(size) || covered(start, size) != size)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        if (access[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE)
            return CUDA_ERROR_NOT_SUPPORTED;
        if (access[i].location.id)
            return CUDA_ERROR_INVALID_VALUE;
        if (access[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE &&
            access[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
            access[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
            return CUDA_ERROR_INVALID_VALUE;
    }
    sim_drain(NULL, false); // pending work may use it
    int flags = access[count - 1].flags;
    int protection = flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ? PROT_READ | PROT_WRITE
                     : flags == CU_MEM_ACCESS_FLAGS_PROT_READ    ? PROT_READ
                                                                 : PROT_NONE;
    for (size_t i = 0; i < mapped.count; i++) {
        struct piece *piece = &mapped.all[i];
        if (!is_inside(&(struct piece){.start = start, .size = size}, piece->start, piece->size))
            continue;
        if (mprotect((void *)piece->start, piece->size, protection) ||
            (!piece->access && flags && !sim_add_range(piece->start, piece->size, NULL, MAPPED)))
            return CUDA_ERROR_OUT_OF_MEMORY;
        if (piece->access && !flags)
            sim_drop_range(piece->start, MAPPED);
        piece->access = flags;
    }
    return CUDA_SUCCESS;
}

API cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr address) {
    LOCKED;
    const struct piece *piece = find(&mapped, address, 1);
    if (!flags || !location || !piece)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = (unsigned long long)piece->access;
    return CUDA_SUCCESS;
}
