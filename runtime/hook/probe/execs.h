// Handlers of what makes and destroys executable graphs, and of calls that read a graph for them.

#ifndef GPT_EXECS_H
#define GPT_EXECS_H

#include "hook/watch/watch.h"
#include "prepared.h"

extern handler hook_before_instantiate, hook_after_instantiate, hook_before_exec_update,
    hook_after_exec_update, hook_before_exec_child, hook_after_exec_child, hook_before_exec_gone,
    hook_after_exec_gone;

// Around a call that gives a graph to a node of an executable graph: its first two arguments.
void hook_before_child(struct frame *frame, uint64_t graph);
void hook_after_child(struct frame *frame);

// A node of an executable graph, which is locked, is to write: kernels with copies of that are taken back.
void hook_take_back_copies(struct prepared *graph, const struct written *written);

#endif
