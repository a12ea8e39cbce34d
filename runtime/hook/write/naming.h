// The names of a process's files.

#ifndef GPT_NAMING_H
#define GPT_NAMING_H

#include <stdbool.h>
#include <stddef.h>

// The value of a variable of ours, which stays; NULL if it is not set. Programs write over their environment,
// to show what they do in lists of processes.
const char *hook_keep_variable(const char *name);

extern const char *hook_template; // NAME, with %p and the like; NULL or empty: nothing is written

size_t hook_expand_name(char *path, size_t size); // returns its length

// Creates the file of this process, at hook_live->path, and opens it; -1 with errno set if there is none, or
// hook_live->state is OFF: somebody else writes there. `first` at NAME?
int hook_create_file(bool *first);

// A program that this process was before exec may have left its trace without end.
void hook_end_predecessor(void);

#endif
