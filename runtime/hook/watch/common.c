// The parts of runtime/common that the hook needs: digests, the cache, and the broker's client.

#include "common/cache.c"
#include "common/fd_passing.c"
#include "common/peers.c"
#include "common/records.c"
#include "common/request.c"
#include "common/sha256.c"
#include "common/unwatchable.c"
