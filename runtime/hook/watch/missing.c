// Reports GPU code that gpt-patch cut although the program needs it. A line on standard error and a record
// name the kernel, the library, and how to keep the kernel. The failed look-up is recorded as a use, so this
// trace keeps the kernel next time. A driver that finds no code at all for its device rejects the whole
// fatbin, and no call names a kernel: in that case we list the names that gpt-patch left in the fatbin.
//
// Libraries also try kernels that they only have for other devices, and cope if those are missing. So we only
// report an image from which something was cut: a region that lost an element or part of one is empty or has
// an element of kind 0, and code that was zeroed in place consists of zeros.

#include <elf.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "abi/cuda.h"
#include "hook/write/write.h"
#include "say.h"
#include "watch.h"

#define MAX_REPORTED 5

static const void *image_of(uint64_t handle) {
    struct object_view view;
    hook_object_look(handle, &view);
    return view.image;
}

struct cut_image { // an image that lost code
    const void *start;
    const char *path; // path of the mapped file that contains it, or NULL
    uint64_t offset;
    bool cut;
    char buffer[4096];
};

// Return whether part of a cubin's code is zeros, which no compiler writes. Its offsets can't be trusted, so
// addresses are handled as numbers.
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

// Return whether elements were cut from an image: it has a dead element, or none at all. With `code`, an
// image with zeroed code counts as well.
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

// The block that gpt-patch leaves in a dead element (gpt/patch/cut_names.py): names of kernels that the
// region lost.
struct cut_names {
    char magic[8];        // "gpt-cut"
    uint32_t count, size; // kernels in the list, and its bytes
    char list[496];       // names, each ended by a NUL
};

// Find the block with the most kernels: a library that was cut again in place has several.
static bool find_names(const char *start, struct cut_names *found) {
    struct fatbin_region region;
    struct fatbin_element element;
    struct cut_names names;
    found->count = 0;
    if (!hook_peek(start, &region, sizeof(region)) || region.magic != FATBIN_MAGIC)
        return false;
    for (uint64_t at = 0; at < region.size; at += element.header_size + element.payload_size) {
        uintptr_t place = (uintptr_t)start + region.header_size + at;
        if (!hook_peek((void *)place, &element, sizeof(element)) || element.header_size < sizeof(element) ||
            element.payload_size > region.size)
            break;
        size_t size = element.payload_size < sizeof(names) ? element.payload_size : sizeof(names);
        memset(&names, 0, sizeof(names));
        if (element.kind == FATBIN_DEAD && hook_peek((void *)(place + element.header_size), &names, size) &&
            !memcmp(names.magic, "gpt-cut", sizeof(names.magic)) && names.count > found->count)
            *found = names;
    }
    return found->count;
}

// Write the kernels that a region lost, ", which had kernel 'NAME'"; nothing if that isn't known.
static void list_names(const char *start, char *text, size_t size) {
    struct cut_names names;
    size_t at = 0, shown = 0, length;
    *text = '\0';
    if (!find_names(start, &names))
        return;
    at = (size_t)snprintf(text, size, ", which had kernel%s ", names.count == 1 ? "" : "s");
    names.list[sizeof(names.list) - 1] = '\0';
    size_t most = names.size < sizeof(names.list) ? names.size : sizeof(names.list);
    for (size_t i = 0; i < most && shown < MAX_REPORTED && (length = strlen(names.list + i));
         i += length + 1) {
        if (at + length + 32 >= size)
            break;
        at += (size_t)snprintf(text + at, size - at, "%s'%s'", shown++ ? ", " : "", names.list + i);
    }
    if (!shown)
        *text = '\0';
    else if (names.count > shown)
        snprintf(text + at, size - at, " and %lu more", names.count - shown);
}

// Return whether the file replaces another (--replace), or has its original next to it.
static bool was_patched(const char *path) {
    for (uint32_t i = 0; i < atomic_load(&hook_watched->libraries); i++)
        if (hook_watched->library[i].replaces && !strcmp(hook_watched->library[i].path, path))
            return true;
    char original[4096 + 16];
    snprintf(original, sizeof(original), "%s.gpt-orig", path);
    return !access(original, F_OK);
}

static void find_place(const void *start, struct cut_image *place) {
    struct fatbin_wrapper wrapper;
    *place = (struct cut_image){.start = start};
    if (!start)
        return;
    if (hook_peek(start, &wrapper, sizeof(wrapper)) && wrapper.magic == FATBIN_WRAPPER_MAGIC)
        place->start = wrapper.data;
    place->path = hook_find_file(place->start, &place->offset, place->buffer, sizeof(place->buffer));
    place->cut = has_gaps(place->start, false) || (place->path && was_patched(place->path));
}

// Return whether this wasn't reported before, and count the reports so far.
static bool is_new(const char *text, const void *start, uint32_t *reported) {
    uint64_t hash = (uint64_t)start | 1;
    for (; text && *text; text++)
        hash = (hash ^ (unsigned char)*text) * 1099511628211u;
    _Atomic uint64_t *known = hook_find_in_map(&hook_watched->missing, hash);
    if (!known || atomic_exchange(known, 1))
        return false;
    *reported = atomic_fetch_add(&hook_watched->reported, 1);
    return true;
}

