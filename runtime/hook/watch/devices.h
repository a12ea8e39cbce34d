// The devices.

#ifndef GPT_DEVICES_H
#define GPT_DEVICES_H

void hook_see_device(int device); // writes its record

#endif
