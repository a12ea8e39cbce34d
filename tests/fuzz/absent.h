// The rest of the hook, for harnesses that include only a few of its files: its state, and functions that no
// input reaches.

#ifndef GPT_ABSENT_H
#define GPT_ABSENT_H

#include "harness.h"
#include "hook/watch/watch.h"
#include "hook/write/write.h"

struct live *hook_live;
struct watched *hook_watched;
TLS struct thread *hook_thread;
TLS bool hook_writing;

#endif
