// Fatbins: find the elements that suit the device.

#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/broker.h"
#include "image.h"

unsigned sim_arch_of_cubin(const void *cubin) {
    const Elf64_Ehdr *head = cubin;
    bool newer = head->e_ident[EI_OSABI] == 0x41;
    return (newer ? head->e_flags >> 8 : head->e_flags) & 0xff;
}

// Return whether a cubin is made for the device.
bool sim_is_for_device(const void *cubin) {
    struct fatbin_element element = {.kind = FATBIN_CUBIN, .arch = (uint16_t)sim_arch_of_cubin(cubin)};
    return sim_suits(&element);
}

void sim_say_only_cubins(const char *archs) {
    sim_say_once(
        "only code for %s; --device sim runs PTX (nvcc: -arch=compute_%d%d; numba-cuda: pip uninstall "
        "nvidia-nvjitlink; others: see gpt-sim(7))",
        archs, sim_major, sim_minor);
}

// Return the next element of a region, or NULL at the end or if the region is malformed.
static const struct fatbin_element *next_element(const struct fatbin_region *region,
                                                 const struct fatbin_element *element) {
    const char *end = (const char *)region + region->header_size + region->size;
    const char *at = element ? (const char *)element + element->header_size + element->payload_size
                             : (const char *)region + region->header_size;
    const struct fatbin_element *next = (const void *)at;
    if (at >= end || (size_t)(end - at) < sizeof(*next))
        return NULL;
    bool fits = next->header_size >= sizeof(*next) && next->header_size <= (size_t)(end - at) &&
                next->payload_size <= (size_t)(end - at) - next->header_size;
    return fits && !(next->header_size % 8) && !(next->payload_size % 8) ? next : NULL;
}

// List the architectures for which a region has elements of this kind, each once.
static void list_archs(const struct fatbin_region *region, int kind, char text[256]) {
    size_t size = 0;
    *text = '\0';
    for (const struct fatbin_element *at = NULL; (at = next_element(region, at)) && size < 240;) {
        char name[16];
        snprintf(name, sizeof(name), "sm_%u%s", at->arch,
                 at->flags & FATBIN_SUFFIX_A   ? "a"
                 : at->flags & FATBIN_SUFFIX_F ? "f"
                                               : "");
        const char *found = strstr(text, name);
        bool listed = found && (found[strlen(name)] == ',' || !found[strlen(name)]);
        if (at->kind == kind && !listed)
            size += (size_t)snprintf(text + size, 256 - size, "%s%s", size ? ", " : "", name);
    }
}

void sim_say_unsuitable(const struct fatbin_region *region) {
    char archs[256];
    list_archs(region, FATBIN_PTX, archs);
    if (*archs) {
        sim_say_once("PTX for %s only; the device is sm_%d%d: set GPT_SIM_ARCH, see gpt-sim(7)", archs,
                     sim_major, sim_minor);
        return;
    }
    list_archs(region, FATBIN_CUBIN, archs);
    const char *has = "";
    for (const struct fatbin_element *at = NULL; (at = next_element(region, at));)
        if (at->kind != FATBIN_DEAD)
            has = ", with intermediate code of another kind (LTO)";
        else if (!*has)
            has = ", of which gpt-patch cut code";
    if (*archs)
        sim_say_only_cubins(archs);
    else
        sim_say_once("a fatbin without PTX%s; --device sim runs PTX (nvcc: -arch=compute_%d%d; others: see "
                     "gpt-sim(7))",
                     has, sim_major, sim_minor);
}

CUresult sim_read_fatbin(struct code *code, const struct fatbin_region *region, size_t room) {
    if (room < sizeof(*region) || region->header_size != sizeof(*region) ||
        region->size > room - sizeof(*region))
        return CUDA_ERROR_INVALID_IMAGE;
    unsigned best = 0;
    for (const struct fatbin_element *at = NULL; (at = next_element(region, at));)
        best = sim_suits(at) > best ? sim_suits(at) : best;
    if (!best)
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    CUresult status = CUDA_SUCCESS;
    for (const struct fatbin_element *at = NULL; !status && (at = next_element(region, at));) {
        if (sim_suits(at) != best)
            continue;
        if (at->flags & FATBIN_PACKED && !sim_runs) {
            code->packed = true;
            continue;
        }
        if (at->flags & FATBIN_PACKED && at->kind == FATBIN_CUBIN) {
            sim_say_once("a compressed cubin: only uncompressed ones can have a twin");
            return CUDA_ERROR_NO_BINARY_FOR_GPU;
        }
        char *text = NULL;
        size_t size = at->payload_size;
        if (at->flags & FATBIN_PACKED && (status = sim_unpack(at, GPT_WANT_OUTLINE, &text, &size)))
            return status;
        const char *bytes = sim_keep_text(code, text ? text : (const char *)at + at->header_size, size);
        free(text);
        if (!bytes)
            return CUDA_ERROR_OUT_OF_MEMORY;
        if (at->kind == FATBIN_PTX)
            status = sim_read_ptx(code, bytes, size);
        else
            status = sim_read_machine_code(code, bytes, size);
    }
    return status;
}

CUresult sim_each_ptx(const void *image, size_t room, CUresult (*use)(void *, const char *, size_t),
                      void *data) {
    const struct fatbin_wrapper *wrapper = image;
    if (room < sizeof(uint32_t))
        return CUDA_ERROR_INVALID_IMAGE;
    if (wrapper->magic == FATBIN_WRAPPER_MAGIC && room >= sizeof(*wrapper))
        image = wrapper->data, room = SIZE_MAX;
    const struct fatbin_region *region = image;
    if (region->magic != FATBIN_MAGIC)
        return memmem(image, room, ".version", 8) ? use(data, image, room) : CUDA_ERROR_INVALID_IMAGE;
    if (room < sizeof(*region) || region->header_size != sizeof(*region) ||
        region->size > room - sizeof(*region))
        return CUDA_ERROR_INVALID_IMAGE;
    const struct fatbin_element *best = NULL;
    for (const struct fatbin_element *at = NULL; (at = next_element(region, at));)
        if (at->kind == FATBIN_PTX && sim_suits(at) > (best ? sim_suits(best) : 0))
            best = at;
    if (!best)
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    if (!(best->flags & FATBIN_PACKED))
        return use(data, (const char *)best + best->header_size, best->payload_size);
    char *text;
    size_t size;
    CUresult status = sim_unpack(best, GPT_WANT_TEXT, &text, &size);
    if (!status) {
        status = use(data, text, size);
        free(text);
    }
    return status;
}
