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

// What a host function or callback may call: an H200 refuses the others (800). It takes work of streams
// without looking; cuStreamQuery then says 600, for the callback is not done.
#define IN_CALLBACK(name) __asm__(".set .Lcallback_" #name ", 1\n");
#define ON_STREAM(name) __asm__(".set .Lcallback_" #name ", 1\n.set .Lcallback_" #name "_ptsz, 1\n");
IN_CALLBACK(cuInit)
IN_CALLBACK(cuDriverGetVersion)
IN_CALLBACK(cuGetErrorName)
IN_CALLBACK(cuGetErrorString)
IN_CALLBACK(cuGetProcAddress)
IN_CALLBACK(cuGetProcAddress_v2)
IN_CALLBACK(cuGetProcAddress_v2_ptsz)
IN_CALLBACK(cuGetExportTable)
IN_CALLBACK(cuLogsCurrent)
IN_CALLBACK(cuLogsDumpToFile)
IN_CALLBACK(cuLogsDumpToMemory)
IN_CALLBACK(cuLogsRegisterCallback)
IN_CALLBACK(cuLogsUnregisterCallback)
IN_CALLBACK(cuThreadExchangeStreamCaptureMode)
IN_CALLBACK(cuEventQuery)
IN_CALLBACK(cuEventDestroy)
IN_CALLBACK(cuEventDestroy_v2)
IN_CALLBACK(cuEventElapsedTime)
IN_CALLBACK(cuEventElapsedTime_v2)
ON_STREAM(cuEventRecord)
ON_STREAM(cuEventRecordWithFlags)
ON_STREAM(cuStreamQuery)
ON_STREAM(cuStreamWaitEvent)
ON_STREAM(cuStreamAddCallback)
ON_STREAM(cuLaunchHostFunc)
ON_STREAM(cuLaunchHostFunc_v2)
ON_STREAM(cuLaunchKernel)
ON_STREAM(cuLaunchKernelEx)
ON_STREAM(cuLaunchCooperativeKernel)
ON_STREAM(cuGraphLaunch)
ON_STREAM(cuMemcpyAsync)
ON_STREAM(cuMemcpyHtoDAsync_v2)
ON_STREAM(cuMemcpyDtoHAsync_v2)
ON_STREAM(cuMemcpyDtoDAsync_v2)
ON_STREAM(cuMemcpy2DAsync_v2)
ON_STREAM(cuMemcpy3DAsync_v2)
ON_STREAM(cuMemsetD8Async)
ON_STREAM(cuMemsetD16Async)
ON_STREAM(cuMemsetD32Async)
ON_STREAM(cuMemsetD2D8Async)
ON_STREAM(cuMemsetD2D16Async)
ON_STREAM(cuMemsetD2D32Async)

// Whether this thread runs a host function, asked only while some thread does.
int sim_callbacks;
__attribute__((used)) int sim_is_in_callback(void) { return sim_in_host_function; }

// A jump leaves arguments and the caller's frame as they are.
__asm__(
    ".text\n"
    ".Lnot_ready:\n"
    "    movl $3, %eax\n" // CUDA_ERROR_NOT_INITIALIZED
    "    ret\n"
    ".Lask:\n" // with the function in r11; the arguments are kept
    "    push %rdi\n    push %rsi\n    push %rdx\n    push %rcx\n    push %r8\n    push %r9\n    push %r11\n"
    "    sub $16, %rsp\n"
    "    movups %xmm0, (%rsp)\n"
    "    call sim_is_in_callback\n"
    "    movups (%rsp), %xmm0\n"
    "    add $16, %rsp\n"
    "    pop %r11\n    pop %r9\n    pop %r8\n    pop %rcx\n    pop %rdx\n    pop %rsi\n    pop %rdi\n"
    "    test %eax, %eax\n"
    "    jne .Lnot_permitted\n"
    "    jmp *%r11\n"
    ".Lnot_permitted:\n"
    "    movl $800, %eax\n" // CUDA_ERROR_NOT_PERMITTED
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
    "    .ifndef .Lcallback_\\name\n"
    "    leaq sim_\\name(%rip), %r11\n"
    "    cmpl $0, sim_callbacks(%rip)\n"
    "    jne .Lask\n"
    "    .endif\n"
    "    jmp sim_\\name\n"
    "    .cfi_endproc\n"
    "    .size \\name, . - \\name\n"
    ".endm\n");
// Each defines P too, for an X within P would see renamed.h.
#define DRIVER_ALL
#define X(name, suffix, since, words) __asm__("stub " #name #suffix "\n");
#define P(name, suffix, since, variant, words)                                                               \
    __asm__("stub " #name #suffix "\nstub " #name #suffix #variant "\n");
#include "abi/driver.h"

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
#define X(name, suffix, since, words) NAME(name##suffix)
#define P(name, suffix, since, variant, words) NAME(name##suffix) NAME(name##suffix##variant)
#include "abi/driver.h"

#define STUB(name) extern const char name##_stub[] __asm__(#name);
#define X(name, suffix, since, words) STUB(name##suffix)
#define P(name, suffix, since, variant, words) STUB(name##suffix) STUB(name##suffix##variant)
#include "abi/driver.h"

#define X(name, suffix, since, words) {#name, since, (void *)name##suffix##_stub, NULL},
#define P(name, suffix, since, variant, words)                                                               \
    {#name, since, (void *)name##suffix##_stub, (void *)name##suffix##variant##_stub},
const struct sim_function sim_functions[] = {
#include "abi/driver.h"
    // cuda.h has these parameters under that name since then
    {"cuGraphInstantiate", 12000, (void *)cuGraphInstantiateWithFlags_stub, NULL},
    {0}};
