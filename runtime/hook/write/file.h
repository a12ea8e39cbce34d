// The file of a trace and its chunks.

#ifndef GPT_FILE_H
#define GPT_FILE_H

#include "thread.h"

struct mapped hook_new_chunk(uint32_t size); // for ever
uint32_t hook_chunk_size(unsigned step);     // of those of 4 KiB on that grow
void hook_set_used(unsigned char *chunk, uint32_t used);

#endif
