// The thread that writes buffers into the trace.

#ifndef GPT_WRITER_H
#define GPT_WRITER_H

#include "slab.h"

void hook_write_later(struct slab *slab); // once its event has come
void hook_wait_no_longer(void);           // what has not come is lost

#endif
