// Programs that can't be watched by preloading a library.

#ifndef GPT_UNWATCHABLE_H
#define GPT_UNWATCHABLE_H

#include <limits.h>
#include <stdbool.h>

// Return why gpt-hook can't watch the program, such as "a setuid program", or NULL if it can or that isn't
// known. For a script, `path` becomes its interpreter. Safe in a vfork child.
const char *gpt_find_unwatchable(char path[PATH_MAX]);

#endif
