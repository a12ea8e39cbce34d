// The thread that writes buffers into the trace.

#ifndef GPT_WRITER_H
#define GPT_WRITER_H

#include "slab.h"

bool hook_begin_writing(void);            // not when the process ends, perhaps within malloc
void hook_write_later(struct slab *slab); // once its event has come
void hook_write_soon(void);               // what comes next is waited for
void hook_wait_no_longer(void);           // what has not come is lost
void hook_lose(struct save *save);        // of a launch that is made while the process ends

#endif
