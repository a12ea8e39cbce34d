// What is done at calls while they are recorded, and while they are not.

#ifndef GPT_SWITCH_H
#define GPT_SWITCH_H

#include <stdbool.h>

#include "hook/watch/call.h"

void hook_use_flags(struct slot *slot); // those for now
void hook_use_all_flags(void);
void hook_find_all_flags(void); // of all slots, after probes were ordered
void hook_switch(bool on);      // one thread at a time

#endif
