// Built into libgpthook.so with --wrap=hook_pack: packing takes so long that the writer lags behind at once.

#include <unistd.h>

#include "hook/probe/probe.h"

bool __real_hook_pack(const void *data, uint64_t size, uint64_t row, bool quick, struct packing *packed);

bool __wrap_hook_pack(const void *data, uint64_t size, uint64_t row, bool quick, struct packing *packed) {
    usleep(quick ? 0 : 250000);
    return __real_hook_pack(data, size, row, quick, packed);
}
