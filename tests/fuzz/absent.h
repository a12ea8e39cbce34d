// The rest of the hook for harnesses that include a few of its files: its state, and functions that no input
// reaches.

#ifndef GPT_ABSENT_H
#define GPT_ABSENT_H

#include "harness.h"
#include "hook/watch/watch.h"
#include "hook/write/write.h"

struct live *hook_live;
struct watched *hook_watched;
TLS struct thread *hook_thread;
TLS bool hook_writing;

ABSENT(hook_begin_thread)
ABSENT(hook_close)
ABSENT(hook_close_maps)
ABSENT(hook_driver_function)
ABSENT(hook_driver_is_simulated)
ABSENT(hook_next_linked)
ABSENT(hook_next_mapping)
ABSENT(hook_open)
ABSENT(hook_open_maps)

#endif
