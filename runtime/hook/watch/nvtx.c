// The functions that a program calls to set ranges and marks with NVTX. NVTX loads the library that
// NVTX_INJECTION64_PATH names and calls its InitializeInjectionNvtx2, which replaces NVTX's functions.
//
// If another tool wants the ranges too, it gets them after they're recorded, and the program gets the tool's
// results.

#include "abi/nvtx.h"
#include "hook/write/write.h"
#include "watch.h"

// If there's another tool, the program gets the tool's handle for a domain or a string.
#define KEPT(next, mine, ...)                                                                                \
    do {                                                                                                     \
        const char *result = mine;                                                                           \
        if (!next)                                                                                           \
            return result;                                                                                   \
        const char *theirs = NVTX_CALL(const char *, next, __VA_ARGS__);                                     \
        hook_nvtx_know(theirs, result);                                                                      \
        return theirs;                                                                                       \
    } while (0)
#define CORE(id) hook_nvtx_core[NVTX_CBID_CORE_##id]
#define CORE2(id) hook_nvtx_core2[NVTX_CBID_CORE2_##id]

// The message may be part of the payload.
static void read_name(struct nvtx_name *name, const char *domain, const nvtxEventAttributes_t *event) {
    hook_nvtx_read_name(name, event);
    if (!name->text.data && event && event->size >= sizeof(*event) &&
        event->payloadType == NVTX_PAYLOAD_TYPE_EXT && event->reserved0 > 0)
        hook_nvtx_read_payload(name, domain, (const nvtxPayloadData_t *)event->payload,
                               (size_t)event->reserved0);
}

static int domain_push(const char *domain, const nvtxEventAttributes_t *event) {
    struct nvtx_name name;
    read_name(&name, domain, event);
    NVTX_PASS(int, CORE2(DomainRangePushEx), hook_nvtx_push(domain, event, name.text), domain, event);
}

static int domain_pop(const char *domain) {
    NVTX_PASS(int, CORE2(DomainRangePop), hook_nvtx_pop(domain), domain);
}

static uint64_t domain_start(const char *domain, const nvtxEventAttributes_t *event) {
    struct nvtx_name name;
    read_name(&name, domain, event);
    NVTX_STARTED(CORE2(DomainRangeStartEx), hook_nvtx_start(domain, event, name.text), domain, event);
}

static void domain_end(const char *domain, uint64_t id) {
    hook_nvtx_end_started(id);
    NVTX_TELL(CORE2(DomainRangeEnd), domain, id);
}

static void domain_mark(const char *domain, const nvtxEventAttributes_t *event) {
    struct nvtx_name name;
    read_name(&name, domain, event);
    hook_nvtx_mark(domain, event, name.text);
    NVTX_TELL(CORE2(DomainMarkEx), domain, event);
}

static const char *register_narrow(const char *domain, const char *text) {
    KEPT(CORE2(DomainRegisterStringA), hook_nvtx_keep_narrow(text), domain, text);
}

static const char *register_wide(const char *domain, const wchar_t *text) {
    KEPT(CORE2(DomainRegisterStringW), hook_nvtx_keep_wide(text), domain, text);
}

static const char *create_narrow(const char *text) {
    KEPT(CORE2(DomainCreateA), hook_nvtx_keep_narrow(text), text);
}

static const char *create_wide(const wchar_t *text) {
    KEPT(CORE2(DomainCreateW), hook_nvtx_keep_wide(text), text);
}

static int push_event(const nvtxEventAttributes_t *event) {
    struct nvtx_name name;
    read_name(&name, NULL, event);
    NVTX_PASS(int, CORE(RangePushEx), hook_nvtx_push(NULL, event, name.text), event);
}

static int push_narrow(const char *text) {
    struct nvtx_name name;
    hook_nvtx_take(&name, text);
    NVTX_PASS(int, CORE(RangePushA), hook_nvtx_push(NULL, NULL, name.text), text);
}

