// A cache in which later processes find results of earlier ones, and the digests that serve as keys.

#ifndef GPT_KEPT_H
#define GPT_KEPT_H

#include <stdbool.h>
#include <stddef.h>

#include "broker.h"
#include "private.h"

void gpt_sha256(const void *data, size_t size, char hex[65]);

// Read a result from this folder of the user's cache. Returns false if there's no file for the key, or if the
// file is damaged.
bool gpt_get_cached(const char *folder, const char key[65], struct gpt_bytes *found);
void gpt_cache(const char *folder, const char key[65], const struct gpt_bytes *made);

// Do the same in the folder `path`, whose files may take up to `limit` bytes in total. `room` is how many
// bytes this process may still write before it measures the folder again; it begins with 0. If the folder
// can't be used, `why` gets the reason.
bool gpt_get_from(const char *path, const char *key, off_t limit, struct gpt_bytes *found,
                  struct gpt_distrust *why);
void gpt_keep_in(const char *path, const char *key, const struct gpt_bytes *made, off_t limit, long *room,
                 struct gpt_distrust *why);

// Warn in gpt-hook if a cache can't be trusted. Returns whether a warning was written. If so, the processes
// of the run don't repeat it.
bool gpt_warn_of_cache(void);

#define GPT_CACHE_SAID "GPT_CACHE_SAID" // environment variable: gpt-hook has warned

#endif
