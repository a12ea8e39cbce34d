// Programs that can't be watched by preloading a library.

#ifndef GPT_UNWATCHABLE_H
#define GPT_UNWATCHABLE_H

#include <limits.h>
#include <stdbool.h>

// Return why gpt-hook cannot watch the program, as "a setuid program", or NULL if it can or nobody knows. For
// a script, `path` becomes its interpreter. Safe in a child of vfork.
const char *gpt_find_unwatchable(char path[PATH_MAX]);

#endif
