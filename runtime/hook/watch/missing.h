// GPU code that is not there.

#ifndef GPT_MISSING_H
#define GPT_MISSING_H

#include "call.h"

void hook_on_failure(struct frame *frame);

#endif
