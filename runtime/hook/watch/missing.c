// GPU code that is missing after all, as a library lacks it from which too much was cut: names the kernel,
// the library and what keeps it, in a line on standard error and in the trace. The look-up that failed is
// recorded as a use, so that the trace keeps the kernel next time.
//
// A program may try what is not there and be content: libraries ask for kernels that they have for other
// devices alone. So nothing is said of an image unless something was cut out of it. A region that lost an
// element, or part of one, is empty or holds an element of kind 0; code that became zeros where it was is
// found by these zeros.

#include <elf.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "call.h"
#include "cuda_abi.h"
#include "driver.h"
#include "hook/write/counts.h"
#include "hook/write/layout.h"
#include "hook/write/live.h"
#include "hook/write/record.h"
#include "hook/write/thread.h"
#include "libs.h"
#include "missing.h"
#include "modules.h"
#include "objects.h"
#include "peek.h"
#include "say.h"
#include "watched.h"

#define MAX_SAID 5

static const void *image_of(uint64_t handle) {
    struct object_view view;
    hook_object_look(handle, &view);
    return view.image;
}

struct place { // of an image
    const void *start;
    const char *path; // of the file whose mapping holds it, or NULL
    uint64_t offset;
    bool cut;
    char buffer[4096];
};

// Whether some code of a cubin is zeros, which no compiler writes. Its offsets may be any, so addresses are
// numbers.
static bool has_zeroed_code(uintptr_t cubin) {
    static const char zeros[64];
    char code[sizeof(zeros)];
    Elf64_Ehdr head;
    Elf64_Shdr section;
    if (!hook_peek((void *)cubin, &head, sizeof(head)) || memcmp(head.e_ident, ELFMAG, SELFMAG))
        return false;
    for (unsigned i = 0; i < head.e_shnum; i++) {
        if (!hook_peek((void *)(cubin + head.e_shoff + i * sizeof(section)), &section, sizeof(section)))
            return false;
        if (section.sh_type == SHT_PROGBITS && section.sh_flags & SHF_EXECINSTR &&
            section.sh_size >= sizeof(code) &&
            hook_peek((void *)(cubin + section.sh_offset), code, sizeof(code)) &&
            !memcmp(code, zeros, sizeof(code)))
            return true;
    }
    return false;
}

// Whether an image lost elements: one of them is dead, or all are gone. With `code` also whether code was
// zeroed.
static bool has_gaps(const char *start, bool code) {
    struct fatbin_region region;
    struct fatbin_element element;
    if (!hook_peek(start, &region, sizeof(region)) || region.magic != FATBIN_MAGIC)
        return code && has_zeroed_code((uintptr_t)start);
    for (uint64_t at = 0; at < region.size; at += element.header_size + element.payload_size) {
        if (!hook_peek((void *)((uintptr_t)start + region.header_size + at), &element, sizeof(element)) ||
            element.header_size < sizeof(element) || element.payload_size > region.size)
            return false;
        if (element.kind == FATBIN_DEAD ||
            (code && element.kind == FATBIN_CUBIN && !(element.flags & FATBIN_PACKED) &&
             has_zeroed_code((uintptr_t)start + region.header_size + at + element.header_size)))
            return true;
    }
    return !region.size;
}

// Whether the file stands in for another, or its original was kept beside it.
static bool was_patched(const char *path) {
    for (uint32_t i = 0; i < atomic_load(&hook_watched->libraries); i++)
        if (hook_watched->library[i].replaces && !strcmp(hook_watched->library[i].path, path))
            return true;
    char original[4096 + 16];
    snprintf(original, sizeof(original), "%s.gpt-orig", path);
    return !access(original, F_OK);
}

static void find_place(const void *start, struct place *place) {
    struct fatbin_wrapper wrapper;
    *place = (struct place){.start = start};
    if (!start)
        return;
    if (hook_peek(start, &wrapper, sizeof(wrapper)) && wrapper.magic == FATBIN_WRAPPER_MAGIC)
        place->start = wrapper.data;
    place->path = hook_find_file(place->start, &place->offset, place->buffer, sizeof(place->buffer));
    place->cut = has_gaps(place->start, false) || (place->path && was_patched(place->path));
}

// Whether this is said for the first time, and how many were.
static bool is_new(const char *text, const void *start, uint32_t *said) {
    uint64_t hash = (uint64_t)start | 1;
    for (; text && *text; text++)
        hash = (hash ^ (unsigned char)*text) * 1099511628211u;
    _Atomic uint64_t *known = hook_find_in_map(&hook_watched->missing, hash);
    if (!known || atomic_exchange(known, 1))
        return false;
    *said = atomic_fetch_add(&hook_watched->said, 1);
    return true;
}

