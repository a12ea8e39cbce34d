// Images of modules and libraries that the program loaded, as long as these live.

#ifndef GPT_SOURCES_H
#define GPT_SOURCES_H

#include "common/kept.h"
#include "hook/watch/watch.h"

// Both say of a function or kernel why it cannot get probes, a text that stays, or return NULL.

// What identifies its image: the contents, or of a large one in a file which file that is, and where.
const char *hook_digest_source(uint64_t function, char digest[65]);
// Adds a request about the image, which says what of it. A large one is in a file, the caller's to close;
// else -1.
const char *hook_add_request(uint64_t function, struct gpt_asked *asked, struct gpt_bytes *request,
                             int *file);

extern handler hook_after_load_image, hook_after_load_file;

#endif
