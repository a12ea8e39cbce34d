// The simulated driver's symbols in C: each takes as many words as its function has arguments and passes them
// on. For sim/table.c.

#include <string.h>

#define NAMED(name) #name,
#define NAMED_TWICE(name) #name, #name "_ptsz",

static bool is_one_of(const char *const *names, const char *name) {
    while (*names && strcmp(*names, name))
        names++;
    return *names;
}

// Return an error to answer instead of calling the function, or CUDA_SUCCESS.
static CUresult refusal(const char *symbol) {
    static const char *const before_init[] = {BEFORE_INIT(NAMED) NULL};
    static const char *const in_callback[] = {IN_CALLBACK(NAMED) ON_STREAM(NAMED_TWICE) NULL};
    if (!*(volatile char *)sim_ready && !is_one_of(before_init, symbol))
        return CUDA_ERROR_NOT_INITIALIZED;
    if (__atomic_load_n(&sim_callbacks, __ATOMIC_RELAXED) && !is_one_of(in_callback, symbol) &&
        sim_is_in_callback())
        return CUDA_ERROR_NOT_PERMITTED;
    return CUDA_SUCCESS;
}

// The parameters and arguments of a function, by the number that driver.h gives for it: how many follow the
// sixth. 32 stands for the three functions with one float.
#define TAKEN_0 uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f
#define TAKEN_2 TAKEN_0, uint64_t g, uint64_t h
#define TAKEN_4 TAKEN_2, uint64_t i, uint64_t j
#define TAKEN_6 TAKEN_4, uint64_t k, uint64_t l
#define TAKEN_8 TAKEN_6, uint64_t m, uint64_t n
#define TAKEN_10 TAKEN_8, uint64_t o, uint64_t p
#define TAKEN_32 TAKEN_0, float g
#define PASSED_0 a, b, c, d, e, f
#define PASSED_2 PASSED_0, g, h
#define PASSED_4 PASSED_2, i, j
#define PASSED_6 PASSED_4, k, l
#define PASSED_8 PASSED_6, m, n
#define PASSED_10 PASSED_8, o, p
#define PASSED_32 PASSED_0, g

#define FORWARD(symbol, words)                                                                               \
    CUresult symbol##_itself(TAKEN_##words) __asm__("sim_" #symbol);                                         \
    __attribute__((visibility("default"))) CUresult symbol##_here(TAKEN_##words) __asm__(#symbol);           \
    CUresult symbol##_here(TAKEN_##words) {                                                                  \
        CUresult refused = refusal(#symbol);                                                                 \
        return refused ? refused : symbol##_itself(PASSED_##words);                                          \
    }
// P is defined too, because an X inside P would see renamed.h.
#define DRIVER_ALL
#define X(name, suffix, since, words) FORWARD(name##suffix, words)
#define P(name, suffix, since, variant, words)                                                               \
    FORWARD(name##suffix, words) FORWARD(name##suffix##variant, words)
#include "abi/driver.h"
