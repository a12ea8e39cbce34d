// All functions, for cuGetProcAddress and the dynamic linker. One that is defined nowhere else is only a name
// here: it returns CUDA_ERROR_NOT_SUPPORTED and says so, once.

#include <stdio.h>

#include "say.h"
#include "sim.h"

static CUresult refuse(const char *name, bool *said) {
    if (!__atomic_exchange_n(said, true, __ATOMIC_RELAXED)) {
        char line[256];
        snprintf(line, sizeof(line), "libcuda.so.1: error: %s: not simulated: see gpt-sim(7)", name);
        gpt_write_line(line);
    }
    return CUDA_ERROR_NOT_SUPPORTED;
}

#define NAME(name)                                                                                           \
    __attribute__((weak)) API name(void) {                                                                   \
        static bool said;                                                                                    \
        return refuse(#name, &said);                                                                         \
    }
#define X(name, suffix, since) NAME(name##suffix)
#define P(name, suffix, since, variant) NAME(name##suffix) NAME(name##suffix##variant)
#include "functions.h"
#undef X
#undef P

#define X(name, suffix, since) {#name, since, (void *)name##suffix, NULL},
#define P(name, suffix, since, variant) {#name, since, (void *)name##suffix, (void *)name##suffix##variant},
const struct sim_function sim_functions[] = {
#include "functions.h"
    // cuda.h has these parameters under that name since then
    X(cuGraphInstantiate, WithFlags, 12000) // clang-format off
    {0}}; // clang-format on
