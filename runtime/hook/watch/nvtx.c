// Ranges and marks that a program sets with NVTX: `range` and `range_end` records. NVTX loads the library
// that NVTX_INJECTION64_PATH names, calls InitializeInjectionNvtx2 in it, and lets that exchange its
// functions.
//
// A range is recorded when it begins, so that one that a dying process was in is known. The id of a range is
// unique in the process; one that began before a fork may end in the child, whose trace does not know it.

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>

#include "hook/write/clock.h"
#include "hook/write/compiler.h"
#include "hook/write/record.h"
#include "hook/write/recording.h"
#include "hook/write/thread.h"
#include "nvtx.h"
#include "nvtx_abi.h"

#define NAME_MAX_BYTES 1024
#define DEPTH 64 // of ranges pushed in one thread that are recorded

// Names that the program hands over once, those of domains and registered strings, stay for ever.
static char store[4 << 20];
static _Atomic size_t stored;

static _Atomic uint64_t ids;

static TLS struct {
    const char *domain;
    uint64_t id;
} pushed[DEPTH];
static TLS unsigned depth; // may be over DEPTH

// Names

struct name {
    char room[NAME_MAX_BYTES]; // for a text that has to be converted
    struct gpt_str text;
};

static void narrow(struct name *name, const wchar_t *wide) {
    size_t at = 0;
    for (; wide && *wide && at + 4 < NAME_MAX_BYTES; wide++) {
        uint32_t c = (uint32_t)*wide;
        if (c > 0x10ffff || (c >= 0xd800 && c < 0xe000))
            c = 0xfffd;
        int more = c < 0x80 ? 0 : c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
        static const unsigned char first[] = {0, 0xc0, 0xe0, 0xf0};
        name->room[at++] = (char)(first[more] | c >> (6 * more));
        while (more--)
            name->room[at++] = (char)(0x80 | (c >> (6 * more) & 0x3f));
    }
    name->text = (struct gpt_str){name->room, at};
}

static void take(struct name *name, const char *text) {
    name->text = (struct gpt_str){text, text ? strnlen(text, NAME_MAX_BYTES) : 0};
}

static void read_name(struct name *name, const nvtxEventAttributes_t *event) {
    name->text = (struct gpt_str){NULL, 0};
    if (!event || event->size < sizeof(*event))
        return;
    if (event->messageType == NVTX_MESSAGE_TYPE_ASCII || event->messageType == NVTX_MESSAGE_TYPE_REGISTERED)
        take(name, event->message); // the handle of a registered string is the string
    else if (event->messageType == NVTX_MESSAGE_TYPE_UNICODE)
        narrow(name, event->message);
}

static const char *keep(struct gpt_str text) {
    size_t at = text.data ? atomic_fetch_add(&stored, text.size + 1) : sizeof(store);
    if (at + text.size >= sizeof(store)) {
        atomic_store(&stored, sizeof(store));
        return NULL;
    }
    return memcpy(store + at, text.data, text.size);
}

static const char *keep_narrow(const char *text) {
    struct gpt_str taken = {text, text ? strnlen(text, NAME_MAX_BYTES) : 0};
    return keep(taken);
}

static const char *keep_wide(const wchar_t *wide) {
    struct name name;
    narrow(&name, wide);
    return keep(name.text);
}

// Records. The program is not to see what becomes of errno here.

// Whose chunk to write; NULL if nothing is recorded.
static struct thread *recording_thread(void) {
    return atomic_load_explicit(&hook_recording, memory_order_relaxed) ? hook_this_thread() : NULL;
}

static void begin(const char *type, uint64_t id, const char *domain, const nvtxEventAttributes_t *event,
                  struct gpt_str name) {
    uint64_t now = hook_now();
    int error = errno;
    struct thread *thread = recording_thread();
    if (thread)
        HOOK_WRITE(range, .id = {id != 0, id}, .type = hook_str(type), .thread = thread->tid,
                   .domain = hook_str(domain), .name = name,
                   .category = {event && event->category, event ? event->category : 0}, .start = now);
    errno = error;
}

static void end(uint64_t id) {
    uint64_t now = hook_now();
    int error = errno;
    struct thread *thread = recording_thread();
    if (thread)
        HOOK_WRITE(range_end, .id = id, .thread = thread->tid, .end = now);
    errno = error;
}

static int push(const char *domain, const nvtxEventAttributes_t *event, struct gpt_str name) {
    int level = 0;
    for (unsigned i = 0; i < depth && i < DEPTH; i++)
        level += pushed[i].domain == domain;
    if (depth++ < DEPTH) {
        pushed[depth - 1].domain = domain;
        pushed[depth - 1].id = atomic_fetch_add(&ids, 1) + 1;
        begin("push", pushed[depth - 1].id, domain, event, name);
    }
    return level;
}

// Ends the range that the thread pushed last in the domain, and returns its level.
static int pop(const char *domain) {
    if (depth > DEPTH) {
        depth--;
        return DEPTH;
    }
    unsigned at = depth;
    while (at && pushed[at - 1].domain != domain)
        at--;
    if (!at)
        return -1;
    end(pushed[at - 1].id);
    int level = 0;
    for (unsigned i = 0; i + 1 < at; i++)
        level += pushed[i].domain == domain;
    memmove(&pushed[at - 1], &pushed[at], (depth - at) * sizeof(*pushed));
    depth--;
    return level;
}

