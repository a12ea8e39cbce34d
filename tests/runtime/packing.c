// runtime/hook/probe/pack.c as a library, for packing.py.

#include <dlfcn.h>
#include <string.h>

#include "hook/probe/probe.h"

__attribute__((visibility("default"))) void setup(void) {
    hook_zstd_setup(&(struct linker){dlopen, dlclose, dlsym});
}

// Return 0 for bytes that aren't worth packing, or the size of the data in `out`; the codec is 0 (zstd), 1
// (columns) or 2 (both).
__attribute__((visibility("default"))) uint64_t pack(const void *data, uint64_t size, uint64_t row,
                                                     bool quick, void *out, int *how) {
    struct packing packed;
    if (!hook_pack(data, size, row, quick, &packed))
        return 0;
    memcpy(out, packed.data, packed.size);
    *how = packed.row ? 1 + (strcmp(packed.codec, "columns") != 0) : 0;
    return packed.size;
}
