// Fuzz libraries.c and missing.c, with which the hook reads libraries of the process and images that were
// cut.

#include "absent.h"
#include "hook/watch/driver.c"
#include "hook/watch/libraries.c"
#include "hook/watch/memory.c"
#include "hook/watch/missing.c"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char hex[129];
    gpu_bytes(harness_file(data, size));
    size_t count = size / sizeof(Elf64_Phdr);
    struct mapping whole = {.start = (uintptr_t)data, .end = (uintptr_t)data + size};
    seen.first = &whole;
    seen.file = -1;
    seen.count = (unsigned)(count < 16 ? count : 16);
    memcpy(seen.headers, data, seen.count * sizeof(*seen.headers));
    find_build_id(hex);
    if (strlen(hex) > 128)
        abort();
    has_gaps((const char *)data, size % 2);
    return 0;
}
