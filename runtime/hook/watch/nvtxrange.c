// What the program marks with NVTX, as `range` and `range_end` records, and its names.
//
// A range is recorded when it begins, so that one that a dying process was in is known. The id of a range is
// unique in the process; one that began before a fork may end in the child, whose trace does not know it.

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "hook/write/write.h"
#include "watch.h"

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

void hook_nvtx_narrow(struct nvtx_name *name, const wchar_t *wide) {
    size_t at = 0;
    for (; wide && *wide && at + 4 < NVTX_NAME_MAX; wide++) {
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

void hook_nvtx_take(struct nvtx_name *name, const char *text) {
    name->text = (struct gpt_str){text, text ? strnlen(text, NVTX_NAME_MAX) : 0};
}

// Ours is the text itself.
const char *hook_nvtx_read_handle(const char *handle) {
    return handle >= store && handle < store + sizeof(store) ? handle : hook_nvtx_text(handle);
}

void hook_nvtx_read_name(struct nvtx_name *name, const nvtxEventAttributes_t *event) {
    name->text = (struct gpt_str){NULL, 0};
    if (!event || event->size < sizeof(*event))
        return;
    if (event->messageType == NVTX_MESSAGE_TYPE_ASCII)
        hook_nvtx_take(name, event->message);
    else if (event->messageType == NVTX_MESSAGE_TYPE_REGISTERED)
        hook_nvtx_take(name, hook_nvtx_read_handle(event->message));
    else if (event->messageType == NVTX_MESSAGE_TYPE_UNICODE)
        hook_nvtx_narrow(name, event->message);
}

static const char *keep(struct gpt_str text) {
    size_t at = text.data ? atomic_fetch_add(&stored, text.size + 1) : sizeof(store);
    if (at + text.size >= sizeof(store)) {
        atomic_store(&stored, sizeof(store));
        return NULL;
    }
    return memcpy(store + at, text.data, text.size);
}

const char *hook_nvtx_keep_narrow(const char *text) {
    struct gpt_str taken = {text, text ? strnlen(text, NVTX_NAME_MAX) : 0};
    return keep(taken);
}

const char *hook_nvtx_keep_wide(const wchar_t *wide) {
    struct nvtx_name name;
    hook_nvtx_narrow(&name, wide);
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

int hook_nvtx_push(const char *handle, const nvtxEventAttributes_t *event, struct gpt_str name) {
    const char *domain = hook_nvtx_read_handle(handle);
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

int hook_nvtx_pop(const char *handle) {
    const char *domain = hook_nvtx_read_handle(handle);
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

uint64_t hook_nvtx_start(const char *domain, const nvtxEventAttributes_t *event, struct gpt_str name) {
    uint64_t id = atomic_fetch_add(&ids, 1) + 1;
    begin("start", id, hook_nvtx_read_handle(domain), event, name);
    return id;
}

void hook_nvtx_end_started(uint64_t id) {
    bool theirs = hook_nvtx_core[NVTX_CBID_CORE_RangeStartEx] || hook_nvtx_core[NVTX_CBID_CORE_RangeStartA] ||
                  hook_nvtx_core[NVTX_CBID_CORE_RangeStartW] ||
                  hook_nvtx_core2[NVTX_CBID_CORE2_DomainRangeStartEx] ||
                  hook_nvtx_payload[NVTX3EXT_CBID_nvtxRangeStartPayload];
    uint64_t ours = theirs ? hook_nvtx_recall(id) : id;
    if (ours)
        end(ours);
}

void hook_nvtx_mark(const char *domain, const nvtxEventAttributes_t *event, struct gpt_str name) {
    begin("mark", 0, hook_nvtx_read_handle(domain), event, name);
}
