// What the hook must know about an x86-64 processor (System V ABI).

#ifndef GPT_ARCH_HOOK_H
#define GPT_ARCH_HOOK_H

#define ARCH_REGISTER_ARGS 6 // arguments that are passed in registers
#define ARCH_REGISTERS_SIZE 192
#define ARCH_STUB_SIZE 16 // bytes

// Where the stub keeps registers in a frame; `result` is rax.
#define FRAME_RDX 8
#define FRAME_ARGS 16
#define FRAME_XMM 64
#define FRAME_STACK 192

#ifndef __ASSEMBLER__

#include <cpuid.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct slot;

struct arch_registers {
    uint64_t rdx; // the second word of a result
    uint64_t args[ARCH_REGISTER_ARGS];
    unsigned char xmm[8][16];
    uint64_t *stack; // the other arguments
};

// Return the address that a call returns to.
static inline uint64_t arch_caller(const struct arch_registers *registers) { return registers->stack[-1]; }

// A clock that is cheaper than clock_gettime: rdtsc takes half the time. Used if CPUID says that it ticks
// evenly in every power state of the processor.
static inline bool arch_has_clock(void) {
    unsigned a, b, c, d;
    return __get_cpuid(0x80000007, &a, &b, &c, &d) && d & 1 << 8;
}

static inline uint64_t arch_clock(void) { return __builtin_ia32_rdtsc(); }

// Add to a pointer of this thread, and return its old value. It's a single instruction, so no signal handler
// can run in between.
static inline unsigned char *arch_advance(unsigned char **pointer, size_t by) {
    __asm__("xaddq %0, %1" : "+r"(by), "+m"(*pointer) : : "cc");
    return (unsigned char *)by;
}

#endif

#endif
