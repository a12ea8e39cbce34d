// Fuzz unwind.c, with which the hook reads unwind tables and caches their contents.

#include "arch/x86_64/hook/unwind.c"
#include "harness.h"

struct watched *hook_watched;
_Atomic uint64_t *hook_find_in_map(struct map *map, uint64_t key) { return map && key ? NULL : NULL; }

static const uint8_t *input;
static size_t left;

bool hook_peek(const void *from, void *into, size_t size) {
    size_t at = (uintptr_t)from - (uintptr_t)input;
    if ((uintptr_t)from < (uintptr_t)input || at > left || size > left - at)
        return false;
    memcpy(into, from, size);
    return true;
}

// Input: an address to look up, from the start of the table; then the table and the bytes after it.
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    int32_t wanted;
    if (size < sizeof(wanted))
        return 0;
    memcpy(&wanted, data, sizeof(wanted));
    input = data + sizeof(wanted), left = size - sizeof(wanted);
    uintptr_t table = (uintptr_t)input;
    struct rule rule = read_rule(table, table + (uint64_t)(int64_t)wanted);
    struct rule again = unpack(pack(&rule));
    if (rule.how != NO_CFA && memcmp(&rule, &again, offsetof(struct rule, outermost)))
        abort();
    return 0;
}
