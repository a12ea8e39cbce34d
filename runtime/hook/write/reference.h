// Something that may be gone, and whether it is.

#ifndef GPT_REFERENCE_H
#define GPT_REFERENCE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

// An object as it was seen: it may be gone since. One that is all zero is none.
struct reference {
    const _Atomic uint64_t *current; // the generation of what is in its place now
    uint64_t generation;
};

static inline bool hook_is_alive(struct reference reference) {
    return reference.current &&
           atomic_load_explicit(reference.current, memory_order_acquire) == reference.generation;
}

#endif
