// Recognizes programs that can't be watched by preloading a library.

#ifndef GPT_UNWATCHABLE_H
#define GPT_UNWATCHABLE_H

#include <limits.h>
#include <stdbool.h>

// Return the reason why gpt-hook can't watch the program, such as "a setuid program", or NULL if it can or if
// we can't tell. If the program is a script, `path` is replaced by the path of its interpreter. May be called
// in a vfork child.
const char *gpt_find_unwatchable(char path[PATH_MAX]);

#endif
