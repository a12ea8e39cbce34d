// Results that are kept for the next process, and the digests that they are found by.

#ifndef GPT_KEPT_H
#define GPT_KEPT_H

#include <stdbool.h>
#include <stddef.h>

#include "broker.h"

void gpt_sha256(const void *data, size_t size, char hex[65]);

// `folder` is one in the user's cache. False if nothing is kept under the key, or what is kept is damaged.
bool gpt_get_kept(const char *folder, const char key[65], struct gpt_bytes *found);
void gpt_keep(const char *folder, const char key[65], const struct gpt_bytes *made);

#endif
