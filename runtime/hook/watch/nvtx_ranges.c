// The program's NVTX ranges, marks and names, as `range` and `range_end` records, and another tool that wants
// them too.
//
// A range is recorded when it starts, so the trace shows the range that a crashing process was in. Range ids
// are unique in the process. A range that started before a fork may end in the child, whose trace doesn't
// know it.

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "abi/nvtx.h"
#include "hook/write/write.h"
#include "watch.h"

#define DEPTH 64 // recorded depth of pushed ranges per thread

// Names passed in once, for domains and registered strings. Never freed.
static char store[4 << 20];
static _Atomic size_t stored;

static _Atomic uint64_t ids;

static TLS struct {
    const char *domain;
    uint64_t id;
} pushed[DEPTH];
static TLS unsigned depth; // may exceed DEPTH

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

// our own handle is the text itself
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

uint64_t hook_nvtx_new_id(void) { return atomic_fetch_add_explicit(&ids, 1, memory_order_relaxed) + 1; }

// Records. They must not change errno for the program.

// Return the thread state to write to, or NULL if nothing is recorded.
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
        pushed[depth - 1].id = hook_nvtx_new_id();
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
    uint64_t id = hook_nvtx_new_id();
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

// -- Another tool ----------------------------------------------------------
//
// Another tool that wants the program's ranges too. NVTX supports only one library, so we let the other tool
// set its functions first, then put ours in NVTX's tables, and ours call the tool's.
//
// Each library of a program that uses NVTX has its own tables. If the other tool sets different functions in
// them than in the first ones, we leave those tables alone and don't record their ranges: a function may only
// be called through the table that it was set for. The program gets the other tool's handles, ids and levels.

enum { HANDLES = 1 << 12, IDS = 1 << 10, NEAR = 64 };

nvtx_function *hook_nvtx_core[NVTX_SLOTS], *hook_nvtx_core2[NVTX_SLOTS], *hook_nvtx_payload[NVTX_SLOTS];

struct table {
    nvtx_function ***slots; // where the function pointers are
    unsigned first, size;   // first index and number of entries in use
    nvtx_function *before[NVTX_SLOTS];
};

static const NvtxExportTableCallbacks *find_callbacks(nvtx_get_export_table *get_table) {
    const NvtxExportTableCallbacks *callbacks = get_table ? get_table(NVTX_ETID_CALLBACKS) : NULL;
    return callbacks && callbacks->struct_size >= sizeof(*callbacks) ? callbacks : NULL;
}

static void remember(struct table *table) {
    if (table->size > NVTX_SLOTS)
        table->size = NVTX_SLOTS;
    for (unsigned i = table->first; i < table->size; i++)
        table->before[i] = table->slots[i] ? *table->slots[i] : NULL;
}

static void look(const NvtxExportTableCallbacks *callbacks, int module, struct table *table) {
    memset(table, 0, sizeof(*table));
    if (!callbacks || !callbacks->GetModuleFunctionTable(module, &table->slots, &table->size) ||
        !table->slots)
        table->size = 0;
    table->first = 1;
    remember(table);
}

// Clear the functions of a tool that failed to initialize, whatever it set.
static void take_back(struct table *table) {
    for (unsigned i = table->first; i < table->size; i++)
        if (table->slots[i])
            *table->slots[i] = table->before[i];
}

static void put_in_front(struct table *table, nvtx_function *const *ours, nvtx_function **next,
                         bool *decided) {
    for (unsigned i = table->first; i < table->size; i++) {
        if (!table->slots[i])
            continue;
        nvtx_function *set = *table->slots[i] != table->before[i] ? *table->slots[i] : NULL;
        if (!*decided)
            next[i] = set;
        if (ours[i] && set == next[i])
            *table->slots[i] = ours[i];
    }
    *decided |= table->size > 0;
}

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; // never held while calling other code

int hook_nvtx_exchange(nvtx_get_export_table *get_table, nvtx_initialize *other, bool wanted,
                       nvtx_function *const *core, nvtx_function *const *core2) {
    static bool decided[2];
    const NvtxExportTableCallbacks *callbacks = find_callbacks(get_table);
    struct table tables[2];
    look(callbacks, NVTX_CB_MODULE_CORE, &tables[0]);
    look(callbacks, NVTX_CB_MODULE_CORE2, &tables[1]);
    int begun = get_table && other ? other(get_table) : 0;
    if (!begun)
        take_back(&tables[0]), take_back(&tables[1]);
    if (!wanted || !tables[0].size)
        return begun;
    pthread_mutex_lock(&mutex);
    put_in_front(&tables[0], core, hook_nvtx_core, &decided[0]);
    put_in_front(&tables[1], core2, hook_nvtx_core2, &decided[1]);
    pthread_mutex_unlock(&mutex);
    return 1;
}

