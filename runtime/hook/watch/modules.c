// Handlers of the functions that load GPU code and look things up in it: `module`, `function` and `lookup`
// records.

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "abi/cuda.h"
#include "common/broker.h"
#include "common/cache.h"
#include "common/own.h"
#include "hook/write/write.h"
#include "watch.h"

static uint64_t out(const struct frame *frame) { // return the handle that the function gave
    const uint64_t *handle = (const uint64_t *)frame_arg(frame, 0);
    return handle ? *handle : 0;
}

// Images

#define MAX_DIGEST (4u << 20)   // bytes of an image in a file that is digested
#define MAX_DIGESTS (32u << 20) // bytes of all such images

static uint64_t elf_size(const char *start, const Elf64_Ehdr *head) {
    Elf64_Shdr sections[32]; // entries per read: the stack may be small
    uint64_t end = sizeof(*head), tables[] = {
                                      head->e_shoff + (uint64_t)head->e_shnum * sizeof(Elf64_Shdr),
                                      head->e_phoff + (uint64_t)head->e_phnum * sizeof(Elf64_Phdr),
                                  };
    for (int i = 0; i < 2; i++)
        end = tables[i] > end ? tables[i] : end;
    unsigned total = head->e_shoff && head->e_shentsize == sizeof(*sections) ? head->e_shnum : 0;
    for (unsigned i = 0; i < total; i++) {
        const Elf64_Shdr *section = &sections[i % 32];
        unsigned count = total - i < 32 ? total - i : 32;
        if (i % 32 == 0 && !hook_peek((void *)((uintptr_t)start + head->e_shoff + i * sizeof(*section)),
                                      sections, count * sizeof(*section)))
            break;
        if (section->sh_type != SHT_NOBITS && section->sh_offset + section->sh_size > end)
            end = section->sh_offset + section->sh_size;
    }
    return end;
}

// The driver has just accepted the image, so it's valid, but its headers may claim more than is there.
// Return the number of characters in a text, or in the part of it that can be read: cuLibraryLoadData accepts
// any image without looking at it, so it may be no text and have no end.
static uint64_t text_size(const char *text) {
    enum { PAGE = 4096 };
    for (uint64_t size = 0;;) {
        size_t left = PAGE - ((uintptr_t)text + size) % PAGE;
        const char *end = hook_is_readable(text + size, 1) ? memchr(text + size, 0, left) : text + size;
        if (end)
            return (uint64_t)(end - text);
        size += left;
    }
}

struct image hook_read_image(const void *start) {
    struct fatbin_wrapper wrapper;
    struct fatbin_region region;
    Elf64_Ehdr head;
    if (hook_peek(start, &wrapper, sizeof(wrapper)) && wrapper.magic == FATBIN_WRAPPER_MAGIC)
        start = wrapper.data;
    if (hook_peek(start, &region, sizeof(region)) && region.magic == FATBIN_MAGIC)
        return (struct image){"fatbin", start, region.header_size + region.size};
    if (hook_peek(start, &head, sizeof(head)) && !memcmp(head.e_ident, ELFMAG, SELFMAG))
        return (struct image){"cubin", start, elf_size(start, &head)};
    return (struct image){"ptx", start, text_size(start)};
}

// Return whether to digest an image that's in a file and can be found there again. The driver reads little of
// it; a digest reads all of it, and a starting program shouldn't have to wait for that.
static bool may_digest(uint64_t size) {
    static _Atomic uint64_t spent;
    return size <= MAX_DIGEST && atomic_fetch_add(&spent, size) + size <= MAX_DIGESTS;
}

// Return the id of its record, or 0 if nothing is recorded. A module belongs to the context it was loaded
// into, a library to none.
static uint32_t add_module(const struct frame *frame, const void *image, uint64_t size) {
    bool library = !strncmp(frame->slot->symbol, "cuLibrary", strlen("cuLibrary"));
    struct object_facts facts = {
        .kind = library ? OBJECT_LIBRARY : OBJECT_MODULE,
        .handle = out(frame),
        .context = library ? 0 : hook_current_context(),
        .image = image,
        .image_size = size,
        .id = hook_this_thread() ? hook_new_id(&hook_watched->modules) : 0,
        .made = true,
    };
    hook_object_add(&facts);
    return facts.id;
}

