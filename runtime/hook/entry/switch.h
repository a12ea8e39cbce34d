// What is done at calls while they are recorded, and while they are not.

#ifndef GPT_SWITCH_H
#define GPT_SWITCH_H

#include <stdbool.h>

#include "hook/probe/probe.h"
#include "hook/watch/watch.h"

void hook_use_flags(struct slot *slot); // those for now
void hook_find_all_flags(void);         // of all slots, after what they follow from has changed
extern handler hook_on_capture;
unsigned hook_changes(void); // how often that was called: who finds flags looks whether it was meanwhile
void hook_expect_probes(const struct order *order, bool recording); // once both hold
void hook_switch(bool on);                                          // one thread at a time

#endif
