// Fuzz how the simulated device reads images: which element fits it, and the element's contents.

#include "../../runtime/sim/code.c"
#include "../../runtime/sim/cubin.c"
#include "../../runtime/sim/fatbin.c"
#include "../../runtime/sim/image.c"
#include "harness.h"

pthread_mutex_t sim_lock = PTHREAD_MUTEX_INITIALIZER;
int sim_major = 9, sim_minor;
bool sim_runs;
const char *sim_twins;
__thread char sim_said[1024];
void sim_say(const char *format, ...) { (void)format; }
void sim_say_once(const char *format, ...) { (void)format; }
void *sim_open_object(const char *bytes, size_t size) { // don't run code from files
    (void)bytes, (void)size;
    return NULL;
}
const struct host_module *sim_module_of(void *object) { return object; }
CUresult sim_read_ptx(struct code *code, const char *text, size_t size) { // gpt-asm reads PTX
    (void)code, (void)text, (void)size;
    return CUDA_ERROR_INVALID_PTX;
}
CUresult sim_unpack(const struct fatbin_element *element, const char *want, char **text, size_t *size) {
    (void)element, (void)want, (void)text, (void)size;
    return CUDA_ERROR_INVALID_PTX;
}
CUresult sim_link_fatbins(const void *const *fatbins, char **text) {
    (void)fatbins, (void)text;
    return CUDA_ERROR_INVALID_PTX;
}
void sim_describe_entry(struct entry *entry) { (void)entry; }
void sim_close_later(void *object) { (void)object; }
int sim_attribute(int attribute) { return 1000 * attribute; }
void *sim_grow(void *array, size_t count, size_t *room, size_t item) { // grow by the minimum
    *room = count + 1;
    return realloc(array, *room * item);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct code *code;
    volatile unsigned char sum = 0; // sum of all bytes that the result refers to
    harness_file(data, size);
    if (sim_read_file(&code, harness_path))
        return 0;
    for (size_t i = 0; i < code->entry_count; i++)
        sum += (unsigned char)strlen(code->entries[i].name);
    for (size_t i = 0; i < code->variable_count; i++)
        for (size_t at = 0; code->variables[i].initial && at < code->variables[i].size; at++)
            sum += ((const unsigned char *)code->variables[i].initial)[at];
    sim_release_code(code);
    return 0;
}
