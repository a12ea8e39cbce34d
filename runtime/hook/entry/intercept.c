// How a program comes to hold stubs. It has three ways to the driver's functions:
//
//   - it is linked to libcuda.so.1: the symbols of the stubs are found before the driver's, and the real
//     function is looked for at the first call;
//   - dlsym: defined here. Real functions of the driver that it finds are exchanged for stubs;
//   - cuGetProcAddress, itself found in one of these ways: its stub has a handler that exchanges its results.
//
// One name can stand for several functions (versions, stream variants), so a stub belongs to a pair of name
// and real function. cuGetExportTable, which leads to private tables, is left alone.
//
// A program on a machine without driver must not find the symbols of the stubs by dlsym and think there is
// one.

#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "cuda_abi.h"
#include "entry.h"
#include "hook/watch/watch.h"
#include "hook/write/write.h"
#include "stub.h"

struct answer {
    void *value;
    uint64_t given; // else the stub of dlsym goes on to the real one
};

struct answer hook_dlsym(void *handle, const char *name, void *caller);

// Slots of named functions are there before any code runs. What else is known of them is found when the
// program asks for them or calls them: most processes use none.

#define UNRESOLVED {.real = (void *)hook_resolve, .flags = SLOT_WATCHED}
struct slot hook_slots[SLOTS] = {[0 ... HOOK_NAMES - 1] = UNRESOLVED};

// Stubs

#define STUB_SIZE 16
#define BUCKETS (4 * SLOTS)

static _Atomic uint16_t buckets[BUCKETS]; // slots that are not in names.h
static _Atomic uint32_t slots_used = HOOK_NAMES;
static _Atomic uint32_t name_bytes;
static char name_store[128 << 10];

static CUresult missing(void) { return CUDA_ERROR_STUB_LIBRARY; }

static void *stub_of(const struct slot *slot) {
    return (void *)(hook_stubs + STUB_SIZE * (slot - hook_slots));
}

static bool is_stub(const void *address) {
    return (const char *)address >= hook_stubs && (const char *)address < hook_stubs_end;
}

static const char *keep_name(const char *name) {
    uint32_t size = (uint32_t)strlen(name) + 1;
    uint32_t at = atomic_fetch_add(&name_bytes, size);
    return at + size <= sizeof(name_store) ? memcpy(name_store + at, name, size) : NULL;
}