void hook_on_module_image(struct frame *frame) {
    const void *given = (const void *)frame_arg(frame, 1);
    if (!given)
        return;
    struct image image = hook_read_image(given);
    uint32_t id = add_module(frame, image.start, image.size);
    if (!id)
        return;
    char buffer[4096], digest[65];
    uint64_t offset = 0;
    const char *path = hook_find_file(image.start, &offset, buffer, sizeof(buffer)), *saved = NULL;
    const char *loader = path ? NULL : hook_find_library((const void *)frame_caller(frame));
    bool digested = (!path || may_digest(image.size)) && hook_is_readable(image.start, image.size);
    if (digested)
        gpt_sha256(image.start, image.size, digest);
    if (!path && digested)
        saved = hook_save_image(image.start, image.size, digest, image.type, buffer);
    HOOK_WRITE(module, .id = id, .type = hook_str(image.type), .sha256 = hook_str(digested ? digest : NULL),
               .path = hook_str(path), .offset = {path != NULL, offset}, .size = GPT_U64(image.size),
               .saved = hook_str(saved), .loader = hook_str(loader));
}

static bool digest_file(int file, size_t size, char digest[65]) {
    void *data = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED)
        return false;
    bool whole = pread(file, data, size, 0) == (ssize_t)size;
    if (whole)
        gpt_sha256(data, size, digest);
    munmap(data, size);
    return whole;
}

void hook_on_module_file(struct frame *frame) {
    const char *given = (const char *)frame_arg(frame, 1);
    uint32_t id = given ? add_module(frame, NULL, 0) : 0;
    if (!id)
        return;

    char path[4096];
    size_t size = 0;
    if (*given != '/' && getcwd(path, sizeof(path) - 1)) {
        size = strlen(path);
        path[size++] = '/';
    }
    snprintf(path + size, sizeof(path) - size, "%s", given);
    unsigned char magic[4] = {0};
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    ssize_t got = file < 0 ? 0 : pread(file, magic, 4, 0);
    off_t bytes = file < 0 ? 0 : lseek(file, 0, SEEK_END);
    char digest[65];
    bool digested = bytes > 0 && may_digest((uint64_t)bytes) && digest_file(file, (size_t)bytes, digest);
    if (file >= 0)
        close(file);
    uint32_t word;
    memcpy(&word, magic, 4);
    const char *type = got == 4 && word == FATBIN_MAGIC              ? "fatbin"
                       : got == 4 && !memcmp(magic, ELFMAG, SELFMAG) ? "cubin"
                                                                     : "ptx";
    HOOK_WRITE(module, .id = id, .type = hook_str(type), .sha256 = hook_str(digested ? digest : NULL),
               .path = hook_str(path), .offset = GPT_U64(0), .size = {bytes > 0, (uint64_t)bytes});
}

// cuLibraryGetModule: another handle for the library.
void hook_on_library_module(struct frame *frame) {
    hook_object_add(&(struct object_facts){.kind = OBJECT_MODULE,
                                           .handle = out(frame),
                                           .parent = frame_arg(frame, 1),
                                           .context = hook_current_context()});
}

// cuModuleUnload, cuLibraryUnload, cuGraphDestroy, cuGraphExecDestroy. Another thread may get the same handle
// before this call returns.
void hook_before_gone(struct frame *frame) {
    frame->note = (struct note){NOTE_GENERATION, {.number = hook_object_generation()}};
}

void hook_on_gone(struct frame *frame) {
    hook_object_gone(frame_arg(frame, 0), frame_note_number(frame, NOTE_GENERATION));
}

// Functions

// Write a function's record unless it has one. Returns its id, or 0.
static uint32_t name_function(uint64_t handle, const char *name) {
    struct object_view view;
    if (!hook_object_look(handle, &view) || view.id || !hook_this_thread())
        return view.id;
    uint32_t id = hook_new_id(&hook_watched->functions);
    return HOOK_WRITE(function, .id = id, .module = {view.module != 0, view.module}, .name = hook_str(name))
               ? hook_object_set_id(view.reference, id)
               : 0;
}

static void add_function(enum object_kind kind, uint64_t handle, uint64_t parent, const char *name) {
    hook_object_add(&(struct object_facts){.kind = kind, .handle = handle, .parent = parent, .name = name});
}

// cuModuleGetFunction
void hook_on_function(struct frame *frame) {
    const char *name = (const char *)frame_arg(frame, 2);
    add_function(OBJECT_FUNCTION, out(frame), frame_arg(frame, 1), name);
    if (name)
        name_function(out(frame), name);
}

// cuLibraryGetKernel
void hook_on_kernel(struct frame *frame) {
    const char *name = (const char *)frame_arg(frame, 2);
    add_function(OBJECT_KERNEL, out(frame), frame_arg(frame, 1), name);
    if (name)
        name_function(out(frame), name);
}

