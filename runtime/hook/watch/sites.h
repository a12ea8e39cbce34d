// Where calls come from.

#ifndef GPT_SITES_H
#define GPT_SITES_H

#include "call.h"

extern const char *hook_stacks; // the words of gpt-hook --stacks, or NULL
void hook_sites_setup(void);
extern handler hook_on_site; // of a call that has a row

#endif
