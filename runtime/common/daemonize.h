// A helper process of gpt-hook. It runs alongside the command, but is neither its child nor in its session.

#ifndef GPT_APART_H
#define GPT_APART_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

// Reserve the numbers of closed standard streams, so that no other file gets one and is taken for that
// stream. exec closes the placeholders. Call this before opening files for a helper.
void gpt_hold_standard(void);

// Start a helper, which begins in `work` and never returns from it. `root` will be the command; its
// `root_file`, a pidfd, is readable once the command has ended. Returns false with errno set.
bool gpt_start_apart(void (*work)(pid_t root, int root_file));

// Detach from everything that belongs to the command: its folder, its standard streams (standard error is
// kept with `messages`), and every open file except these `count` descriptors, which must be greater than 2.
void gpt_let_go(bool messages, const int *files, size_t count);

// Return whether any process was started with NAME=VALUE in its environment.
bool gpt_anybody_with(const char *name, const char *value);

#endif
