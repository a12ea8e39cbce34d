// A kernel of ours, which copies memory and clears what it copied.

#ifndef GPT_MOVER_H
#define GPT_MOVER_H

#include <stdbool.h>
#include <stdint.h>

// For the current context, and as long as that is there. 0: the driver does not assemble it.
uint64_t hook_load_mover(void);

// Copies and clears in a stream. Addresses are multiples of 16, bytes are rounded up to such. A mover of 0,
// and a target of 0, for which memory is only cleared, are calls of the driver.
bool hook_move(uint64_t mover, uint64_t to, uint64_t from, uint64_t bytes, uint64_t stream);

#endif
