// How code is made of PTX, and kept.

#ifndef GPT_BUILD_H
#define GPT_BUILD_H

#include "common/cache.h"
#include "sim.h"

#endif
