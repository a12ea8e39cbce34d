// Shared by harnesses: a file that holds the input, for code that reads files.

#ifndef GPT_HARNESS_H
#define GPT_HARNESS_H

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char harness_path[64];
static int harness_descriptor = -1;

// The file is in memory and has a name. It's the same file each time.
__attribute__((unused)) static int harness_file(const uint8_t *data, size_t size) {
    if (harness_descriptor < 0) {
        harness_descriptor = memfd_create("input", 0);
        snprintf(harness_path, sizeof(harness_path), "/proc/self/fd/%d", harness_descriptor);
    }
    if (harness_descriptor < 0 || ftruncate(harness_descriptor, 0) ||
        pwrite(harness_descriptor, data, size, 0) != (ssize_t)size)
        abort();
    return harness_descriptor;
}

#endif
