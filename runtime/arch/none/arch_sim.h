// Everything about the processor that the simulated device needs, besides sim/ and arch_stubs.h.

#ifndef GPT_ARCH_SIM_H
#define GPT_ARCH_SIM_H

static inline const char *arch_variant(void) { return ""; }

#endif