// The slot of a function that has no place in names.h, or a place that another function of its name has.
static struct slot *find_slot(void *real, const char *symbol) {
    uint64_t hash = (uint64_t)real * 0x9e3779b97f4a7c15u;
    struct slot *made = NULL;
    for (unsigned at = hash >> 40, tries = 0; tries < BUCKETS; tries++, at++) {
        _Atomic uint16_t *bucket = &buckets[at % BUCKETS];
        uint16_t index = atomic_load(bucket);
        if (!index) {
            uint32_t number = made ? (uint32_t)(made - hook_slots) : atomic_fetch_add(&slots_used, 1);
            const char *kept = made ? made->symbol : keep_name(symbol);
            if (number >= SLOTS || !kept) {
                atomic_store(&slots_used, SLOTS);
                return NULL;
            }
            if (!made) {
                made = &hook_slots[number];
                made->real = real;
                hook_describe(made, kept);
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
    if (!real || is_stub(real) || !strcmp(symbol, "cuGetExportTable"))
        return real;
    struct slot *slot = hook_named_slot(symbol);
    if (slot) {
        hook_describe_named(slot);
        void *old = __atomic_load_n(&slot->real, __ATOMIC_ACQUIRE);
        if (old == (void *)hook_resolve || old == (void *)missing) {
            __atomic_store_n(&slot->real, real, __ATOMIC_RELEASE);
            old = real;
        }
        if (old == real)
            return stub_of(slot);
    }
    slot = find_slot(real, symbol);
    return slot ? stub_of(slot) : real;
}

void hook_on_get_proc_address(struct frame *frame) {
    const char *name = (const char *)frame->args[0];
    void **function = (void **)frame->args[1];
    if (!name || !function || !*function || !strcmp(name, "cuGetExportTable"))
        return;
    char symbol[NAME_BYTES];
    const char *exported = hook_driver_symbol(*function);
    snprintf(symbol, sizeof(symbol), "%s", exported ? exported : name);
    // A driver may hand out functions that it exports under no name.
    if (!exported && !strcmp(name, "cuGetProcAddress") && frame->args[2] >= 12000)
        strcat(symbol, "_v2");
    else if (!exported && strlen(name) < NAME_BYTES - 16) {
        if ((int)frame->args[2] >= 3020 && hook_is_old(name))
            strcat(symbol, "_v2");
        if (frame->args[3] & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)
            strcat(symbol, "_ptsz");
    }
    *function = hook_wrap(*function, symbol);
}

// The function that a directly linked stub calls: what comes after it among what the program began with, else
// the driver's, else that of a library that was loaded later, which brings its own way to the driver.
static void *find_real(const char *symbol) {
    void *real = hook_next_function(symbol);
    if (!real)
        real = hook_driver_function(symbol);
    for (struct linked linked = {0}; !real && hook_next_linked(&linked);)
        if (!hook_linked_at_start(&linked))
            real = hook_function_in(&linked, symbol);
    return real;
}

uint64_t hook_resolve_slot(struct slot *slot) {
    int error = errno;
    bool early = hook_setup();
    void *real = find_real(slot->symbol), *expected = (void *)hook_resolve;
    __atomic_compare_exchange_n(&slot->real, &expected, real ? real : (void *)missing, false,
                                __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    errno = error;
    return early;
}

// The driver that lay there was closed. A library that is linked to it may be loaded again, with another one.
void hook_unresolve(struct span driver) {
    for (struct slot *slot = hook_slots; slot < hook_slots + HOOK_NAMES; slot++) {
        void *real = __atomic_load_n(&slot->real, __ATOMIC_ACQUIRE);
        if ((uintptr_t)real >= driver.start && (uintptr_t)real < driver.end)
            __atomic_compare_exchange_n(&slot->real, &real, (void *)hook_resolve, false, __ATOMIC_ACQ_REL,
                                        __ATOMIC_ACQUIRE);
    }
}

// dlsym

// What RTLD_DEFAULT means to the caller, the stubs left out.
static void *find_default(const char *name, const void *caller) {
    void *found = hook_real_dlsym(RTLD_DEFAULT, name); // where a program defines it itself
    if (found && is_stub(found))
        found = hook_next_function(name);
    struct linked linked;
    if (!found && hook_linked_of(caller, &linked) && *linked.name) {
        void *handle = hook_real_dlopen(linked.name, RTLD_LAZY | RTLD_NOLOAD);
        if (handle) {
            found = hook_real_dlsym(handle, name);
            hook_real_dlclose(handle);
        }
    }
    return found ? found
                 : hook_real_dlsym(RTLD_NEXT, name); // what was made global later; the message for dlerror
}

// Whether a library gives out functions of the driver as its own: it defines this one, or dlsym.
static bool is_interposer(const struct linked *linked, const char *name) {
    return hook_function_in(linked, name) || hook_function_in(linked, "dlsym");
}

struct answer hook_dlsym(void *handle, const char *name, void *caller) {
    struct answer answer = {NULL, 0};
    hook_setup();
    if (!hook_live)
        return answer;
    struct linked linked;
    bool in_library = hook_linked_of(caller, &linked) && linked.index > 1;
    // A library that asks for the next function stands between the program and the driver: the call was seen
    // before. Next to the program itself are the stubs; it gets what is next to those.
    if (handle == RTLD_NEXT && in_library)
        return answer;
    const struct slot *named = hook_named_slot(name);
    if ((handle == RTLD_NEXT || handle == RTLD_DEFAULT) && !named)
        return answer;
    answer.given = 1;
    answer.value = handle == RTLD_DEFAULT ? find_default(name, caller) : hook_real_dlsym(handle, name);
    if (is_stub(answer.value)) { // in the scope of the program itself
        void *next = hook_next_function(name);
        answer.value = next ? next : hook_real_dlsym(RTLD_NEXT, name);
    }
    // So does one that asks the driver itself, where the program was given its functions in turn.
    if (!answer.value || (in_library && hook_comes_after_us(&linked) && is_interposer(&linked, name)))
        return answer;
    int error = errno;
    if (hook_in_driver(answer.value) || (named && hook_linked_of(answer.value, &linked) && linked.index > 1 &&
                                         is_interposer(&linked, name))) {
        answer.value = hook_wrap(answer.value, name);
        hook_this_thread(); // begins the trace
    }
    errno = error;
    return answer;
}
