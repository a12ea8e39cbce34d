// Starts helper processes of gpt-hook. A helper runs alongside the command, but it isn't a child of the
// command, nor in its session.

#ifndef GPT_APART_H
#define GPT_APART_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

// Open placeholders for standard streams that are closed, so that no other file gets their numbers and is
// mistaken for a standard stream. exec closes the placeholders. Call this before opening files for a helper.
void gpt_hold_standard(void);

// Start a helper, which runs `work` and never returns from it. `root` is the process that will become the
// command, and `root_file` is a pidfd for it, which is readable once the command has ended. Returns false
// with errno set if that fails.
bool gpt_start_apart(void (*work)(pid_t root, int root_file));

// Let go of everything that belongs to the command: its current folder, its standard streams (except standard
// error if `messages` is set), and all open files except these `count` descriptors, which must be greater
// than 2.
void gpt_let_go(bool messages, const int *files, size_t count);

// Return whether any process was started with NAME=VALUE in its environment.
bool gpt_anybody_with(const char *name, const char *value);

#endif
