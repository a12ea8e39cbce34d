// Digests, and what is kept under them.

#include "../common/kept.c"
#include "../common/own.c"
#include "../common/private.c"
#include "../common/sha256.c"
