// The hook and the launcher, on names that a program or a user gives: decode.c, template.h.

#include "harness.h"
#include "hook/entry/decode.c"
#include "hook/entry/switch.c"
#include "hook/write/template.h"

struct slot hook_slots[SLOTS];
struct live *hook_live;
TLS bool hook_writing;
_Atomic bool hook_recording;
static const struct order no_order;
const struct order *hook_order(void) { return &no_order; }
bool hook_has_tsc, hook_gpu_time;
_Atomic bool hook_probing;
const char *hook_stacks;
bool hook_has_probed(void) { return hook_probing; }
bool hook_has_captured(void) { return hook_probing; }
bool hook_begin_capture(void) { return true; }

ABSENT(hook_after_attribute)
ABSENT(hook_after_block_size)
ABSENT(hook_after_blocks)
ABSENT(hook_after_capture)
ABSENT(hook_after_clusters)
ABSENT(hook_after_exec_child)
ABSENT(hook_after_exec_gone)
ABSENT(hook_after_exec_kernel)
ABSENT(hook_after_exec_node)
ABSENT(hook_after_exec_update)
ABSENT(hook_after_function)
ABSENT(hook_after_functions)
ABSENT(hook_after_instantiate)
ABSENT(hook_after_kernel_function)
ABSENT(hook_after_kernels)
ABSENT(hook_after_launch)
ABSENT(hook_after_link)
ABSENT(hook_after_link_begun)
ABSENT(hook_after_link_data)
ABSENT(hook_after_link_end)
ABSENT(hook_after_link_file)
ABSENT(hook_after_load_file)
ABSENT(hook_after_load_image)
ABSENT(hook_after_node_enabled)
ABSENT(hook_after_packed)
ABSENT(hook_after_replay)
ABSENT(hook_after_shared)
ABSENT(hook_after_unload)
ABSENT(hook_after_variable)
ABSENT(hook_before_capture)
ABSENT(hook_before_context_ends)
ABSENT(hook_before_context_gone)
ABSENT(hook_before_exec_child)
ABSENT(hook_before_exec_copy)
ABSENT(hook_before_exec_gone)
ABSENT(hook_before_exec_kernel)
ABSENT(hook_before_exec_node)
ABSENT(hook_before_exec_set)
ABSENT(hook_before_exec_update)
ABSENT(hook_before_gone)
ABSENT(hook_before_instantiate)
ABSENT(hook_before_join)
ABSENT(hook_before_launch)
ABSENT(hook_before_packed)
ABSENT(hook_before_replay)
ABSENT(hook_before_stream_ends)
ABSENT(hook_before_stream_gone)
ABSENT(hook_before_unload)
ABSENT(hook_on_captured)
ABSENT(hook_on_context_destroyed)
ABSENT(hook_on_context_made)
ABSENT(hook_on_context_released)
ABSENT(hook_on_context_reset)
ABSENT(hook_on_context_retained)
ABSENT(hook_on_enumerate_functions)
ABSENT(hook_on_enumerate_kernels)
ABSENT(hook_on_exec_child)
ABSENT(hook_on_exec_copy)
ABSENT(hook_on_exec_kernel)
ABSENT(hook_on_exec_node)
ABSENT(hook_on_exec_set)
ABSENT(hook_on_exec_update)
ABSENT(hook_on_function)
ABSENT(hook_on_function_attribute)
ABSENT(hook_on_function_cache)
ABSENT(hook_on_function_shared)
ABSENT(hook_on_get_proc_address)
ABSENT(hook_on_gone)
ABSENT(hook_on_graph)
ABSENT(hook_on_init)
ABSENT(hook_on_instantiate)
ABSENT(hook_on_kernel)
ABSENT(hook_on_kernel_attribute)
ABSENT(hook_on_kernel_cache)
ABSENT(hook_on_kernel_function)
ABSENT(hook_on_library_module)
ABSENT(hook_on_module_file)
ABSENT(hook_on_module_image)
ABSENT(hook_on_node)
ABSENT(hook_on_node_enabled)
ABSENT(hook_on_stream)
ABSENT(hook_on_variable_of_1)
ABSENT(hook_on_variable_of_2)
ABSENT(hook_probe_setup)
ABSENT(hook_sites_setup)
ABSENT(hook_write_recording)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *text = strndup((const char *)data, size), *wanted = strndup((const char *)data, size / 2);
    char name[NAME_BYTES];
    if (!text || !wanted)
        abort();
    calls = hook_stacks = wanted;
    if (strlen(text) < NAME_BYTES) { // longer symbols get no slot
        hook_describe(&hook_slots[SLOTS - 1], text);
        slot_name(&hook_slots[SLOTS - 1], name);
        hook_is_old(text);
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
