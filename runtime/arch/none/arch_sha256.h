// No special instructions for SHA-256.

#ifndef GPT_ARCH_SHA256_H
#define GPT_ARCH_SHA256_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline bool arch_has_sha256(void) { return false; }

static inline void arch_sha256_blocks(uint32_t state[8], const unsigned char *data, size_t count,
                                      const uint32_t *k) {
    (void)state, (void)data, (void)count, (void)k;
}

#endif
