// The kernels of an image of GPU code, their parameters, and the image's variables.

#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "image.h"

// A block of bytes that lives as long as the code.
struct block {
    struct block *next;
    _Alignas(16) char bytes[];
};

void *sim_new_block(struct code *code, size_t size) { // zeroed, with one extra byte
    struct block *made = size < SIZE_MAX / 2 ? calloc(1, sizeof(*made) + size + 1) : NULL;
    code->starved |= !made;
    if (!made)
        return NULL;
    made->next = code->blocks;
    code->blocks = made;
    return made->bytes;
}

char *sim_keep_text(struct code *code, const char *bytes, size_t size) {
    char *copy = sim_new_block(code, size);
    return copy ? memcpy(copy, bytes, size) : NULL;
}

struct entry *sim_add_entry(struct code *code, const char *name) {
    struct entry *larger =
        name ? sim_grow(code->entries, code->entry_count, &code->entry_room, sizeof(*larger)) : NULL;
    code->starved |= name && !larger;
    if (!larger)
        return NULL;
    code->entries = larger;
    struct entry *made = &larger[code->entry_count++];
    *made = (struct entry){.name = name,
                           .attributes = {
                               [CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK] = sim_attribute(1),
                               [CU_FUNC_ATTRIBUTE_NUM_REGS] = 32,
                               [CU_FUNC_ATTRIBUTE_BINARY_VERSION] = 10 * sim_major + sim_minor,
                               [CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES] = sim_attribute(8),
                               [CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT] = -1,
                           }};
    return made;
}

void sim_set_sizes(struct entry *entry, size_t shared, size_t local) {
    int *attributes = entry->attributes, dynamic = sim_attribute(8) - (int)shared;
    attributes[CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES] = (int)shared;
    attributes[CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES] = (int)local;
    attributes[CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES] = dynamic > 0 ? dynamic : 0;
}

// Limit the threads of a block to what the registers allow.
void sim_set_registers(struct entry *entry, unsigned long registers) {
    enum { WARP = 32, UNIT = 256, MOST = 255 };
    registers = registers > MOST ? MOST : registers;
    uint64_t of_warp = (registers * WARP + UNIT - 1) / UNIT * UNIT;
    int threads =
        (int)((uint64_t)sim_attribute(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK) / of_warp * WARP);
    int *most = &entry->attributes[CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK];
    entry->attributes[CU_FUNC_ATTRIBUTE_NUM_REGS] = (int)registers;
    *most = threads < *most ? threads : *most;
}

void sim_add_parameter(struct code *code, struct entry *entry, size_t index, size_t offset, size_t size) {
    enum { MOST = 4096 };
    if (index >= MOST)
        return;
    if (index >= entry->count) {
        struct parameter *larger = realloc(entry->parameters, (index + 1) * sizeof(*larger));
        code->starved |= !larger;
        if (!larger)
            return;
        memset(larger + entry->count, 0, (index + 1 - entry->count) * sizeof(*larger));
        entry->parameters = larger;
        entry->count = index + 1;
    }
    entry->parameters[index] = (struct parameter){offset, size};
}

void sim_add_variable(struct code *code, struct variable variable) {
    if (!variable.name || !variable.size)
        return;
    struct variable *larger =
        sim_grow(code->variables, code->variable_count, &code->variable_room, sizeof(*larger));
    code->starved |= !larger;
    if (!larger)
        return;
    code->variables = larger;
    larger[code->variable_count++] = variable;
}

// Objects whose last user is gone. They're closed later, without the lock.
static void **closing;
static size_t closing_count, closing_room;

static void close_later(void *handle) {
    void **larger = sim_grow(closing, closing_count, &closing_room, sizeof(*closing));
    if (larger) {
        closing = larger;
        closing[closing_count++] = handle;
    }
}

void sim_release_code(struct code *code) {
    if (--code->references)
        return;
    for (struct block *block = code->blocks, *next; block; block = next) {
        next = block->next;
        free(block);
    }
    for (size_t i = 0; i < code->entry_count; i++) {
        free(code->entries[i].parameters);
        if (code->entries[i].object)
            close_later(code->entries[i].object);
    }
    if (code->object)
        close_later(code->object);
    free(code->entries);
    free(code->variables);
    free(code);
}

void sim_close_objects(void) {
    pthread_mutex_lock(&sim_lock);
    void **handles = closing;
    size_t count = closing_count;
    closing = NULL;
    closing_count = closing_room = 0;
    pthread_mutex_unlock(&sim_lock);
    for (size_t i = 0; i < count; i++)
        dlclose(handles[i]);
    free(handles);
}

// Files

CUresult sim_read_whole(const char *path, char **bytes, size_t *size) {
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat status;
    if (file < 0 || fstat(file, &status) || !S_ISREG(status.st_mode)) {
        if (file >= 0)
            close(file);
        return CUDA_ERROR_FILE_NOT_FOUND;
    }
    *size = (size_t)status.st_size;
    *bytes = calloc(1, *size + 64);
    bool whole = *bytes && read(file, *bytes, *size) == status.st_size;
    close(file);
    if (!whole)
        free(*bytes);
    return whole ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

// Return how well an element suits the device, or 0 if it can't be used. As in NVIDIA's driver, cubins of the
// same major version come before PTX, and a higher architecture before a lower one.
unsigned sim_suits(const struct fatbin_element *element) {
    unsigned device = (unsigned)(10 * sim_major + sim_minor), arch = element->arch;
    bool same_major = arch / 10 == device / 10;
    if (arch > device || (element->flags & FATBIN_SUFFIX_A && arch != device) ||
        (element->flags & FATBIN_SUFFIX_F && !same_major))
        return 0;
    if (element->kind == FATBIN_CUBIN && same_major && (!sim_runs || sim_twins))
        return 1000 + arch;
    return element->kind == FATBIN_PTX ? arch : 0;
}
