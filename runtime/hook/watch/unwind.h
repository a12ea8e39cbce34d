// The stack of a thread, from the unwind tables of its libraries.

#ifndef GPT_UNWIND_H
#define GPT_UNWIND_H

#include <stddef.h>
#include <stdint.h>

void hook_unwind_setup(void);
// Return addresses outside of this library, the innermost first. Returns how many.
size_t hook_unwind(uint64_t *addresses, size_t most);
// Changes when a library is closed: another one may come to lie where it was.
uint64_t hook_unwind_generation(void);
void hook_forget_unwound(void);

#endif
