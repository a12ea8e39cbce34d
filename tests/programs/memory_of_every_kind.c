// Run by test_memory_of_every_kind in tests/runtime/test_sim_memory.py.

#include "sim.h"

static int (*cuCtxGetCurrent)(void **);
static CUmemLocation here = {1, 0};
static uint64_t pool_value(void *pool, int attribute) {
    uint64_t value = 0;
    OK(D(cuMemPoolGetAttribute)(pool, attribute, &value));
    return value;
}
static void pools(void) {
    void *pool, *other, *stream;
    uint64_t a, b, big = 1 << 20;
    CUmemPoolProps props = {.allocType = 1, .location = here, .maxSize = 4096};
    OK(D(cuStreamCreate)(&stream, 1));
    OK(D(cuDeviceGetDefaultMemPool)(&pool, 0));
    OK(D(cuDeviceGetMemPool)(&other, 0));
    assert(pool == other);
    OK(D(cuMemAllocAsync)(&a, (size_t)1000, stream));
    OK(D(cuPointerGetAttribute)(&other, 17, a)); // the pool
    assert(other == pool && pool_value(pool, 7) == 1000);
    OK(D(cuMemFreeAsync)(a, stream));
    OK(D(cuStreamSynchronize)(stream));
    assert(pool_value(pool, 7) == 0 && pool_value(pool, 8) == 1000);
    IS(1, D(cuMemPoolDestroy)(pool));
    OK(D(cuMemPoolCreate)(&other, &props));
    OK(D(cuMemPoolSetAttribute)(other, 4, &big)); // the release threshold
    assert(pool_value(other, 4) == big);
    OK(D(cuMemAllocFromPoolAsync)(&a, (size_t)4000, other, stream));
    IS(2, D(cuMemAllocFromPoolAsync)(&b, (size_t)97, other, stream));
    OK(D(cuDeviceSetMemPool)(0, other));
    OK(D(cuMemAllocAsync)(&b, (size_t)96, stream));
    OK(D(cuMemPoolDestroy)(other)); // its memory stays; the default pool is current again
    OK(D(cuMemsetD8_v2)(a, 1, (size_t)4000));
    OK(D(cuCtxSynchronize)());
    OK(D(cuDeviceGetMemPool)(&other, 0));
    assert(other == pool);
    OK(D(cuMemFreeAsync)(a, stream));
    OK(D(cuMemFree_v2)(b));
    props.handleTypes = 1;
    IS(801, D(cuMemPoolCreate)(&other, &props));
}
static void mappings(void) {
    enum { PAGE = 2 << 20 };
    uint64_t start, memory, again;
    size_t size;
    unsigned long long flags;
    CUmemAllocationProp props = {.type = 1, .location = here}, got;
    CUmemAccessDesc access = {here, 3};
    char back[8] = "";
    OK(D(cuMemGetAllocationGranularity)(&size, &props, 0));
    assert(size == PAGE);
    OK(D(cuMemAddressReserve)(&start, (size_t)4 * PAGE, (size_t)0, 0ull, 0ull));
    assert(start % PAGE == 0);
    IS(1, D(cuMemCreate)(&memory, (size_t)100, &props, 0ull));
    OK(D(cuMemCreate)(&memory, (size_t)PAGE, &props, 0ull));
    OK(D(cuMemMap)(start, (size_t)PAGE, (size_t)0, memory, 0ull));
    OK(D(cuMemMap)(start + PAGE, (size_t)PAGE, (size_t)0, memory, 0ull)); // the same memory twice
    IS(1, D(cuMemMap)(start, (size_t)PAGE, (size_t)0, memory, 0ull));
    IS(1, D(cuMemsetD8_v2)(start, 1, (size_t)1)); // no access has been granted yet
    OK(D(cuMemSetAccess)(start, (size_t)2 * PAGE, &access, (size_t)1));
    OK(D(cuMemGetAccess)(&flags, &here, start));
    assert(flags == 3);
    OK(D(cuMemRelease)(memory)); // the memory exists as long as it's mapped
    OK(D(cuMemcpyHtoD_v2)(start + 4, "hello", (size_t)6));
    OK(D(cuMemcpyDtoH_v2)(back, start + PAGE + 4, (size_t)6));
    assert(!strcmp(back, "hello"));
    OK(D(cuMemsetD8_v2)(start, 7, (size_t)2 * PAGE)); // across both mappings
    IS(1, D(cuMemsetD8_v2)(start, 7, (size_t)2 * PAGE + 1));
    OK(D(cuMemRetainAllocationHandle)(&again, (void *)start));
    OK(D(cuMemGetAllocationPropertiesFromHandle)(&got, again));
    assert(again == memory && got.type == 1);
    OK(D(cuMemRelease)(again));
    IS(1, D(cuMemAddressFree)(start, (size_t)4 * PAGE));
    OK(D(cuMemUnmap)(start, (size_t)2 * PAGE));
    IS(1, D(cuMemsetD8_v2)(start, 7, (size_t)1));
    IS(1, D(cuMemRetainAllocationHandle)(&again, (void *)start));
    OK(D(cuMemAddressFree)(start, (size_t)4 * PAGE));
}
static void pointers(void) {
    uint64_t device, managed, start;
    void *pinned, *context, *host = malloc(100);
    unsigned type, flags;
    int ordinal, attributes[] = {2, 9, 8, 12};
    char is_managed;
    size_t size, unused, total, later;
    void *values[] = {&type, &ordinal, &is_managed, &size};
    OK(D(cuMemGetInfo_v2)(&unused, &total));
    OK(D(cuMemAlloc_v2)(&device, (size_t)1 << 20));
    OK(D(cuMemGetInfo_v2)(&later, &total));
    assert(later == unused - (1 << 20) && total >= unused);
    OK(D(cuMemAllocManaged)(&managed, (size_t)100, 1));
    OK(D(cuMemHostAlloc)(&pinned, (size_t)100, 1));
    OK(D(cuMemHostRegister_v2)(host, (size_t)100, 0));
    OK(D(cuMemHostGetFlags)(&flags, pinned));
    assert(flags == 3);
    OK(D(cuPointerGetAttributes)(4, attributes, values, device + 7));
    assert(type == 2 && ordinal == 0 && !is_managed && size == 1 << 20);
    OK(D(cuPointerGetAttributes)(4, attributes, values, managed));
    assert(type == 2 && ordinal == 0 && is_managed && size == 100);
    OK(D(cuPointerGetAttributes)(4, attributes, values, (uint64_t)host + 99));
    assert(type == 1 && ordinal == 0 && !is_managed && size == 100);
    OK(D(cuPointerGetAttributes)(4, attributes, values, (uint64_t)&type)); // not an address of the driver
    assert(type == 0 && ordinal == -2 && !is_managed && size == 0);
    IS(1, D(cuPointerGetAttribute)(&type, 2, (uint64_t)&type));
    OK(D(cuPointerGetAttribute)(&start, 11, device + 7));
    assert(start == device);
    OK(D(cuPointerGetAttribute)(&context, 1, device));
    OK(D(cuCtxGetCurrent)(&host));
    assert(context == host);
    OK(D(cuMemAdvise)(managed, (size_t)100, 1, 0));
    OK(D(cuMemPrefetchAsync)(managed, (size_t)100, -1, 0));
    IS(1, D(cuMemPrefetchAsync)(device, (size_t)100, 0, 0));
}
int main(void) {
    begin();
    pools(), mappings(), pointers();
    uint64_t a, b;
    OK(D(cuMemAlloc_v2)(&a, (size_t)8));
    OK(D(cuMemAlloc_v2)(&b, (size_t)8));
    OK(D(cuMemsetD8_v2)(a, 5, (size_t)8));
    OK(D(cuMemcpyPeer)(b, (void *)0, a, (void *)0, (size_t)8));
    OK(D(cuCtxSynchronize)());
    assert(*(char *)b == 5);
}
