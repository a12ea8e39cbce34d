// Everything about x86-64 that the simulated device needs, besides sim/ and arch_stubs.h.

#ifndef GPT_ARCH_SIM_H
#define GPT_ARCH_SIM_H

#include <stdbool.h>

// Return the instruction set that `gpt-asm --arch host` may use. Code made for another set isn't loaded.
static inline const char *arch_variant(void) {
    __builtin_cpu_init();
    bool v3 =
        __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("fma");
    return v3 ? "v3" : "";
}

#endif
