// What the hook needs to know about the processor, in plain C, for processors that we don't support. There
// are no stubs that make frames (hook/stub.c).

#ifndef GPT_ARCH_HOOK_H
#define GPT_ARCH_HOOK_H

#define ARCH_REGISTER_ARGS 6
#define ARCH_REGISTERS_SIZE 56
#define ARCH_STUB_SIZE 1 // unused: no stubs

#ifndef __ASSEMBLER__

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct arch_registers {
    uint64_t args[ARCH_REGISTER_ARGS];
    uint64_t *stack; // the other arguments
};

static inline uint64_t arch_caller(const struct arch_registers *registers) {
    (void)registers;
    return 0;
}

static inline bool arch_has_clock(void) {
    return false;
} // clock_gettime counts in ns; signal handlers may call it, too

static inline uint64_t arch_clock(void) { return 0; }

// Add to a pointer of this thread, and return its old value. It's atomic because a signal handler may do the
// same in between: no two callers must get the same address.
static inline unsigned char *arch_advance(unsigned char **pointer, size_t by) {
    return __atomic_fetch_add(pointer, by, __ATOMIC_RELAXED);
}

#endif

#endif
