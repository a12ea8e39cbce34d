// Files that we make and recognize, in folders that others may write to.

#ifndef GPT_OWN_H
#define GPT_OWN_H

#include <stdbool.h>
#include <sys/stat.h>

enum { GPT_PART_BYTES = 43 };

// Makes a file that wasn't there, in a folder that is open or AT_FDCWD. `access` is O_RDWR or O_WRONLY.
// Returns -1 with errno set; EEXIST: the name is taken, by a link too.
int gpt_create(int folder, const char *name, int access, mode_t mode);

// The same for a file that's renamed once it's complete. Its temporary name, .gpt-RANDOM.part, can't be
// predicted.
int gpt_create_part(int folder, char name[GPT_PART_BYTES], mode_t mode);
bool gpt_is_part(const char *name);

// Return whether the name is a regular file (not a link) owned by this user. `status` may be NULL.
bool gpt_is_own(int folder, const char *name, struct stat *status);

#endif
