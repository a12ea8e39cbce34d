// Fuzz needs.c, with which --rerun reads the trace of an earlier run.

#include "common/needs.c"
#include "harness.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct gpt_needs needs;
    harness_file(data, size);
    if (gpt_read_needs(harness_path, &needs))
        abort(); // only a file that can't be read is a fault
    for (size_t i = 0; i < needs.count; i++) {
        const struct gpt_need *need = &needs.all[i];
        char *name = strndup(need->kernel, need->length); // each name occurs once, and is found
        if (!name || !need->most ||
            (strlen(name) == need->length && gpt_find_need(&needs, name) != need->most) ||
            (i && by_kernel(need - 1, need) >= 0))
            abort();
        free(name);
    }
    free(needs.all);
    free(needs.data);
    return 0;
}
