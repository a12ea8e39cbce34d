// Mappings of trace files, which somebody may truncate.

#ifndef GPT_BUS_H
#define GPT_BUS_H

#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

unsigned char *hook_map(int file, size_t size, off_t at); // may be written whatever becomes of the file
void hook_unmap(unsigned char *start, size_t size);
void hook_bus_setup(void);
extern _Atomic bool hook_bus_installed; // the handler of SIGBUS is ours
int hook_bus_exchange(const struct sigaction *action,
                      struct sigaction *before); // what sigaction is to the program then
extern int (*hook_real_sigaction)(int, const struct sigaction *, struct sigaction *); // set by hook_find_real

#endif
