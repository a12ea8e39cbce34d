// What we know about the driver's functions. Functions in the table (table.h) have arguments worth recording,
// or a handler. The type of other functions follows from the name, so functions that NVIDIA adds later are
// recorded too.

#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "entry.h"
#include "hook/probe/probe.h"
#include "hook/watch/suffixes.h"
#include "hook/watch/watch.h"
#include "hook/write/write.h"
#include "stub.h"

#define HANDLER(name) hook_##name
#include "table.h"

static const struct {
    const char *symbol, *name;
    int8_t words; // argument words after the sixth
} names[HOOK_NAMES] = {
#define X(name, suffix, since, words) {#name #suffix, #name, words},
#include "abi/driver.h"
};

static handler *after_init;
static _Atomic unsigned changes;         // number of changes: flags computed before the last one are stale
static const char *calls = "all,-query"; // calls to record, as words separated by commas

void hook_decode_setup(handler *at_init) {
    after_init = at_init;
    const char *wanted = hook_keep_variable("GPT_HOOK_CALLS");
    if (wanted && *wanted)
        calls = wanted;
    hook_gpu_time = getenv("GPT_HOOK_GPU_TIME");
    const char *times = getenv("GPT_HOOK_NODE_TIMES");
    hook_node_times = times ? strtoull(times, NULL, 10) : 0;
    hook_sites_setup();
    hook_probe_setup();
}

// If two threads get here, one describes the slot and the other one waits. The first may never finish: a
// forked process has only one thread, and a signal handler may call the function that it interrupted. So
// after a while, the waiting thread writes the same values itself.
void hook_describe_named(struct slot *slot) {
    if (__atomic_load_n(&slot->id, __ATOMIC_ACQUIRE))
        return;
    int turns = __atomic_exchange_n(&slot->claimed, true, __ATOMIC_SEQ_CST) ? 1000 : 0;
    while (turns-- && !__atomic_load_n(&slot->id, __ATOMIC_ACQUIRE))
        sched_yield();
    if (!__atomic_load_n(&slot->id, __ATOMIC_ACQUIRE))
        hook_describe(slot, names[slot - hook_slots].symbol);
}

