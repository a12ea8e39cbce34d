// Shared by the readers of images.

#ifndef SIM_IMAGE_H
#define SIM_IMAGE_H

#include "host/abi.h"
#include "sim.h"

// code.c: these set `starved` if memory runs out
void *sim_new_block(struct code *code, size_t size); // zeros, which live as long as the code
char *sim_keep_text(struct code *code, const char *bytes, size_t size); // in such a block, as a string
struct entry *sim_add_entry(struct code *code,
                            const char *name); // NULL if memory runs out, or without a name
void sim_add_parameter(struct code *code, struct entry *entry, size_t index, size_t offset, size_t size);
void sim_add_variable(struct code *code, struct variable variable);

// link.c
struct part { // one module's text
    struct part *next;
    char *text;
    size_t size;
};
CUresult sim_add_part(void *parts, const char *text, size_t size); // appends to a struct part **
void sim_free_parts(struct part *parts);
CUresult sim_link_parts(const struct part *parts, char **result); // one text, to be freed

// outline.c
CUresult sim_read_ptx(struct code *code, const char *text,
                      size_t size); // the text must live as long as the code

unsigned sim_suits(const struct fatbin_element *element); // how well it suits the device; 0: not at all

// cubin.c
// Copy an ELF file, up to the end of its tables or of the readable memory. `room`: see sim_read_image.
char *sim_copy_elf(struct code *code, const void *start, size_t room, size_t *size);
void sim_read_cubin(struct code *code, const char *start, size_t size);
CUresult sim_read_machine_code(struct code *code, const char *start,
                               size_t size); // reads a cubin, or its twin; call it without the lock

// devrt.c
extern const char sim_device_runtime[]; // PTX

// fatbin.c
bool sim_is_for_device(const void *cubin);
unsigned sim_arch_of_cubin(const void *cubin);
void sim_say_only_cubins(const char *archs);                 // "sm_80, sm_90"
void sim_say_unsuitable(const struct fatbin_region *region); // why none of it suits, where it was read
CUresult sim_read_fatbin(struct code *code, const struct fatbin_region *region, size_t room);

#endif
