// The file beside the trace, NAME.buffers.

#ifndef GPT_BESIDE_H
#define GPT_BESIDE_H

#include <stdbool.h>
#include <stdint.h>

bool hook_put_beside(const void *data, uint64_t size, uint64_t *offset); // false: it cannot be written
const char *hook_name_beside(void);

#endif
