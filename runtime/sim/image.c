// Reads images of GPU code: copies the part that suits the device, and lists its kernels, their parameters,
// and its variables. With GPT_SIM_RUN=none, compressed parts aren't decompressed, so every name that's looked
// up in them counts as found.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "arch_elf.h"
#include "host/abi.h"
#include "image.h"

// Objects of `gpt-asm --arch host`

static void read_object(struct code *code, const struct host_module *module) {
    for (uint32_t i = 0; i < module->variable_count; i++) {
        const struct host_variable *from = &module->variables[i];
        if (!from->external)
            sim_add_variable(code, (struct variable){.name = from->name,
                                                     .size = from->size,
                                                     .align = from->align,
                                                     .constant = from->space == HOST_CONST,
                                                     .initial = from->initial,
                                                     .initial_size = from->size,
                                                     .addresses = from->addresses,
                                                     .address_count = from->address_count});
    }
    for (uint32_t i = 0; i < module->kernel_count; i++) {
        const struct host_kernel *kernel = &module->kernels[i];
        struct entry *entry = sim_add_entry(code, kernel->name);
        if (!entry)
            return;
        entry->state = MADE;
        entry->module = module;
        entry->kernel = kernel;
        for (uint32_t k = 0; k < kernel->parameter_count; k++)
            sim_add_parameter(code, entry, k, kernel->parameters[k].offset, kernel->parameters[k].size);
        sim_describe_entry(entry);
    }
}

// Images

// Read a fatbin in memory. If the program was built with relocatable device code, the fatbin contains only
// the cubins that nvlink made. The PTX is in nvlink's inputs, to which the wrapper has a list; link that.
static CUresult read_wrapper(struct code *code, const struct fatbin_wrapper *wrapper) {
    const struct fatbin_region *region = wrapper->data;
    if (region->magic != FATBIN_MAGIC)
        return CUDA_ERROR_INVALID_IMAGE;
    CUresult status = sim_read_fatbin(code, region, SIZE_MAX);
    bool linked = wrapper->version == FATBIN_WRAPPER_LINKED && wrapper->more;
    char *text;
    if (status == CUDA_ERROR_NO_BINARY_FOR_GPU && linked)
        status = sim_link_fatbins(wrapper->more, &text);
    else if (!status)
        return status;
    if (status == CUDA_ERROR_NO_BINARY_FOR_GPU)
        sim_say_unsuitable(region);
    if (status)
        return status;
    const char *copy = sim_keep_text(code, text, strlen(text));
    free(text);
    return copy ? sim_read_ptx(code, copy, strlen(copy)) : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult read_image(struct code *code, const void *start, size_t room) {
    const struct fatbin_wrapper *wrapper = start;
    if (wrapper->magic == FATBIN_WRAPPER_MAGIC &&
        room == SIZE_MAX) // an image in a file contains no addresses
        return read_wrapper(code, wrapper);
    const struct fatbin_region *region = start;
    if (region->magic == FATBIN_MAGIC) {
        CUresult status = sim_read_fatbin(code, region, room);
        if (status == CUDA_ERROR_NO_BINARY_FOR_GPU)
            sim_say_unsuitable(region);
        return status;
    }
    size_t size;
    if (!memcmp(start, ELFMAG, SELFMAG)) {
        const Elf64_Ehdr *head = start;
        if (head->e_machine == ARCH_ELF_MACHINE) {
            const char *bytes = sim_copy_elf(code, head, room, &size);
            if (!bytes || !(code->object = sim_open_object(bytes, size)))
                return CUDA_ERROR_INVALID_IMAGE;
            read_object(code, sim_module_of(code->object));
            return CUDA_SUCCESS;
        }
        if (head->e_machine != 190) // EM_CUDA
            return CUDA_ERROR_INVALID_IMAGE;
        if (!sim_is_for_device(head)) {
            char arch[16];
            snprintf(arch, sizeof(arch), "sm_%u", sim_arch_of_cubin(head));
            sim_say_only_cubins(arch);
            return CUDA_ERROR_NO_BINARY_FOR_GPU;
        }
        const char *bytes = sim_copy_elf(code, head, room, &size);
        if (!bytes)
            return CUDA_ERROR_INVALID_IMAGE;
        return sim_read_machine_code(code, bytes, size);
    }
    size = strlen(start);
    if (!memmem(start, size, ".version", 8)) {
        sim_say_once(
            "an image that is neither PTX nor a fatbin, a cubin or an object of gpt-asm: see gpt-sim(7)");
        return CUDA_ERROR_INVALID_IMAGE;
    }
    const char *text = sim_keep_text(code, start, size);
    if (!text)
        return CUDA_ERROR_OUT_OF_MEMORY;
    code->text = text;
    code->text_size = size;
    return sim_read_ptx(code, text, size);
}

CUresult sim_read_image(struct code **code, const void *start, size_t room) {
    if (!start)
        return CUDA_ERROR_INVALID_VALUE;
    struct code *made = calloc(1, sizeof(*made));
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    made->references = 1;
    sim_said[0] = '\0';
    CUresult status = read_image(made, start, room);
    if (made->starved)
        status = CUDA_ERROR_OUT_OF_MEMORY;
    if (status == CUDA_ERROR_INVALID_IMAGE && !sim_said[0])
        sim_say_once("a fatbin, cubin or object that is cut off or damaged");
    if (status)
        sim_release_code(made);
    else
        *code = made;
    return status;
}

CUresult sim_read_file(struct code **code, const char *path) {
    char *image;
    size_t size;
    CUresult status = path ? sim_read_whole(path, &image, &size) : CUDA_ERROR_INVALID_VALUE;
    if (status)
        return status;
    status = sim_read_image(code, image, size);
    free(image);
    return status;
}
