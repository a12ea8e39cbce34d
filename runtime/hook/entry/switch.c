// Turning recording on and off while calls are under way. A slot has flags for both; its stub reads those
// that hold once, and a call ends as it began.

#include <stdatomic.h>

#include "entry.h"
#include "hook/watch/watch.h"
#include "hook/write/write.h"
#include "stub.h"

// Whoever changes what they follow from, a slot or hook_recording, calls this after it: the last one sees
// both.
void hook_use_flags(struct slot *slot) {
    bool on;
    do {
        on = atomic_load(&hook_recording);
        __atomic_store_n(&slot->flags, __atomic_load_n(on ? &slot->on : &slot->off, __ATOMIC_SEQ_CST),
                         __ATOMIC_SEQ_CST);
    } while (on != atomic_load(&hook_recording));
}

static void use_all_flags(void) {
    for (struct slot *slot = hook_slots; slot < hook_slots + SLOTS; slot++)
        if (__atomic_load_n(&slot->id, __ATOMIC_SEQ_CST))
            hook_use_flags(slot);
}

static _Atomic unsigned changes;

unsigned hook_changes(void) { return atomic_load(&changes); }

void hook_find_all_flags(void) {
    atomic_fetch_add(&changes, 1);
    for (struct slot *slot = hook_slots; slot < hook_slots + SLOTS; slot++)
        if (__atomic_load_n(&slot->id, __ATOMIC_SEQ_CST))
            hook_find_flags(slot);
}

// cuStreamBeginCapture, cuStreamBeginCaptureToGraph: launches are looked at from the first capture on.
void hook_on_capture(struct frame *frame) {
    (void)frame;
    if (hook_begin_capture())
        hook_find_all_flags();
}

// Before the first kernel has probes, calls are looked at that must know which buffers there are.
void hook_expect_probes(const struct order *order, bool recording) {
    if (hook_will_probe(order, recording))
        hook_find_all_flags();
}

// Calls that are recorded lie between the two records.
void hook_switch(bool on) {
    if (on == atomic_load(&hook_recording))
        return;
    hook_expect_probes(hook_order(), on);
    if (on)
        hook_write_recording(true);
    atomic_store(&hook_recording, on);
    use_all_flags();
    if (!on)
        hook_write_recording(false);
}
