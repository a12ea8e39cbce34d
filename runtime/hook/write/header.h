// The `header` record.

#ifndef GPT_HEADER_H
#define GPT_HEADER_H

#include <stdbool.h>
#include <stddef.h>

#include "records.h"

size_t hook_pack_header(struct gpt_packer *buffer, bool whole); // with the command line; returns its bytes

#endif
