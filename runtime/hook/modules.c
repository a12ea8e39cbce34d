// Handlers of the functions that load GPU code and look into it: `module`, `function` and `lookup` records.

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cuda_abi.h"
#include "hook.h"

// A place for the key in the map, or NULL where there is none.
_Atomic uint64_t *hook_map_find(struct map *map, uint64_t key, bool insert) {
    if (!key)
        return NULL;
    uint64_t at = (key * 0x9e3779b97f4a7c15u) >> 40;
    for (unsigned tries = 0; tries < 256; tries++, at++) {
        uint64_t found = atomic_load_explicit(&map->keys[at % MAP_ENTRIES], memory_order_acquire);
        if (!found && insert &&
            (atomic_compare_exchange_strong(&map->keys[at % MAP_ENTRIES], &found, key) || found == key))
            return &map->values[at % MAP_ENTRIES];
        if (found == key)
            return &map->values[at % MAP_ENTRIES];
        if (!found)
            return NULL;
    }
    return NULL;
}

static void set(struct map *map, uint64_t key, uint64_t value) {
    _Atomic uint64_t *place = hook_map_find(map, key, true);
    if (place)
        atomic_store(place, value);
}

static uint64_t get(struct map *map, uint64_t key) {
    _Atomic uint64_t *place = hook_map_find(map, key, false);
    return place ? atomic_load(place) : 0;
}

static uint64_t out(const struct frame *frame) { // the handle that the function gave
    const uint64_t *handle = (const uint64_t *)frame->args[0];
    return handle ? *handle : 0;
}

// Images

#define MAX_DIGEST (4u << 20)   // bytes of an image in a file that is digested
#define MAX_DIGESTS (32u << 20) // and of all of them

struct image {
    const char *type;
    const void *start;
    uint64_t size;
};

