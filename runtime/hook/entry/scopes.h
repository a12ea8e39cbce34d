// Libraries that find the driver before us.

#ifndef GPT_SCOPES_H
#define GPT_SCOPES_H

void hook_see_namespaces(void); // says that a driver is in one of dlmopen

#endif
