// What the program sets of its functions and kernels is set of those with probes.

#ifndef GPT_PROPERTIES_H
#define GPT_PROPERTIES_H

#include "probed.h"

#define UNFIT_PROPERTY "what the program sets of it cannot be set with probes"

bool hook_copy_properties(const struct probed *probed,
                          const struct bound *bound); // false if one cannot be set

extern handler hook_after_attribute;

#endif
