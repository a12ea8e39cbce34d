// Files that we create and recognize, in folders that others may write to.

#ifndef GPT_OWN_H
#define GPT_OWN_H

#include <limits.h>
#include <stdbool.h>
#include <sys/stat.h>

enum { GPT_PART_BYTES = 43 };

// Create a file that doesn't exist, in a folder that's open or AT_FDCWD. `access` is O_RDWR or O_WRONLY.
// Returns -1 with errno set; EEXIST means that the name is taken, even by a link.
int gpt_create(int folder, const char *name, int access, mode_t mode);

// Do the same for a file that will be renamed once it's complete. It gets a temporary name that can't be
// predicted, .gpt-RANDOM.part.
int gpt_create_part(int folder, char name[GPT_PART_BYTES], mode_t mode);
bool gpt_is_part(const char *name);

// Return the absolute folder in TMPDIR, or /tmp. An empty or relative TMPDIR doesn't count.
const char *gpt_temporary_parent(void);

// Make a folder in `parent` whose name is `prefix` followed by six characters, and to which no other user has
// access. Returns a descriptor of the folder, or -1 with errno set. Other users who may rename files in
// `parent` could put another folder in its place. So this fails unless the folder that was opened belongs to
// this user, is closed to all others, and is empty. Access files in it only through the descriptor.
int gpt_make_temporary(const char *parent, const char *prefix, char path[PATH_MAX]);

// Open a folder that gpt_make_temporary made. Returns -1 with errno set if that fails, or if the name belongs
// to somebody else's folder by now.
int gpt_open_temporary(const char *path);

// Return whether the name is a regular file (not a link) owned by this user. `status` may be NULL.
bool gpt_is_own(int folder, const char *name, struct stat *status);

#endif
