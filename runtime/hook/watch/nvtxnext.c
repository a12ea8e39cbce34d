// Another tool that wants the program's ranges too. NVTX knows one library. So the other one is asked first,
// and what it put into NVTX's tables is called by what is put there in its place.
//
// Each library of a program that uses NVTX has tables of its own. Where the other tool does not set the same
// functions in them as in the first ones, they stay as it set them, and these ranges are not recorded: a
// function is never called by whom it was not set for. The program gets the other tool's handles, ids and
// levels.

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "watch.h"

enum { HANDLES = 1 << 12, IDS = 1 << 10, NEAR = 64 };

nvtx_function *hook_nvtx_core[NVTX_SLOTS], *hook_nvtx_core2[NVTX_SLOTS], *hook_nvtx_payload[NVTX_SLOTS];

struct table {
    nvtx_function ***slots; // places of function pointers
    unsigned first, size;   // of what is used
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

// One that did not begin has no functions, whatever it set.
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

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; // held for no call of others

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

// Leaves the table empty if it is not one that is known.
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
    int begun = other ? other(module) : wanted; // without functions NVTX takes every domain for enabled
    if (!wanted || !table.size)
        return begun;
    if (!begun)
        take_back(&table);
    pthread_mutex_lock(&mutex);
    put_in_front(&table, ours, hook_nvtx_payload, &decided);
    pthread_mutex_unlock(&mutex);
    return 1;
}

// Handles stay; of more than there is room for the texts are not known.

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

// Ids go with their ranges; of more at a time than there is room for the ends are not recorded.

static struct {
    _Atomic uint64_t ours, theirs; // ours is 0 where nothing is, and the largest while it is written
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
