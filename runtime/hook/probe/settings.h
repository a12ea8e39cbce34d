// What gpt-hook was asked to probe.

#ifndef GPT_SETTINGS_H
#define GPT_SETTINGS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

// Whether what is needed to probe is kept. False where nothing ever is, and in a child that was forked after
// something was loaded: that is its parent's.
extern _Atomic bool hook_probing;

// Which probes go into which kernels, from an order on until the next one; it stays.
struct order {
    const struct order *before;
    unsigned number;      // from 1 on
    const char *identity; // digest of the pipeline and its probes, by which the supervisor knows it and
                          // results are kept; NULL: none
    const char *probes, *kernels, *filter; // what the user calls them; NULL: not given
};
const struct order *hook_order(void);
const struct order *hook_order_of(unsigned number);
bool hook_make_order(const struct order *made); // false without memory

// Whether probes have ever been named while calls were recorded. Until then no kernel has any, be it launched
// or in a graph, and there are no buffers and no memory for them.
bool hook_has_probed(void);
bool hook_will_probe(const struct order *order, bool recording); // soon; true if nothing was probed before

struct settings {
    uint64_t wait; // ms that a burst of look-ups waits
    uint64_t skip, count, sample;
    uint64_t memory; // bytes of device memory for buffers; 0: a tenth of what is free
    bool complete;
    bool keeps;     // the stages keep what they make: all is asked for
    bool benchmark; // the kernel without probes is launched, too
    bool memusage;  // records are only counted
};
extern struct settings hook_settings;

void hook_probe_setup(void);
void hook_probe_stop(void);  // nothing is probed any more
void hook_probe_begin(void); // something was loaded: what is known is of this process, not of its children
bool hook_is_this_process(void); // and not a child in its memory, as vfork makes
bool hook_is_wanted(const char *kernel, const struct order *order);
bool hook_is_closed(const char *path); // whether a library is one of those whose code is not looked into

#endif
