// The slots of driver functions: where their stubs are, what the stubs jump to, and whether they look at
// calls.
//
// A slot has one set of flags for when recording is on, and one for when it's off. Its stub reads the current
// set once, so the rest of the call is consistent with it.

#include <stdatomic.h>

#include "abi/cuda.h"
#include "entry.h"
#include "hook/write/write.h"
#include "stub.h"

// The slots of named functions exist before any code runs. They're filled in when the program looks the
// functions up or calls them: most processes use none.

#define UNRESOLVED {.real = (void *)hook_resolve, .flags = SLOT_WATCHED}
struct slot hook_slots[SLOTS] = {[0 ... HOOK_NAMES - 1] = UNRESOLVED};

void *hook_stub_of(const struct slot *slot) {
    return hook_stubs ? (void *)(hook_stubs + ARCH_STUB_SIZE * (slot - hook_slots)) : NULL;
}

bool hook_is_stub(const void *address) {
    return (const char *)address >= hook_stubs && (const char *)address < hook_stubs_end;
}

CUresult hook_missing(void) { return CUDA_ERROR_STUB_LIBRARY; }

// Forget the real functions of a driver that was closed. A library linked to it may be loaded again with
// another driver.
void hook_unresolve(struct span driver) {
    for (struct slot *slot = hook_slots; slot < hook_slots + HOOK_NAMES; slot++) {
        void *real = __atomic_load_n(&slot->real, __ATOMIC_ACQUIRE);
        if ((uintptr_t)real >= driver.start && (uintptr_t)real < driver.end)
            __atomic_compare_exchange_n(&slot->real, &real, (void *)hook_resolve, false, __ATOMIC_ACQ_REL,
                                        __ATOMIC_ACQUIRE);
    }
}

// Flags

// Call this after changing anything that the flags depend on (a slot, or hook_recording): the last caller
// sees all changes.
void hook_use_flags(struct slot *slot) {
    bool on;
    do {
        on = atomic_load(&hook_recording);
        __atomic_store_n(&slot->flags, __atomic_load_n(on ? &slot->on : &slot->off, __ATOMIC_SEQ_CST),
                         __ATOMIC_SEQ_CST);
    } while (on != atomic_load(&hook_recording));
}

void hook_use_all_flags(void) {
    for (struct slot *slot = hook_slots; slot < hook_slots + SLOTS; slot++)
        if (__atomic_load_n(&slot->id, __ATOMIC_SEQ_CST))
            hook_use_flags(slot);
}

// Called in any thread when --max-disk is reached. The record of it is written later (limit.c).
void hook_stop_recording(void) {
    atomic_store(&hook_recording, false);
    hook_use_all_flags();
}
