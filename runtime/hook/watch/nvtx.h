// Ranges and marks of the program.

#ifndef GPT_NVTX_H
#define GPT_NVTX_H

#include <stdbool.h>

#include "nvtx_abi.h"

typedef int nvtx_initialize(nvtx_get_export_table *get_table);
typedef int nvtx_initialize_extension(nvtxExtModuleInfo_t *module);

// `other` is what another tool begins with, or NULL. Return whether the program is to pass its ranges on.
int hook_nvtx_begin(nvtx_get_export_table *get_table, nvtx_initialize *other, bool wanted);
int hook_nvtx_begin_extension(nvtxExtModuleInfo_t *module, nvtx_initialize_extension *other, bool wanted);

#endif
