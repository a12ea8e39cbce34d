// What the program marks with NVTX, and its names.

#ifndef GPT_NVTXRANGE_H
#define GPT_NVTXRANGE_H

#include <wchar.h>

#include "hook/write/write.h"
#include "nvtx_abi.h"

#define NVTX_NAME_MAX 1024

struct nvtx_name {
    char room[NVTX_NAME_MAX]; // for a text that has to be converted
    struct gpt_str text;
};

void hook_nvtx_narrow(struct nvtx_name *name, const wchar_t *wide);
void hook_nvtx_take(struct nvtx_name *name, const char *text);
void hook_nvtx_read_name(struct nvtx_name *name, const nvtxEventAttributes_t *event);

// Texts that stay, NULL if there is no room; and the text that a handle stands for, NULL if it is not known.
const char *hook_nvtx_keep_narrow(const char *text);
const char *hook_nvtx_keep_wide(const wchar_t *wide);
const char *hook_nvtx_read_handle(const char *handle);

// Domains are handles; `event` may be NULL. `pop` ends the range that the thread pushed last in the domain.
// Both return its level.
void hook_nvtx_mark(const char *domain, const nvtxEventAttributes_t *event, struct gpt_str name);
int hook_nvtx_push(const char *domain, const nvtxEventAttributes_t *event, struct gpt_str name);
int hook_nvtx_pop(const char *domain);
uint64_t hook_nvtx_start(const char *domain, const nvtxEventAttributes_t *event, struct gpt_str name);
void hook_nvtx_end_started(uint64_t id); // by the id that the program knows

#endif