// Report it. Returns false if it was reported before.
static bool report(const struct frame *frame, const struct cut_image *place, const char *kernel) {
    uint32_t reported;
    if (!is_new(kernel, place->start, &reported))
        return false;
    char call[NAME_BYTES], where[4096 + 64], fact[2048], had[1024] = "";
    const char *error = NULL;
    CUresult (*name)(CUresult, const char **) = hook_driver_function("cuGetErrorName");
    slot_name(frame->slot, call);
    if (!name || name((CUresult)frame->result, &error) || !error)
        error = "error";
    if (place->path)
        snprintf(where, sizeof(where), "%s", place->path);
    else
        snprintf(where, sizeof(where), "GPU code in memory at %p", place->start);
    bool empty = (CUresult)frame->result == CUDA_ERROR_ILLEGAL_INSTRUCTION;
    if (!kernel && place->start)
        list_names(place->start, had, sizeof(had));
    if (kernel)
        snprintf(fact, sizeof(fact), "%s kernel '%s' (%s: %s %d)",
                 empty ? "no instruction in" : "no code for", kernel, call, error, (int)frame->result);
    else
        snprintf(fact, sizeof(fact), "%s the fatbin at 0x%llx%s (%s: %s %d)",
                 empty ? "no instruction in a kernel of" : "no code for this device in",
                 (unsigned long long)place->offset, had, call, error, (int)frame->result);
    HOOK_WRITE(diag, .level = GPT_STR("warning"), .where = hook_str(where), .text = hook_str(fact),
               .ref = hook_str(kernel));
    if (reported > MAX_REPORTED)
        return true;
    char line[5120];
    if (reported == MAX_REPORTED)
        snprintf(line, sizeof(line), "gpt-hook: warning: more GPU code is missing: %s names it",
                 hook_live->path);
    else if (kernel)
        snprintf(line, sizeof(line),
                 "gpt-hook: warning: %s: %s; to keep it, give gpt-locate --keep '%s' or --used %s", where,
                 fact, kernel, hook_live->path);
    else
        snprintf(line, sizeof(line),
                 "gpt-hook: warning: %s: %s; to keep it, record this run with the original library and add "
                 "the trace with gpt-locate --used, without an --arch that leaves out this device",
                 where, fact);
    gpt_write_line(line);
    return true;
}

// Record a kernel as used although its look-up failed: the program needs it.
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
// does. The function that was most recently launched for the first time is probably the one.
static void on_illegal_instruction(const struct frame *frame) {
    static _Atomic bool done;
    struct cut_image place;
    if (!hook_this_thread() || atomic_exchange(&done, true))
        return;
    uint64_t handle = hook_function_with_id(hook_newest_launch());
    const char *kernel = handle ? ask_name(handle) : NULL;
    find_place(image_of(handle), &place);
    if (place.cut || has_gaps(place.start, true))
        report(frame, &place, kernel);
}

// Called after a failed call that loads GPU code, looks something up in it or launches it, or that reports
// another launch's failure.
void hook_on_failure(struct frame *frame) {
    CUresult status = (CUresult)frame->result;
    if (status == CUDA_ERROR_ILLEGAL_INSTRUCTION) {
        on_illegal_instruction(frame);
        return;
    }
    handler *kind = frame->slot->on_return;
    bool none = status == CUDA_ERROR_NO_BINARY_FOR_GPU;
    struct cut_image place;
    if (!none && status != CUDA_ERROR_NOT_FOUND && status != CUDA_ERROR_INVALID_IMAGE)
        return;
    if (!hook_this_thread())
        return;
    if (kind == hook_on_module_image && frame_arg(frame, 1) && status != CUDA_ERROR_NOT_FOUND) {
        find_place((const void *)frame_arg(frame, 1), &place);
        if (place.cut)
            report(frame, &place, NULL);
    } else if (kind == hook_on_module_file && frame_arg(frame, 1) && none) {
        place = (struct cut_image){.path = (const char *)frame_arg(frame, 1)};
        if (was_patched(place.path))
            report(frame, &place, NULL);
    } else if ((kind == hook_on_function || kind == hook_on_kernel) && frame_arg(frame, 2)) {
        const char *kernel = (const char *)frame_arg(frame, 2);
        find_place(image_of(frame_arg(frame, 1)), &place);
        if (place.cut && report(frame, &place, kernel))
            use(frame_arg(frame, 1), kernel);
    } else if (kind == hook_on_kernel_function || frame->slot->layout == LAYOUT_LAUNCH) {
        uint64_t handle = kind ? frame_arg(frame, 1) : frame->launch.function;
        find_place(image_of(handle), &place);
        if (place.cut)
            report(frame, &place, ask_name(handle));
    }
}
