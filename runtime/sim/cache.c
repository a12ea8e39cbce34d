// Digests, and what is kept under them.

#include "../common/cache.c"
#include "../common/own.c"
#include "../common/private.c"
#include "../common/sha256.c"
