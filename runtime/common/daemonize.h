// A helper process of gpt-hook's: it lives beside the command and is neither its child nor in its session.

#ifndef GPT_APART_H
#define GPT_APART_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

// Where a standard stream is closed, nothing else may get its number: it would be taken for that stream. What
// holds it is closed by exec. To be called before a file is opened that a helper has.
void gpt_hold_standard(void);

// Starts one, which begins in `work` and never returns from it: `root` will be the command, and its
// `root_file`, a pidfd, is readable once that has ended. Returns false with errno set.
bool gpt_start_apart(void (*work)(pid_t root, int root_file));

// Lets go of what belongs to the command: its folder, its standard streams (but standard error if there are
// `messages`) and all that is open but these `count` files, which are in any order, and above 2.
void gpt_let_go(bool messages, const int *files, size_t count);

// Whether a process is there that was started with NAME=VALUE in its environment.
bool gpt_anybody_with(const char *name, const char *value);

#endif
