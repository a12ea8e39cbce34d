// Fuzz decode.c and template.h, with which the hook and the launcher handle names from a program or a user.

#include "harness.h"
#include "hook/entry/decode.c"
#include "hook/entry/slots.c"
#include "hook/write/template.h"

struct live *hook_live;
TLS bool hook_writing;
_Atomic bool hook_recording;
static const struct order no_order;
const struct order *_Atomic hook_last_order = &no_order;
bool hook_has_tsc, hook_gpu_time;
uint64_t hook_node_times;
_Atomic bool hook_probing;
const char *hook_stacks;
bool hook_has_probed(void) { return hook_probing; }
bool hook_has_captured(void) { return hook_probing; }
bool hook_begin_capture(void) { return true; }

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *text = strndup((const char *)data, size), *wanted = strndup((const char *)data, size / 2);
    char name[NAME_BYTES];
    if (!text || !wanted)
        abort();
    calls = hook_stacks = wanted;
    if (strlen(text) < NAME_BYTES) { // longer symbols get no slot
        hook_describe(&hook_slots[SLOTS - 1], text);
        slot_name(&hook_slots[SLOTS - 1], name);
        is_old(text);
    }
    for (size_t room = 1; room < 200; room += 13) {
        char *path = malloc(room);
        if (path && gpt_expand_name(text, path, room) >= room)
            abort();
        free(path);
    }
    free(text);
    free(wanted);
    return 0;
}
