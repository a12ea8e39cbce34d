// Files that we make and recognize, in folders that others may write to.

#ifndef GPT_OWN_H
#define GPT_OWN_H

#include <limits.h>
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

// The absolute folder in TMPDIR, or /tmp. An empty TMPDIR, or a relative one, doesn't count.
const char *gpt_temporary_parent(void);

// Makes a folder PREFIX and six characters in `parent`, closed to all others, and returns it open, or -1 with
// errno set. Users who may rename files in `parent` could put another folder in its place: so the open one
// has to be this user's, closed to all others, and empty, or it isn't taken. Reach files through it alone.
int gpt_make_temporary(const char *parent, const char *prefix, char path[PATH_MAX]);

// Return whether the name is a regular file (not a link) owned by this user. `status` may be NULL.
bool gpt_is_own(int folder, const char *name, struct stat *status);

#endif
