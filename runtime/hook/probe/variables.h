// Variables that a kernel with probes shares with the program's module.

#ifndef GPT_VARIABLES_H
#define GPT_VARIABLES_H

#include "probed.h"

// Of a module, or of a library.
bool hook_find_variable(bool is_kernel, uint64_t module, const char *name, uint64_t *address, size_t *size);

// Fills the table of addresses and copies constants, in the current context. False with `missing` set if one
// is not there.
bool hook_share_variables(const struct probed *probed, struct bound *bound, const char **missing);
bool hook_must_copy(const struct bound *bound);
bool hook_copy_variables(const struct bound *bound, uint64_t stream); // that the program may have written to

extern handler hook_after_variable;

#endif
