// Handlers of single nodes, of executable graphs and of those that the program builds.

#ifndef GPT_CHANGES_H
#define GPT_CHANGES_H

#include "hook/watch/watch.h"

extern handler hook_before_exec_kernel, hook_after_exec_kernel, hook_before_exec_node, hook_after_exec_node,
    hook_after_node_enabled, hook_before_exec_copy, hook_before_exec_set, hook_before_packed,
    hook_after_packed;

#endif
