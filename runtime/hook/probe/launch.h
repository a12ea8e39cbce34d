// Handlers of launches, and of what else has to be answered or done for the kernel that runs.

#ifndef GPT_LAUNCH_H
#define GPT_LAUNCH_H

#include "hook/watch/watch.h"

// The launch of a frame, of another function with these parameters; false if the driver refuses it.
bool hook_launch_as(struct frame *frame, uint64_t function, void **params);

extern handler hook_before_launch, hook_after_launch, hook_before_context_ends, hook_before_stream_ends,
    hook_before_capture, hook_before_join, hook_after_capture;

extern _Atomic uint64_t hook_streams_ended; // another stream may have the handle of one of them

// The program's memory comes first: a call that found none is made again without our buffers.
extern handler hook_call_without_buffers;
uint64_t hook_call_again(const struct frame *frame); // with the arguments as they are now; its result

void hook_after_wait(void);  // the program has waited for the GPU
void hook_end_probing(void); // the process ends: what is on its way is awaited

#endif
