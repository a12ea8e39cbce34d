// Included before anything else, so that what is built runs with older versions of glibc too: since 2.38 the
// headers replace strtol, sscanf and their like by functions of C23, which no older one has.

#ifndef GPT_PORTABLE_H
#define GPT_PORTABLE_H

#include <features.h>

#undef __GLIBC_USE_C2X_STRTOL
#define __GLIBC_USE_C2X_STRTOL 0
#undef __GLIBC_USE_C23_STRTOL
#define __GLIBC_USE_C23_STRTOL 0

#endif
