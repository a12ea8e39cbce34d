// The shared libraries of the process, in `library` records, with those that were closed before the end;
// where in a file an address is; and the devices, in `device` records.

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "../build_id.h"
#include "build_id.h"
#include "cuda_abi.h"
#include "hook.h"

// A library slimmed by gpt-patch has up to a thousand segments, and as many sections more than before.
#define MAX_SECTIONS 4096
#define MAX_HEADERS 1024

// Bytes of the file's sections of GPU code. Section headers are in the file only.
static uint64_t gpu_bytes(int file) {
    Elf64_Ehdr head;
    if (pread(file, &head, sizeof(head), 0) != sizeof(head) || memcmp(head.e_ident, ELFMAG, SELFMAG) ||
        head.e_shentsize != sizeof(Elf64_Shdr) || head.e_shnum > MAX_SECTIONS ||
        head.e_shstrndx >= head.e_shnum)
        return 0;
    static Elf64_Shdr sections[64], strings; // one thread at a time, whose stack may be small
    static char names[16 << 10];
    off_t table = (off_t)head.e_shoff;
    if (pread(file, &strings, sizeof(strings), table + head.e_shstrndx * (off_t)sizeof(strings)) !=
        sizeof(strings))
        return 0;
    size_t size = strings.sh_size < sizeof(names) - 1 ? strings.sh_size : sizeof(names) - 1;
    if (pread(file, names, size, (off_t)strings.sh_offset) != (ssize_t)size)
        return 0;
    names[size] = '\0';
    uint64_t bytes = 0;
    for (int first = 0; first < head.e_shnum; first += 64) {
        int count = head.e_shnum - first < 64 ? head.e_shnum - first : 64;
        ssize_t part = count * (ssize_t)sizeof(*sections);
        if (pread(file, sections, (size_t)part, table + first * (off_t)sizeof(*sections)) != part)
            return 0;
        for (const Elf64_Shdr *section = sections; section < sections + count; section++)
            if (section->sh_name < size && (!strcmp(names + section->sh_name, ".nv_fatbin") ||
                                            !strcmp(names + section->sh_name, "__nv_relfatbin")))
                bytes += section->sh_size;
    }
    return bytes;
}

bool hook_peek(const void *from, void *into, size_t size) {
    struct iovec here = {into, size}, there = {(void *)from, size};
    return process_vm_readv(getpid(), &here, 1, &there, 1, 0) == (ssize_t)size;
}

bool hook_is_readable(const void *start, size_t size) {
    uintptr_t at = (uintptr_t)start, end;
    if (__builtin_add_overflow(at, size, &end))
        return false;
    while (at < end) { // a byte of each page
        char bytes[256];
        struct iovec there[sizeof(bytes)], here = {bytes, 0};
        for (; at < end && here.iov_len < sizeof(bytes); at = (at | 4095) + 1)
            there[here.iov_len++] = (struct iovec){(void *)at, 1};
        if (process_vm_readv(getpid(), &here, 1, there, here.iov_len, 0) != (ssize_t)here.iov_len)
            return false;
    }
    return true;
}

static void find_build_id(const struct dl_phdr_info *info, char hex[2 * GPT_BUILD_ID + 1]) {
    static unsigned char notes[4096];
    *hex = '\0';
    for (int i = 0; i < info->dlpi_phnum && !*hex; i++) {
        const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
        size_t room = segment->p_memsz < sizeof(notes) ? segment->p_memsz : sizeof(notes);
        if (segment->p_type != PT_NOTE ||
            !hook_peek((void *)(info->dlpi_addr + segment->p_vaddr), notes, room))
            continue;
        const unsigned char *id;
        size_t size = gpt_find_build_id(notes, room, segment->p_align, &id);
        for (size_t j = 0; j < size; j++)
            sprintf(hex + 2 * j, "%02x", id[j]);
    }
}

static void set_segments(struct library *library, const struct dl_phdr_info *info) {
    unsigned count = 0;
    for (int i = 0; i < info->dlpi_phnum && count < MAX_SEGMENTS; i++) {
        const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
        if (segment->p_type != PT_LOAD)
            continue;
        uint64_t start = info->dlpi_addr + segment->p_vaddr;
        library->segments[count].start = start;
        library->segments[count].offset = segment->p_offset;
        library->segments[count++].end = start + segment->p_filesz;
    }
    library->count = count;
}

