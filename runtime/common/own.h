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

// Do the same for a file that's renamed once it's complete. Its temporary name, .gpt-RANDOM.part, can't be
// predicted.
int gpt_create_part(int folder, char name[GPT_PART_BYTES], mode_t mode);
bool gpt_is_part(const char *name);

// Return the absolute folder in TMPDIR, or /tmp. An empty or relative TMPDIR doesn't count.
const char *gpt_temporary_parent(void);

// Make a folder named PREFIX and six characters in `parent`, closed to all others, and return it open, or -1
// with errno set. Users who may rename files in `parent` could replace it with another folder, so the open
// one isn't accepted unless it's this user's, closed to all others, and empty. Access files only through it.
int gpt_make_temporary(const char *parent, const char *prefix, char path[PATH_MAX]);

// Open a folder that gpt_make_temporary made, or return -1 with errno set if its name is another's by now.
int gpt_open_temporary(const char *path);

// Return whether the name is a regular file (not a link) owned by this user. `status` may be NULL.
bool gpt_is_own(int folder, const char *name, struct stat *status);

#endif
