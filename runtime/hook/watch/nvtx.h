// Ranges and marks of the program.

#ifndef GPT_NVTX_H
#define GPT_NVTX_H

#include <stdbool.h>
#include <stdint.h>

typedef int nvtx_initialize(const void *(*get_table)(uint32_t));

// `other` is what another tool begins with, or NULL. Returns whether the program is to pass its ranges on.
int hook_nvtx_begin(const void *(*get_table)(uint32_t), nvtx_initialize *other, bool wanted);

#endif
