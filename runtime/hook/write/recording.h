// Whether calls are recorded: gpt-hook ctl turns that on and off.

#ifndef GPT_RECORDING_H
#define GPT_RECORDING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

// A forked child goes on as its parent was. What is loaded and looked up is written in either case.
extern _Atomic bool hook_recording;

struct periods {
    uint64_t count; // that have begun
    uint64_t since; // ns since the epoch: the last change; 0: there was none
};
extern struct periods hook_periods; // of the thread that turns it on and off

void hook_recording_setup(void);
void hook_begin_recording(void); // of a trace that begins
void hook_write_recording(bool on);

#endif
