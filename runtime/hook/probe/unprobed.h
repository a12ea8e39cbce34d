// Launches that ran without probes, by the reason.

#ifndef GPT_UNPROBED_H
#define GPT_UNPROBED_H

#include <stdint.h>

// Counts a launch; the reason is a text that stays.
void hook_count_unprobed(uint32_t function, const char *reason);
void hook_count_unprobed_times(uint32_t function, const char *reason, uint64_t launches);
void hook_write_unprobed(void); // what was counted since the last time
uint64_t hook_unprobed_total(void);

// The same text for as long as the process runs, once for all that are alike. NULL without memory.
const char *hook_keep_text(const char *text);

#endif