static void record_library(const struct dl_phdr_info *info, const char *path, const char *replaces) {
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat status;
    if (file >= 0 && !fstat(file, &status) && S_ISREG(status.st_mode)) {
        char build_id[2 * GPT_BUILD_ID + 1];
        find_build_id(info, build_id);
        uint64_t gpu = gpu_bytes(file);
        HOOK_WRITE(library, .path = hook_str(path), .type = GPT_STR("elf"), .size = (uint64_t)status.st_size,
                   .build_id = hook_str(*build_id ? build_id : NULL), .machine = GPT_STR("x86_64"),
                   .gpu = {gpu != 0, gpu}, .replaces = hook_str(replaces));
    }
    if (file >= 0)
        close(file);
}

static const char *keep_path(const char *path) {
    struct live *live = hook_live;
    size_t length = strlen(path) + 1;
    if (live->paths_used + length > PATH_BYTES)
        return NULL;
    char *kept = memcpy(live->paths + live->paths_used, path, length);
    live->paths_used += (uint32_t)length;
    return kept;
}

// Takes in a library, one thread at a time.
static int add_library(const struct dl_phdr_info *info, uint64_t mapping) {
    struct live *live = hook_live;
    static char program[4096], other[4096];
    char *path = (char *)info->dlpi_name;
    if (!path || !*path) {
        ssize_t length = readlink("/proc/self/exe", program, sizeof(program) - 1);
        if (length <= 0)
            return 0;
        program[length] = '\0';
        path = program;
    }
    if (!strchr(path, '/') || !strncmp(path, "linux-vdso", 10))
        return 0;
    if (*path != '/' && (path = realpath(path, program)) == NULL)
        return 0;
    uint32_t count = atomic_load(&live->libraries);
    for (uint32_t i = 0; i < count; i++)
        if (!strcmp(live->library[i].path, path) ||
            (live->library[i].replaces && !strcmp(live->library[i].replaces, path))) {
            set_segments(&live->library[i], info); // it may have come back elsewhere
            live->library[i].mapping = mapping;
            return 0;
        }
    if (count == MAX_LIBRARIES)
        return 0;
    struct library *library = &live->library[count];
    set_segments(library, info);
    bool replaced = hook_find_replaced((void *)library->segments[0].start, path, other, sizeof(other));
    const char *kept = keep_path(replaced ? other : path), *replaces = replaced ? keep_path(path) : NULL;
    if (!kept)
        return 0;
    library->path = kept;
    library->replaces = replaces;
    library->mapping = mapping;
    atomic_store(&live->libraries, count + 1);
    record_library(info, library->path, library->replaces);
    return 0;
}

static int see_library(struct dl_phdr_info *info, size_t size, void *at) {
    bool *first = at;
    if (size >= offsetof(struct dl_phdr_info, dlpi_subs) + sizeof(info->dlpi_subs) && *first) {
        *first = false;
        if (hook_live->libraries_added == info->dlpi_adds)
            return 1; // nothing was loaded since
        hook_live->libraries_added = info->dlpi_adds;
        hook_begin_replaced();
    }
    return add_library(info, 0);
}

static bool is_known(uint64_t mapping) {
    for (uint32_t i = 0; i < atomic_load(&hook_live->libraries); i++)
        if (hook_live->library[i].mapping == mapping)
            return true;
    return false;
}

// A library, if the dynamic linker knows what is mapped there.
static void see_mapping(const char *start, uint64_t mapping) {
    static ElfW(Phdr) segments[MAX_HEADERS];
    ElfW(Ehdr) head;
    Dl_info found;
    struct link_map *map = NULL;
    if (is_known(mapping) || !hook_peek(start, &head, sizeof(head)) ||
        memcmp(head.e_ident, ELFMAG, SELFMAG) || !head.e_phnum || head.e_phnum > MAX_HEADERS ||
        !hook_peek((void *)((uintptr_t)start + head.e_phoff), segments, head.e_phnum * sizeof(*segments)) ||
        !dladdr1(start, &found, (void **)&map, RTLD_DL_LINKMAP) || !map)
        return;
    add_library(&(struct dl_phdr_info){.dlpi_addr = map->l_addr,
                                       .dlpi_name = map->l_name,
                                       .dlpi_phdr = segments,
                                       .dlpi_phnum = head.e_phnum},
                mapping);
}