static int push_wide(const wchar_t *text) {
    struct nvtx_name name;
    hook_nvtx_narrow(&name, text);
    NVTX_PASS(int, CORE(RangePushW), hook_nvtx_push(NULL, NULL, name.text), text);
}

static int pop_last(void) { NVTX_PASS(int, CORE(RangePop), hook_nvtx_pop(NULL)); }

static uint64_t start_event(const nvtxEventAttributes_t *event) {
    struct nvtx_name name;
    read_name(&name, NULL, event);
    NVTX_STARTED(CORE(RangeStartEx), hook_nvtx_start(NULL, event, name.text), event);
}

static uint64_t start_narrow(const char *text) {
    struct nvtx_name name;
    hook_nvtx_take(&name, text);
    NVTX_STARTED(CORE(RangeStartA), hook_nvtx_start(NULL, NULL, name.text), text);
}

static uint64_t start_wide(const wchar_t *text) {
    struct nvtx_name name;
    hook_nvtx_narrow(&name, text);
    NVTX_STARTED(CORE(RangeStartW), hook_nvtx_start(NULL, NULL, name.text), text);
}

static void end_range(uint64_t id) {
    hook_nvtx_end_started(id);
    NVTX_TELL(CORE(RangeEnd), id);
}

static void mark_event(const nvtxEventAttributes_t *event) {
    struct nvtx_name name;
    read_name(&name, NULL, event);
    hook_nvtx_mark(NULL, event, name.text);
    NVTX_TELL(CORE(MarkEx), event);
}

static void mark_narrow(const char *text) {
    struct nvtx_name name;
    hook_nvtx_take(&name, text);
    hook_nvtx_mark(NULL, NULL, name.text);
    NVTX_TELL(CORE(MarkA), text);
}

static void mark_wide(const wchar_t *text) {
    struct nvtx_name name;
    hook_nvtx_narrow(&name, text);
    hook_nvtx_mark(NULL, NULL, name.text);
    NVTX_TELL(CORE(MarkW), text);
}

#define OURS(function) ((nvtx_function *)(function))
static nvtx_function *const core[NVTX_SLOTS] = {
    [NVTX_CBID_CORE_MarkEx] = OURS(mark_event),        [NVTX_CBID_CORE_MarkA] = OURS(mark_narrow),
    [NVTX_CBID_CORE_MarkW] = OURS(mark_wide),          [NVTX_CBID_CORE_RangeStartEx] = OURS(start_event),
    [NVTX_CBID_CORE_RangeStartA] = OURS(start_narrow), [NVTX_CBID_CORE_RangeStartW] = OURS(start_wide),
    [NVTX_CBID_CORE_RangeEnd] = OURS(end_range),       [NVTX_CBID_CORE_RangePushEx] = OURS(push_event),
    [NVTX_CBID_CORE_RangePushA] = OURS(push_narrow),   [NVTX_CBID_CORE_RangePushW] = OURS(push_wide),
    [NVTX_CBID_CORE_RangePop] = OURS(pop_last),
};

static nvtx_function *const core2[NVTX_SLOTS] = {
    [NVTX_CBID_CORE2_DomainMarkEx] = OURS(domain_mark),
    [NVTX_CBID_CORE2_DomainRangeStartEx] = OURS(domain_start),
    [NVTX_CBID_CORE2_DomainRangeEnd] = OURS(domain_end),
    [NVTX_CBID_CORE2_DomainRangePushEx] = OURS(domain_push),
    [NVTX_CBID_CORE2_DomainRangePop] = OURS(domain_pop),
    [NVTX_CBID_CORE2_DomainRegisterStringA] = OURS(register_narrow),
    [NVTX_CBID_CORE2_DomainRegisterStringW] = OURS(register_wide),
    [NVTX_CBID_CORE2_DomainCreateA] = OURS(create_narrow),
    [NVTX_CBID_CORE2_DomainCreateW] = OURS(create_wide),
};

int hook_nvtx_begin(nvtx_get_export_table *get_table, nvtx_initialize *other, bool wanted) {
    return hook_nvtx_exchange(get_table, other, wanted, core, core2);
}
