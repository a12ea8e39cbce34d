// The shared libraries of the process.

#ifndef GPT_LIBS_H
#define GPT_LIBS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void hook_scan_libraries(void);
void hook_before_close(const void *handle);
void hook_after_close(void);
const char *hook_find_library(const void *address); // whose code or data it is in, or NULL
const char *hook_find_file(const void *address, uint64_t *offset, char *buffer, size_t size);

#endif
