// Handlers of the functions that load GPU code and look into it.

#ifndef GPT_MODULES_H
#define GPT_MODULES_H

#include "call.h"

extern handler hook_on_module_image, hook_on_module_file, hook_on_library_module, hook_on_function,
    hook_on_kernel, hook_on_kernel_function, hook_on_enumerate_functions, hook_on_enumerate_kernels,
    hook_on_variable_of_1, hook_on_variable_of_2, hook_on_function_attribute, hook_on_kernel_attribute,
    hook_on_function_cache, hook_on_kernel_cache, hook_on_function_shared, hook_before_gone, hook_on_gone;
uint64_t hook_whole_module(uint64_t module); // of one of a library the library, which has the same variables
int hook_ask_parameters(uint64_t handle);

struct image {
    const char *type; // fatbin, cubin or ptx
    const void *start;
    uint64_t size;
};
struct image hook_read_image(const void *given); // what the driver was given: wrappers are followed

uint32_t hook_new_id(_Atomic uint32_t *ids);
uint32_t
hook_ask_function(uint64_t handle); // the id of a function, after asking the driver for its name; or 0

#endif