// What the kernel says. In a forked child dl_iterate_phdr may wait for a thread that is not there.
static void scan_mappings(void) {
    if (atomic_exchange(&hook_live->scanning, 1))
        return;
    for (const char *line = hook_read_maps(), *next; *line; line = next) {
        next = line + strcspn(line, "\n");
        uint64_t digest = 14695981039346656037u;
        for (const char *c = line; c < next; c++)
            digest = (digest ^ (unsigned char)*c) * 1099511628211u;
        char *after;
        uintptr_t start = strtoul(line, &after, 16);
        strtoul(after + 1, &after, 16);
        bool first = !strtoul(after + strlen(" r-xp "), NULL, 16); // at the file's beginning
        if (first && memchr(line, '/', (size_t)(next - line)))
            see_mapping((const char *)start, digest | 1);
        next += *next == '\n';
    }
    atomic_store(&hook_live->scanning, 0);
}

void hook_scan_libraries(void) {
    HOOK_CALM;
    bool first = true;
    if (!hook_this_thread())
        return;
    if (hook_is_forked())
        scan_mappings();
    else
        dl_iterate_phdr(see_library, &first);
}

static const char *find_library(uint64_t at, uint64_t *offset) {
    for (uint32_t i = atomic_load(&hook_live->libraries); i-- > 0;) {
        const struct library *library = &hook_live->library[i];
        for (unsigned j = 0; j < library->count; j++)
            if (at >= library->segments[j].start && at < library->segments[j].end) {
                *offset = at - library->segments[j].start + library->segments[j].offset;
                return library->path;
            }
    }
    return NULL;
}

const char *hook_find_library(const void *address) {
    uint64_t offset;
    return find_library((uint64_t)address, &offset);
}

// The file that is mapped at an address, and the offset in it.
const char *hook_find_file(const void *address, uint64_t *offset, char *buffer, size_t size) {
    uint64_t at = (uint64_t)address;
    const char *path = find_library(at, offset);
    if (path)
        return path;
    FILE *maps = fopen("/proc/self/maps", "re"); // a file that the program mapped itself
    const char *found = NULL;
    while (maps && !found && fgets(buffer, (int)size, maps)) {
        unsigned long start, end, from;
        int path = 0;
        if (sscanf(buffer, "%lx-%lx %*s %lx %*s %*s %n", &start, &end, &from, &path) == 3 && path &&
            at >= start && at < end) {
            buffer[strcspn(buffer, "\n")] = '\0';
            if (buffer[path] != '/' || strstr(buffer + path, " (deleted)") ||
                !strncmp(buffer + path, "/dev/", 5) || !strncmp(buffer + path, "/memfd:", 7))
                break;
            *offset = at - start + from;
            found = buffer + path;
        }
    }
    if (maps)
        fclose(maps);
    return found;
}

// Devices. What is asked of the driver here changes nothing that the program could see.

void hook_see_device(int device) {
    if (device < 0 || device >= MAX_DEVICES || !hook_this_thread() ||
        atomic_fetch_or(&hook_live->devices, 1ull << device) >> device & 1)
        return;
    CUresult (*attribute)(int *, int, CUdevice) = hook_driver_function("cuDeviceGetAttribute");
    CUresult (*get_name)(char *, int, CUdevice) = hook_driver_function("cuDeviceGetName");
    CUresult (*get_uuid)(CUuuid *, CUdevice) = hook_driver_function("cuDeviceGetUuid_v2");
    int major, minor;
    if (!attribute || attribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device) ||
        attribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device))
        return;
    char name[256] = "", arch[32], text[64] = "";
    if (get_name && get_name(name, sizeof(name) - 1, device))
        name[0] = '\0';
    snprintf(arch, sizeof(arch), "sm_%d%d", major, minor);
    CUuuid uuid;
    if (get_uuid && !get_uuid(&uuid, device)) {
        int at = sprintf(text, "GPU");
        for (int i = 0; i < 16; i++)
            at += sprintf(text + at, "%s%02x", i == 0 || (i >= 4 && i <= 10 && i % 2 == 0) ? "-" : "",
                          (unsigned char)uuid.bytes[i]);
    }
    HOOK_WRITE(device, .index = (uint64_t)device, .name = hook_str(name), .arch = hook_str(arch),
               .uuid = hook_str(*text ? text : NULL),
               .runs = hook_str(hook_driver_is_simulated() ? "ptx" : "sass"));
}