static uint64_t start(const char *domain, const nvtxEventAttributes_t *event, struct gpt_str name) {
    uint64_t id = atomic_fetch_add(&ids, 1) + 1;
    begin("start", id, domain, event, name);
    return id;
}

// Functions of NVTX

static int domain_push(const char *domain, const nvtxEventAttributes_t *event) {
    struct name name;
    read_name(&name, event);
    return push(domain, event, name.text);
}

static uint64_t domain_start(const char *domain, const nvtxEventAttributes_t *event) {
    struct name name;
    read_name(&name, event);
    return start(domain, event, name.text);
}

static void domain_mark(const char *domain, const nvtxEventAttributes_t *event) {
    struct name name;
    read_name(&name, event);
    begin("mark", 0, domain, event, name.text);
}

static int domain_pop(const char *domain) { return pop(domain); }

static void domain_end(const char *domain, uint64_t id) {
    (void)domain;
    end(id);
}

static const char *register_narrow(const char *domain, const char *text) {
    (void)domain;
    return keep_narrow(text);
}

static const char *register_wide(const char *domain, const wchar_t *text) {
    (void)domain;
    return keep_wide(text);
}

static int push_event(const nvtxEventAttributes_t *event) { return domain_push(NULL, event); }
static uint64_t start_event(const nvtxEventAttributes_t *event) { return domain_start(NULL, event); }
static void mark_event(const nvtxEventAttributes_t *event) { domain_mark(NULL, event); }
static int pop_last(void) { return pop(NULL); }

static int push_narrow(const char *text) {
    struct name name;
    take(&name, text);
    return push(NULL, NULL, name.text);
}

static uint64_t start_narrow(const char *text) {
    struct name name;
    take(&name, text);
    return start(NULL, NULL, name.text);
}

static void mark_narrow(const char *text) {
    struct name name;
    take(&name, text);
    begin("mark", 0, NULL, NULL, name.text);
}

static int push_wide(const wchar_t *text) {
    struct name name;
    narrow(&name, text);
    return push(NULL, NULL, name.text);
}

static uint64_t start_wide(const wchar_t *text) {
    struct name name;
    narrow(&name, text);
    return start(NULL, NULL, name.text);
}

static void mark_wide(const wchar_t *text) {
    struct name name;
    narrow(&name, text);
    begin("mark", 0, NULL, NULL, name.text);
}

#define OURS(function) ((nvtx_function *)(function))
static nvtx_function *const core[] = {
    [NVTX_CBID_CORE_MarkEx] = OURS(mark_event),
    [NVTX_CBID_CORE_MarkA] = OURS(mark_narrow),
    [NVTX_CBID_CORE_MarkW] = OURS(mark_wide),
    [NVTX_CBID_CORE_RangeStartEx] = OURS(start_event),
    [NVTX_CBID_CORE_RangeStartA] = OURS(start_narrow),
    [NVTX_CBID_CORE_RangeStartW] = OURS(start_wide),
    [NVTX_CBID_CORE_RangeEnd] = OURS(end),
    [NVTX_CBID_CORE_RangePushEx] = OURS(push_event),
    [NVTX_CBID_CORE_RangePushA] = OURS(push_narrow),
    [NVTX_CBID_CORE_RangePushW] = OURS(push_wide),
    [NVTX_CBID_CORE_RangePop] = OURS(pop_last),
};

static nvtx_function *const core2[] = {
    [NVTX_CBID_CORE2_DomainMarkEx] = OURS(domain_mark),
    [NVTX_CBID_CORE2_DomainRangeStartEx] = OURS(domain_start),
    [NVTX_CBID_CORE2_DomainRangeEnd] = OURS(domain_end),
    [NVTX_CBID_CORE2_DomainRangePushEx] = OURS(domain_push),
    [NVTX_CBID_CORE2_DomainRangePop] = OURS(domain_pop),
    [NVTX_CBID_CORE2_DomainRegisterStringA] = OURS(register_narrow),
    [NVTX_CBID_CORE2_DomainRegisterStringW] = OURS(register_wide),
    [NVTX_CBID_CORE2_DomainCreateA] = OURS(keep_narrow),
    [NVTX_CBID_CORE2_DomainCreateW] = OURS(keep_wide),
};

static bool exchange(const NvtxExportTableCallbacks *callbacks, int module, nvtx_function *const *ours,
                     unsigned count) {
    nvtx_function ***table = NULL; // places of function pointers
    unsigned size = 0;
    if (!callbacks->GetModuleFunctionTable(module, &table, &size) || !table)
        return false;
    for (unsigned i = 1; i < count && i < size; i++)
        if (ours[i] && table[i])
            *table[i] = ours[i];
    return true;
}

int hook_nvtx_begin(nvtx_get_export_table *get_table) {
    const NvtxExportTableCallbacks *callbacks = get_table ? get_table(NVTX_ETID_CALLBACKS) : NULL;
    if (!callbacks || callbacks->struct_size < sizeof(*callbacks))
        return 0;
    bool done = exchange(callbacks, NVTX_CB_MODULE_CORE, core, sizeof(core) / sizeof(*core));
    exchange(callbacks, NVTX_CB_MODULE_CORE2, core2, sizeof(core2) / sizeof(*core2));
    return done;
}
