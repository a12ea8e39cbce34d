// Another tool that NVTX_INJECTION64_PATH named: it gets the program's ranges as it would without gpt-hook.

#ifndef GPT_NVTXNEXT_H
#define GPT_NVTXNEXT_H

#include "nvtx.h"
#include "nvtx_abi.h"

enum { NVTX_SLOTS = 16 };

// Its functions of the tables of NVTX, and of that of the payload extension, NULL where it has none. The
// first part of the program that begins to use NVTX decides.
extern nvtx_function *hook_nvtx_core[NVTX_SLOTS], *hook_nvtx_core2[NVTX_SLOTS];
extern nvtx_function *hook_nvtx_payload[NVTX_SLOTS];

// What a function of ours ends with: the other tool's, if it has one, is called last, and its result counts.
#define NVTX_CALL(type, next, ...) ((type (*)())next)(__VA_ARGS__)
#define NVTX_PASS(type, next, mine, ...)                                                                     \
    do {                                                                                                     \
        type result = mine;                                                                                  \
        return next ? NVTX_CALL(type, next, __VA_ARGS__) : result;                                           \
    } while (0)
#define NVTX_TELL(next, ...)                                                                                 \
    do {                                                                                                     \
        if (next)                                                                                            \
            NVTX_CALL(void, next, __VA_ARGS__);                                                              \
    } while (0)

// The program knows a range that was started by the id of the other tool, if that has one.
#define NVTX_STARTED(next, mine, ...)                                                                        \
    do {                                                                                                     \
        uint64_t result = mine;                                                                              \
        if (!next)                                                                                           \
            return result;                                                                                   \
        uint64_t theirs = NVTX_CALL(uint64_t, next, __VA_ARGS__);                                            \
        hook_nvtx_remember(theirs, result);                                                                  \
        return theirs;                                                                                       \
    } while (0)

// Lets the other tool, if there is one, set its functions, and, if `wanted`, puts ours in front. Returns what
// NVTX is to know.
int hook_nvtx_exchange(nvtx_get_export_table *get_table, nvtx_initialize *other, bool wanted,
                       nvtx_function *const *core, nvtx_function *const *core2);

// The same for an extension of NVTX, where `ours` are functions of the payload extension. Another extension,
// and a version of it or a table that is not known, is left to the other tool.
int hook_nvtx_extend(nvtxExtModuleInfo_t *module, nvtx_initialize_extension *other, bool wanted,
                     nvtx_function *const *ours);

// Its handle of a domain or string, and the text of that.
void hook_nvtx_know(const void *handle, const char *text);
const char *hook_nvtx_text(const void *handle);

// Its id of a range, and ours; `recall` forgets it, and returns 0 if there is none.
void hook_nvtx_remember(uint64_t theirs, uint64_t ours);
uint64_t hook_nvtx_recall(uint64_t theirs);

#endif
