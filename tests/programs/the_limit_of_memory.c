// Run by test_the_limit_of_memory in tests/runtime/test_sim_graph_memory.py.

#include "graph_memory.h"

enum { PIECE = 32 * MIB, ALL = 32 };
static uint64_t got[2 * ALL];
#define COUNT(status, call)                                                                                  \
    ({                                                                                                       \
        int n_ = 0, last_ = 0;                                                                               \
        while (n_ < 2 * ALL && !(last_ = (call)))                                                            \
            n_++;                                                                                            \
        IS(status, last_);                                                                                   \
        n_;                                                                                                  \
    })
static size_t left(void) {
    size_t left;
    OK(D(cuMemGetInfo_v2)(&left, (void *)0));
    return left / MIB;
}
int main(void) {
    begin();
    struct {
        int type, handles, location, place;
        uint64_t rest[2];
    } props = {1, 0, 1, 0, {0}};
    size_t pitch, size = PIECE;
    void *pool, *graph, *exec, *second;
    uint64_t m, other;
    assert(left() == 1024);
#define FREE(n, call)                                                                                        \
    do {                                                                                                     \
        for (int i_ = n; i_--;) {                                                                            \
            uint64_t p = got[i_];                                                                            \
            OK(call);                                                                                        \
        }                                                                                                    \
        assert(left() == 1024);                                                                              \
    } while (0)
    IS(ALL, COUNT(2, D(cuMemAlloc_v2)(&got[n_], size)));
    FREE(ALL, D(cuMemFree_v2)(p));
    IS(ALL, COUNT(2, D(cuMemAllocPitch_v2)(&got[n_], &pitch, (size_t)MIB, (size_t)32, 4)));
    FREE(ALL, D(cuMemFree_v2)(p));
    IS(ALL, COUNT(2, D(cuMemAllocAsync)(&got[n_], size, (void *)0)));
    for (int i = 0; i < ALL; i++)
        OK(D(cuMemFreeAsync)(got[i], (void *)0));
    OK(D(cuCtxSynchronize)());
    OK(D(cuDeviceGetDefaultMemPool)(&pool, 0));
    IS(ALL, COUNT(2, D(cuMemAllocFromPoolAsync)(&got[n_], size, pool, (void *)0)));
    FREE(ALL, D(cuMemFree_v2)(p));
    IS(ALL, COUNT(2, D(cuMemCreate)(&got[n_], size, &props, 0ull)));
    assert(left() == 0);
    IS(2, D(cuMemAlloc_v2)(&m, (size_t)1));
    FREE(ALL, D(cuMemRelease)(p));
    IS(2 * ALL, COUNT(0, D(cuMemAllocManaged)(&got[n_], size, 1))); // more than the device has
    OK(D(cuMemAlloc_v2)(&m, 31 * size));
    IS(2, D(cuMemAlloc_v2)(&other, size + 1));
    OK(D(cuMemFree_v2)(m));
    FREE(2 * ALL, D(cuMemFree_v2)(p));
    IS(2 * ALL, COUNT(0, D(cuMemHostAlloc)(&got[n_], size, 0)));
    for (int i = 0; i < 2 * ALL; i++)
        OK(D(cuMemFreeHost)((void *)got[i]));

    // Mapped memory counts once, until both its handle and its mapping are released.
    OK(D(cuMemAddressReserve)(&m, size, (size_t)0, 0ull, 0ull));
    OK(D(cuMemCreate)(&other, size, &props, 0ull));
    OK(D(cuMemMap)(m, size, (size_t)0, other, 0ull));
    OK(D(cuMemRelease)(other));
    assert(left() == 1024 - 32);
    OK(D(cuMemUnmap)(m, size));
    assert(left() == 1024);

    // Graphs reuse the same memory one after the other; it's allocated when the first one is launched.
    OK(D(cuGraphCreate)(&graph, 0));
    void *node = alloc_node(graph, &m, 20 * size), *freed;
    OK(D(cuGraphAddMemFreeNode)(&freed, graph, &node, (size_t)1, m));
    exec = instance(graph, 0);
    OK(D(cuGraphCreate)(&graph, 0));
    alloc_node(graph, &other, 20 * size);
    second = instance(graph, 0);
    assert(left() == 1024);
    OK(D(cuGraphLaunch)(exec, (void *)0));
    OK(D(cuGraphLaunch)(second, (void *)0));
    IS(2, D(cuGraphLaunch)(exec, (void *)0));
    assert(left() == 1024 - 20 * 32);
    OK(D(cuMemFree_v2)(other));
    assert(left() == 1024 - 20 * 32);
    OK(D(cuGraphUpload)(exec, (void *)0));
    IS(2, D(cuMemAlloc_v2)(&m, 13 * size));
    OK(D(cuDeviceGraphMemTrim)(0));
    OK(D(cuMemAlloc_v2)(&m, 13 * size));
    IS(2, D(cuGraphUpload)(exec, (void *)0));
}
