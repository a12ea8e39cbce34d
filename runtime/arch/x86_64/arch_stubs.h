// The simulated driver's symbols on x86-64: each is a jump, which leaves the arguments and the caller's frame
// alone. For sim/table.c.

#define SET_OPEN(name) __asm__(".set .Lopen_" #name ", 1\n");
#define SET_CALLBACK(name) __asm__(".set .Lcallback_" #name ", 1\n");
#define SET_ON_STREAM(name) __asm__(".set .Lcallback_" #name ", 1\n.set .Lcallback_" #name "_ptsz, 1\n");
BEFORE_INIT(SET_OPEN)
IN_CALLBACK(SET_CALLBACK)
ON_STREAM(SET_ON_STREAM)

__asm__(
    ".text\n"
    ".Lnot_ready:\n"
    "    movl $3, %eax\n" // CUDA_ERROR_NOT_INITIALIZED
    "    ret\n"
    ".Lask:\n" // called with the function in r11; preserves the arguments
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
// P is defined too, because an X inside P would see renamed.h.
#define DRIVER_ALL
#define X(name, suffix, since, words) __asm__("stub " #name #suffix "\n");
#define P(name, suffix, since, variant, words)                                                               \
    __asm__("stub " #name #suffix "\nstub " #name #suffix #variant "\n");
#include "abi/driver.h"
