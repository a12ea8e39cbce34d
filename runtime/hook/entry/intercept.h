// How a program comes to hold stubs.

#ifndef GPT_INTERCEPT_H
#define GPT_INTERCEPT_H

#include "hook/watch/watch.h"

void *hook_wrap(void *real, const char *symbol); // the stub that stands for a function of the driver
void hook_unresolve(struct span driver);
extern handler hook_on_get_proc_address;

#endif
