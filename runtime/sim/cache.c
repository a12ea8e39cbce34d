// Digests, and the cache that is keyed by them.

#include "../common/cache.c"
#include "../common/private.c"
#include "../common/sha256.c"
