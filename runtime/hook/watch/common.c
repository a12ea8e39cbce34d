// What the hook has of runtime/common: digests, what is kept under them, and the broker's clients.

#include "common/cache.c"
#include "common/fd_passing.c"
#include "common/records.c"
#include "common/request.c"
#include "common/sha256.c"
#include "common/unwatchable.c"
