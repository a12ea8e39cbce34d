// The beginning of kernels in C: objects in the form that `gpt-asm --arch host` produces.

#include "host/abi.h"
#include <string.h>

#define T struct host_thread *t
#define KERNEL(name) static void name(T, const unsigned char *parameters)
#define ARGUMENT(type, name, at)                                                                             \
    type name;                                                                                               \
    memcpy(&name, parameters + (at), sizeof(name))
#define BARRIER() t->services->barrier(t, 0, HOST_BARRIER_SYNC, 0, 0, false)
#define MEET(mask, combine, data) t->services->meet(t, 1, mask, combine, data)
#define BRANCH()                                                                                             \
    do                                                                                                       \
        if (--t->budget < 0)                                                                                 \
            t->services->turn(t, 2);                                                                         \
    while (0)
// An access to global memory: of a u32.
#define GLOBAL(address) (*(uint32_t *)global(t, 3, address, 4))
#define SHARED(index) (((uint32_t *)t->shared)[index])
#define TID (t->tid[0] + t->ntid[0] * (t->tid[1] + t->ntid[1] * t->tid[2]))
#define CTAID (t->ctaid[0] + t->nctaid[0] * (t->ctaid[1] + t->nctaid[1] * t->ctaid[2]))

static inline void *global(T, uint32_t site, uint64_t address, uint64_t size) {
    const struct host_place *place = &t->places[site];
    if (address - place->start > place->size || size > place->size - (address - place->start))
        t->services->see(t, site, address, size);
    return (void *)address;
}

// All lanes that meet get the sum of their words.
static void sum(void *const data[HOST_WARP], uint32_t mask) {
    uint32_t total = 0;
    for (uint32_t rest = mask; rest; rest &= rest - 1)
        total += *(uint32_t *)data[__builtin_ctz(rest)];
    for (uint32_t rest = mask; rest; rest &= rest - 1)
        *(uint32_t *)data[__builtin_ctz(rest)] = total;
}

static const char *const sites[] = {"10: bar.sync 0;", "11: shfl.sync.bfly.b32;", "12: bra L;",
                                    "13: st.global.u32;"};
static const struct host_parameter words[] = {{0, 8}, {8, 8}, {16, 8}, {24, 8}};

// A kernel with this many parameters of 8 bytes.
#define HAS(name_, count, ...)                                                                               \
    {.name = #name_,                                                                                         \
     .run = name_,                                                                                           \
     .parameters = words,                                                                                    \
     .parameter_count = count,                                                                               \
     .parameter_size = 8 * (count),                                                                          \
     __VA_ARGS__}
#define VARIABLES(...)                                                                                       \
    static const struct host_variable variables[] = {__VA_ARGS__};                                           \
    enum { VARIABLES = sizeof(variables) / sizeof(*variables) };
#define MODULE(...)                                                                                          \
    static const struct host_kernel kernels[] = {__VA_ARGS__};                                               \
    __attribute__((visibility("default")))                                                                   \
    const struct host_module host_module = {HOST_ABI,  sizeof(kernels) / sizeof(*kernels),                   \
                                            VARIABLES, sizeof(sites) / sizeof(*sites),                       \
                                            kernels,   variables,                                            \
                                            sites};
