// Launches of graphs, and what they wrote.

#ifndef GPT_REPLAY_H
#define GPT_REPLAY_H

#include "hook/watch/watch.h"
#include "pool.h"

extern handler hook_before_replay, hook_after_replay; // cuGraphLaunch

// For the thread that writes: the next node of a replay from `at` on, 0 at first, with its buffers' place in
// the slab; its launch is in the trace then. False: there are no more.
bool hook_next_replayed(const struct save *of, size_t *at, struct save *node);
void hook_end_replay(struct replay *replay);

#endif
