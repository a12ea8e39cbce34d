// PTX that the program had the driver link to a cubin.

#ifndef GPT_LINKS_H
#define GPT_LINKS_H

#include "common/kept.h"
#include "hook/watch/watch.h"

extern handler hook_after_link_begun, hook_after_link_data, hook_after_link_file, hook_after_link,
    hook_after_link_end;

// Whether an image is what was linked. Then the text that it was made of is added; none if it was made of
// several.
bool hook_find_linked(const struct image *image, struct gpt_bytes *text);

#endif
