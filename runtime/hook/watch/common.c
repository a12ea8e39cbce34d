// What the hook has of runtime/common: digests, what is kept under them, and the broker's clients.

#include "common/kept.c"
#include "common/later.c"
#include "common/pass.c"
#include "common/records.c"
#include "common/sha256.c"
#include "common/unwatchable.c"
