// SHA-256, as the hook has it.

#include "../hook/watch/sha256.c"
