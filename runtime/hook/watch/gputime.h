// When what was launched ran on the GPU.

#ifndef GPT_GPUTIME_H
#define GPT_GPUTIME_H

#include <stdbool.h>

#include "call.h"
#include "hook/write/write.h"

extern bool hook_gpu_time;
void hook_gpu_begin(struct frame *frame);
void hook_gpu_end(struct frame *frame, bool done);
void hook_gpu_read(struct thread *thread);

#endif
