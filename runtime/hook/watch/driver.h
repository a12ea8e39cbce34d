// The driver's library.

#ifndef GPT_DRIVER_H
#define GPT_DRIVER_H

#include <stdatomic.h>
#include <stdbool.h>

#include "linker.h"

bool hook_has_driver(void); // whether it is loaded
bool hook_driver_is_simulated(void);
void *hook_driver_function(const char *symbol); // the real one, or NULL
// Calls `find_all` once for each driver that is loaded, and returns what it returned: threads may be the
// first at once. `found` is 0 until then.
bool hook_find_once(_Atomic int *found, bool (*find_all)(void));
bool hook_in_driver(const void *address);
// The exported name of the function at an address, of several the first that is an entry point of the API;
// NULL if there is none.
const char *hook_driver_symbol(const void *address);
bool hook_forget_driver(struct span *was); // if it was closed: true, and where it lay

#endif