// cuKernelGetFunction: the kernel in the current context, with the kernel's id.
void hook_on_kernel_function(struct frame *frame) {
    struct object_view kernel;
    if (hook_object_look(frame_arg(frame, 1), &kernel))
        hook_object_add(&(struct object_facts){.kind = OBJECT_FUNCTION,
                                               .handle = out(frame),
                                               .parent = frame_arg(frame, 1),
                                               .context = hook_current_context(),
                                               .id = kernel.id});
}

// Functions found by enumeration and through private tables come without a name. For a function that was just
// launched, the driver tells us its name and owner.
uint32_t hook_ask_function(uint64_t handle) {
    CUresult (*function_name)(const char **, uint64_t), (*kernel_name)(const char **, uint64_t);
    CUresult (*function_module)(uint64_t *, uint64_t), (*kernel_library)(uint64_t *, uint64_t);
    struct object_view view;
    bool known = hook_object_look(handle, &view);
    if (view.id || view.asked)
        return view.id;
    HOOK_HOLD_SIGNALS;
    int error = errno;
#define FIND(pointer, name) ((pointer) = (__typeof__(pointer))(uintptr_t)hook_driver_function(name))
    FIND(kernel_name, "cuKernelGetName");
    FIND(kernel_library, "cuKernelGetLibrary");
    FIND(function_module, "cuFuncGetModule");
    FIND(function_name, "cuFuncGetName");
    struct object_facts facts = {.kind = OBJECT_FUNCTION, .handle = handle, .asked = true};
    if (function_name && function_name(&facts.name, handle) == CUDA_SUCCESS && facts.name) {
        if (function_module)
            function_module(&facts.parent, handle);
    } else if (kernel_name && kernel_name(&facts.name, handle) == CUDA_SUCCESS && facts.name)
        facts.kind = OBJECT_KERNEL;
    else
        facts.name = NULL;
    if (facts.name && !facts.parent && kernel_library)
        kernel_library(&facts.parent, handle);
    if (known) {
        facts.kind = view.kind;
        facts.parent = view.parent;
    } else
        facts.context = facts.kind == OBJECT_FUNCTION ? hook_current_context() : 0;
    hook_object_add(&facts);
    uint32_t id = facts.name ? name_function(handle, facts.name) : 0;
    errno = error;
    return id;
}

static void look(uint64_t handle, const char *what, const char *name) {
    struct object_view view;
    hook_object_look(handle, &view);
    if (hook_this_thread())
        HOOK_WRITE(lookup, .module = view.id, .what = hook_str(what), .name = hook_str(name));
}

// Enumerated handles may be reused ones. We ask for their number, because the rest of the program's array is
// unchanged.
static void enumerate(const struct frame *frame, enum object_kind kind, const char *counter) {
    const uint64_t *handles = (const uint64_t *)frame_arg(frame, 0);
    CUresult (*ask)(unsigned *, uint64_t) = hook_driver_function(counter);
    unsigned count = 0;
    look(frame_arg(frame, 2), "enumerate", NULL);
    if (!handles || !ask || ask(&count, frame_arg(frame, 2)) != CUDA_SUCCESS)
        return;
    for (unsigned i = 0; i < count && i < (unsigned)frame_arg(frame, 1); i++)
        add_function(kind, handles[i], frame_arg(frame, 2), NULL);
}

void hook_on_enumerate_functions(struct frame *frame) {
    enumerate(frame, OBJECT_FUNCTION, "cuModuleGetFunctionCount");
}

void hook_on_enumerate_kernels(struct frame *frame) {
    enumerate(frame, OBJECT_KERNEL, "cuLibraryGetKernelCount");
}

// Variables

uint64_t hook_whole_module(uint64_t module) {
    struct object_view view;
    return hook_object_look(module, &view) && view.parent ? view.parent : module;
}

// Functions whose arguments end with the module and the name of a variable.
void hook_on_variable_of_1(struct frame *frame) {
    look(frame_arg(frame, 1), "variable", (const char *)frame_arg(frame, 2));
}

// cuModuleGetGlobal and the like, which return the address and the size. The older function without a suffix
// returns 32-bit ones.
void hook_on_variable_of_2(struct frame *frame) {
    const uint64_t *address = (const uint64_t *)frame_arg(frame, 0),
                   *size = (const uint64_t *)frame_arg(frame, 1);
    const char *name = (const char *)frame_arg(frame, 3);
    look(frame_arg(frame, 2), "variable", name);
    if (name && address && strcmp(frame->slot->symbol, "cuModuleGetGlobal"))
        hook_object_set(hook_whole_module(frame_arg(frame, 2)), &(struct property){.what = PROPERTY_VARIABLE,
                                                                                   .device = -1,
                                                                                   .value = *address,
                                                                                   .size = size ? *size : 0,
                                                                                   .name = name});
}

