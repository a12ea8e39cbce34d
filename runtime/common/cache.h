// A cache of results for later processes, and the digests they're found by.

#ifndef GPT_KEPT_H
#define GPT_KEPT_H

#include <stdbool.h>
#include <stddef.h>

#include "broker.h"
#include "private.h"

void gpt_sha256(const void *data, size_t size, char hex[65]);

// Return a result from this folder of the user's cache. Returns false if there's no file for the key, or if
// it's damaged.
bool gpt_get_kept(const char *folder, const char key[65], struct gpt_bytes *found);
void gpt_keep(const char *folder, const char key[65], const struct gpt_bytes *made);

// Do the same in a folder given by its path, whose files may have `limit` bytes in total. `room` is how many
// bytes this process may write before it measures the folder again, initially 0. `why` says why the folder
// isn't used.
bool gpt_get_from(const char *path, const char *key, off_t limit, struct gpt_bytes *found,
                  struct gpt_distrust *why);
void gpt_keep_in(const char *path, const char *key, const struct gpt_bytes *made, off_t limit, long *room,
                 struct gpt_distrust *why);

// Warn in gpt-hook if a cache can't be trusted. Returns whether it warned; the processes of the run don't
// repeat the warning.
bool gpt_complain_of_kept(void);

#define GPT_CACHE_SAID "GPT_CACHE_SAID" // environment variable: gpt-hook has warned

#endif
