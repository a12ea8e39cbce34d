// What gpt-hook ctl asks of this process.

#ifndef GPT_HOOK_CONTROL_H
#define GPT_HOOK_CONTROL_H

#include "hook/watch/watch.h"

extern handler hook_on_init;

#endif
