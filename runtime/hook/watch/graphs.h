// Handlers of the functions that make graphs.

#ifndef GPT_GRAPHS_H
#define GPT_GRAPHS_H

#include "call.h"

extern handler hook_on_instantiate, hook_on_exec_update, hook_on_graph, hook_on_captured, hook_on_node;
extern handler hook_on_exec_kernel, hook_on_exec_child, hook_on_exec_node, hook_on_node_enabled;

#endif
