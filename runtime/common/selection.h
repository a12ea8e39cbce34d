// The effect of -k, --filter, --launch-skip and similar options on a run, which is reported when the run
// ends.

#ifndef GPT_SELECTION_H
#define GPT_SELECTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Return whether one of the parts, which colons separate, is in the name.
bool gpt_has_part(const char *name, size_t size, const char *parts);

void gpt_selection_setup(void);
bool gpt_is_choosing(void);  // true if -k or --filter was given
bool gpt_is_selecting(void); // the run was started with probes
void gpt_add_kernel(const char *name, size_t size);

// Report names that matched nothing, which is all we can report about a live stream. The second function also
// gets the numbers of launches; --launch-skip and similar options left out `left_out` of them.
void gpt_say_names(void);
void gpt_say_selection(uint64_t launches, uint64_t probed, uint64_t unprobed, uint64_t left_out);

#endif
