// How the library is set up, and what has to come then.

#ifndef GPT_SETUP_H
#define GPT_SETUP_H

#include <stdbool.h>

bool hook_setup(void); // gives whether that was this call
void hook_exits_setup(void);

#endif
