// Memory that the program may have given back.

#ifndef GPT_PEEK_H
#define GPT_PEEK_H

#include <stdbool.h>
#include <stddef.h>

// They return false if not all of it is there.
bool hook_peek(const void *from, void *into, size_t size);
bool hook_peek_text(const char *from, char *into, size_t size);
bool hook_is_readable(const void *start, size_t size);

// What an argument of a call points to, before the driver has looked at it: it may be anything. False, and
// zeros, if it is not there. On the stack of the caller, where arguments mostly are, it is a memcpy.
bool hook_read(const void *from, void *into, size_t size);

#endif