// Returns false if it was said before.
static bool tell(const struct frame *frame, const struct place *place, const char *kernel) {
    uint32_t said;
    if (!is_new(kernel, place->start, &said))
        return false;
    char call[NAME_BYTES], where[4096 + 64], fact[2048];
    const char *error = NULL;
    CUresult (*name)(CUresult, const char **) = hook_driver_function("cuGetErrorName");
    slot_name(frame->slot, call);
    if (!name || name((CUresult)frame->rax, &error) || !error)
        error = "error";
    if (place->path)
        snprintf(where, sizeof(where), "%s", place->path);
    else
        snprintf(where, sizeof(where), "GPU code in memory at %p", place->start);
    bool empty = (CUresult)frame->rax == CUDA_ERROR_ILLEGAL_INSTRUCTION;
    if (kernel)
        snprintf(fact, sizeof(fact), "%s kernel '%s' (%s: %s %d)",
                 empty ? "no instruction in" : "no code for", kernel, call, error, (int)frame->rax);
    else
        snprintf(fact, sizeof(fact), "%s the fatbin at 0x%llx (%s: %s %d)",
                 empty ? "no instruction in a kernel of" : "no code for this device in",
                 (unsigned long long)place->offset, call, error, (int)frame->rax);
    HOOK_WRITE(diag, .level = GPT_STR("warning"), .where = hook_str(where), .text = hook_str(fact),
               .ref = hook_str(kernel));
    if (said > MAX_SAID)
        return true;
    char line[5120];
    if (said == MAX_SAID)
        snprintf(line, sizeof(line), "gpt-hook: warning: more GPU code is missing: %s names it",
                 hook_live->path);
    else if (kernel)
        snprintf(line, sizeof(line),
                 "gpt-hook: warning: %s: %s; gpt-locate --keep '%s' or --used %s keeps it", where, fact,
                 kernel, hook_live->path);
    else
        snprintf(line, sizeof(line),
                 "gpt-hook: warning: %s: %s; gpt-locate --used a trace of a run like this one, with "
                 "the library as it was, keeps it",
                 where, fact);
    gpt_write_line(line);
    return true;
}

// The look-up failed, but the program uses the kernel.
static void use(uint64_t module, const char *kernel) {
    struct object_view view;
    hook_object_look(module, &view);
    HOOK_WRITE(function, .id = hook_new_id(&hook_watched->functions),
               .module = {view.module != 0, view.module}, .name = hook_str(kernel));
}

static const char *ask_name(uint64_t handle) {
    static const char *const symbols[] = {"cuKernelGetName", "cuFuncGetName"};
    const char *name = NULL;
    for (int i = 0; i < 2 && !name; i++) {
        CUresult (*ask)(const char **, uint64_t) = hook_driver_function(symbols[i]);
        if (ask && ask(&name, handle))
            name = NULL;
    }
    return name;
}

// A kernel whose code was zeroed is found and launched, and then every call returns this error, whatever it
// is for. What was launched for the first time last is that kernel, most probably.
static void on_illegal_instruction(const struct frame *frame) {
    static _Atomic bool told;
    struct place place;
    if (!hook_this_thread() || atomic_exchange(&told, true))
        return;
    uint64_t handle = hook_function_with_id(hook_newest_launch());
    const char *kernel = handle ? ask_name(handle) : NULL;
    find_place(image_of(handle), &place);
    if (place.cut || has_gaps(place.start, true))
        tell(frame, &place, kernel);
}

// A call failed that loads GPU code, looks into it or launches it, or because of what another launched.
void hook_on_failure(struct frame *frame) {
    CUresult status = (CUresult)frame->rax;
    if (status == CUDA_ERROR_ILLEGAL_INSTRUCTION) {
        on_illegal_instruction(frame);
        return;
    }
    handler *kind = frame->slot->on_return;
    bool none = status == CUDA_ERROR_NO_BINARY_FOR_GPU;
    struct place place;
    if (!none && status != CUDA_ERROR_NOT_FOUND && status != CUDA_ERROR_INVALID_IMAGE)
        return;
    if (!hook_this_thread())
        return;
    if (kind == hook_on_module_image && frame->args[1] && status != CUDA_ERROR_NOT_FOUND) {
        find_place((const void *)frame->args[1], &place);
        if (place.cut)
            tell(frame, &place, NULL);
    } else if (kind == hook_on_module_file && frame->args[1] && none) {
        place = (struct place){.path = (const char *)frame->args[1]};
        if (was_patched(place.path))
            tell(frame, &place, NULL);
    } else if ((kind == hook_on_function || kind == hook_on_kernel) && frame->args[2]) {
        const char *kernel = (const char *)frame->args[2];
        find_place(image_of(frame->args[1]), &place);
        if (place.cut && tell(frame, &place, kernel))
            use(frame->args[1], kernel);
    } else if (kind == hook_on_kernel_function || frame->slot->layout == LAYOUT_LAUNCH) {
        uint64_t handle = kind ? frame->args[1] : frame->launch.function;
        find_place(image_of(handle), &place);
        if (place.cut)
            tell(frame, &place, ask_name(handle));
    }
}
