// Ranges and marks that a program sets with NVTX: `range` and `range_end` records. NVTX loads the library
// that NVTX_INJECTION64_PATH names, calls InitializeInjectionNvtx2 in it, and lets that exchange its
// functions.
//
// If another tool wants the ranges too (nvtxnext.c), it gets them after they are recorded, and what it
// returns is what the program gets.
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
#include "nvtxnext.h"

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

// What a handle stands for: ours is the text itself.
static const char *read_handle(const char *handle) {
    return handle >= store && handle < store + sizeof(store) ? handle : hook_nvtx_text(handle);
}

static void read_name(struct name *name, const nvtxEventAttributes_t *event) {
    name->text = (struct gpt_str){NULL, 0};
    if (!event || event->size < sizeof(*event))
        return;
    if (event->messageType == NVTX_MESSAGE_TYPE_ASCII)
        take(name, event->message);
    else if (event->messageType == NVTX_MESSAGE_TYPE_REGISTERED)
        take(name, read_handle(event->message));
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

// Functions of NVTX. What the other tool has for one is called last, and its result is the one that counts.

#define CALL(type, table, id, ...) ((type (*)())hook_nvtx_##table[NVTX_CBID_##id])(__VA_ARGS__)
#define PASS(type, table, id, mine, ...)                                                                     \
    do {                                                                                                     \
        type result = mine;                                                                                  \
        return hook_nvtx_##table[NVTX_CBID_##id] ? CALL(type, table, id, __VA_ARGS__) : result;              \
    } while (0)
#define TELL(table, id, ...)                                                                                 \
    do {                                                                                                     \
        if (hook_nvtx_##table[NVTX_CBID_##id])                                                               \
            CALL(void, table, id, __VA_ARGS__);                                                              \
    } while (0)

// The program knows a range that was started by the id of the other tool, if that has one.
#define STARTED(table, id, mine, ...)                                                                        \
    do {                                                                                                     \
        uint64_t result = mine;                                                                              \
        if (!hook_nvtx_##table[NVTX_CBID_##id])                                                              \
            return result;                                                                                   \
        uint64_t theirs = CALL(uint64_t, table, id, __VA_ARGS__);                                            \
        hook_nvtx_remember(theirs, result);                                                                  \
        return theirs;                                                                                       \
    } while (0)

static void end_started(uint64_t id) {
    bool theirs = hook_nvtx_core[NVTX_CBID_CORE_RangeStartEx] || hook_nvtx_core[NVTX_CBID_CORE_RangeStartA] ||
                  hook_nvtx_core[NVTX_CBID_CORE_RangeStartW] ||
                  hook_nvtx_core2[NVTX_CBID_CORE2_DomainRangeStartEx];
    uint64_t ours = theirs ? hook_nvtx_recall(id) : id;
    if (ours)
        end(ours);
}

// And a domain or a string by its handle.
#define KEPT(id, mine, ...)                                                                                  \
    do {                                                                                                     \
        const char *result = mine;                                                                           \
        if (!hook_nvtx_core2[NVTX_CBID_##id])                                                                \
            return result;                                                                                   \
        const char *theirs = CALL(const char *, core2, id, __VA_ARGS__);                                     \
        hook_nvtx_know(theirs, result);                                                                      \
        return theirs;                                                                                       \
    } while (0)

static int domain_push(const char *domain, const nvtxEventAttributes_t *event) {
    struct name name;
    read_name(&name, event);
    PASS(int, core2, CORE2_DomainRangePushEx, push(read_handle(domain), event, name.text), domain, event);
}

static int domain_pop(const char *domain) {
    PASS(int, core2, CORE2_DomainRangePop, pop(read_handle(domain)), domain);
}

static uint64_t domain_start(const char *domain, const nvtxEventAttributes_t *event) {
    struct name name;
    read_name(&name, event);
    STARTED(core2, CORE2_DomainRangeStartEx, start(read_handle(domain), event, name.text), domain, event);
}

static void domain_end(const char *domain, uint64_t id) {
    end_started(id);
    TELL(core2, CORE2_DomainRangeEnd, domain, id);
}

static void domain_mark(const char *domain, const nvtxEventAttributes_t *event) {
    struct name name;
    read_name(&name, event);
    begin("mark", 0, read_handle(domain), event, name.text);
    TELL(core2, CORE2_DomainMarkEx, domain, event);
}

static const char *register_narrow(const char *domain, const char *text) {
    KEPT(CORE2_DomainRegisterStringA, keep_narrow(text), domain, text);
}

static const char *register_wide(const char *domain, const wchar_t *text) {
    KEPT(CORE2_DomainRegisterStringW, keep_wide(text), domain, text);
}

static const char *create_narrow(const char *text) { KEPT(CORE2_DomainCreateA, keep_narrow(text), text); }

static const char *create_wide(const wchar_t *text) { KEPT(CORE2_DomainCreateW, keep_wide(text), text); }

static int push_event(const nvtxEventAttributes_t *event) {
    struct name name;
    read_name(&name, event);
    PASS(int, core, CORE_RangePushEx, push(NULL, event, name.text), event);
}

static int push_narrow(const char *text) {
    struct name name;
    take(&name, text);
    PASS(int, core, CORE_RangePushA, push(NULL, NULL, name.text), text);
}

static int push_wide(const wchar_t *text) {
    struct name name;
    narrow(&name, text);
    PASS(int, core, CORE_RangePushW, push(NULL, NULL, name.text), text);
}

static int pop_last(void) { PASS(int, core, CORE_RangePop, pop(NULL)); }

static uint64_t start_event(const nvtxEventAttributes_t *event) {
    struct name name;
    read_name(&name, event);
    STARTED(core, CORE_RangeStartEx, start(NULL, event, name.text), event);
}

static uint64_t start_narrow(const char *text) {
    struct name name;
    take(&name, text);
    STARTED(core, CORE_RangeStartA, start(NULL, NULL, name.text), text);
}

static uint64_t start_wide(const wchar_t *text) {
    struct name name;
    narrow(&name, text);
    STARTED(core, CORE_RangeStartW, start(NULL, NULL, name.text), text);
}

static void end_range(uint64_t id) {
    end_started(id);
    TELL(core, CORE_RangeEnd, id);
}

static void mark_event(const nvtxEventAttributes_t *event) {
    struct name name;
    read_name(&name, event);
    begin("mark", 0, NULL, event, name.text);
    TELL(core, CORE_MarkEx, event);
}

static void mark_narrow(const char *text) {
    struct name name;
    take(&name, text);
    begin("mark", 0, NULL, NULL, name.text);
    TELL(core, CORE_MarkA, text);
}

static void mark_wide(const wchar_t *text) {
    struct name name;
    narrow(&name, text);
    begin("mark", 0, NULL, NULL, name.text);
    TELL(core, CORE_MarkW, text);
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
