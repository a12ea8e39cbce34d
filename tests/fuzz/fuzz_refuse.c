// The launcher and the hook, on a program that may be any file.

#include "../../runtime/common/unwatchable.c"
#include "harness.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char path[PATH_MAX];
    harness_file(data, size);
    snprintf(path, sizeof(path), "%s", harness_path);
    gpt_find_unwatchable(path);
    return 0;
}
