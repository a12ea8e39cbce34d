// What the driver asks the kernel for.

#ifndef GPT_IOCTL_H
#define GPT_IOCTL_H

#include <stdbool.h>

void hook_ioctl_setup(void);
extern bool hook_ioctl_wanted;
int hook_record_ioctl(int (*real)(int, unsigned long, ...), int file, unsigned long request, void *argument);

#endif