// Leave the table empty if the module is unknown.
static void look_at_module(const nvtxExtModuleInfo_t *module, nvtx_function **places[NVTX_SLOTS],
                           struct table *table) {
    *table = (struct table){.slots = places};
    if (!module || module->structSize < sizeof(*module) || module->nvtxVer != NVTX_VERSION ||
        module->moduleId != NVTX_EXT_PAYLOAD_MODULEID || module->compatId < NVTX_OLDEST_PAYLOAD ||
        module->compatId > NVTX_EXT_PAYLOAD_COMPATID || !module->segmentsCount || !module->segments ||
        !module->segments->functionSlots)
        return;
    size_t count = module->segments->slotCount;
    table->size = count < NVTX_SLOTS ? (unsigned)count : NVTX_SLOTS;
    for (unsigned i = 0; i < table->size; i++)
        places[i] = (nvtx_function **)&module->segments->functionSlots[i];
    remember(table);
}

int hook_nvtx_extend(nvtxExtModuleInfo_t *module, nvtx_initialize_extension *other, bool wanted,
                     nvtx_function *const *ours) {
    static bool decided;
    nvtx_function **places[NVTX_SLOTS];
    struct table table;
    look_at_module(module, places, &table);
    int begun =
        other ? other(module) : wanted; // without functions, NVTX assumes that every domain is enabled
    if (!wanted || !table.size)
        return begun;
    if (!begun)
        take_back(&table);
    pthread_mutex_lock(&mutex);
    put_in_front(&table, ours, hook_nvtx_payload, &decided);
    pthread_mutex_unlock(&mutex);
    return 1;
}

// Handles are never freed. If there are more than fit, the texts of the others aren't known.

static struct {
    _Atomic(const void *) handle;
    _Atomic(const char *) text;
} handles[HANDLES];

static size_t place(uint64_t number) { return (size_t)((number * 0x9e3779b97f4a7c15u) >> 40); }

void hook_nvtx_know(const void *handle, const char *text) {
    for (size_t i = 0, at = place((uint64_t)handle); handle && i < NEAR; i++) {
        const void *found = NULL;
        if (atomic_compare_exchange_strong(&handles[(at + i) % HANDLES].handle, &found, handle) ||
            found == handle) {
            atomic_store(&handles[(at + i) % HANDLES].text, text);
            return;
        }
    }
}

const char *hook_nvtx_text(const void *handle) {
    for (size_t i = 0, at = place((uint64_t)handle); handle && i < NEAR; i++)
        if (atomic_load(&handles[(at + i) % HANDLES].handle) == handle)
            return atomic_load(&handles[(at + i) % HANDLES].text);
    return NULL;
}

// Ids are freed with their ranges. If more are open than fit, the ends of the others aren't recorded.

static struct {
    _Atomic uint64_t ours,
        // The other tool's id; `ours` is 0 in a free slot, and the largest value while the slot is being
        // written.
        theirs;
} started[IDS];

void hook_nvtx_remember(uint64_t theirs, uint64_t ours) {
    for (size_t i = 0, at = place(theirs); i < NEAR; i++) {
        uint64_t none = 0;
        if (atomic_compare_exchange_strong(&started[(at + i) % IDS].ours, &none, UINT64_MAX)) {
            atomic_store(&started[(at + i) % IDS].theirs, theirs);
            atomic_store(&started[(at + i) % IDS].ours, ours);
            return;
        }
    }
}

uint64_t hook_nvtx_recall(uint64_t theirs) {
    for (size_t i = 0, at = place(theirs); i < NEAR; i++) {
        uint64_t ours = atomic_load(&started[(at + i) % IDS].ours);
        if (ours && ours != UINT64_MAX && atomic_load(&started[(at + i) % IDS].theirs) == theirs &&
            atomic_compare_exchange_strong(&started[(at + i) % IDS].ours, &ours, 0))
            return ours;
    }
    return 0;
}
