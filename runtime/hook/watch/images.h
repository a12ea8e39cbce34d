// Images of modules, kept in files.

#ifndef GPT_IMAGES_H
#define GPT_IMAGES_H

#include <stddef.h>

void hook_save_setup(void);
const char *hook_save_image(const void *data, size_t size, const char *digest, const char *type,
                            char path[4096]);

#endif