static uint64_t elf_size(const char *start, const Elf64_Ehdr *head) {
    Elf64_Shdr sections[32]; // at a time: the stack may be small
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

// The driver has just read the image, so it is one. But its headers may claim more than is there.
static struct image read_image(const void *start) {
    struct fatbin_wrapper wrapper;
    struct fatbin_region region;
    Elf64_Ehdr head;
    if (hook_peek(start, &wrapper, sizeof(wrapper)) && wrapper.magic == FATBIN_WRAPPER_MAGIC)
        start = wrapper.data;
    if (hook_peek(start, &region, sizeof(region)) && region.magic == FATBIN_MAGIC)
        return (struct image){"fatbin", start, region.header_size + region.size};
    if (hook_peek(start, &head, sizeof(head)) && !memcmp(head.e_ident, ELFMAG, SELFMAG))
        return (struct image){"cubin", start, elf_size(start, &head)};
    return (struct image){"ptx", start, strlen(start)};
}

// Whether to digest an image that lies in a file and can be found there again. The driver reads little of it;
// a digest reads all of it in, for which a program that starts should not wait.
static bool may_digest(uint64_t size) {
    static _Atomic uint64_t spent;
    return size <= MAX_DIGEST && atomic_fetch_add(&spent, size) + size <= MAX_DIGESTS;
}

void hook_on_module_image(struct frame *frame) {
    const void *given = (const void *)frame->args[1];
    if (!given || !hook_this_thread())
        return;
    uint32_t id = atomic_fetch_add(&hook_live->modules, 1) + 1;
    set(&hook_live->module_ids, out(frame), id);
    hook_scan_libraries();

    struct image image = read_image(given);
    hook_set_image(out(frame), image.start);
    char buffer[4096], digest[65];
    uint64_t offset = 0;
    const char *path = hook_find_file(image.start, &offset, buffer, sizeof(buffer)), *saved = NULL;
    const char *loader = path ? NULL : hook_find_library((const void *)frame_caller(frame));
    bool digested = (!path || may_digest(image.size)) && hook_is_readable(image.start, image.size);
    if (digested)
        hook_sha256(image.start, image.size, digest);
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
        hook_sha256(data, size, digest);
    munmap(data, size);
    return whole;
}

void hook_on_module_file(struct frame *frame) {
    const char *given = (const char *)frame->args[1];
    if (!given || !hook_this_thread())
        return;
    uint32_t id = atomic_fetch_add(&hook_live->modules, 1) + 1;
    set(&hook_live->module_ids, out(frame), id);

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

// cuLibraryGetModule: one more handle of the library.
void hook_on_library_module(struct frame *frame) {
    set(&hook_live->module_ids, out(frame), get(&hook_live->module_ids, frame->args[1]));
    hook_share_image(out(frame), frame->args[1]);
}

// Functions

static uint32_t hash_name(const char *name) {
    uint32_t hash = 2166136261u;
    for (; *name; name++)
        hash = (hash ^ (unsigned char)*name) * 16777619u;
    return hash;
}

uint32_t hook_function_of(uint64_t handle) { return (uint32_t)get(&hook_live->function_ids, handle); }

// A handle of the function, or 0. Looks at all of them.
uint64_t hook_handle_of(uint32_t function) {
    struct map *map = &hook_live->function_ids;
    for (uint32_t i = 0; function && i < MAP_ENTRIES; i++)
        if ((uint32_t)atomic_load_explicit(&map->values[i], memory_order_relaxed) == function)
            return atomic_load(&map->keys[i]);
    return 0;
}

// cuModuleGetFunction, cuLibraryGetKernel. A handle may be looked up again and again, and may come to stand
// for another function once its module is gone.
static uint32_t name_function(uint64_t handle, uint64_t module, const char *name) {
    uint64_t hash = hash_name(name) ^ (uint32_t)(module * 2654435761u);
    uint64_t known = get(&hook_live->function_ids, handle);
    if (known && known >> 32 == hash)
        return (uint32_t)known;
    uint32_t id = atomic_fetch_add(&hook_live->functions, 1) + 1;
    if (!HOOK_WRITE(function, .id = id, .module = {module != 0, module}, .name = hook_str(name)))
        return 0;
    set(&hook_live->function_ids, handle, hash << 32 | id);
    if (known)
        atomic_fetch_add(&hook_live->renamed, 1);
    return id;
}

void hook_on_function(struct frame *frame) {
    const char *name = (const char *)frame->args[2];
    if (name && hook_this_thread()) {
        name_function(out(frame), get(&hook_live->module_ids, frame->args[1]), name);
        hook_share_image(out(frame), frame->args[1]);
    }
}

// Functions are found by enumeration, and through private tables, without a name. The driver tells it, of
// those that it has just launched.
uint32_t hook_ask_function(uint64_t handle) {
    static CUresult (*function_name)(const char **, uint64_t), (*kernel_name)(const char **, uint64_t);
    uint64_t known = get(&hook_live->function_ids, handle);
    if (known)
        return (uint32_t)known;
    int error = errno;
    if (!function_name) {
        kernel_name = (CUresult (*)(const char **, uint64_t))hook_driver_function("cuKernelGetName");
        function_name = (CUresult (*)(const char **, uint64_t))hook_driver_function("cuFuncGetName");
    }
    const char *name = NULL;
    uint32_t id = 0;
    if ((function_name && function_name(&name, handle) == CUDA_SUCCESS && name) ||
        (kernel_name && kernel_name(&name, handle) == CUDA_SUCCESS && name))
        id = name_function(handle, 0, name);
    else
        set(&hook_live->function_ids, handle, 1ull << 63); // not to be asked for again
    errno = error;
    return id;
}

// cuKernelGetFunction: one more handle of the kernel.
void hook_on_kernel_function(struct frame *frame) {
    uint64_t value = get(&hook_live->function_ids, frame->args[1]);
    if (value)
        set(&hook_live->function_ids, out(frame), value);
    hook_share_image(out(frame), frame->args[1]);
}

static void look(uint64_t handle, const char *what, const char *name) {
    HOOK_WRITE(lookup, .module = get(&hook_live->module_ids, handle), .what = hook_str(what),
               .name = hook_str(name));
}

// cuModuleEnumerateFunctions, cuLibraryEnumerateKernels
void hook_on_enumerate(struct frame *frame) { look(frame->args[2], "enumerate", NULL); }

// Functions whose arguments end with the module and the name of a variable.
void hook_on_variable_of_1(struct frame *frame) {
    look(frame->args[1], "variable", (const char *)frame->args[2]);
}

void hook_on_variable_of_2(struct frame *frame) {
    look(frame->args[2], "variable", (const char *)frame->args[3]);
}
