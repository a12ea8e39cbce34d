// What gpt-hook was asked to probe.

#ifndef GPT_SETTINGS_H
#define GPT_SETTINGS_H

#include <stdbool.h>
#include <stdint.h>

extern bool hook_probing; // false where nothing is, and in a forked child: what was loaded is its parent's

struct settings {
    const char *identity; // digest of the pipeline and its probes: results are kept under it
    uint64_t wait;        // ms that a burst of look-ups waits
    uint64_t skip, count, sample;
    uint64_t memory; // bytes of device memory for buffers; 0: a tenth of what is free
    bool complete;
};
extern struct settings hook_settings;

void hook_probe_setup(void);
void hook_probe_stop(void); // nothing is probed any more
bool hook_is_wanted(const char *kernel);
bool hook_is_closed(const char *path); // whether a library is one of those whose code is not looked into

#endif
