// Every function, as programs find it: a stub that goes on to what the function does, sim_NAME (sim.h renames
// it), if the process has initialized the driver. The few that may be called before do so always. A function
// that is defined nowhere else returns CUDA_ERROR_NOT_SUPPORTED and says so, once.

#include <stdio.h>

#include "say.h"
#include "sim.h"

__attribute__((aligned(SIM_PAGE))) char sim_ready[SIM_PAGE];

#define NEEDS_NO_INIT(name) __asm__(".set .Lopen_" #name ", 1\n");
NEEDS_NO_INIT(cuInit)
NEEDS_NO_INIT(cuDriverGetVersion)
NEEDS_NO_INIT(cuGetErrorName)
NEEDS_NO_INIT(cuGetErrorString)
NEEDS_NO_INIT(cuGetProcAddress)
NEEDS_NO_INIT(cuGetProcAddress_v2)
NEEDS_NO_INIT(cuGetProcAddress_v2_ptsz)
NEEDS_NO_INIT(cuGetExportTable)
NEEDS_NO_INIT(cuLogsCurrent)
NEEDS_NO_INIT(cuLogsDumpToFile)
NEEDS_NO_INIT(cuLogsDumpToMemory)
NEEDS_NO_INIT(cuLogsRegisterCallback)
NEEDS_NO_INIT(cuLogsUnregisterCallback)
NEEDS_NO_INIT(cuProfilerInitialize)

// A jump leaves arguments and the caller's frame as they are.
__asm__(".text\n"
        ".Lnot_ready:\n"
        "    movl $3, %eax\n" // CUDA_ERROR_NOT_INITIALIZED
        "    ret\n"
        ".macro stub name\n"
        "    .globl \\name\n"
        "    .type \\name, @function\n"
        "\\name:\n"
        "    .cfi_startproc\n"
        "    .ifndef .Lopen_\\name\n"
        "    cmpb $0, sim_ready(%rip)\n"
        "    je .Lnot_ready\n"
        "    .endif\n"
        "    jmp sim_\\name\n"
        "    .cfi_endproc\n"
        "    .size \\name, . - \\name\n"
        ".endm\n");
#define X(name, suffix, since) __asm__("stub " #name #suffix "\n");
#define P(name, suffix, since, variant) __asm__("stub " #name #suffix "\nstub " #name #suffix #variant "\n");
#include "functions.h"
#undef X
#undef P

static CUresult refuse(const char *name, bool *said) {
    if (!__atomic_exchange_n(said, true, __ATOMIC_RELAXED)) {
        char line[256];
        snprintf(line, sizeof(line), "libcuda.so.1: error: %s: not simulated: see gpt-sim(7)", name);
        gpt_write_line(line);
    }
    return CUDA_ERROR_NOT_SUPPORTED;
}

#define NAME(name)                                                                                           \
    __attribute__((weak, section("refused"))) API name(void) {                                               \
        static bool said;                                                                                    \
        return refuse(#name, &said);                                                                         \
    }
#define X(name, suffix, since) NAME(name##suffix)
#define P(name, suffix, since, variant) NAME(name##suffix) NAME(name##suffix##variant)
#include "functions.h"
#undef X
#undef P

#define STUB(name) extern const char name##_stub[] __asm__(#name);
#define X(name, suffix, since) STUB(name##suffix)
#define P(name, suffix, since, variant) STUB(name##suffix) STUB(name##suffix##variant)
#include "functions.h"
#undef X
#undef P

#define X(name, suffix, since) {#name, since, (void *)name##suffix##_stub, NULL},
#define P(name, suffix, since, variant)                                                                      \
    {#name, since, (void *)name##suffix##_stub, (void *)name##suffix##variant##_stub},
const struct sim_function sim_functions[] = {
#include "functions.h"
    // cuda.h has these parameters under that name since then
    X(cuGraphInstantiate, WithFlags, 12000) // clang-format off
    {0}}; // clang-format on
