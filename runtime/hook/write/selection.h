// What -k, --filter, --launch-skip and the like leave of a run's launches, for the report at its end.

#ifndef GPT_SELECTION_H
#define GPT_SELECTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Return whether one of the parts, which colons separate, is in the name.
bool hook_has_part(const char *name, size_t size, const char *parts);

void hook_selection_setup(void);
bool hook_is_choosing(void);  // whether -k or --filter was given
bool hook_is_selecting(void); // the run was started with probes
void hook_add_kernel(const char *name, size_t size);
void hook_say_selection(uint64_t launches, uint64_t probed, uint64_t unprobed);

#endif
