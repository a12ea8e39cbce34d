// Another tool that NVTX_INJECTION64_PATH named: it gets the program's ranges as it would without gpt-hook.

#ifndef GPT_NVTXNEXT_H
#define GPT_NVTXNEXT_H

#include "nvtx.h"
#include "nvtx_abi.h"

enum { NVTX_SLOTS = 16 };

// Its functions of both tables, NULL where it has none. The first part of the program that begins to use NVTX
// decides.
extern nvtx_function *hook_nvtx_core[NVTX_SLOTS], *hook_nvtx_core2[NVTX_SLOTS];

// Lets the other tool, if there is one, set its functions, and, if `wanted`, puts ours in front. Returns what
// NVTX is to know.
int hook_nvtx_exchange(nvtx_get_export_table *get_table, nvtx_initialize *other, bool wanted,
                       nvtx_function *const *core, nvtx_function *const *core2);

// Its handle of a domain or string, and the text of that.
void hook_nvtx_know(const void *handle, const char *text);
const char *hook_nvtx_text(const void *handle);

// Its id of a range, and ours; `recall` forgets it, and returns 0 if there is none.
void hook_nvtx_remember(uint64_t theirs, uint64_t ours);
uint64_t hook_nvtx_recall(uint64_t theirs);

#endif
