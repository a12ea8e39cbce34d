// Fuzz the messages of gpt-hook and the hook about a program that they're asked to start, which may be any
// file.

#include "common/unwatchable.c"
#include "harness.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char path[PATH_MAX];
    harness_file(data, size);
    strcpy(path, harness_path);
    int lowest = dup(harness_descriptor);
    close(lowest);
    gpt_find_unwatchable(path);
    int after = dup(harness_descriptor);
    if (after != lowest || strnlen(path, sizeof(path)) == sizeof(path))
        abort(); // it left a file open, or a name without terminator
    close(after);
    return 0;
}