// Attributes

static void set_attribute(uint64_t handle, int what, uint64_t number, uint64_t value, int device) {
    hook_object_set(handle, &(struct property){
                                .what = what, .number = number, .device = device, .value = (uint32_t)value});
}

// cuFuncSetAttribute(function, attribute, value)
void hook_on_function_attribute(struct frame *frame) {
    set_attribute(frame_arg(frame, 0), PROPERTY_ATTRIBUTE, (uint32_t)frame_arg(frame, 1), frame_arg(frame, 2),
                  -1);
}

// cuKernelSetAttribute(attribute, value, kernel, device)
void hook_on_kernel_attribute(struct frame *frame) {
    set_attribute(frame_arg(frame, 2), PROPERTY_ATTRIBUTE, (uint32_t)frame_arg(frame, 0), frame_arg(frame, 1),
                  (int)frame_arg(frame, 3));
}

// cuFuncSetCacheConfig(function, config)
void hook_on_function_cache(struct frame *frame) {
    set_attribute(frame_arg(frame, 0), PROPERTY_CACHE_CONFIG, 0, frame_arg(frame, 1), -1);
}

// cuKernelSetCacheConfig(kernel, config, device)
void hook_on_kernel_cache(struct frame *frame) {
    set_attribute(frame_arg(frame, 0), PROPERTY_CACHE_CONFIG, 0, frame_arg(frame, 1),
                  (int)frame_arg(frame, 2));
}

// cuFuncSetSharedMemConfig(function, config)
void hook_on_function_shared(struct frame *frame) {
    set_attribute(frame_arg(frame, 0), PROPERTY_SHARED_CONFIG, 0, frame_arg(frame, 1), -1);
}

// Parameters

// Ask the driver for the layout of a function's or kernel's parameters, and keep it as properties. Returns
// their number, or -1 if the driver can't tell (before CUDA 12.4).
int hook_ask_parameters(uint64_t handle) {
    struct object_view view;
    hook_object_look(handle, &view);
    bool kernel = view.kind == OBJECT_KERNEL;
    CUresult (*ask)(uint64_t, size_t, size_t *, size_t *) =
        hook_driver_function(kernel ? "cuKernelGetParamInfo" : "cuFuncGetParamInfo");
    size_t offset, size;
    int count = 0;
    while (ask && ask(handle, (size_t)count, &offset, &size) == CUDA_SUCCESS)
        hook_object_set(handle, &(struct property){.what = PROPERTY_PARAMETER,
                                                   .number = (uint64_t)count++,
                                                   .device = -1,
                                                   .value = offset,
                                                   .size = size});
    return ask ? count : -1;
}

// -- Saved images ----------------------------------------------------------
//
// --save-modules DIR: saves each image that isn't in a file to a file named by its digest. We write a
// temporary file and rename it, so a file with the final name is complete; if it already exists, we keep it.
// A process killed in between leaves a hidden file.

static const char *folder;

void hook_save_setup(void) { folder = hook_keep_variable("GPT_HOOK_MODULES"); }

static bool write_all(int file, const char *data, size_t size) {
    while (size) {
        ssize_t done = gpt_write_quietly(file, data, size);
        if (done < 0 && errno != EINTR)
            return false;
        if (done > 0)
            data += done, size -= (size_t)done;
    }
    return true;
}

// Return whether we've saved it already. In a shared folder another user may have put something else there,
// which we replace.
static bool is_saved(const char *path) {
    struct stat status;
    return gpt_is_own(AT_FDCWD, path, &status) && !(status.st_mode & (S_IWGRP | S_IWOTH));
}

// Return the path of the saved image, or NULL if it couldn't be saved.
const char *hook_save_image(const void *data, size_t size, const char *digest, const char *type,
                            char path[4096]) {
    static _Atomic bool complained;
    char part[GPT_PART_BYTES];
    if (!folder || snprintf(path, 4096, "%s/%s.%s", folder, digest, type) >= 4096 - 64)
        return NULL;
    if (is_saved(path))
        return path;
    int place = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    int file = place < 0 ? -1 : gpt_create_part(place, part, 0644);
    bool good = file >= 0 && hook_may_grow(size) && write_all(file, data, size);
    good = file >= 0 && !close(file) && good && !renameat(place, part, place, strrchr(path, '/') + 1);
    int error = errno;
    if (file >= 0 && !good)
        unlinkat(place, part, 0);
    if (place >= 0)
        close(place);
    if (good)
        return path;
    const char *fact = hook_describe_error(error);
    if (!atomic_exchange(&complained, true))
        hook_say(path, fact ? fact : "unknown error", "it is not saved");
    return NULL;
}