struct slot *hook_named_slot(const char *symbol) {
    char name[NAME_BYTES];
    unsigned low = 0, high = HOOK_NAMES;
    snprintf(name, sizeof(name), "%s", symbol);
    gpt_cut_suffixes(name);
    while (low < high) { // find the first of this name; equal names are adjacent
        unsigned middle = (low + high) / 2;
        if (strcmp(names[middle].name, name) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    for (; low < HOOK_NAMES && !strcmp(names[low].name, name); low++)
        if (!strcmp(names[low].symbol, symbol))
            return &hook_slots[low];
    return NULL;
}

static bool is_old(const char *name) {
    const struct driver_function *known = find_known(name);
    return known && known->v2;
}

// Return the flags of functions whose work runs in a stream, and of functions that wait for it.
static uint32_t gpu_flags(const struct slot *slot, const char *name) {
    const char *type = hook_type(slot);
    bool copy = (!strcmp(type, "memcpy") || !strcmp(type, "memset")) && slot->layout == LAYOUT_MEMORY;
    bool waits = !strcmp(type, "sync") || (copy && !strstr(name, "Async"));
    bool runs = copy || slot->layout == LAYOUT_LAUNCH || !strcmp(name, "cuGraphLaunch");
    return (waits ? SLOT_SYNC : 0) | (runs ? SLOT_TIMED : 0);
}

// Return the flags while calls are recorded (`on`) or not. When they aren't, only handlers run. Handlers of
// launches, and late handlers before anything was probed, have nothing to do then, so the stub jumps straight
// to such a function.
static uint32_t find_flags(const struct slot *slot, const char *name, bool on) {
    const struct driver_function *known = slot->known;
    bool launches = slot->layout == LAYOUT_LAUNCH, ordered = hook_probing && hook_order()->identity;
    bool probed = hook_has_probed();
    bool probes = known && (launches ? on && ordered : known->late ? probed : hook_probing);
    uint32_t flags = on && is_meant(calls, name, hook_type(slot)) ? SLOT_WATCHED | SLOT_RECORDED : 0;
    if (flags && hook_stacks && is_meant(hook_stacks, name, hook_type(slot)))
        flags |= SLOT_STACK | (strcmp(hook_type(slot), "memory") ? 0 : SLOT_PYTHON); // the latter is slow
    flags |= known && (known->before || (probes && known->probe_before)) ? SLOT_BEFORE | SLOT_WATCHED : 0;
    flags |= probes && known->probe_after ? SLOT_AFTER | SLOT_WATCHED : 0;
    flags |= probed && !launches && known && known->allocates ? SLOT_WATCHED : 0;
    if (slot->on_return)
        flags |= SLOT_WATCHED;
    else if (on && is_query(name) && !flags && strcmp(calls, "none"))
        flags |= SLOT_COUNTED | SLOT_QUERY;
    if (launches && on && hook_has_captured()) // the stub would count captured launches
        flags |= SLOT_WATCHED;
    if (launches && on)
        flags |= SLOT_COUNTED | (slot->special == SPECIAL_LAUNCH_EX ? SLOT_SECOND : 0);
    flags |= !on && (launches || !strcmp(name, "cuGraphLaunch")) ? SLOT_UNCOUNTED : 0;
    flags |= slot->words < STACK_WORDS ? SLOT_SCALAR : 0;
    uint32_t gpu = gpu_flags(slot, name);
    flags |= on && hook_gpu_time && gpu ? SLOT_WATCHED | gpu : gpu & SLOT_SYNC;
    flags |= probed && (gpu & SLOT_SYNC) ? SLOT_WATCHED : 0;
    if (hook_node_times &&
        !strcmp(name, "cuGraphLaunch")) // also while nothing is recorded, to know the order
        flags |= SLOT_WATCHED | SLOT_REPLAY;
    // After a function that waits for the GPU, its results are available, and hook_leave reads them.
    if (hook_has_tsc && !slot->words && slot->layout == LAYOUT_PLAIN && strcmp(hook_type(slot), "sync") &&
        (flags & ~(uint32_t)SLOT_SCALAR) == (SLOT_WATCHED | SLOT_RECORDED) && !slot->on_return)
        flags |= SLOT_LEAN;
    return flags;
}

static unsigned find_slot_flags(struct slot *slot) {
    char name[NAME_BYTES];
    unsigned seen;
    slot_name(slot, name);
    do { // the last thread to get here sees the final state
        seen = atomic_load(&changes);
        __atomic_store_n(&slot->on, (uint16_t)find_flags(slot, name, true), __ATOMIC_SEQ_CST);
        __atomic_store_n(&slot->off, (uint16_t)find_flags(slot, name, false), __ATOMIC_SEQ_CST);
        hook_use_flags(slot);
    } while (seen != atomic_load(&changes));
    return seen;
}

// Return whether the call's work is queued in a stream. Any other function with a stream takes effect at
// once, captured or not.
static bool is_capturable(const struct slot *slot) {
    static const char *const queued[] = {"memcpy", "memset", "memory", "event"};
    if (slot->layout == LAYOUT_LAUNCH)
        return true;
    if (!slot->known || (slot->layout != LAYOUT_MEMORY && slot->layout != LAYOUT_OBJECT) ||
        !(slot->values[slot->layout == LAYOUT_MEMORY ? 3 : 1] & ARG_IN))
        return false;
    for (size_t i = 0; i < sizeof(queued) / sizeof(*queued); i++)
        if (!strcmp(slot->known->type, queued[i]))
            return true;
    const char *op = slot->known->op;
    return !strcmp(op, "launch") || !strcmp(op, "host") || !strcmp(op, "wait");
}

// Return how many argument words are on the stack.
static int8_t count_words(int beyond) {
    int more = beyond < STACK_WORDS ? beyond + 6 - ARCH_REGISTER_ARGS : STACK_WORDS;
    return (int8_t)(more > 0 ? more : 0);
}

void hook_describe(struct slot *slot, const char *symbol) {
    char name[NAME_BYTES];
    const struct slot *named = hook_named_slot(symbol);
    slot->symbol = symbol;
    slot->words = named ? count_words(names[named - hook_slots].words) : STACK_WORDS;
    snprintf(name, sizeof(name), "%s", symbol);
    bool versioned = gpt_cut_suffixes(name);
    const struct driver_function *known = find_known(name);
    slot->known = known;
    if (known && (versioned || !known->v2)) {
        slot->layout = known->layout;
        slot->special = known->special;
        memcpy(slot->values, known->values, sizeof(slot->values));
    }
    slot->on_return = known ? known->on_return : NULL;
    slot->capturable = is_capturable(slot);
    unsigned seen = find_slot_flags(slot);
    __atomic_store_n(&slot->id, (uint32_t)(slot - hook_slots) + 1, __ATOMIC_SEQ_CST); // the rest is complete
    hook_use_flags(slot); // recording may have been turned on or off meanwhile
    if (seen != atomic_load(&changes))
        find_slot_flags(slot);
}

const char *hook_type(const struct slot *slot) {
    return slot->known ? slot->known->type : types[find_type(slot->symbol)].type;
}

static void announce(const struct slot *slot, uint32_t id, const char *type, _Atomic uint32_t *announced) {
    char name[NAME_BYTES], op[NAME_BYTES];
    slot_name(slot, name);
    name_op(name, op);
    if (HOOK_WRITE(api, .id = id, .symbol = hook_str(slot->symbol), .name = hook_str(name),
                   .type = hook_str(type), .op = hook_str(slot->known ? slot->known->op : op)))
        atomic_store_explicit(announced, atomic_load(&hook_live->pid), memory_order_relaxed);
}

void hook_announce(struct slot *slot) { announce(slot, slot->id, hook_type(slot), &slot->announced); }

uint32_t hook_captured_id(struct slot *slot) {
    uint32_t id = slot->id + SLOTS;
    if (atomic_load_explicit(&slot->captured, memory_order_relaxed) != atomic_load(&hook_live->pid))
        announce(slot, id, "capture", &slot->captured);
    return id;
}

// Flags

void hook_find_all_flags(void) {
    atomic_fetch_add(&changes, 1);
    for (struct slot *slot = hook_slots; slot < hook_slots + SLOTS; slot++)
        if (__atomic_load_n(&slot->id, __ATOMIC_SEQ_CST))
            find_slot_flags(slot);
}

// cuStreamBeginCapture, cuStreamBeginCaptureToGraph: from the first capture on, launches are watched.
void hook_on_capture(struct frame *frame) {
    (void)frame;
    if (hook_begin_capture())
        hook_find_all_flags();
}

// Before the first kernel gets probes, start watching the calls that have to know about buffers.
void hook_expect_probes(const struct order *order, bool recording) {
    if (hook_will_probe(order, recording))
        hook_find_all_flags();
}

// cuInit
void hook_on_init(struct frame *frame) {
    if (after_init)
        after_init(frame);
}

// Stubs

#define BUCKETS (4 * SLOTS)

static _Atomic uint16_t buckets[BUCKETS]; // slots for functions that aren't in driver.h
static _Atomic uint32_t slots_used = HOOK_NAMES;
static _Atomic uint32_t name_bytes;
static char name_store[128 << 10];

static const char *keep_name(const char *name) {
    uint32_t size = (uint32_t)strlen(name) + 1;
    uint32_t at = atomic_fetch_add(&name_bytes, size);
    return at + size <= sizeof(name_store) ? memcpy(name_store + at, name, size) : NULL;
}

// Return the slot of a function that isn't in driver.h, or whose slot there belongs to another function of
// the same name.
static struct slot *find_slot(void *real, const char *symbol) {
    uint64_t hash = (uint64_t)real * 0x9e3779b97f4a7c15u;
    struct slot *made = NULL;
    for (unsigned at = hash >> 40, tries = 0; tries < BUCKETS; tries++, at++) {
        _Atomic uint16_t *bucket = &buckets[at % BUCKETS];
        uint16_t index = atomic_load(bucket);
        if (!index) {
            uint32_t number = made ? (uint32_t)(made - hook_slots) : atomic_fetch_add(&slots_used, 1);
            const char *symbol_copy = made ? made->symbol : keep_name(symbol);
            if (number >= SLOTS || !symbol_copy) {
                atomic_store(&slots_used, SLOTS);
                return NULL;
            }
            if (!made) {
                made = &hook_slots[number];
                made->real = real;
                hook_describe(made, symbol_copy);
            }
            if (atomic_compare_exchange_strong(bucket, &index, (uint16_t)number))
                return made;
        }
        if (hook_slots[index].real == real && !strcmp(hook_slots[index].symbol, symbol))
            return &hook_slots[index];
    }
    return NULL;
}

void *hook_wrap(void *real, const char *symbol) {
    if (!real || hook_is_stub(real) || !strcmp(symbol, "cuGetExportTable") || !hook_stub_of(hook_slots))
        return real;
    struct slot *slot = hook_named_slot(symbol);
    if (slot) {
        hook_describe_named(slot);
        void *old = __atomic_load_n(&slot->real, __ATOMIC_ACQUIRE);
        if (old == (void *)hook_resolve || old == (void *)hook_missing) {
            __atomic_store_n(&slot->real, real, __ATOMIC_RELEASE);
            old = real;
        }
        if (old == real)
            return hook_stub_of(slot);
    }
    slot = find_slot(real, symbol);
    return slot ? hook_stub_of(slot) : real;
}

void hook_on_get_proc_address(struct frame *frame) {
    const char *name = (const char *)frame_arg(frame, 0);
    void **function = (void **)frame_arg(frame, 1);
    if (!name || !function || !*function || !strcmp(name, "cuGetExportTable"))
        return;
    char symbol[NAME_BYTES];
    const char *exported = hook_driver_symbol(*function);
    snprintf(symbol, sizeof(symbol), "%s", exported ? exported : name);
    // A driver may hand out functions that it exports under no name.
    if (!exported && !strcmp(name, "cuGetProcAddress") && frame_arg(frame, 2) >= 12000)
        strcat(symbol, "_v2");
    else if (!exported && strlen(name) < NAME_BYTES - 16) {
        if ((int)frame_arg(frame, 2) >= 3020 && is_old(name))
            strcat(symbol, "_v2");
        if (frame_arg(frame, 3) & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)
            strcat(symbol, "_ptsz");
    }
    *function = hook_wrap(*function, symbol);
}
