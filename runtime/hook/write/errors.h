// Messages, and what ends the recording.

#ifndef GPT_ERRORS_H
#define GPT_ERRORS_H

#include <stdbool.h>

extern const char *hook_folder; // of a live stream, whose helper reads the trace while it grows; else NULL
void hook_fail(const char *where, int error); // turns the hook off and says so
void hook_turn_off(const char *where, const char *fact);
extern const char *(*hook_real_strerrordesc)(int); // glibc's strerrordesc_np, from 2.32 on; else NULL
const char *hook_describe_error(int error);
void hook_say(const char *where, const char *fact, const char *consequence);

#endif
